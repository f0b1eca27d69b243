"""Modules and names that programs for Fluid import, with `fluid.static` in place of `paddle.fluid`."""

import importlib

import numpy as np
import pytest
from static.both_styles import fresh

import fluid.static as fluid
from fluid import errors
from fluid.static import layers

# Names in `__all__` of the modules in `python/paddle/fluid` of PaddlePaddle 1.8, and of `trainer` in 0.15; without the
# names that fluid refuses.
ORIGINAL = {
    "average": "WeightedAverage",
    "backward": "append_backward gradients",
    "contrib": "memory_usage basic_lstm basic_gru BasicLSTMUnit BasicGRUUnit trainer inferencer mixed_precision layers",
    "contrib.decoder": "InitState StateCell TrainingDecoder BeamSearchDecoder",
    "contrib.decoder.beam_search_decoder": "InitState StateCell TrainingDecoder BeamSearchDecoder",
    "contrib.inferencer": "Inferencer",
    "contrib.layers": "basic_lstm basic_gru BasicLSTMUnit BasicGRUUnit",
    "contrib.layers.rnn_impl": "basic_lstm basic_gru BasicLSTMUnit BasicGRUUnit",
    "contrib.memory_usage_calc": "memory_usage",
    "contrib.mixed_precision": "decorate AutoMixedPrecisionLists",
    "contrib.trainer": "Trainer BeginEpochEvent EndEpochEvent BeginStepEvent EndStepEvent CheckpointConfig",
    "clip": "set_gradient_clip GradientClipByValue GradientClipByNorm GradientClipByGlobalNorm",
    "compiler": "CompiledProgram ExecutionStrategy BuildStrategy",
    "data_feeder": "DataFeeder",
    "evaluator": "ChunkEvaluator EditDistance DetectionMAP",
    "executor": "Executor global_scope scope_guard",
    "framework": """Program default_startup_program default_main_program program_guard name_scope cuda_places cpu_places
        in_dygraph_mode Variable Parameter""",
    "inferencer": "Inferencer",
    "initializer": """Constant Uniform Normal TruncatedNormal Xavier Bilinear MSRA ConstantInitializer
        UniformInitializer NormalInitializer TruncatedNormalInitializer XavierInitializer BilinearInitializer
        MSRAInitializer NumpyArrayInitializer""",
    "input": "one_hot embedding",
    "io": """save_vars save_params save_persistables load_vars load_params load_persistables save_inference_model
        load_inference_model PyReader DataLoader is_parameter is_persistable""",
    "layer_helper": "LayerHelper",
    "layers.control_flow": """While Switch increment array_write create_array less_than less_equal greater_than
        greater_equal equal not_equal array_read array_length cond IfElse DynamicRNN StaticRNN Print is_empty case
        switch_case while_loop""",
    "layers.detection": """prior_box density_prior_box multi_box_head bipartite_match target_assign detection_output
        ssd_loss rpn_target_assign retinanet_target_assign sigmoid_focal_loss anchor_generator generate_proposals
        iou_similarity box_coder polygon_box_transform yolov3_loss yolo_box box_clip multiclass_nms
        retinanet_detection_output distribute_fpn_proposals box_decoder_and_assign collect_fpn_proposals""",
    "layers.device": "get_places",
    "layers.io": "data read_file double_buffer py_reader create_py_reader_by_data",
    "layers.learning_rate_scheduler": """exponential_decay natural_exp_decay inverse_time_decay polynomial_decay
        piecewise_decay noam_decay cosine_decay linear_lr_warmup""",
    "layers.loss": """center_loss bpr_loss cross_entropy square_error_cost edit_distance warpctc nce hsigmoid
        sampled_softmax_with_cross_entropy softmax_with_cross_entropy rank_loss margin_rank_loss
        sigmoid_cross_entropy_with_logits teacher_student_sigmoid_loss huber_loss kldiv_loss npair_loss mse_loss""",
    "layers.metric_op": "accuracy auc",
    "layers.nn": """fc embedding linear_chain_crf crf_decoding cos_sim chunk_eval conv2d conv3d softmax pool2d pool3d
        adaptive_pool2d batch_norm instance_norm data_norm conv2d_transpose reduce_sum reduce_mean dropout split
        l2_normalize matmul topk transpose im2sequence row_conv multiplex layer_norm group_norm spectral_norm
        smooth_l1 one_hot autoincreased_step_counter reshape squeeze unsqueeze lrn pad label_smooth roi_pool roi_align
        dice_loss image_resize resize_bilinear gather scatter relu prelu crop elu swish flatten stack expand slice
        shape elementwise_add elementwise_mul uniform_random gaussian_random sum clip mean mul maxout where sign
        unfold py_func""",
    "layers.ops": "exp tanh sqrt abs ceil floor cos sin round reciprocal square softplus softsign uniform_random",
    "layers.rnn": """RNNCell GRUCell LSTMCell Decoder BeamSearchDecoder rnn dynamic_decode dynamic_lstm dynamic_lstmp
        dynamic_gru gru_unit lstm_unit lstm beam_search beam_search_decode""",
    "layers.sequence_lod": """sequence_conv sequence_softmax sequence_pool sequence_concat sequence_first_step
        sequence_last_step sequence_slice sequence_expand sequence_expand_as sequence_pad sequence_unpad
        sequence_reshape sequence_scatter sequence_enumerate sequence_mask sequence_reverse""",
    "layers.tensor": """create_tensor create_parameter create_global_var cast concat sums assign fill_constant argmin
        argmax argsort ones zeros reverse has_inf has_nan isfinite range linspace zeros_like ones_like diag eye""",
    "lod_tensor": "create_lod_tensor create_random_int_lodtensor",
    "metrics": "MetricBase CompositeMetric Precision Recall Accuracy ChunkEvaluator EditDistance DetectionMAP Auc",
    "nets": "simple_img_conv_pool sequence_conv_pool glu scaled_dot_product_attention img_conv_group",
    "optimizer": """SGD Momentum Adagrad Adam Adamax DecayedAdagrad Ftrl SGDOptimizer MomentumOptimizer
        AdagradOptimizer AdamOptimizer AdamaxOptimizer DecayedAdagradOptimizer RMSPropOptimizer FtrlOptimizer Adadelta
        AdadeltaOptimizer ModelAverage LarsMomentum LarsMomentumOptimizer ExponentialMovingAverage LambOptimizer""",
    "parallel_executor": "ParallelExecutor ExecutionStrategy BuildStrategy",
    "param_attr": "ParamAttr WeightNormParamAttr",
    "profiler": "cuda_profiler reset_profiler profiler start_profiler stop_profiler",
    "regularizer": "L1Decay L2Decay L1DecayRegularizer L2DecayRegularizer",
    "trainer": "Trainer BeginEpochEvent EndEpochEvent BeginStepEvent EndStepEvent CheckpointConfig",
    "transpiler": "DistributeTranspiler memory_optimize release_memory DistributeTranspilerConfig",
    "unique_name": "generate switch guard",
}


@pytest.mark.parametrize("module", ORIGINAL)
def test_each_fluid_module_has_its_names(module):
    imported = importlib.import_module(f"fluid.static.{module}")
    attribute = fluid
    for part in module.split("."):
        attribute = getattr(attribute, part)
    missing = [n for n in ORIGINAL[module].split() if not (hasattr(imported, n) and hasattr(attribute, n))]
    assert not missing


@pytest.mark.parametrize(
    "line",
    [
        "from fluid.static.contrib.slim.quantization import QuantizationTransformPass",
        "from fluid.static.contrib.quantize import QuantizeTranspiler",
        "import fluid.static as fluid; fluid.contrib.slim.prune.Pruner",
    ],
)
def test_modules_for_small_models_are_refused(line):
    with pytest.raises(ImportError, match=r"does not quantize.*mixed_precision\.decorate"):
        exec(line)


def test_variables_are_true_and_comparisons_raise():
    with fresh():
        x = layers.data("x", shape=[3])
        assert x and layers.fc(x, size=1)
        with pytest.raises(TypeError, match="layers.Switch"):
            bool(x < 1.0)


def test_a_batch_size_may_be_a_quotient():
    assert [len(rows) for rows in fluid.batch(range(10), batch_size=8 / 2)()] == [4, 4, 2]
    with pytest.raises(errors.ArgumentError, match="batch_size=2.5"):
        fluid.batch(range(10), batch_size=5 / 2)


def test_dtypes_by_their_names_in_fluid():
    with fresh() as (main, _):
        ones = layers.fill_constant([2], fluid.core.VarDesc.VarType.INT64, 1)
        (found,) = fluid.Executor(fluid.CPUPlace()).run(main, fetch_list=[layers.cast(ones, "float32")])
        assert ones.dtype.startswith("int") and np.array_equal(found, [1, 1])


def test_predicates_choose_parameters():
    with fresh() as (main, _):
        layers.batch_norm(layers.fc(layers.data("x", shape=[3]), size=2, bias_attr=False))
        layers.create_global_var([1], 0.0, "float32", persistable=True, name="counter")
        names = {f"batch_norm_0.{end}" for end in ("w_0", "b_0", "w_1", "w_2")} | {"fc_0.w_0"}
        assert {v.name for v in main.list_vars() if fluid.io.is_parameter(v)} == names
        assert {v.name for v in main.list_vars() if fluid.io.is_persistable(v)} == names | {"counter"}


def test_load_vars_without_matches_warns(tmp_path):
    with fresh() as (main, startup):
        layers.fc(layers.data("x", shape=[3]), size=2)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fluid.io.save_params(exe, tmp_path, main)
        before = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
        for folder in (tmp_path, tmp_path / "nowhere"):
            with pytest.warns(errors.FluidWarning, match="nothing is loaded; fluid.io.load_params"):
                fluid.io.load_vars(exe, str(folder), main, predicate=lambda v: (folder / v.name).exists())  # noqa: B023
        np.testing.assert_array_equal(fluid.global_scope().find_var("fc_0.w_0").get_tensor(), before)


def test_profiles_are_written_where_fluid_says(tmp_path):
    with fresh() as (main, startup):
        exe = fluid.Executor(fluid.CPUPlace())
        with fluid.profiler.profiler("CPU", "total", tmp_path / "first"):
            exe.run(startup)
        fluid.profiler.start_profiler("All")
        with pytest.raises(errors.ArgumentError, match="recorded already"):
            fluid.profiler.start_profiler("All")
        fluid.profiler.reset_profiler()
        fluid.profiler.stop_profiler("total", tmp_path / "second")
        with pytest.raises(errors.ArgumentError, match="no profile is recorded"):
            fluid.profiler.stop_profiler()
        with fluid.profiler.cuda_profiler(tmp_path / "third"):
            exe.run(startup)
    for name in ("first", "second", "third"):
        assert list((tmp_path / name).rglob("*.xplane.pb"))


def test_the_counter_of_schedules_counts_runs():
    with fresh() as (main, startup):
        with main._lr_schedule_guard():
            counter = layers.learning_rate_scheduler._decay_step_counter(5)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        found = [exe.run(main, fetch_list=[counter])[0].tolist() for _ in range(3)]
    assert found == [[5.0], [6.0], [7.0]]


def test_the_queue_of_a_reader_has_a_size():
    with fresh():
        reader = layers.py_reader(8, [[-1, 2]], ["float32"])
        layers.read_file(reader)
        reader.decorate_batch_generator(lambda: iter([(np.ones((3, 2), "float32"),)]))
        assert reader.queue.size() == 0
        reader.start()
        assert reader.queue.size() == 1
        reader.reset()
        assert reader.queue.size() == 0
