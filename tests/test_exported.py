"""The public names, written down: adding one is a decision, losing one breaks somebody's program."""

import pytest
from public_names import MODULES, public_names

NAMES = {
    "fluid": """
        BeginEpochEvent BeginStepEvent BeginTrainEvent CPUPlace CUDAPlace DataFeeder EndEpochEvent
        EndStepEvent EndTrainEvent Handler Inferencer ParamAttr Program ProgressBar Results Scope
        SequenceBatch Session Trainer batch clip embedding errors initializer io layers metrics name_scope
        nets one_hot optimizer place reader regularizer train trainer
    """,
    "fluid.layers": """
        abs accuracy acos adaptive_pool2d adaptive_pool3d affine_channel affine_grid argmax argmin argsort
        asin assign atan auc batch_norm bilinear_tensor_product bpr_loss brelu cast ceil clip clip_by_norm
        concat conv2d conv2d_transpose conv3d conv3d_transpose cos cos_sim cosine_decay create_parameter crop
        crop_tensor cross_entropy cumsum data diag dice_loss dropout elementwise_add elementwise_div
        elementwise_floordiv elementwise_max elementwise_min elementwise_mod elementwise_mul elementwise_pow
        elementwise_sub elu embedding equal exp expand exponential_decay eye fc fill_constant
        fill_constant_batch_size_like fill_zeros_like flatten floor gather gather_nd gaussian_random
        gaussian_random_batch_size_like gelu greater_equal greater_than grid_sampler group_norm hard_shrink
        hard_sigmoid hard_swish has_inf has_nan hsigmoid huber_loss identity image_resize image_resize_short
        increment instance_norm inverse_time_decay isfinite kldiv_loss l2_normalize label_smooth layer_norm
        leaky_relu less_equal less_than linear_lr_warmup linspace log log_loss log_softmax logical_and
        logical_not logical_or logical_xor logsigmoid lrn margin_rank_loss matmul maxout mean mean_iou mish
        module mse_loss mul multiplex natural_exp_decay nce noam_decay not_equal npair_loss one_hot ones
        ones_like pad pad2d pad_constant_like piecewise_decay pixel_shuffle polynomial_decay pool2d pool3d pow
        precision prelu range rank rank_loss recall reciprocal reduce_all reduce_any reduce_max reduce_mean
        reduce_min reduce_prod reduce_sum relu relu6 reshape resize_bilinear resize_nearest resize_trilinear
        reverse round rsqrt sampled_softmax_with_cross_entropy sampling_id scale scatter scatter_nd
        scatter_nd_add selu sequence_mask shape shuffle_channel sigmoid sigmoid_cross_entropy_with_logits
        sigmoid_focal_loss sign silu sin size slice smooth_l1 soft_relu softmax softmax_with_cross_entropy
        softplus softshrink softsign space_to_depth spectral_norm split sqrt square square_error_cost squeeze
        stack stanh strided_slice sum sums swish tanh tanh_shrink teacher_student_sigmoid_loss
        thresholded_relu topk transpose unfold uniform_random uniform_random_batch_size_like unsqueeze unstack
        where zeros zeros_like
    """,
    "fluid.nets": """
        glu img_conv_group scaled_dot_product_attention simple_img_conv_pool
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
        Accuracy Auc CompositeMetric MetricBase Precision Recall names_of
    """,
    "fluid.reader": """
        DataFeeder Reader arrays batch buffered cache chain compose firstn map map_readers shard shuffle xmap
        xmap_readers
    """,
    "fluid.io": """
        check_match load_arrays save_arrays
    """,
    "fluid.errors": """
        ArgumentError ArgumentTypeError DeviceError FeedError FeedTypeError FluidError FluidWarning
        OutsideProgramError ParameterError ParameterFileError ProgramError ReaderError ShapeError
        UnknownNameError nearest
    """,
}


@pytest.mark.parametrize("module", MODULES)
def test_public_names(module):
    assert sorted(public_names(module)) == NAMES[module].split()


def test_all_modules_are_listed():
    assert list(NAMES) == MODULES
