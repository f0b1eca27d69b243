"""The public names, written down: adding one is a decision, losing one breaks somebody's program."""

import pytest
from public_names import MODULES, public_names

NAMES = {
    "fluid": """
        BeginEpochEvent BeginStepEvent BeginTrainEvent CPUPlace CUDAPlace Checkpoint CheckpointConfig DataFeeder
        EndEpochEvent EndStepEvent EndTrainEvent Handler History Inferencer LoDTensor Loop MeasuredEvent
        Mesh NestedSequenceBatch OnlineTrainer ParamAttr Population Program ProgressBar RemoteTrainer Results Scope
        SequenceBatch Session Trainer TrainingProgram TrainingStep WeightNormParamAttr average batch clip
        contrib core create_lod_tensor create_random_int_lodtensor data distributed draw embedding errors
        find_learning_rate frozen handlers initializer io layers metrics name_scope nets one_hot optimizer place plan
        reader regularizer serve set_compilation_cache shared summary train trainer unique_name
    """,
    "fluid.layers": """
        BasicDecoder BeamSearchDecoder DecodeHelper Decoder DynamicRNN GRUCell GreedyEmbeddingHelper LSTMCell
        Print RNNCell SampleEmbeddingHelper StaticRNN TrainingHelper abs accuracy acos adaptive_pool2d
        adaptive_pool3d add_position_encoding addmm affine_channel affine_grid anchor_generator argmax argmin
        argsort array_length array_read array_write asin assign atan attention_cache auc batch_norm beam_search
        bilinear_tensor_product bipartite_match bmm box_clip box_coder box_decoder_and_assign bpr_loss brelu
        case cast ceil center_loss chunk_eval clip clip_by_norm collect_fpn_proposals concat cond conv2d
        conv2d_transpose conv3d conv3d_transpose cos cos_sim cosine_decay create_array create_parameter
        create_state crf_decoding crop crop_tensor cross cross_entropy ctc_greedy_decoder cumsum data data_norm
        deformable_conv dense density_prior_box detection_output diag dice_loss dist distribute_fpn_proposals dot
        dropout dynamic_decode dynamic_gru dynamic_lstm dynamic_lstmp edit_distance elementwise_add
        elementwise_div elementwise_floordiv elementwise_max elementwise_min elementwise_mod elementwise_mul
        elementwise_pow elementwise_sub elu embedding equal erf exp expand expand_as exponential_decay eye fc
        feature_norm
        fill_constant fill_constant_batch_size_like fill_zeros_like flatten flip floor fsp_matrix full_like
        gather gather_nd gather_tree gaussian_random gaussian_random_batch_size_like gelu
        generate_proposal_labels generate_proposals greater_equal greater_than grid_sampler group_norm gru_unit
        hard_shrink hard_sigmoid hard_swish has_inf has_nan hsigmoid huber_loss identity im2sequence
        image_resize image_resize_short increment index_sample index_select instance_norm interpolate
        inverse_time_decay iou_similarity is_training isfinite kldiv_loss kron l2_normalize label_smooth
        layer_norm leaky_relu less_equal less_than linear_chain_crf linear_lr_warmup linspace lod_append
        lod_reset log log1p log_loss log_softmax logical_and logical_not logical_or logical_xor logsigmoid
        logsumexp lrn lstm lstm_unit margin_rank_loss matmul matrix_nms maxout mean mean_iou meshgrid metric
        mish module mse_loss mul multi_box_head multi_head_attention multiclass_nms multiplex natural_exp_decay
        nce noam_decay not_equal npair_loss one_hot ones ones_like pad pad2d pad_constant_like piecewise_decay
        pixel_shuffle polygon_box_transform polynomial_decay pool2d pool3d pow precision prelu prior_box
        prroi_pool psroi_pool py_func random_key range rank rank_loss recall reciprocal reduce_all reduce_any
        reduce_max reduce_mean reduce_min reduce_prod reduce_sum relu relu6 remat repeat reshape
        resize_bilinear resize_linear resize_nearest resize_trilinear
        retinanet_detection_output retinanet_target_assign reverse rms_norm
        rnn roi_align roi_pool roll rotary_position round row_conv rpn_target_assign rsqrt
        sampled_softmax_with_cross_entropy sampling_id scale scan scatter scatter_nd scatter_nd_add selu
        sequence_concat sequence_conv sequence_enumerate sequence_erase sequence_expand sequence_expand_as
        sequence_first_step sequence_last_step sequence_mask sequence_pad sequence_pool sequence_reshape
        sequence_reverse sequence_scatter sequence_slice sequence_softmax sequence_unpad shape shard shard_index
        shuffle_channel sigmoid sigmoid_cross_entropy_with_logits sigmoid_focal_loss sign silu sin
        sinusoidal_position size slice smooth_l1 soft_relu softmax softmax_with_cross_entropy softplus
        softshrink softsign space_to_depth spectral_norm split sqrt square square_error_cost squeeze ssd_loss
        stack stanh strided_slice sum sums swish switch_case tanh tanh_shrink target_assign
        teacher_student_sigmoid_loss temporal_shift thresholded_relu topk transpose tril triu unfold
        uniform_random uniform_random_batch_size_like unique unique_with_counts unsqueeze unstack warmup_cosine
        warpctc where while_loop yolo_box yolov3_loss zeros zeros_like
    """,
    "fluid.nets": """
        glu img_conv_group scaled_dot_product_attention sequence_conv_pool simple_img_conv_pool
    """,
    "fluid.optimizer": """
        Adadelta AdadeltaOptimizer Adagrad AdagradOptimizer Adam AdamOptimizer AdamW AdamWOptimizer Adamax
        AdamaxOptimizer DecayedAdagrad DecayedAdagradOptimizer ExponentialMovingAverage Ftrl FtrlOptimizer
        Lamb LambOptimizer LarsMomentum LarsMomentumOptimizer Lion LionOptimizer Lookahead LookaheadOptimizer
        Minimizer ModelAverage Momentum MomentumOptimizer Muon MuonOptimizer Optax Optimizer RMSProp
        RMSPropOptimizer SGD SGDOptimizer as_optimizer
    """,
    "fluid.initializer": """
        Bilinear BilinearInitializer Constant ConstantInitializer MSRA MSRAInitializer Normal
        NormalInitializer NumpyArray NumpyArrayInitializer TruncatedNormal TruncatedNormalInitializer Uniform
        UniformInitializer Xavier XavierInitializer fans
    """,
    "fluid.regularizer": """
        L1Decay L1DecayRegularizer L2Decay L2DecayRegularizer
    """,
    "fluid.clip": """
        GradientClipByGlobalNorm GradientClipByNorm GradientClipByValue set_gradient_clip
    """,
    "fluid.metrics": """
        Accuracy Auc ChunkEvaluator CompositeMetric DetectionMAP EditDistance MetricBase Metrics Precision
        Recall WeightedAverage names_of
    """,
    "fluid.handlers": """
        CSVLogger CheckpointEvery EarlyStopping GradientMonitor Handler LearningRateMonitor LivePlot Logger MLflow
        NonFiniteReport Profiler ProgressBar ReduceLROnPlateau SaveBest TensorBoard TerminateOnNaN TestEvery Timer WandB
        every once
    """,
    "fluid.reader": """
        DataFeeder Reader arrays batch bucket_by_length buffered cache chain compose files firstn map map_readers
        prefetch shard shuffle xmap xmap_readers
    """,
    "fluid.io": """
        check_match load_arrays load_fluid_params load_inference_model load_params load_persistables save_arrays
        save_inference_model save_params save_persistables
    """,
    "fluid.errors": """
        ArgumentError ArgumentTypeError ArtifactError CheckpointError DeviceError DistributedError EOFException
        FeedError FeedTypeError FluidError FluidWarning JournalError JournalFullError MissingNameError NonFiniteError
        OnlineError OutsideProgramError ParameterError ParameterFileError ProgramError ProtocolError ReaderError
        RemoteError ShapeError UnknownNameError missing_name nearest
    """,
    "fluid.static": """
        BuildStrategy CPUPlace CUDAPlace CheckpointConfig CompiledProgram DataFeeder ExecutionStrategy
        Executor Inferencer LoDTensor ParallelExecutor ParamAttr Program Scope Trainer Variable
        WeightNormParamAttr append_backward average backward batch clip compiler core cpu_places
        create_lod_tensor create_random_int_lodtensor cuda_places data default_main_program
        default_startup_program embedding errors framework global_scope gradients in_dygraph_mode
        initializer io is_compiled_with_cuda layers memory_optimize metrics name_scope nets one_hot
        optimizer program_guard reader regularizer release_memory scope_guard shared unique_name
    """,
    "fluid.static.backward": """
        append_backward calc_gradient gradients
    """,
    "fluid.static.clip": """
        GradientClipByGlobalNorm GradientClipByNorm GradientClipByValue set_gradient_clip
    """,
    "fluid.static.core": """
        CPUPlace CUDAPlace EOFException LoDTensor Scope get_cuda_device_count is_compiled_with_cuda
    """,
    "fluid.static.framework": """
        Parameter Program Variable cpu_places cuda_places default_main_program default_startup_program
        in_dygraph_mode memory_optimize name_scope program_guard release_memory shared
    """,
    "fluid.static.io": """
        DataLoader PyReader load_fluid_params load_inference_model load_params load_persistables load_vars
        save_inference_model save_params save_persistables save_vars
    """,
    "fluid.static.unique_name": """
        counters generate guard switch
    """,
}


@pytest.mark.parametrize("module", MODULES)
def test_public_names(module):
    assert sorted(public_names(module)) == NAMES[module].split()


def test_all_modules_are_listed():
    assert list(NAMES) == MODULES
