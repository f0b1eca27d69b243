"""The public names, written down: adding one is a decision, losing one breaks somebody's program."""

import pytest
from public_names import MODULES, public_names

NAMES = {
    "fluid": """
        BeginEpochEvent BeginStepEvent BeginTrainEvent CPUPlace CUDAPlace CheckpointConfig DataFeeder EndEpochEvent
    "", ",     ", ",     ", ": ",
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
        GradientClipByGlobalNorm GradientClipByNorm GradientClipByValue
    """,
    "fluid.metrics": """
        Accuracy Auc ChunkEvaluator CompositeMetric DetectionMAP EditDistance MetricBase Metrics Precision Recall
        names_of
    """,
    "fluid.handlers": """
        CSVLogger Checkpoint EarlyStopping GradientMonitor Handler LearningRateMonitor LivePlot NonFiniteReport Profiler
        ProgressBar ReduceLROnPlateau SaveBest TensorBoard TerminateOnNaN TestEvery Timer
    """,
    "fluid.reader": """
        DataFeeder Reader arrays batch bucket_by_length buffered cache chain compose firstn map map_readers shard
        shuffle xmap xmap_readers
    """,
    "fluid.io": """
        check_match load_arrays load_fluid_params load_inference_model load_params load_persistables save_arrays
        save_inference_model save_params save_persistables
    """,
    "fluid.errors": """
        ArgumentError ArgumentTypeError ArtifactError CheckpointError DeviceError FeedError FeedTypeError
        FluidError FluidWarning NonFiniteError OutsideProgramError ParameterError ParameterFileError
        ProgramError ProtocolError ReaderError RemoteError ShapeError UnknownNameError nearest
    """,
}


@pytest.mark.parametrize("module", MODULES)
def test_public_names(module):
    assert sorted(public_names(module)) == NAMES[module].split()


def test_all_modules_are_listed():
    assert list(NAMES) == MODULES
