"""Mistakes with values of a program in Python and NumPy: JAX traces the program, and its values have no numbers yet."""

from fluid import errors
from mistakes.common import SGD, fluid, jax, jnp, layers, np, regression
from mistakes.theme import Theme

THEME = Theme("Python and NumPy on the values of a program")


@THEME.mistake("`if` on a value", errors.ProgramError, "mistake.py:4", "layers.cond", "layers.where")
def python_if():
    def train_program():
        x = layers.data("x", shape=[4])
        hidden = layers.fc(x, size=1)
        if layers.mean(hidden) > 0:
            hidden = hidden * 2
        return layers.mean(hidden)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`while` on a value", errors.ProgramError, "layers.while_loop")
def python_while():
    def train_program():
        x = layers.fc(layers.data("x", shape=[4]), size=1)
        while layers.reduce_sum(x) > 1:
            x = x / 2
        return layers.mean(x)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`and` between conditions", errors.ProgramError, "logical_and")
def python_and():
    def train_program():
        x = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(layers.where(x > 0 and x < 1, x, 0.0))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`float()` of a value", errors.ProgramError, "layers.Print")
def python_float():
    def train_program():
        loss = regression()
        print("the loss is", float(loss))
        return loss

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A value in a formatted string", errors.ProgramError, "layers.Print")
def formatted():
    def train_program():
        loss = regression()
        print(f"loss {loss:.3f}")
        return loss

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`range()` of a value", errors.ProgramError, "layers.while_loop")
def python_range():
    def train_program():
        x = layers.fc(layers.data("x", shape=[4]), size=1)
        count = layers.data("count", shape=[], dtype="int64", append_batch_size=False)
        for _ in range(count):
            x = layers.tanh(x)
        return layers.mean(x)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A function of NumPy on a value", errors.ProgramError, "np.log", "jax.numpy")
def numpy_function():
    def train_program():
        x = layers.fc(layers.data("x", shape=[4]), size=1, act="sigmoid")
        return layers.mean(np.log(x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`.numpy()` or `.detach()` on a value, as in PyTorch", errors.ProgramError, "detach", "stop_gradient")
def detach():
    def train_program():
        x = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(x * x.detach())

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`.view()` on a value, as in PyTorch", errors.ProgramError, "reshape")
def view():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x.view(-1, 2, 2), size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An index that selects by a condition", errors.ProgramError, "layers.where")
def condition_index():
    def train_program():
        x = layers.fc(layers.data("x", shape=[4]), size=1)
        return layers.mean(x[x > 0])

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A value is written into", errors.ProgramError, ".at[")
def item_assignment():
    def train_program():
        x = layers.fc(layers.data("x", shape=[4]), size=3)
        x[:, 0] = 0.0
        return layers.mean(x)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A value of one program is used in another", errors.ProgramError, "call the function")
def shared_value():
    shared = []

    def first():
        shared.append(layers.fc(layers.data("x", shape=[4]), size=1))
        return layers.mean(shared[0])

    def second():
        return layers.mean(shared[0] * 2)

    fluid.Session(first, second)


@THEME.mistake("`jax.jit` of a program function", errors.OutsideProgramError, "fluid.Session(program)")
def jit_of_program():
    jax.jit(regression)()


@THEME.mistake("jax.numpy on a sequence", errors.ArgumentTypeError, "SequenceBatch", "layers.sequence_pool", "x.mask")
def jnp_on_sequence():
    def train_program():
        words = layers.data("words", shape=[8], lod_level=1)
        return jnp.mean(layers.fc(words, size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("jax.numpy on shapes that do not fit", errors.ShapeError, "(4,)", "(3,)")
def jnp_shapes():
    def train_program():
        x = layers.data("x", shape=[4])
        w = layers.create_parameter(shape=[3, 1], dtype="float32")
        return jnp.mean(x @ w)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An operator on shapes that do not fit", errors.ShapeError, "(batch, 4)", "(batch, 3)")
def operator_shapes():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, size=3) + x)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The batch size is taken from a shape", errors.FluidError, "batch")
def batch_size_from_shape():
    def train_program():
        x = layers.data("x", shape=[4])
        hidden = layers.fc(x, size=4)
        return layers.mean(layers.reshape(hidden, [16, 2, 2]))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`x.stop_gradient = True`, as in Fluid", errors.ProgramError, "jax.lax.stop_gradient(x)", "fluid.frozen")
def stop_gradient_of_a_value():
    def train_program():
        hidden = layers.fc(layers.data("x", shape=[4]), size=3)
        hidden.stop_gradient = True
        return layers.mean(layers.fc(hidden, size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A layer in a loop of JAX", errors.ProgramError, "'fc_0.", "layers.scan", "layers.repeat")
def layer_in_a_loop_of_jax():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(jax.lax.fori_loop(0, 3, lambda i, h: layers.fc(h, size=4), x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An assignment to a state", errors.MissingNameError, "'seen'", "state.update(value)")
def assigned_state():
    def train_program():
        seen = layers.create_state([1], name="seen")
        seen.value = seen.value + 1
        return regression()

    fluid.Trainer(train_program, SGD)
