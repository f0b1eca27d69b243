"""Mistakes in the combination of layers: each call alone is right, but the input of a layer is of the wrong kind."""

from fluid import errors
from mistakes.common import SGD, X, classifier, fluid, layers, np
from mistakes.theme import Theme

THEME = Theme("Layers that do not fit together")


@THEME.mistake(
    "A softmax before `warpctc`", errors.FluidWarning, "layers.warpctc", "logits", "a softmax", "classes + 1"
)
def softmax_before_ctc():
    def train_program():
        sound = layers.data("sound", shape=[8], lod_level=1)
        text = layers.data("text", shape=[1], dtype="int64", lod_level=1)
        return layers.mean(layers.warpctc(layers.fc(sound, size=5, act="softmax"), text))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A softmax before `bpr_loss`", errors.FluidWarning, "layers.bpr_loss", "scores", "a softmax")
def softmax_before_ranking():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.bpr_loss(classifier(), label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Sigmoids in `rank_loss`", errors.FluidWarning, "layers.rank_loss", "scores", "a sigmoid")
def ranked_sigmoids():
    def train_program():
        left = layers.fc(layers.data("left", shape=[4]), size=1, act="sigmoid")
        right = layers.data("right", shape=[1])
        return layers.mean(layers.rank_loss(layers.data("label", shape=[1]), left, right))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A softmax before a CRF", errors.FluidWarning, "layers.linear_chain_crf", "scores", "a softmax")
def softmax_before_crf():
    def train_program():
        words = layers.data("words", shape=[8], lod_level=1)
        tags = layers.data("tags", shape=[1], dtype="int64", lod_level=1)
        return layers.mean(layers.linear_chain_crf(layers.fc(words, size=5, act="softmax"), tags))

    fluid.Trainer(train_program, SGD)


@THEME.mistake(
    "A sigmoid before `sigmoid_focal_loss`", errors.FluidWarning, "layers.sigmoid_focal_loss", "logits", "a sigmoid"
)
def sigmoid_before_focal_loss():
    def train_program():
        p = layers.fc(layers.data("x", shape=[4]), size=3, act="sigmoid")
        label = layers.data("label", shape=[1], dtype="int64")
        count = layers.data("count", shape=[1], dtype="int32", append_batch_size=False)
        return layers.reduce_sum(layers.sigmoid_focal_loss(p, label, count))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`dice_loss` of logits", errors.FluidWarning, "layers.dice_loss", "probabilities", "layers.softmax(x)")
def dice_of_logits():
    def train_program():
        logits = layers.dense(layers.data("pixels", shape=[8, 4]), size=2)
        return layers.dice_loss(logits, layers.data("label", shape=[8, 1], dtype="int64"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`sampling_id` of logits", errors.FluidWarning, "layers.sampling_id", "layers.softmax(x)")
def sampling_of_logits():
    def program():
        return layers.sampling_id(layers.fc(layers.data("x", shape=[4]), size=3))

    fluid.Session(program)


@THEME.mistake("`cross_entropy` of a `log_softmax`, as in PyTorch", errors.FluidWarning, "probabilities", "a logarithm")
def cross_entropy_of_logarithms():
    def train_program():
        logits = layers.fc(layers.data("x", shape=[4]), size=3)
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.cross_entropy(layers.log_softmax(logits), label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A dropout behind the softmax", errors.FluidWarning, "a dropout", "before the activation")
def dropout_of_probabilities():
    def train_program():
        p = layers.dropout(classifier(), dropout_prob=0.5)
        return layers.mean(layers.cross_entropy(p, layers.data("label", shape=[1], dtype="int64")))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The arguments of `kldiv_loss` are swapped", errors.FluidWarning, "the target of layers.kldiv_loss")
def swapped_divergence():
    def train_program():
        logs = layers.log_softmax(layers.fc(layers.data("x", shape=[4]), size=3))
        return layers.kldiv_loss(layers.data("target", shape=[3]), logs)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The target of `kldiv_loss` is a logarithm", errors.FeedError, "0 <= value <= 1", "np.exp(value)")
def logarithm_as_target():
    def train_program():
        logs = layers.log_softmax(layers.fc(layers.data("x", shape=[4]), size=3))
        return layers.kldiv_loss(logs, layers.data("target", shape=[3]))

    rows = {"x": X[:2], "target": np.log([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]).astype("float32")}
    fluid.Trainer(train_program, SGD).train([rows], num_epochs=1)


@THEME.mistake(
    "Several classes of a row as a soft label", errors.FluidWarning, "add up to 1", "sigmoid_cross_entropy_with_logits"
)
def several_classes():
    def train_program():
        label = layers.data("label", shape=[3])
        return layers.mean(layers.cross_entropy(classifier(), label, soft_label=True))

    rows = {"x": X[:2], "label": np.array([[1, 0, 1], [0, 1, 0]], "float32")}
    fluid.Trainer(train_program, SGD).train([rows], num_epochs=1)


@THEME.mistake("Labels of 0 and 1 in `margin_rank_loss`", errors.FluidWarning, "-1 and 1", "layers.rank_loss")
def margin_of_binary_labels():
    def train_program():
        left, right = (layers.fc(layers.data(name, shape=[4]), size=1) for name in ("left", "right"))
        return layers.mean(layers.margin_rank_loss(layers.data("label", shape=[1]), left, right))

    rows = {"left": X[:2], "right": X[2:4], "label": np.array([[1], [0]], "float32")}
    fluid.Trainer(train_program, SGD).train([rows], num_epochs=1)


@THEME.mistake("The label of `warpctc` holds the blank", errors.FeedError, "the value 0", "1 <= value < 5")
def blank_in_a_label():
    def train_program():
        sound = layers.data("sound", shape=[8], lod_level=1)
        text = layers.data("text", shape=[1], dtype="int64", lod_level=1)
        return layers.mean(layers.warpctc(layers.fc(sound, size=5), text, blank=0))

    rows = {"sound": [np.ones((6, 8), "float32")], "text": [np.array([[0], [3]])]}
    fluid.Trainer(train_program, SGD).train([rows], num_epochs=1)


@THEME.mistake("`ctc_greedy_decoder` has another blank", errors.FluidWarning, "blank=4", "blank=0", "5 classes")
def two_blanks():
    def train_program():
        scores = layers.fc(layers.data("sound", shape=[8], lod_level=1), size=5)
        text = layers.data("text", shape=[1], dtype="int64", lod_level=1)
        return layers.mean(layers.warpctc(scores, text)), layers.ctc_greedy_decoder(scores, blank=4)

    fluid.Trainer(train_program, SGD)


@THEME.mistake(
    "`crf_decoding` has transitions of another name", errors.FluidWarning, "'crf_w'", "nothing trains", "'crfw'"
)
def other_transitions():
    def train_program():
        scores = layers.fc(layers.data("words", shape=[8], lod_level=1), size=5)
        tags = layers.data("tags", shape=[1], dtype="int64", lod_level=1)
        cost = layers.linear_chain_crf(scores, tags, param_attr=fluid.ParamAttr(name="crfw"))
        return layers.mean(cost), layers.crf_decoding(scores, param_attr=fluid.ParamAttr(name="crf_w"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The cost of a CRF is negated", errors.FluidWarning, "negative of layers.linear_chain_crf", "worse")
def negated_cost():
    def train_program():
        scores = layers.fc(layers.data("words", shape=[8], lod_level=1), size=5)
        tags = layers.data("tags", shape=[1], dtype="int64", lod_level=1)
        return -layers.mean(layers.linear_chain_crf(scores, tags))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`l2_normalize` along the batch", errors.FluidWarning, "rows of the minibatch", "axis=-1")
def normalized_batch():
    def program():
        return layers.l2_normalize(layers.fc(layers.data("x", shape=[4]), size=3), axis=0)

    fluid.Session(program)


@THEME.mistake("`dropout` with a seed", errors.FluidWarning, "seed=7", "the same elements", "leave out seed=")
def seed_of_dropout():
    def train_program():
        hidden = layers.dropout(layers.fc(layers.data("x", shape=[4]), size=8), dropout_prob=0.5, seed=7)
        return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A feed of float64", errors.FluidWarning, "dtype='float64'", "float32", "jax_enable_x64")
def double_precision():
    def program():
        return layers.fc(layers.data("x", shape=[4], dtype="float64"), size=1)

    fluid.Session(program)


@THEME.mistake("An index beyond the last one", errors.FluidWarning, "the index 4", "size 4", "-4 to 3")
def index_beyond_the_end():
    def program():
        return layers.data("x", shape=[4])[:, 4]

    fluid.Session(program)


@THEME.mistake("A layer over an empty slice", errors.ShapeError, "float32[batch, 0]", "x[:, 3:4]")
def layer_of_nothing():
    def program():
        return layers.fc(layers.data("x", shape=[4])[:, 4:5], size=1)

    fluid.Session(program)


@THEME.mistake("`gather` of a row that is not there", errors.FeedError, "the value 10", "0 <= value < 10")
def row_beyond_the_table():
    def program():
        table = layers.create_parameter([10, 4], "float32")
        return layers.gather(table, layers.data("row", shape=[1], dtype="int64"))

    fluid.Session(program).run(feed={"row": np.array([[10]])})


@THEME.mistake("`index_select` of a column that is not there", errors.ArgumentError, "4", "0 <= value < 4")
def column_beyond_the_end():
    def program():
        return layers.index_select(layers.data("x", shape=[4]), [0, 4], dim=1)

    fluid.Session(program)


@THEME.mistake("`flatten` keeps more than the batch", errors.ShapeError, "float32[3 * batch, 1]", "float32[batch, 1]")
def flattened_rows():
    def train_program():
        rows = layers.flatten(layers.data("x", shape=[3, 4]), axis=2)
        return layers.mean(layers.square_error_cost(layers.fc(rows, size=1), layers.data("y", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`beam_search` of logits", errors.FluidWarning, "a matrix product", "layers.log_softmax")
def beam_of_logits():
    def program():
        def step(ids, state):
            return layers.fc(state, size=100), state

        state = layers.fc(layers.data("x", shape=[4]), size=16)
        return layers.beam_search(step, state, start_id=0, end_id=1, beam_size=4, max_length=20).ids

    fluid.Session(program)


@THEME.mistake("A `batch_norm` without an activation makes the probabilities", errors.FluidWarning, "a batch_norm")
def normalized_probabilities():
    def train_program():
        p = layers.batch_norm(layers.fc(layers.data("x", shape=[4]), size=3))
        return layers.mean(layers.cross_entropy(p, layers.data("label", shape=[1], dtype="int64")))

    fluid.Trainer(train_program, SGD)


@THEME.mistake(
    "The last step of a GRU that reads backwards", errors.FluidWarning, "one step only", "sequence_pool(x, 'first')"
)
def last_step_backwards():
    def program():
        gru = layers.dynamic_gru(layers.data("x", shape=[12], lod_level=1), size=4, is_reverse=True)
        return layers.sequence_last_step(gru)

    fluid.Session(program)


@THEME.mistake("The label comes first in `log_loss`", errors.FluidWarning, "a sigmoid", "log_loss(prediction, label)")
def label_first():
    def train_program():
        p = layers.fc(layers.data("x", shape=[4]), size=1, act="sigmoid")
        return layers.mean(layers.log_loss(layers.data("label", shape=[1]), p))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Labels of 0 are ignored in a sigmoid loss", errors.FluidWarning, "ignore_index=0", "-100")
def ignored_zeros():
    def train_program():
        logit = layers.fc(layers.data("x", shape=[4]), size=1)
        label = layers.data("label", shape=[1])
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, label, ignore_index=0))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A ranking of a score and itself", errors.FluidWarning, "with itself", "left and right")
def ranked_with_itself():
    def train_program():
        score = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(layers.rank_loss(layers.data("label", shape=[1]), score, score))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`huber_loss` without a parabola", errors.ArgumentError, "delta=0", "delta=1.0")
def huber_of_nothing():
    def train_program():
        y = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(layers.huber_loss(y, layers.data("y", shape=[1]), delta=0))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`smooth_l1` with a sigma of 0", errors.ArgumentError, "sigma=0", "sigma=1.0")
def no_sigma():
    def train_program():
        y = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(layers.smooth_l1(y, layers.data("y", shape=[1]), sigma=0))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Moving averages that never move", errors.FluidWarning, "batch_norm(momentum=1)", "momentum=0.9")
def averages_stay():
    def train_program():
        return layers.mean(layers.fc(layers.batch_norm(layers.data("x", shape=[4]), momentum=1.0), size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A sigmoid for each class", errors.FluidWarning, "add up to 1", "a sigmoid", 'act="softmax"')
def sigmoid_of_classes():
    def train_program():
        x = layers.data("x", shape=[4])
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.cross_entropy(layers.fc(x, size=3, act="sigmoid"), label))

    fluid.Trainer(train_program, SGD)
