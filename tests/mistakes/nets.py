"""Mistakes in a net, after which its training runs, but the net cannot learn, or learns the wrong thing."""

from fluid import errors
from mistakes.common import SGD, X, Y, classifier, fluid, jax, layers, np
from mistakes.theme import Theme

THEME = Theme("Nets that cannot learn")


@THEME.mistake("A softmax of one number", errors.FluidWarning, "always 1", "sigmoid")
def softmax_of_one():
    def train_program():
        p = layers.fc(layers.data("x", shape=[4]), size=1, act="softmax")
        return layers.mean(layers.log_loss(p, layers.data("label", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`softmax_with_cross_entropy` of one logit", errors.FluidWarning, "one class", "size=2")
def one_class():
    def train_program():
        logit = layers.fc(layers.data("x", shape=[4]), size=1)
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.softmax_with_cross_entropy(logit, label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`cross_entropy` of one sigmoid", errors.FluidWarning, "one probability", "layers.log_loss")
def cross_entropy_of_one():
    def train_program():
        p = layers.fc(layers.data("x", shape=[4]), size=1, act="sigmoid")
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.cross_entropy(p, label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A sigmoid before a loss that takes logits", errors.FluidWarning, "logits", "sigmoid", "log_loss")
def sigmoid_twice():
    def train_program():
        p = layers.fc(layers.data("x", shape=[4]), size=1, act="sigmoid")
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(p, layers.data("label", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A softmax of `jax.nn` before a softmax", errors.FluidWarning, "logits", "a softmax", "act=")
def softmax_of_jax():
    def train_program():
        p = jax.nn.softmax(layers.fc(layers.data("x", shape=[4]), size=3))
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.softmax_with_cross_entropy(p, label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A relu makes the logits", errors.FluidWarning, "logits", "never negative", "act=")
def relu_logits():
    def train_program():
        logits = layers.fc(layers.data("x", shape=[4]), size=3, act="relu")
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.cross_entropy(layers.softmax(logits), label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`log_loss` of logits", errors.FluidWarning, "probabilities", "sigmoid_cross_entropy_with_logits")
def log_loss_of_logits():
    def train_program():
        logit = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(layers.log_loss(logit, layers.data("label", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`kldiv_loss` of probabilities", errors.FluidWarning, "logarithms", "layers.log_softmax")
def divergence_of_probabilities():
    def train_program():
        return layers.kldiv_loss(classifier(), layers.data("target", shape=[3]))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`accuracy` of one column of logits", errors.FluidWarning, "probabilities", "layers.sigmoid")
def accuracy_of_a_logit():
    def train_program():
        logit = layers.fc(layers.data("x", shape=[4]), size=1)
        label = layers.data("label", shape=[1], dtype="int64")
        loss = layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, layers.cast(label, "float32")))
        return {"loss": loss, "accuracy": layers.accuracy(logit, label)}

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`auc` of a logit", errors.FluidWarning, "probabilities", "layers.sigmoid")
def auc_of_a_logit():
    def program():
        logit = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.auc(logit, layers.data("label", shape=[1], dtype="int64"))[0]

    fluid.Session(program)


@THEME.mistake("Labels of -1 and 1 in a sigmoid loss", errors.FeedError, "-1.0", "0 <= value <= 1", "(value + 1) / 2")
def labels_of_minus_one():
    def train_program():
        logit = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit, layers.data("label", shape=[1])))

    reader = fluid.reader.arrays({"x": X, "label": np.sign(Y)}, batch_size=8)
    fluid.Trainer(train_program, SGD).train(reader, num_epochs=1)


@THEME.mistake("Labels of -1 and 1, converted by `cast`", errors.FeedError, "the value -1", "0 <= value < 2")
def converted_labels():
    def train_program():
        p = layers.fc(layers.data("x", shape=[4]), size=1, act="sigmoid")
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.log_loss(p, layers.cast(label, "float32")))

    reader = fluid.reader.arrays({"x": X, "label": np.sign(Y).astype("int64")}, batch_size=8)
    fluid.Trainer(train_program, SGD).train(reader, num_epochs=1)


@THEME.mistake("A softmax over the rows of the minibatch", errors.FluidWarning, "axis 0", "layers.softmax(x)")
def softmax_of_the_batch():
    def program():
        return layers.softmax(layers.fc(layers.data("x", shape=[4]), size=3), axis=0)

    fluid.Session(program)


@THEME.mistake("A softmax over time, and classes along the last axis", errors.FluidWarning, "axis 1", "axis, 2")
def softmax_of_time():
    def train_program():
        logits = layers.fc(layers.data("x", shape=[5, 4]), size=3, num_flatten_dims=2)
        label = layers.data("label", shape=[5, 1], dtype="int64")
        return layers.mean(layers.cross_entropy(layers.softmax(logits, axis=1), label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Two losses in a dict, of which one counts", errors.FluidWarning, "'loss_b'", '"loss": loss_a + loss_b')
def two_losses():
    def train_program():
        hidden = layers.fc(layers.data("x", shape=[4]), size=4, act="relu")
        a, b = (layers.fc(hidden, size=1) - layers.data(name, shape=[1]) for name in ("a", "b"))
        return {"loss_a": layers.mean(a * a), "loss_b": layers.mean(b * b)}

    fluid.Trainer(train_program, SGD)


@THEME.mistake(
    "A layer whose result is not used", errors.FluidWarning, "fc_1", "never trained", "fc_1.w_0 and fc_1.b_0"
)
def unused_layer():
    def train_program():
        x = layers.data("x", shape=[4])
        hidden = layers.fc(x, size=8, act="relu")
        layers.fc(hidden, size=8, act="relu")
        return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`batch_norm` with the momentum of torch", errors.FluidWarning, "momentum=0.1", "momentum=0.9")
def momentum_of_torch():
    def program():
        return layers.batch_norm(layers.data("x", shape=[4]), momentum=0.1)

    fluid.Session(program)


@THEME.mistake("`batch_norm`, and a last minibatch of one row", errors.FluidWarning, "one row", "drop_last=True")
def one_row():
    def train_program():
        normal = layers.batch_norm(layers.data("x", shape=[4]))
        return layers.mean(layers.square_error_cost(layers.fc(normal, size=1), layers.data("y", shape=[1])))

    reader = fluid.reader.arrays({"x": X, "y": Y}, batch_size=5)
    fluid.Trainer(train_program, SGD).train(reader, num_epochs=1)


@THEME.mistake("`layer_norm` of one number", errors.FluidWarning, "one number", "bias")
def norm_of_one_number():
    def program():
        return layers.layer_norm(layers.fc(layers.data("x", shape=[4]), size=1))

    fluid.Session(program)


@THEME.mistake("Everything is dropped", errors.FluidWarning, "dropout_prob=1", "dropout_prob=0.1")
def everything_dropped():
    def train_program():
        hidden = layers.dropout(layers.fc(layers.data("x", shape=[4]), size=8), dropout_prob=1.0)
        return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A clip to one number", errors.FluidWarning, "for every number", "clip(x, -1.0, 1.0)")
def clip_to_a_number():
    def train_program():
        prediction = layers.clip(layers.fc(layers.data("x", shape=[4]), size=1), 0.0, 0.0)
        return layers.mean(layers.square_error_cost(prediction, layers.data("y", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A loss compares the prediction with itself", errors.FluidWarning, "with itself", "label")
def compared_with_itself():
    def train_program():
        y = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(layers.square_error_cost(y, y))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Smoothing leaves nothing of the label", errors.FluidWarning, "epsilon=1", "epsilon=0.1")
def smoothed_away():
    def train_program():
        label = layers.one_hot(layers.data("label", shape=[1], dtype="int64"), 3)
        smooth = layers.label_smooth(label, epsilon=1.0)
        return layers.mean(layers.cross_entropy(classifier(), smooth, soft_label=True))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`l2_normalize` of one number", errors.FluidWarning, "one number", "features")
def length_of_one_number():
    def program():
        return layers.l2_normalize(layers.fc(layers.data("x", shape=[4]), size=1), axis=1)

    fluid.Session(program)


@THEME.mistake("One `ParamAttr` with a name for weight and bias", errors.FluidWarning, "one parameter", "of its own")
def one_name_for_weight_and_bias():
    def program():
        attr = fluid.ParamAttr(name="scale")
        return layers.layer_norm(layers.data("x", shape=[4]), param_attr=attr, bias_attr=attr)

    fluid.Session(program)


@THEME.mistake("Both programs of a GAN train both nets", errors.FluidWarning, "parameter_list", "discriminator/*")
def both_train_both():
    def judged():
        x = layers.data("noise", shape=[2])
        fake = layers.fc(x, size=4, param_attr=fluid.ParamAttr(name="generator/w"), bias_attr=False)
        return layers.fc(fake, size=1, param_attr=fluid.ParamAttr(name="discriminator/w"), bias_attr=False)

    def train_discriminator():
        loss = layers.mean(layers.square(judged()))
        SGD.minimize(loss)
        return loss

    def train_generator():
        loss = layers.mean(layers.square(judged() - 1))
        SGD.minimize(loss)
        return loss

    fluid.Session(train_discriminator, train_generator)


@THEME.mistake("A layer in front of a sign", errors.FluidWarning, "fc_0.w_0", "no gradient", "stop_gradient")
def layer_before_sign():
    def train_program():
        bits = layers.sign(layers.fc(layers.data("x", shape=[4]), size=3))
        error = layers.fc(bits, size=1) - layers.data("y", shape=[1])
        return layers.mean(layers.square(error))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("argmax inside of a loss", errors.FluidWarning, "argmax", "layers.softmax")
def argmax_in_a_loss():
    def train_program():
        x = layers.data("x", shape=[4])
        best = layers.unsqueeze(layers.argmax(layers.fc(x, size=3), axis=-1), axes=[-1])
        chosen = layers.fc(layers.one_hot(best, 3), size=1)
        return layers.mean(layers.square(chosen - layers.data("y", shape=[1])))

    fluid.Trainer(train_program, SGD)


@THEME.mistake(
    "The accuracy of as many guesses as there are classes", errors.FluidWarning, "k=3", "3 classes", "is always 1"
)
def top_of_all_classes():
    def program():
        label = layers.data("label", shape=[1], dtype="int64")
        guess = classifier()
        return {"loss": layers.mean(layers.cross_entropy(guess, label)), "top3": layers.accuracy(guess, label, k=3)}

    fluid.Trainer(program, SGD)


@THEME.mistake("All weights start as zeros", errors.FluidWarning, "start as zeros", "'fc_0.w_0'", "Normal(0.0, 0.02)")
def stacked_zeros():
    def train_program():
        zeros = fluid.initializer.Constant(0.0)
        hidden = layers.fc(layers.data("x", shape=[4]), size=8, act="relu", param_attr=zeros)
        return layers.mean(layers.square(layers.fc(hidden, size=1, param_attr=zeros)))

    fluid.Trainer(train_program, SGD)


@THEME.mistake(
    "The branch of a `where` that is not taken", errors.FluidWarning, "fc_0.w_0", "although", "layers.where(z"
)
def gradient_of_where():
    def train_program():
        z = layers.fc(layers.data("x", shape=[4]), size=8, bias_attr=False)
        return layers.mean(layers.where(z > 0, layers.sqrt(z), 0 * z))

    fluid.Trainer(train_program, SGD).train(fluid.reader.arrays({"x": X}, batch_size=16))


@THEME.mistake("A layer in training only, before others", errors.ParameterError, "'fc_1.w_0'", "name=", "is_training")
def auxiliary_head():
    def train_program():
        hidden = layers.fc(layers.data("x", shape=[4]), size=4)
        loss = 0.0
        if layers.is_training():
            loss = layers.mean(layers.fc(hidden, size=1))
        return layers.mean(layers.fc(hidden, size=1)) + loss

    reader = fluid.reader.arrays({"x": X}, batch_size=8)
    fluid.Trainer(train_program, SGD).train(reader, test_reader=reader)
