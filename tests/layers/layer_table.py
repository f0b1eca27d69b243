"""Table of all layers: each row is a call of a layer, on which tests check the properties of every layer."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

import fluid
from fluid import errors, layers, nets


@dataclass(frozen=True)
class Row:
    """A row of the table: a call of a layer, and example feeds.

    Attributes:
      name: the name of the public function.
      build: the function that calls the layer, with the declared feeds in order, and perhaps `name=`.
      feed: arrays by name, batch first; floats are declared as floats, integers as "int64".
      gradient: if True, the gradient is compared with finite differences. False if the layer has no gradient, or is a
        composition of other layers: the test of a composition is slow and adds nothing.
      half: the dtype of the layer's first result for bfloat16 inputs.
      wrong: feeds that are refused when the program is discovered.
      label: a word that distinguishes the rows of the same layer.
      lengths: in the table of sequences: "same" if all sequences of a row need equal lengths; "apart" if the lengths
        may differ; "given" if the lengths are fixed.
      shortest: in the table of sequences: the minimum length.
      mixes: in the table of sequences: True if a row of the batch affects the results of other rows.
    """

    name: str
    build: Callable
    feed: dict
    gradient: bool = True
    half: str = "bfloat16"
    wrong: dict = field(default_factory=dict)
    label: str = ""
    lengths: str = "same"
    shortest: int = 0
    mixes: bool = False

    @property
    def id(self):
        return f"{self.name}-{self.label}" if self.label else self.name

    def program(self, feed=None, dtype=None, **arguments):
        """Return a program function that calls the layer of this row of the table, with the feeds of this row."""
        feed = self.feed if feed is None else feed

        def program():
            values = [declare(name, value, dtype) for name, value in feed.items()]
            return self.build(*values, **arguments)

        return program


def declare(name, value, dtype=None):
    """Declare a feed that fits an array or SequenceBatch."""
    kind = {"f": dtype or "float32", "i": "int64", "b": "bool"}[np.dtype(value.dtype).kind]
    sequence = isinstance(value, fluid.SequenceBatch)
    return layers.data(name, value.shape[1 + sequence :], kind, lod_level=int(sequence))


def recurred(x, h, **arguments):
    """Return the new state from an input and a state: the step function for recurrent layers in the table of layers."""
    return layers.fc([x, h], 2, act="tanh", **arguments)


def kept_mean(x, **arguments):
    """Build a custom layer that keeps the mean of the batch in a state, and adds the state to `x`."""
    state = layers.create_state([3])
    state.update(jnp.mean(x, axis=0))
    return layers.scale(x + state.value, **arguments)


def start_of(x):
    return jnp.ones((x.shape[0], 2), x.dtype)


def block_of(rnn, x, **arguments):
    """Build a recurrence with a `DynamicRNN` or `StaticRNN`; the layers in its `with` block are one step."""
    with rnn.block() if isinstance(rnn, layers.DynamicRNN) else rnn.step():
        now = rnn.step_input(x)
        before = rnn.memory(init=np.ones((now.shape[0], 2), now.dtype))
        rnn.update_memory(before, recurred(now, before, **arguments))
        rnn.output(before, now)
    return rnn()


class Elman(layers.RNNCell):
    """A custom cell with the step `recurred`, which other recurrent layers of the layer table use too."""

    state_shape = (2,)

    def __init__(self, **arguments):
        self.arguments = arguments

    def call(self, inputs, states):
        hidden = recurred(inputs, states, **self.arguments)
        return hidden, hidden


class Halving(layers.Decoder):
    """A decoder without a cell, which halves its inputs in every step."""

    def initialize(self, inits):
        return inits, (), jnp.zeros(inits.shape[:1], bool)

    def step(self, time, inputs, states):
        return inputs, states, inputs / 2, jnp.broadcast_to(time == 3, inputs.shape[:1])


class Feedback(layers.DecodeHelper):
    """A helper that feeds each step the outputs of the previous step."""

    def __init__(self, first):
        self.first = first

    def initialize(self):
        return self.first, jnp.zeros(self.first.shape[:1], bool)

    def sample(self, time, outputs, states):
        return jnp.argmax(outputs, axis=-1)

    def next_inputs(self, time, outputs, states, sample_ids):
        return sample_ids < 0, outputs, states


def rnn_of(cell, x, **arguments):
    """Return the outputs of `layers.rnn`, followed by the arrays of its last states."""
    outputs, states = layers.rnn(cell, x, **arguments)
    return outputs, *jax.tree.leaves(states)


def ids_of(helper, x, **arguments):
    """Return a BasicDecoder whose helper feeds back the chosen ids; the id is always 2, so the end id 4 ends no row."""
    starts = jnp.zeros(x.shape[0], "int32")
    made = helper(lambda ids: x + ids[:, None].astype(x.dtype), starts, 4)
    cell = layers.GRUCell(2, **arguments)
    return layers.BasicDecoder(cell, made, lambda h: jnp.concatenate([h, h[:, :1] + 5, h - 1], axis=1))


def decoded(decoder, states=None, steps=3, **arguments):
    """Return the outputs of a decoder after at most `steps` steps."""
    return layers.dynamic_decode(decoder, states, max_step_num=steps - 1, **arguments)[0]


def rng(*salt):
    return np.random.default_rng(zlib.crc32(repr(salt).encode()))


def real(*shape, salt=0):
    """Return floats of both signs away from 0, where many functions have a kink."""
    x = rng(shape, salt).uniform(0.1, 1.3, shape)
    return (x * rng(shape, salt, "sign").choice([-1, 1], shape)).astype("float32")


def positive(*shape, salt=0):
    """Return floats between 0.1 and 0.9."""
    return rng(shape, salt).uniform(0.1, 0.9, shape).astype("float32")


def simplex(*shape, salt=0):
    """Return floats that sum to 1 along the last dimension."""
    x = positive(*shape, salt=salt)
    return (x / x.sum(-1, keepdims=True)).astype("float32")


def whole(high, *shape, salt=0):
    """Return an array of random integers from 0 to `high - 1`."""
    return rng(shape, salt).integers(0, high, shape)


def flags(*shape, salt=0):
    return rng(shape, salt).integers(0, 2, shape).astype(bool)


def ragged(function, plain=0):
    """Convert a layer on sequences to a function of arrays, whose last argument holds the lengths.

    The first `plain` arguments stay arrays. The function returns the data of the sequences.
    """

    def build(*values, **arguments):
        *arrays, lengths = values
        if any(isinstance(a, fluid.SequenceBatch) for a in values):
            raise errors.ShapeError("sequences of sequences have a table of their own")
        sequences = (fluid.SequenceBatch(a, jnp.reshape(lengths, -1)) for a in arrays[plain:])
        return padded(function(*arrays[:plain], *sequences, **arguments))

    return build


def padded(results):
    """Return `results` with each SequenceBatch replaced by its data."""
    return jax.tree.map(layers.base.dense, results, is_leaf=layers.base.is_sequence)


def boxes(*shape, scale=1.0, salt=0):
    """Return boxes `[*shape, 4]` within a square of side `scale`."""
    corner, size = positive(*shape, 2, salt=salt), 0.1 + positive(*shape, 2, salt=salt + 1)
    return (scale * np.concatenate([corner / 2, (corner + size) / 2], axis=-1)).astype("float32")


def for_each(x, array):
    """Repeat an array along a new first axis, once for each row of `x`."""
    return jnp.broadcast_to(jnp.asarray(array), (x.shape[0], *array.shape))


def written(x):
    """Return a TensorArray of size two, with the second element written."""
    return layers.array_write(x, 1, max_length=2, name="scale_0")


X = {"x": real(4, 3)}
XY = {"x": real(4, 3), "y": real(4, 3, salt=1)}
COLUMNS = {"x": real(4, 1), "y": real(4, 1, salt=1), "z": real(4, 1, salt=2)}
IMAGE = {"x": real(2, 4, 6, 5)}
VOLUME = {"x": real(2, 2, 4, 4, 3)}
CLASSES = {"x": real(4, 3), "label": whole(3, 4, 1)}
FLAGS = {"x": flags(4, 3), "y": flags(4, 3, salt=1)}
FLAT = {"x": real(4, 3)}
MISMATCH = {"x": real(4, 3), "y": real(4, 2)}
BAD_CLASSES = {"x": real(4, 3), "label": whole(3, 4, 3)}

PICKED = {"x": real(4, 3), "label": whole(7, 4, 1)}
BAD_PICKED = {"x": real(4, 3), "label": whole(7, 4, 3, 2)}
CHANCES = {"x": simplex(4, 2), "label": np.array([[0], [1], [1], [0]])}
BAD_CHANCES = {"x": simplex(4, 2), "label": whole(2, 4, 2)}
SCATTERED = {"x": real(4, 3), "i": np.array([[1], [3], [2], [0]]), "y": real(4, 3, salt=1)}
BAD_SCATTERED = {**SCATTERED, "y": real(4, 2)}

LENGTHS = np.array([[4], [1], [2]])
STEPS_OF = {"x": real(3, 4, 2), "n": LENGTHS}
TWO_OF = {"x": real(3, 4, 2), "y": real(3, 5, 2, salt=1), "n": LENGTHS}
IDS_OF = {"x": whole(5, 3, 4, 1), "n": LENGTHS}
BAD_STEPS = {"x": real(3, 4, 2, 2), "n": LENGTHS}
BAD_IDS_OF = {"x": whole(5, 3, 4, 2), "n": LENGTHS}
TAGGED = {"x": real(3, 4, 2), "tag": whole(2, 3, 4), "n": LENGTHS}
# The arguments of CTC: two padded labels, the lengths of the two inputs, and the lengths of the two labels.
CTC_LABEL = np.array([[1, 2], [2, 0]]), np.array([3, 2]), np.array([2, 1])

GATES, BAD_GATES = {"x": real(3, 4, 16), "n": LENGTHS}, {"x": real(3, 4, 7), "n": LENGTHS}

# Detection layers read two anchors for each of 6 x 5 pixels, three regions of images 12 pixels wide, and prior boxes.
ANCHORS, ROIS, PRIOR = boxes(6, 5, 2, scale=12.0), boxes(3, scale=12.0), boxes(5)
INFO = np.array([[12.0, 12.0, 1.0]], "float32")
SPREAD = [0.1, 0.1, 0.2, 0.2]
BOXES_OF = {"x": boxes(3, 4), "n": LENGTHS}
LISTED = {"x": boxes(3, 4), "y": positive(3, 4, 1), "n": LENGTHS}
CODED = {"x": boxes(4), "y": boxes(4, salt=2)}
BAD_CODED = {"x": real(4, 3), "y": real(4, 4)}
SCORED = {"x": boxes(2, 6), "y": simplex(2, 6, 3).transpose(0, 2, 1)}
BAD_SCORED = {"x": boxes(2, 6), "y": simplex(2, 5, 3).transpose(0, 2, 1)}
SSD = {"x": real(3, 5, 4), "y": real(3, 5, 3), "b": boxes(3, 4, salt=2), "k": 1 + whole(2, 3, 4, 1), "n": LENGTHS}
OUTPUTS = {"x": real(2, 5, 4), "y": real(2, 5, 3)}
YOLO = {"x": real(2, 14, 4, 3), "b": positive(2, 3, 4) / 2, "c": whole(2, 2, 3)}
PROPOSED = {"x": positive(2, 2, 6, 5), "y": real(2, 8, 6, 5)}
ANCHORED = {"x": real(3, 5, 4), "y": real(3, 5, 1), "b": boxes(3, 4, scale=12.0), "c": whole(2, 3, 4, 1), "n": LENGTHS}
SAMPLED = {"x": boxes(3, 4, scale=12.0), "b": boxes(3, 4, scale=12.0, salt=2), "c": 1 + whole(2, 3, 4, 1),
           "d": np.zeros((3, 4, 1), "int64"), "n": LENGTHS}  # fmt: skip
LEVELS = {"x": real(2, 5, 4), "y": simplex(2, 5, 3)}
DEFORMED = {"x": real(2, 4, 6, 5), "o": real(2, 18, 6, 5), "m": positive(2, 9, 6, 5)}

UNARY = (
    "abs cos exp logsigmoid mish relu sigmoid silu sin softplus softsign square tanh tanh_shrink atan reciprocal erf"
)
STEPS = "ceil floor round sign"
BOUNDED = "log log1p sqrt rsqrt acos asin"
PARAMETRIC = (
    "brelu elu gelu hard_sigmoid hard_shrink hard_swish leaky_relu log_softmax relu6 selu soft_relu softshrink softmax "
    "stanh swish thresholded_relu"
)
ARITHMETIC = "elementwise_add elementwise_sub elementwise_mul elementwise_div elementwise_max elementwise_min"
COMPARISONS = "less_than less_equal greater_than greater_equal equal not_equal"
REDUCTIONS = "reduce_sum reduce_mean reduce_max reduce_min reduce_prod"


def plain(names, feed, **settings):
    """Return a row of the layer table for each layer in `names`; these layers need no arguments except inputs."""
    return [Row(name, getattr(layers, name), feed, **settings) for name in names.split()]


ROWS = [
    *plain(UNARY, X),
    *plain(BOUNDED, {"x": positive(4, 3)}),
    *plain(STEPS, X, gradient=False),
    *plain(PARAMETRIC, X),
    *plain(ARITHMETIC, XY, wrong=MISMATCH),
    *plain(COMPARISONS, XY, gradient=False, half="bool", wrong=MISMATCH),
    *plain("logical_and logical_or logical_xor", FLAGS, gradient=False, half="bool"),
    *plain(REDUCTIONS, X),
    *plain("reduce_all reduce_any", {"x": flags(4, 3)}, gradient=False, half="bool"),
    *plain("square_error_cost huber_loss smooth_l1 mse_loss", XY, half="float32", wrong=MISMATCH),
    *plain("elementwise_mod elementwise_floordiv", {"x": whole(9, 4, 3), "y": 1 + whole(4, 4, 3)},
           gradient=False, half="int32"),
    *plain("rank_loss margin_rank_loss", COLUMNS, half="float32", wrong={**COLUMNS, "y": real(4, 2)}),
    Row("elementwise_pow", layers.elementwise_pow, {"x": positive(4, 3), "y": real(4, 3)}, wrong=MISMATCH),
    Row("elementwise_add", lambda x, y, **k: layers.elementwise_add(x, y, axis=0, **k), {"x": real(4, 3), "y": real(4)},
        label="axis"),
    Row("logical_not", layers.logical_not, {"x": flags(4, 3)}, False, "bool"),
    Row("isfinite", layers.isfinite, X, False, "bool"),
    Row("identity", layers.identity, X),
    Row("shard", lambda x, **k: layers.shard(x, ("data", None), **k), X),
    Row("mean", layers.mean, X, half="float32"),
    Row("assign", layers.assign, X),
    Row("cast", lambda x, **k: layers.cast(x, "int32", **k), X, False, "int32"),
    Row("scale", lambda x, **k: layers.scale(x, 2.0, 1.0, **k), X),
    Row("sums", lambda x, y, **k: layers.sums([x, y], **k), XY, wrong=MISMATCH),
    Row("clip", lambda x, **k: layers.clip(x, -0.5, 0.5, **k), X),
    Row("clip_by_norm", lambda x, **k: layers.clip_by_norm(x, 1.0, **k), X),
    Row("pow", lambda x, **k: layers.pow(x, 2.5, **k), {"x": positive(4, 3)}),
    Row("create_parameter", lambda x, **k: layers.elementwise_mul(
        x, layers.create_parameter([3], "float64", **k), **k), X, half="float32"),
    Row("create_state", lambda x, **k: kept_mean(x, **k), X, False, "float32"),
    Row("random_key", lambda x, **k: layers.scale(jax.random.normal(layers.random_key(), (1, 3)) * x, **k), X, False,
        "float32"),
    Row("is_training", lambda x, **k: layers.scale(x, 2.0 if layers.is_training() else 1.0, **k), X),
    Row("fc", lambda x, **k: layers.fc(x, 2, act="tanh", **k), X, wrong={"x": real(4)}),
    Row("dense", lambda x, **k: layers.dense(x, 2, act="tanh", **k), X, wrong={"x": real(4)}),
    Row("dense", lambda x, **k: layers.dense(x, 2, **k), {"x": real(2, 3, 4)}, label="steps"),
    Row("conv2d", lambda x, **k: layers.conv2d(x, 6, 3, stride=2, padding=1, groups=2, **k), IMAGE, wrong=FLAT),
    Row("conv2d", lambda x, **k: layers.conv2d(x, 2, [3, 2], padding="SAME", dilation=2, data_format="NHWC", **k),
        IMAGE, label="nhwc"),
    Row("conv3d", lambda x, **k: layers.conv3d(x, 3, 2, **k), VOLUME, wrong=FLAT),
    Row("conv2d_transpose", lambda x, **k: layers.conv2d_transpose(x, 6, filter_size=3, stride=2, groups=2, **k), IMAGE,
        wrong=FLAT),
    Row("conv3d_transpose", lambda x, **k: layers.conv3d_transpose(x, 3, filter_size=2, stride=2, **k), VOLUME,
        wrong=FLAT),
    Row("pool2d", lambda x, **k: layers.pool2d(x, 3, "max", 2, 1, **k), IMAGE, wrong=FLAT),
    Row("pool2d", lambda x, **k: layers.pool2d(x, 3, "avg", 2, 1, ceil_mode=True, **k), IMAGE, label="avg"),
    Row("pool3d", lambda x, **k: layers.pool3d(x, 2, "avg", 1, **k), VOLUME, wrong=FLAT),
    Row("adaptive_pool2d", lambda x, **k: layers.adaptive_pool2d(x, 2, "avg", **k), IMAGE, wrong=FLAT),
    Row("batch_norm", layers.batch_norm, IMAGE, wrong={"x": real(4)}),
    Row("layer_norm", layers.layer_norm, X, wrong={"x": real(4)}),
    Row("feature_norm", layers.feature_norm, {"x": real(2, 3, 4)}, wrong={"x": real(4)}),
    Row("rms_norm", layers.rms_norm, {"x": real(2, 3, 4)}, wrong={"x": real(4)}),
    Row("group_norm", lambda x, **k: layers.group_norm(x, 2, param_attr="scale", **k), IMAGE, wrong=FLAT),
    Row("instance_norm", layers.instance_norm, IMAGE, wrong=FLAT),
    Row("lrn", lambda x, **k: layers.lrn(x, n=3, alpha=0.3, **k), IMAGE, wrong=FLAT),
    Row("l2_normalize", lambda x, **k: layers.l2_normalize(x, axis=1, **k), X, wrong={"x": real(4)}),
    Row("dropout", lambda x, **k: layers.dropout(x, 0.4, dropout_implementation="upscale_in_train", **k), X),
    Row("embedding", lambda x, **k: layers.embedding(x, [7, 3], dtype="float64", **k), {"x": whole(7, 4, 1)},
        half="float32", wrong={"x": whole(7, 4, 2)}),
    Row("prelu", lambda x, **k: layers.prelu(x, "channel", **k), IMAGE, wrong={"x": real(4)}),
    Row("prelu", lambda x, **k: layers.prelu(x, "element", **k), X, label="element"),
    Row("maxout", lambda x, **k: layers.maxout(x, 2, **k), IMAGE, wrong=FLAT),
    Row("cross_entropy", layers.cross_entropy, {"x": simplex(4, 3), "label": whole(3, 4, 1)}, half="float32",
        wrong=BAD_CLASSES),
    Row("cross_entropy", lambda x, y, **k: layers.cross_entropy(x, y, soft_label=True, **k),
        {"x": simplex(4, 3), "y": simplex(4, 3, salt=1)}, half="float32", wrong=MISMATCH, label="soft"),
    Row("softmax_with_cross_entropy", layers.softmax_with_cross_entropy, CLASSES, half="float32", wrong=BAD_CLASSES),
    Row("sigmoid_cross_entropy_with_logits", layers.sigmoid_cross_entropy_with_logits,
        {"x": real(4, 3), "label": positive(4, 3)}, half="float32", wrong=MISMATCH),
    Row("log_loss", layers.log_loss, {"x": positive(4, 1), "y": positive(4, 1, salt=1)}, half="float32",
        wrong=MISMATCH),
    Row("kldiv_loss", layers.kldiv_loss, {"x": real(4, 3), "y": simplex(4, 3)}, half="float32", wrong=MISMATCH),
    Row("npair_loss", layers.npair_loss, {**XY, "label": whole(2, 4, 1)}, half="float32",
        wrong={**MISMATCH, "label": whole(2, 4, 1)}),
    Row("bpr_loss", layers.bpr_loss, CLASSES, half="float32", wrong=BAD_CLASSES),
    Row("dice_loss", layers.dice_loss, {"x": simplex(4, 2, 3), "label": whole(3, 4, 2, 1)}, half="float32",
        wrong=BAD_CLASSES),
    Row("label_smooth", lambda x, **k: layers.label_smooth(x, dtype="float64", **k), {"x": simplex(4, 3)},
        half="float32"),
    Row("teacher_student_sigmoid_loss", layers.teacher_student_sigmoid_loss,
        {"x": real(4, 1), "label": positive(4, 1)}, half="float32", wrong=MISMATCH),
    Row("sigmoid_focal_loss", lambda x, y, **k: layers.sigmoid_focal_loss(x, y, np.array([2]), **k), CLASSES,
        half="float32", wrong=BAD_CLASSES),
    Row("accuracy", layers.accuracy, CLASSES, False, "float32", wrong=BAD_CLASSES),
    Row("concat", lambda x, y, **k: layers.concat([x, y], axis=1, **k), XY,
        wrong={"x": real(4, 3), "y": real(4, 3, 2)}),
    Row("split", lambda x, **k: layers.split(x, [1, -1], dim=1, **k), X, wrong={"x": real(4)}),
    Row("stack", lambda x, y, **k: layers.stack([x, y], axis=1, **k), XY, wrong=MISMATCH),
    Row("unstack", lambda x, **k: layers.unstack(x, axis=1, **k), X, wrong={"x": real(4)}),
    Row("reshape", lambda x, **k: layers.reshape(x, [0, 2, -1], **k), {"x": real(4, 6)}, wrong=FLAT),
    Row("transpose", lambda x, **k: layers.transpose(x, [1, 0], **k), X, wrong={"x": real(4)}),
    Row("squeeze", lambda x, **k: layers.squeeze(x, [1], **k), {"x": real(4, 1, 3)}, wrong=FLAT),
    Row("unsqueeze", lambda x, **k: layers.unsqueeze(x, [1], **k), X),
    Row("flatten", layers.flatten, IMAGE),
    Row("expand", lambda x, **k: layers.expand(x, [1, 2], **k), X, wrong={"x": real(4)}),
    Row("slice", lambda x, **k: layers.slice(x, [1], [0], [2], **k), X, wrong={"x": real(4)}),
    Row("gather", layers.gather, {"x": real(4, 3), "i": whole(4, 4, 1)}, wrong={"x": real(4, 3), "i": whole(4, 4, 2)}),
    Row("gather_nd", layers.gather_nd, {"x": real(4, 3), "i": whole(3, 4, 2)},
        wrong={"x": real(4, 3), "i": whole(3, 4, 3)}),
    Row("one_hot", lambda x, **k: layers.one_hot(x, 5, **k), {"x": whole(5, 4, 1)}, False, "float32",
        wrong={"x": whole(5, 4, 2)}),
    Row("topk", lambda x, **k: layers.topk(x, 2, **k), X, wrong={"x": real(4, 1)}),
    Row("argmax", lambda x, **k: layers.argmax(x, axis=1, **k), X, False, "int32", wrong={"x": real(4)}),
    Row("argmin", lambda x, **k: layers.argmin(x, axis=1, **k), X, False, "int32", wrong={"x": real(4)}),
    Row("argsort", layers.argsort, X),
    Row("argsort", lambda x, **k: layers.argsort(x, axis=1, descending=True, **k), X, wrong={"x": real(4)},
        label="descending"),
    Row("unique", lambda x, **k: padded(layers.unique(x.reshape(-1), max_length=7, **k)), X, label="few"),
    Row("unique", lambda x, **k: padded(layers.unique(x, **k)), {"x": whole(3, 6)}, False, "int32", wrong=FLAT),
    Row("unique_with_counts", lambda x, **k: padded(layers.unique_with_counts(x, **k)), {"x": whole(3, 6)}, False,
        "int32", wrong=FLAT),
    Row("expand_as", layers.expand_as, {"x": real(4, 1, 3), "y": real(4, 6, 3)},
        wrong={"x": real(4, 4, 3), "y": real(4, 6, 3)}),
    Row("flip", lambda x, **k: layers.flip(x, [0, 2], **k), IMAGE, wrong={"x": real(4)}),
    Row("roll", lambda x, **k: layers.roll(x, [1, -2], [1, 2], **k), IMAGE, wrong={"x": real(4)}),
    Row("roll", lambda x, **k: layers.roll(x, 5, **k), X, label="flat"),
    Row("meshgrid", lambda x, y, **k: layers.meshgrid([x, y], **k), {"x": real(4), "y": real(4)},
        wrong={"x": real(4), "y": real(4, 1)}),
    Row("full_like", lambda x, **k: layers.full_like(x, 2.5, **k), X, False),
    *plain("tril triu", IMAGE, wrong={"x": real(4)}),
    Row("fsp_matrix", layers.fsp_matrix, {"x": real(2, 3, 4, 5), "y": real(2, 2, 4, 5)},
        wrong={"x": real(2, 3, 4, 5), "y": real(2, 2, 5, 4)}),
    Row("bmm", layers.bmm, {"x": real(4, 2, 3), "y": real(4, 3, 5)}, wrong={"x": real(4, 2, 3), "y": real(4, 2, 5)}),
    Row("addmm", lambda x, y, **k: layers.addmm(x, y, jnp.ones([2, 3], y.dtype), 0.5, 2.0, **k),
        {"x": real(4, 3), "y": real(4, 2)}, wrong={"x": real(4, 2), "y": real(4, 2)}),
    Row("dot", layers.dot, XY, wrong=MISMATCH),
    Row("cross", lambda x, y, **k: layers.cross(x, y, dim=1, **k), XY, wrong=MISMATCH),
    Row("kron", layers.kron, {"x": real(4, 3), "y": real(4, 2, 2)}),
    Row("dist", lambda x, y, **k: layers.dist(x, y, 2.5, **k), XY, wrong=MISMATCH),
    Row("index_select", lambda x, **k: layers.index_select(x, [0, 2, 2], dim=1, **k), X, wrong={"x": real(4)}),
    Row("index_sample", layers.index_sample, {"x": real(4, 3), "i": whole(3, 4, 2)},
        wrong={"x": real(4, 3), "i": whole(3, 4)}),
    Row("shard_index", lambda x, **k: layers.shard_index(x, 9, 2, 1, **k), {"x": whole(9, 4, 1)}, False, "int32"),
    Row("logsumexp", lambda x, **k: layers.logsumexp(x, dim=1, **k), X, wrong={"x": real(4)}),
    Row("center_loss", lambda x, y, **k: layers.center_loss(x, y, 3, 0.1, **k), CLASSES, half="float32",
        wrong=BAD_CLASSES),
    Row("data_norm", lambda x, **k: layers.data_norm(x, act="tanh", **k), X, wrong={"x": real(4)}),
    Row("data_norm", lambda x, **k: layers.data_norm(x, data_layout="NHWC", **k), IMAGE, label="nhwc"),
    Row("py_func", lambda x, **k: layers.py_func(lambda v: 3 * v * v, x, x, lambda v, y, slope: 6 * v * slope, **k), X),
    Row("interpolate", lambda x, **k: layers.interpolate(
        x, [7, 4], resample="BICUBIC", align_corners=False, **k), IMAGE, wrong=FLAT),
    Row("resize_linear", lambda x, **k: layers.resize_linear(x, [8], align_mode=0, align_corners=False, **k),
        {"x": real(4, 2, 5)}, wrong=FLAT),
    Row("cumsum", lambda x, **k: layers.cumsum(x, axis=1, **k), X, wrong={"x": real(4)}),
    Row("matmul", lambda x, y, **k: layers.matmul(x, y, transpose_y=True, **k), XY, wrong=MISMATCH),
    Row("mul", lambda x, **k: layers.mul(x, np.ones([3, 2], "float32"), **k), X, half="float32",
        wrong={"x": real(4, 2)}),
    Row("fill_constant", lambda x, **k: layers.fill_constant([2], "float32", 1.5, **k), X, False, "float32"),
    Row("fill_constant_batch_size_like",
        lambda x, **k: layers.fill_constant_batch_size_like(x, [-1, 2], "float32", 1.5, **k), X, False, "float32"),
    Row("zeros", lambda x, **k: layers.zeros([2], "float32", **k), X, False, "float32"),
    Row("ones", lambda x, **k: layers.ones([2], "float32", **k), X, False, "float32"),
    Row("zeros_like", layers.zeros_like, X, False),
    Row("ones_like", layers.ones_like, X, False),
    Row("range", lambda x, **k: layers.range(0, 6, 2, "int32", **k), X, False, "int32"),
    Row("linspace", lambda x, **k: layers.linspace(0.0, 1.0, 3, **k), X, False, "float32"),
    Row("batch_norm", lambda x, **k: layers.batch_norm(x, data_layout="NHWC", **k), IMAGE, label="nhwc"),
    Row("group_norm", lambda x, **k: layers.group_norm(x, 5, data_layout="NHWC", bias_attr="scale", **k), IMAGE,
        label="nhwc"),
    Row("instance_norm", lambda x, **k: layers.instance_norm(x, data_format="NHWC", **k), IMAGE, label="nhwc"),
    Row("lrn", lambda x, **k: layers.lrn(x, n=4, alpha=0.3, data_format="NHWC", **k), IMAGE, label="nhwc"),
    Row("pool2d", lambda x, **k: layers.pool2d(x, 3, "avg", 2, 1, data_format="NHWC", exclusive=False, **k), IMAGE,
        label="nhwc"),
    Row("adaptive_pool2d", lambda x, **k: layers.adaptive_pool2d(x, [3, 2], data_format="NHWC", **k), IMAGE,
        label="nhwc"),
    Row("conv2d_transpose", lambda x, **k: layers.conv2d_transpose(
        x, 3, filter_size=2, padding=[1, 0], data_format="NHWC", **k), IMAGE, label="nhwc"),
    Row("adaptive_pool3d", lambda x, **k: layers.adaptive_pool3d(x, [2, 3, 2], "avg", **k), VOLUME, wrong=FLAT),
    Row("spectral_norm", lambda x, **k: layers.spectral_norm(
        layers.create_parameter([3, 2], "float64", **k), dim=1, **k), X, False, "float32"),
    Row("nce", lambda x, label, **k: layers.nce(x, label, 7, num_neg_samples=3, sampler="log_uniform", **k), PICKED,
        half="float32", wrong=BAD_PICKED),
    Row("nce", lambda x, label, **k: layers.nce(
        x, label, 7, num_neg_samples=2, sampler="custom_dist", custom_dist=[0.1, 0.2, 0.1, 0.1, 0.2, 0.2, 0.1],
        is_sparse=True, bias_attr=False, **k), PICKED, half="float32", label="sparse"),
    Row("hsigmoid", lambda x, label, **k: layers.hsigmoid(x, label, 7, **k), PICKED, half="float32", wrong=BAD_PICKED),
    Row("sampled_softmax_with_cross_entropy", lambda x, label, **k: layers.sampled_softmax_with_cross_entropy(
        x, label, 3, **k), {"x": real(4, 7), "label": whole(7, 4, 1)}, half="float32", wrong=BAD_PICKED),
    Row("auc", lambda x, label, **k: layers.auc(x, label, num_thresholds=9, slide_steps=2, **k)[:2], CHANCES, False,
        "float32", wrong=BAD_CHANCES),
    *plain("precision recall", CHANCES, gradient=False, half="float32", wrong=BAD_CHANCES),
    Row("mean_iou", lambda x, y, **k: layers.mean_iou(x, y, 3, **k), {"x": whole(3, 4, 5), "y": whole(3, 4, 5, salt=1)},
        False, "float32", wrong={"x": whole(3, 4, 5), "y": whole(3, 4, 4)}),
    Row("rowwise", lambda x, **k: layers.rowwise(lambda v: 2 * v, **k)(x), X),
    Row("metric", lambda x, **k: layers.metric(jnp.sum(x, 0), "sum", **k), X),
    Row("scatter", lambda x, i, y, **k: layers.scatter(x, i, y, **k), SCATTERED, wrong=BAD_SCATTERED),
    Row("scatter", lambda x, i, y, **k: layers.scatter(x, i, y, overwrite=False, **k),
        {**SCATTERED, "i": np.array([[1], [3], [1], [0]])}, label="add"),
    Row("scatter_nd", lambda x, i, y, **k: layers.scatter_nd(i, y, [5, 3], **k), SCATTERED, wrong=BAD_SCATTERED),
    Row("scatter_nd_add", layers.scatter_nd_add, SCATTERED, wrong=BAD_SCATTERED),
    Row("multiplex", lambda x, y, i, **k: layers.multiplex([x, y], i, **k), {**XY, "i": whole(2, 4, 1)},
        wrong={**MISMATCH, "i": whole(2, 4, 1)}),
    Row("where", lambda c, x, y, **k: layers.where(c, x, y, **k), {"c": flags(4, 3), **XY},
        wrong={"c": flags(4, 2), **XY}),
    Row("pad", lambda x, **k: layers.pad(x, [0, 0, 1, 2], 0.5, **k), X, wrong={"x": real(4)}),
    Row("pad2d", lambda x, **k: layers.pad2d(x, [1, 2, 0, 1], "reflect", **k), IMAGE, wrong=FLAT),
    Row("pad2d", lambda x, **k: layers.pad2d(x, [1, 2, 0, 1], data_format="NHWC", **k), IMAGE, label="nhwc"),
    Row("pad_constant_like", layers.pad_constant_like, {"x": real(4, 5), "y": real(4, 3)},
        wrong={"x": real(4, 3), "y": real(4, 5)}),
    Row("crop", lambda x, **k: layers.crop(x, [-1, 2], [0, 1], **k), X, wrong={"x": real(4, 2)}),
    Row("crop_tensor", lambda x, **k: layers.crop_tensor(x, [-1, 2], **k), X, wrong={"x": real(4)}),
    Row("reverse", lambda x, **k: layers.reverse(x, 1, **k), X, wrong={"x": real(4)}),
    Row("pixel_shuffle", lambda x, **k: layers.pixel_shuffle(x, 2, **k), IMAGE, wrong=FLAT),
    Row("space_to_depth", lambda x, **k: layers.space_to_depth(x, 2, **k), {"x": real(2, 4, 6, 4)}, wrong=FLAT),
    Row("shuffle_channel", lambda x, **k: layers.shuffle_channel(x, 2, **k), IMAGE, wrong=FLAT),
    Row("unfold", lambda x, **k: layers.unfold(x, [3, 2], 2, [1, 0, 0, 1], **k), IMAGE, wrong=FLAT),
    Row("affine_channel", lambda x, y, **k: layers.affine_channel(x, np.arange(4.0, dtype="float32"), **k), {
        **IMAGE, "y": real(4, 1)}, half="float32", wrong={"x": real(4, 3), "y": real(4, 1)}),
    Row("image_resize", lambda x, **k: layers.image_resize(x, [4, 9], align_corners=False, align_mode=0, **k), IMAGE,
        wrong=FLAT),
    Row("resize_bilinear", lambda x, **k: layers.resize_bilinear(x, [9, 4], data_format="NHWC", **k), IMAGE,
        wrong=FLAT),
    Row("resize_nearest", lambda x, **k: layers.resize_nearest(x, [9, 4], **k), IMAGE, wrong=FLAT),
    Row("resize_trilinear", lambda x, **k: layers.resize_trilinear(x, scale=1.5, **k), VOLUME, wrong=FLAT),
    Row("image_resize_short", lambda x, **k: layers.image_resize_short(x, 3, **k), IMAGE, wrong=FLAT),
    Row("affine_grid", lambda x, **k: layers.affine_grid(x, [-1, 2, 3, 4], **k), {"x": real(2, 2, 3)}, wrong=FLAT),
    Row("grid_sampler", layers.grid_sampler, {**IMAGE, "grid": real(2, 3, 4, 2)},
        wrong={**IMAGE, "grid": real(2, 3, 4)}),
    *plain("cos_sim", XY, wrong=MISMATCH),
    Row("bilinear_tensor_product", lambda x, y, **k: layers.bilinear_tensor_product(x, y, 2, act="tanh", **k),
        {"x": real(4, 3), "y": real(4, 2)}, wrong={"x": real(4, 3), "y": real(4, 2, 2)}),
    *plain("increment fill_zeros_like", X),
    *plain("has_inf has_nan", X, gradient=False, half="bool"),
    *plain("shape rank size", X, gradient=False, half="int32"),
    Row("sum", lambda x, y, **k: layers.sum([x, y], **k), XY, wrong=MISMATCH),
    Row("strided_slice", lambda x, **k: layers.strided_slice(x, [1], [0], [3], [2], **k), X, wrong={"x": real(4)}),
    Row("diag", lambda x, **k: layers.diag(x, **k), {"x": real(4)}, wrong=FLAT),
    Row("eye", lambda x, **k: layers.eye(2, 3, [2], **k), X, False, "float32"),
    Row("sequence_mask", lambda x, **k: layers.sequence_mask(x, 5, **k), {"x": whole(6, 4)}, False, "int32"),
    Row("uniform_random", lambda x, **k: layers.uniform_random([2, 3], **k), X, False, "float32"),
    Row("gaussian_random", lambda x, **k: layers.gaussian_random([2, 3], **k), X, False, "float32"),
    Row("uniform_random_batch_size_like", lambda x, **k: layers.uniform_random_batch_size_like(x, [-1, 3], **k), X,
        False, "float32"),
    Row("gaussian_random_batch_size_like", lambda x, **k: layers.gaussian_random_batch_size_like(x, [-1, 3], **k), X,
        False, "float32"),
    Row("sampling_id", lambda x, **k: layers.sampling_id(x, **k), {"x": simplex(4, 3)}, False, "int32",
        wrong={"x": real(4)}),
    Row("cond", lambda x, y, **k: layers.cond(True, lambda: x * 2, lambda: y, **k), XY, wrong=MISMATCH),
    Row("case", lambda x, y, **k: layers.case([(False, lambda: x), (True, lambda: y)], **k), XY, wrong=MISMATCH),
    Row("switch_case", lambda x, y, **k: layers.switch_case(1, [lambda: x, lambda: y], **k), XY, wrong=MISMATCH),
    Row("while_loop", lambda x, **k: layers.while_loop(
        lambda i, x: i < 2, lambda i, x: [i + 1, x * x], [0, x], max_iterations=3, **k)[1], X),
    Row("scan", lambda x, **k: layers.scan(lambda c, x: (c * x, c), np.ones(3, x.dtype), x, **k)[1], X),
    Row("repeat", lambda x, **k: layers.repeat(lambda h: h * layers.fc(h, 3), 2, x, **k), X),
    Row("remat", lambda x, **k: layers.remat(layers.scale, x, 2.0, **k), X),
    Row("create_array", lambda x, **k: layers.create_array(x.dtype, 2, [3], **k).data, X, gradient=False),
    Row("array_write", lambda x, **k: layers.array_write(x, 1, max_length=2, **k).data, X),
    Row("array_read", lambda x, **k: layers.array_read(written(x), 1, **k), X),
    Row("array_length", lambda x, **k: layers.array_length(written(x), **k), X, False, "int32"),
    Row("Print", lambda x, **k: layers.Print(x, first_n=0, **k), X),
    Row("module", lambda x, **k: layers.module(linen.Dense(2, param_dtype=x.dtype), x, **k), X),
    Row("simple_img_conv_pool", lambda x, **k: nets.simple_img_conv_pool(x, 3, 3, 2, 2, act="tanh", **k), IMAGE,
        gradient=False, wrong=FLAT),
    Row("img_conv_group", lambda x, **k: nets.img_conv_group(
        x, [2, 3], 2, conv_act="tanh", conv_with_batchnorm=[True, False], conv_batchnorm_drop_rate=0.3, **k), IMAGE,
        gradient=False, wrong=FLAT),
    Row("glu", lambda x, **k: nets.glu(x, dim=1, **k), {"x": real(4, 6)}, wrong=FLAT),
    Row("scaled_dot_product_attention", lambda x, **k: nets.scaled_dot_product_attention(x, x, x, 2, **k),
        {"x": real(2, 3, 4)}, wrong=FLAT),
    Row("multi_head_attention", lambda x, **k: layers.multi_head_attention(
        x, num_heads=2, causal=True, rotary=True, **k), {"x": real(2, 3, 8)}, wrong=FLAT),
    Row("multi_head_attention", lambda x, y, **k: layers.multi_head_attention(x, y, num_heads=2, size=6, **k),
        {"x": real(2, 3, 8), "y": real(2, 4, 5)}, wrong={"x": real(2, 3, 8), "y": real(2, 5)}, label="cross"),
    Row("attention_cache", lambda x, **k: layers.attention_cache(x.shape[0], 5, 2, 4, **k).keys, X, False, "float32"),
    Row("rotary_position", layers.rotary_position, {"x": real(2, 3, 2, 4)}, wrong=FLAT),
    Row("sinusoidal_position", lambda x, **k: layers.sinusoidal_position(x, 6, **k), {"x": whole(9, 4)}, False,
        "float32"),
    Row("linear_chain_crf", lambda x, tag, n, **k: layers.linear_chain_crf(x, tag, length=n, **k), TAGGED,
        half="float32", wrong={**TAGGED, "tag": whole(2, 3, 5)}),
    Row("crf_decoding", lambda x, tag, n, **k: layers.crf_decoding(x, "scale", tag, n, **k), TAGGED, False, "int32",
        wrong={**TAGGED, "tag": whole(2, 3, 5)}),
    Row("warpctc", lambda x, **k: layers.warpctc(
        x, CTC_LABEL[0], 0, True, *CTC_LABEL[1:], **k), {"x": real(4, 2, 3)}, False, "float32", wrong=FLAT),
    Row("warpctc", lambda x, **k: layers.warpctc(x, CTC_LABEL[0], 0, False, *CTC_LABEL[1:], **k),
        {"x": real(4, 2, 3)}, half="float32", label="plain"),
    Row("ctc_greedy_decoder", lambda x, n, **k: layers.ctc_greedy_decoder(x, 1, n, **k),
        {"x": real(3, 4, 2), "n": LENGTHS}, False, "int32", wrong={"x": real(3, 4), "n": LENGTHS}),
    Row("edit_distance", lambda x, y, n, **k: layers.edit_distance(x, y, True, [1], n, n, **k),
        {"x": whole(5, 3, 4), "y": whole(5, 3, 5), "n": LENGTHS}, False, "float32",
        wrong={"x": whole(5, 3, 4, 2), "y": whole(5, 3, 5), "n": LENGTHS}),
    Row("chunk_eval", lambda x, y, n, **k: layers.chunk_eval(x, y, "IOB", 2, seq_length=n, **k),
        {"x": whole(5, 3, 4), "y": whole(5, 3, 4, salt=1), "n": LENGTHS}, False, "float32",
        wrong={"x": whole(5, 3, 4), "y": whole(5, 3, 5), "n": LENGTHS}),
    Row("beam_search", lambda x, **k: layers.beam_search(
        lambda ids, state: (jnp.where(ids[:, None] % 2, -1, 1) * state - 5, state), x, 0, 4, 2, 3, **k),
        {"x": np.linspace(-3, 4, 10, dtype="float32").reshape(2, 5)}, False, "int32", wrong=FLAT),
    Row("generate", lambda x, **k: layers.generate(
        lambda ids, state: (jnp.where(ids.data % 2, -1, 1) * state[:, None], state), jnp.int32(x[:, :2] > 0), 3, x, 0,
        **k).data, {"x": np.linspace(-3, 4, 10, dtype="float32").reshape(2, 5)}, False, "int32",
        wrong={"x": real(2, 1, 5)}),
    Row("prior_box", lambda x, **k: layers.prior_box(x, x, [2.0], [3.0], [2.0], flip=True, **k), IMAGE, False,
        "float32", wrong=FLAT),
    Row("density_prior_box", lambda x, **k: layers.density_prior_box(x, x, [2], [2.0], [1.0, 2.0], **k), IMAGE, False,
        "float32", wrong=FLAT),
    Row("anchor_generator", lambda x, **k: layers.anchor_generator(x, [8.0], [0.5, 1.0], stride=[4.0, 4.0], **k),
        IMAGE, False, "float32", wrong=FLAT),
    Row("iou_similarity", layers.iou_similarity, CODED, half="float32", wrong=BAD_CODED),
    Row("box_coder", lambda x, y, **k: layers.box_coder(x, SPREAD, y, **k), CODED, half="float32", wrong=BAD_CODED),
    Row("box_coder", lambda x, y, **k: layers.box_coder(x, None, y, "decode_center_size", False, axis=1, **k),
        {"x": boxes(4), "y": real(4, 2, 4)}, half="float32", wrong={"x": boxes(4), "y": real(4, 2, 3)}, label="decode"),
    Row("box_decoder_and_assign", lambda x, y, s, **k: layers.box_decoder_and_assign(x, SPREAD, y, s, 2.0, **k),
        {"x": boxes(4), "y": real(4, 12), "s": simplex(4, 3)}, half="float32",
        wrong={"x": boxes(4), "y": real(4, 8), "s": simplex(4, 3)}),
    Row("box_clip", layers.box_clip, {"x": 5 * real(4, 3, 4), "y": 3 + positive(4, 3)}, half="float32",
        wrong={"x": real(4, 3, 4), "y": real(4, 2)}),
    Row("polygon_box_transform", layers.polygon_box_transform, IMAGE, half="float32", wrong={"x": real(2, 3, 6, 5)}),
    Row("bipartite_match", ragged(lambda x, **k: layers.bipartite_match(x, "per_prediction", 0.4, **k)),
        {"x": positive(3, 4, 5), "n": LENGTHS}, False, "int32", wrong={"x": positive(3, 4, 5, 2), "n": LENGTHS}),
    Row("target_assign", ragged(lambda x, **k: layers.target_assign(
        x, for_each(x, np.array([0, -1, 2])), mismatch_value=7, **k)), {"x": real(3, 4, 1, 2), "n": LENGTHS},
        wrong={"x": real(3, 4, 2), "n": LENGTHS}),
    Row("ssd_loss", ragged(lambda x, y, b, c, **k: layers.ssd_loss(x, y, b, c, PRIOR, SPREAD, **k), 2), SSD,
        half="float32", wrong={**SSD, "y": real(3, 4, 3)}),
    Row("multi_box_head", lambda x, **k: layers.multi_box_head([x], x, 6, 3, [[2.0]], min_sizes=[2.0], max_sizes=[4.0],
        **k), IMAGE, wrong=FLAT),
    Row("detection_output", lambda x, y, **k: padded(
        layers.detection_output(x, y, PRIOR, SPREAD, return_index=True, **k)), OUTPUTS, False, "float32",
        wrong={**OUTPUTS, "x": real(2, 4, 4)}),
    Row("multiclass_nms", lambda x, y, **k: padded(layers.multiclass_nms(x, y, 0.1, 4, 5, **k)), SCORED, False,
        "float32", wrong=BAD_SCORED),
    Row("matrix_nms", lambda x, y, **k: padded(layers.matrix_nms(x, y, 0.1, 0.05, 4, 5, **k)), SCORED, False, "float32",
        wrong=BAD_SCORED),
    Row("roi_pool", lambda x, **k: layers.roi_pool(x, for_each(x, ROIS), 2, 3, 0.5, **k), IMAGE, wrong=FLAT),
    Row("roi_align", lambda x, **k: layers.roi_align(x, for_each(x, ROIS), 2, 3, 0.5, **k), IMAGE, wrong=FLAT),
    Row("psroi_pool", lambda x, **k: layers.psroi_pool(x, for_each(x, ROIS), 2, 0.5, 2, 1, **k), IMAGE, wrong=FLAT),
    Row("prroi_pool", lambda x, y, **k: layers.prroi_pool(x, y, 0.5, 2, 3, **k),
        {**IMAGE, "y": boxes(2, 3, scale=12.0)}, wrong={**IMAGE, "y": real(2, 3)}),
    Row("yolov3_loss", lambda x, b, c, **k: layers.yolov3_loss(
        x, b, c, [10, 13, 16, 30, 33, 23], [0, 2], 2, 0.5, 16, **k), YOLO, half="float32",
        wrong={**YOLO, "x": real(2, 13, 4, 3)}),
    Row("yolo_box", lambda x, **k: layers.yolo_box(
        x, for_each(x, np.array([64, 48])), [10, 13, 16, 30], 2, 0.3, 16, **k), {"x": YOLO["x"]}, half="float32",
        wrong={"x": real(2, 13, 4, 3)}),
    Row("generate_proposals", lambda x, y, **k: padded(layers.generate_proposals(
        x, y, INFO, ANCHORS, np.full_like(ANCHORS, 0.1), 20, 5, **k)), PROPOSED, False, "float32",
        wrong={**PROPOSED, "y": real(2, 4, 6, 5)}),
    Row("rpn_target_assign", ragged(lambda x, y, b, c, **k: layers.rpn_target_assign(
        x, y, 12 * PRIOR, gt_boxes=b, is_crowd=c, im_info=INFO, rpn_batch_size_per_im=4, rpn_straddle_thresh=-1.0,
        use_random=False, **{"anchor_var": None, **k}), 2), ANCHORED, half="float32",
        wrong={**ANCHORED, "y": real(3, 5, 3)}),
    Row("generate_proposal_labels", ragged(lambda x, b, c, d, **k: layers.generate_proposal_labels(
        x, c, d, b, INFO, 5, use_random=False, class_nums=3, **k)), SAMPLED, False, "float32",
        wrong={**SAMPLED, "x": real(3, 4, 3)}),
    Row("retinanet_target_assign", ragged(lambda x, y, b, c, **k: layers.retinanet_target_assign(
        x, y, 12 * PRIOR, gt_boxes=b, gt_labels=c + 1, is_crowd=c, im_info=INFO, **{"anchor_var": None, **k}), 2),
        ANCHORED, half="float32", wrong={**ANCHORED, "y": real(3, 5, 3)}),
    Row("retinanet_detection_output", lambda x, y, **k: padded(layers.retinanet_detection_output(
        [x, x], [y, y * y], [12 * PRIOR, 11 * PRIOR], INFO, 0.1, 6, 5, **k)), LEVELS, False, "float32",
        wrong={**LEVELS, "x": real(2, 4, 4)}),
    Row("distribute_fpn_proposals", ragged(lambda x, **k: layers.distribute_fpn_proposals(x, 2, 3, 3, 2, **k)[0]),
        BOXES_OF, half="float32", wrong=STEPS_OF),
    Row("collect_fpn_proposals", ragged(lambda x, y, **k: layers.collect_fpn_proposals([x, x], [y, y], 2, 3, 5, **k)),
        LISTED, False, "float32", wrong={**LISTED, "y": positive(3, 4, 2)}),
    Row("deformable_conv", lambda x, o, m, **k: layers.deformable_conv(x, o, m, 6, 3, padding=1, groups=2, **k),
        DEFORMED, wrong={**DEFORMED, "o": real(2, 9, 6, 5)}),
    Row("temporal_shift", lambda x, **k: layers.temporal_shift(x, 2, **k), {"x": real(6, 4, 2, 3)}, wrong=FLAT),
    Row("dynamic_lstm", ragged(lambda x, **k: layers.dynamic_lstm(x, 16, **k)), GATES, wrong=BAD_GATES),
    Row("dynamic_lstmp", ragged(lambda x, **k: layers.dynamic_lstmp(x, 16, 3, cell_clip=0.9, **k)), GATES,
        wrong=BAD_GATES),
    Row("dynamic_gru", ragged(lambda x, **k: layers.dynamic_gru(x, 3, is_reverse=True, **k)),
        {"x": real(3, 4, 9), "n": LENGTHS}, wrong=BAD_GATES),
    Row("lstm", lambda x, **k: layers.lstm(
        x, jnp.zeros((4, 3, 2), x.dtype), jnp.zeros((4, 3, 2), x.dtype), 4, 2, 2, 0.3, is_bidirec=True, **k),
        {"x": real(4, 3, 2)}, wrong=FLAT),
    Row("lstm_unit", layers.lstm_unit, {"x": real(4, 3), "h": real(4, 2), "c": real(4, 2, salt=1)},
        wrong={"x": real(4, 3), "h": real(4, 2), "c": real(4, 3)}),
    Row("gru_unit", lambda x, y, **k: layers.gru_unit(x, y, 6, **k), {"x": real(4, 6), "y": real(4, 2)},
        wrong={"x": real(4, 6), "y": real(4, 3)}),
    Row("rnn", ragged(lambda x, **k: layers.rnn(lambda x, h: (recurred(x, h, **k),) * 2, x, start_of(x), **k)[0]),
        {"x": real(3, 4, 2), "n": LENGTHS}),
    Row("rnn", lambda x, **k: layers.rnn(
        lambda x, h: (h, recurred(x, h, **k)), x, start_of(x), is_reverse=True, **k), {"x": real(4, 3, 2)},
        wrong={"x": real(4)}, label="dense"),
    *[Row("rnn", lambda x, cell=cell, **k: rnn_of(cell(2, **k), x, **k), {"x": real(4, 3, 2)},
          wrong={"x": real(4, 3)}, label=cell.__name__) for cell in (layers.GRUCell, layers.LSTMCell)],
    *[Row(cell.__name__, ragged(lambda x, cell=cell, **k: rnn_of(cell(2, **k), x, is_reverse=True, **k)), STEPS_OF)
      for cell in (layers.GRUCell, layers.LSTMCell)],
    Row("RNNCell", ragged(lambda x, **k: layers.rnn(Elman(**k), x, **k)), STEPS_OF),
    Row("TrainingHelper", ragged(lambda x, **k: decoded(
        layers.BasicDecoder(Elman(**k), layers.TrainingHelper(x)), **k).cell_outputs), STEPS_OF),
    Row("BasicDecoder", lambda x, h, **k: decoded(
        layers.BasicDecoder(layers.GRUCell(2, **k), layers.TrainingHelper(x)), h, 9, **k).cell_outputs,
        {"x": real(3, 4, 2), "h": real(3, 2)}),
    Row("dynamic_decode", lambda x, h, n, **k: layers.dynamic_decode(layers.BasicDecoder(
        layers.GRUCell(2, **k), layers.TrainingHelper(x, n)), h, impute_finished=True, **k)[1],
        {"x": real(3, 4, 2), "h": real(3, 2), "n": LENGTHS},
        wrong={"x": real(3, 4, 2), "h": real(3, 3), "n": LENGTHS}),
    Row("Decoder", lambda x, **k: decoded(Halving(), x, 5, **k), X),
    Row("DecodeHelper", lambda x, **k: decoded(
        layers.BasicDecoder(layers.GRUCell(3, **k), Feedback(x)), **k).cell_outputs, X),
    *[Row(helper.__name__, lambda x, helper=helper, **k: decoded(ids_of(helper, x, **k), **k).cell_outputs, X)
      for helper in (layers.GreedyEmbeddingHelper, layers.SampleEmbeddingHelper)],
    Row("BeamSearchDecoder", lambda x, **k: decoded(layers.BeamSearchDecoder(
        lambda ids, state: (jnp.where(ids[:, None] % 2, -1, 1) * state - 5, state), 0, 4, 2), x, **k),
        {"x": np.linspace(-3, 4, 10, dtype="float32").reshape(2, 5)}, False, "int32"),
    Row("gather_tree", layers.gather_tree, {"x": whole(9, 2, 3, 4), "y": whole(4, 2, 3, 4)}, False, "int32",
        wrong={"x": whole(9, 2, 3, 4), "y": whole(4, 2, 3, 3)}),
    Row("DynamicRNN", ragged(lambda x, **k: block_of(layers.DynamicRNN(**k), x, **k)),
        {"x": real(3, 4, 2), "n": LENGTHS}),
    Row("StaticRNN", lambda x, **k: block_of(layers.StaticRNN(**k), x, **k), {"x": real(4, 3, 2)}),
    *[Row("sequence_pool", ragged(lambda x, kind=kind, **k: layers.sequence_pool(x, kind, **k)), STEPS_OF, label=kind)
      for kind in ("sum", "average", "sqrt", "max", "min")],
    *[Row(name, ragged(getattr(layers, name)), STEPS_OF)
      for name in ("sequence_first_step", "sequence_last_step", "sequence_softmax", "sequence_reverse")],
    Row("sequence_conv", ragged(lambda x, **k: layers.sequence_conv(x, 3, act="tanh", **k)), STEPS_OF, wrong=BAD_STEPS),
    Row("row_conv", ragged(lambda x, **k: layers.row_conv(x, 2, act="tanh", **k)), STEPS_OF, wrong=BAD_STEPS),
    Row("add_position_encoding", ragged(lambda x, **k: layers.add_position_encoding(x, 0.5, 2.0, **k)), STEPS_OF,
        wrong={"x": real(3, 4, 3), "n": LENGTHS}),
    Row("sequence_expand", ragged(layers.sequence_expand), TWO_OF),
    Row("sequence_expand_as", ragged(lambda x, **k: layers.sequence_expand_as(x.data[:, 0], x, **k)), STEPS_OF),
    Row("sequence_concat", ragged(lambda x, y, **k: layers.sequence_concat([x, y], **k)), TWO_OF,
        wrong={**TWO_OF, "y": real(3, 5, 1)}),
    Row("sequence_slice", ragged(lambda x, **k: layers.sequence_slice(x, 1, 2, **k)), STEPS_OF),
    Row("sequence_pad", ragged(lambda x, **k: layers.sequence_pad(x, 0.5, 5, **k)), STEPS_OF),
    Row("sequence_unpad", lambda x, n, **k: layers.sequence_unpad(x, n, **k).data, STEPS_OF,
        wrong={"x": real(3), "n": LENGTHS}),
    Row("sequence_reshape", ragged(lambda x, **k: layers.sequence_reshape(x, 4, **k)), STEPS_OF),
    Row("sequence_enumerate", ragged(lambda x, **k: layers.sequence_enumerate(x, 2, **k)), IDS_OF, False, "int32",
        wrong=BAD_IDS_OF),
    Row("sequence_erase", ragged(lambda x, **k: layers.sequence_erase(x, [0, 3], **k)), IDS_OF, False, "int32",
        wrong=BAD_IDS_OF),
    Row("sequence_scatter", ragged(lambda i, y, **k: layers.sequence_scatter(jnp.tile(y.data[:, 0], 5), i, y, **k)),
        {"i": whole(5, 3, 4, 1), "y": real(3, 4, 1), "n": LENGTHS},
        wrong={"i": whole(5, 3, 4, 2), "y": real(3, 4, 1), "n": LENGTHS}),
    Row("lod_reset", lambda x, **k: layers.lod_reset(x, target_lod=[0, 1, 4], **k).data, X),
    Row("lod_append", ragged(lambda x, **k: layers.lod_append(x, [0, 0, 1, 2, 3, 6, 6, 7], **k)), STEPS_OF),
    Row("im2sequence", lambda x, **k: layers.im2sequence(x, [2, 3], [1, 2], [1, 0, 0, 2], **k).data, IMAGE, wrong=FLAT),
    Row("sequence_conv_pool", ragged(lambda x, **k: nets.sequence_conv_pool(x, 3, 2, pool_type="average", **k)),
        STEPS_OF, gradient=False, wrong=BAD_STEPS),
]  # fmt: skip
