"""Mistakes with shared parameters: two sets of parameters where one is wanted, or one where two are wanted."""

from fluid import errors
from mistakes.common import SGD, fluid, layers
from mistakes.theme import Theme

THEME = Theme("Sharing")


@THEME.mistake("A name scope opened twice, to share what is in it", errors.FluidWarning, "fluid.shared", "'d/fc_1.w_0'")
def scope_opened_twice():
    def discriminator(x):
        with fluid.name_scope("d"):
            return layers.fc(x, size=1)

    def train_program():
        real, made = layers.data("real", shape=[4]), layers.data("made", shape=[4])
        return layers.mean(discriminator(made) - discriminator(real))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("name= given to two layers, to share their weight", errors.FluidWarning, "fluid.shared", "'h.w_1'")
def name_of_two_layers():
    def train_program():
        left, right = layers.data("left", shape=[4]), layers.data("right", shape=[4])
        return layers.mean(layers.fc(left, size=3, name="h") - layers.fc(right, size=3, name="h"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A shared function called with inputs of two sizes", errors.ParameterError, "fluid.shared", "called at")
def inputs_of_two_sizes():
    @fluid.shared
    def encoder(x):
        return layers.fc(x, size=3)

    def train_program():
        short, long = layers.data("short", shape=[4]), layers.data("long", shape=[6])
        return layers.mean(encoder(short) - encoder(long))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Two towers made by one function, both shared", errors.ProgramError, "'tower'", 'name="tower_2"')
def two_towers():
    def make_tower(size):
        @fluid.shared
        def tower(x):
            return layers.fc(x, size=size)

        return tower

    left, right = make_tower(3), make_tower(3)

    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(left(x) - right(x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A lambda is shared without a name", errors.ArgumentError, "name=")
def shared_lambda():
    fluid.shared(lambda x: layers.fc(x, size=3))


@THEME.mistake("A shared function and a name scope of one name", errors.ParameterError, "name scope", "fluid.shared")
def scope_of_a_shared_name():
    @fluid.shared
    def encoder(x):
        return layers.fc(x, size=3)

    def train_program():
        x = layers.data("x", shape=[4])
        with fluid.name_scope("encoder"):
            h = layers.fc(x, size=4)
        return layers.mean(encoder(h))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A shared function called outside a program function", errors.OutsideProgramError, "fluid.shared")
def shared_outside():
    @fluid.shared
    def encoder(x):
        return layers.fc(x, size=3)

    encoder([[1.0, 2.0]])


@THEME.mistake("A target network of another structure", errors.ParameterError, "copy_params", "fluid.shared")
def target_of_another_structure():
    def program():
        x = layers.data("x", shape=[4])
        small = fluid.shared(lambda v: layers.fc(v, size=3), name="online")
        large = fluid.shared(lambda v: layers.fc(v, size=5), name="target")
        return layers.mean(small(x)) + layers.mean(large(x))

    fluid.Session(program).copy_params({"online/*": "target/*"})


@THEME.mistake("A target network that the optimizer trains as well", errors.FluidWarning, "copy_params", "fluid.frozen")
def target_is_trained():
    def q(x):
        return layers.fc(x, size=1)

    online, target = fluid.shared(q, name="online"), fluid.shared(q, name="target")

    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.square(online(x) - 0.9 * target(x)))

    trainer = fluid.Trainer(train_program, SGD)
    trainer.copy_params({"online/*": "target/*"}, rate=0.01)


@THEME.mistake("A copy that moves the net that is trained", errors.FluidWarning, "turn the names round", "'online/fc_0")
def copied_backwards():
    def q(x):
        return layers.fc(x, size=1)

    online, target = fluid.shared(q, name="online"), fluid.shared(q, name="target")

    def train_program():
        x = layers.data("x", shape=[4])
        with fluid.frozen():
            goal = 0.9 * target(x)
        return layers.mean(layers.square(online(x) - goal))

    trainer = fluid.Trainer(train_program, SGD)
    trainer.copy_params({"target/*": "online/*"}, rate=0.01)


@THEME.mistake("The rate of a copy is the share that is to be kept", errors.FluidWarning, "99.5 %", "rate=0.005")
def copied_by_what_is_kept():
    def q(x):
        return layers.fc(x, size=1)

    online, target = fluid.shared(q, name="online"), fluid.shared(q, name="target")

    def train_program():
        x = layers.data("x", shape=[4])
        with fluid.frozen():
            goal = 0.9 * target(x)
        return layers.mean(layers.square(online(x) - goal))

    trainer = fluid.Trainer(train_program, SGD)
    trainer.copy_params({"online/*": "target/*"}, rate=0.995)


@THEME.mistake("Names of two nets for `copy_params`", errors.ArgumentTypeError, '{"online/*": "target/*"}')
def copied_between_two_names():
    def q(x):
        return layers.fc(x, size=1)

    online, target = fluid.shared(q, name="online"), fluid.shared(q, name="target")

    def program():
        x = layers.data("x", shape=[4])
        return online(x) - target(x)

    fluid.Session(program).copy_params("online", "target")


@THEME.mistake("The second use of a parameter freezes it", errors.FluidWarning, "trainable=True", "trainable=False")
def frozen_at_the_second_use():
    def train_program():
        x = layers.data("x", shape=[4])
        fixed = layers.fc(x, size=3, param_attr=fluid.ParamAttr(name="w", trainable=False))
        moved = layers.fc(x * 2.0, size=3, param_attr=fluid.ParamAttr(name="w"))
        return layers.mean(fixed - moved)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Two uses of a parameter start it in two ways", errors.FluidWarning, "Constant", "first use")
def two_initializers():
    def train_program():
        x = layers.data("x", shape=[4])
        ones = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(1.0))
        normal = fluid.ParamAttr(name="w", initializer=fluid.initializer.Normal(0.0, 0.1))
        return layers.mean(layers.fc(x, size=3, param_attr=ones) * layers.fc(x, size=3, param_attr=normal))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("minimize is called twice with one loss", errors.FluidWarning, "twice", "parameter_list")
def minimized_twice():
    def train_program():
        loss = layers.mean(layers.fc(layers.data("x", shape=[4]), size=1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        fluid.optimizer.Adam(0.1).minimize(loss)
        return loss

    fluid.Session(train_program)
