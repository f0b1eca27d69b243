"""Public names, as a list: adding a name is a decision, and losing a name breaks programs of users.

The stub of `fluid.layers` lists the names of that module, and `make check` compares the stub with the module.
"""

import pytest
from public_names import MODULES, public_names

NAMES = {
    "fluid": """
        BeginEpochEvent BeginStepEvent BeginTrainEvent CPUPlace CUDAPlace Checkpoint CheckpointConfig DataFeeder
        EndEpochEvent EndStepEvent EndTrainEvent Handler History Inferencer LoDTensor Loop LowRankParamAttr
        MeasuredEvent Mesh NestedSequenceBatch OnlineTrainer ParamAttr Population Program ProgressBar
        RemoteTrainer Results Scope SequenceBatch Session Trainer TrainingProgram TrainingStep
        WeightNormParamAttr average batch clip contrib core create_lod_tensor create_random_int_lodtensor data
        debug device_guard distributed draw embedding errors find_learning_rate frozen handlers initializer io layers
        metrics name_scope nets one_hot optimizer place plan reader regularizer serve set_compilation_cache
        shared summary train trainer unique_name
    """,
    "fluid.nets": """
        glu img_conv_group scaled_dot_product_attention sequence_conv_pool simple_img_conv_pool table_columns
        table_features
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
        DataFeeder Reader Table arrays batch bucket_by_length buffered cache chain compose files firstn frame map
        map_readers prefetch shard shuffle xmap xmap_readers
    """,
    "fluid.io": """
        check_match load_arrays load_fluid_params load_inference_model load_params load_persistables load_state_dict
        load_table merge_low_rank read_state_dict save_arrays save_inference_model save_params save_persistables
        update_module
    """,
    "fluid.errors": """
        ArgumentError ArgumentTypeError ArtifactError CheckpointError DeviceError DistributedError EOFException
        FeedError FeedTypeError FluidError FluidWarning JournalError JournalFullError MissingNameError NonFiniteError
        OnlineError OutsideProgramError ParameterError ParameterFileError ProgramError ProtocolError ReaderError
        RemoteError ShapeError UnknownNameError missing_name nearest
    """,
    "fluid.static": """
        BeginEpochEvent BeginStepEvent BuildStrategy CPUPlace CUDAPlace CheckpointConfig CompiledProgram
        DataFeeder DistributeTranspiler DistributeTranspilerConfig EndEpochEvent EndStepEvent
        ExecutionStrategy Executor InferenceTranspiler Inferencer LoDTensor ParallelExecutor ParamAttr Program
        Scope Tensor Trainer Variable WeightNormParamAttr append_backward average backward batch clip compiler
        contrib core cpu_places create_lod_tensor create_random_int_lodtensor cuda_places data
        default_main_program default_startup_program embedding errors evaluator framework global_scope
        gradients in_dygraph_mode initializer io is_compiled_with_cuda layer_helper layers memory_optimize
        metrics name_scope nets one_hot optimizer profiler program_guard reader regularizer release_memory
        require_version scope_guard shared transpiler unique_name
    """,
    "fluid.static.backward": """
        append_backward calc_gradient gradients
    """,
    "fluid.static.clip": """
        GradientClipByGlobalNorm GradientClipByNorm GradientClipByValue set_gradient_clip
    """,
    "fluid.static.core": """
        CPUPlace CUDAPlace EOFException EnforceNotMet LoDTensor Scope VarDesc get_cuda_device_count
        is_compiled_with_cuda
    """,
    "fluid.static.framework": """
        Parameter Program Variable cpu_places cuda_places default_main_program default_startup_program
        in_dygraph_mode memory_optimize name_scope program_guard release_memory require_version shared
    """,
    "fluid.static.io": """
        DataLoader PyReader batch buffered cache chain compose firstn get_inference_program is_parameter
        is_persistable load_fluid_params load_inference_model load_params load_persistables load_vars
        map_readers save_inference_model save_params save_persistables save_vars shuffle xmap_readers
    """,
    "fluid.static.profiler": """
        cuda_profiler memory_usage profiler reset_profiler start_profiler stop_profiler
    """,
    "fluid.static.unique_name": """
        counters generate guard switch
    """,
}


@pytest.mark.parametrize("module", NAMES)
def test_public_names(module):
    assert sorted(public_names(module)) == NAMES[module].split()


def test_all_modules_are_listed():
    assert list(NAMES) == [module for module in MODULES if module != "fluid.layers"]
