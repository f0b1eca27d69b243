"""Mistakes with files of the wrong kind, with addresses instead of paths, and with values of another run."""

from fluid import errors
from mistakes.common import READER, SGD, X, classifier, fluid, jax, jnp, layers, np, regression
from mistakes.theme import Theme

THEME = Theme("Other files, addresses and runs")


@THEME.mistake("An exported model is given as parameters", errors.ParameterFileError, "exported model", "param_path=")
def exported_as_parameters():
    trainer = fluid.Trainer(regression, SGD)
    trainer.save_inference_model("line.fluid", fetch=["fc_0"])
    trainer.load_params("line.fluid")


@THEME.mistake("A folder of checkpoints is given as parameters", errors.ParameterFileError, "checkpoint='saved'")
def checkpoints_as_parameters():
    config = fluid.CheckpointConfig("saved", step_interval=1)
    fluid.Trainer(regression, SGD, checkpoint_config=config).train(READER)
    fluid.Trainer(regression, SGD).load_params("saved")


@THEME.mistake("Parameters are served", errors.ArtifactError, "holds no program", "save_inference_model")
def parameters_served():
    fluid.Trainer(regression, SGD).save_params("line.params")
    fluid.serve("line.params", port=0)


@THEME.mistake("An .npz file is given as parameters", errors.ParameterFileError, "dict(numpy.load('net.npz'))")
def npz_as_parameters():
    np.savez("net.npz", **{"fc_0.w_0": np.ones((4, 1), "float32"), "fc_0.b_0": np.zeros(1, "float32")})
    fluid.Trainer(regression, SGD, param_path="net.npz")


@THEME.mistake("A file of Keras is given as parameters", errors.ParameterFileError, "HDF5", "keras.saving.load_model")
def keras_as_parameters():
    with open("net.h5", "wb") as file:
        file.write(b"\x89HDF\r\n\x1a\n" + bytes(100))
    fluid.Trainer(regression, SGD, param_path="net.h5")


@THEME.mistake("Parameters are written as a file of PyTorch", errors.FluidWarning, "net.pt", "model.params")
def foreign_ending():
    fluid.Trainer(regression, SGD).save_params("net.pt")


@THEME.mistake("Parameters are written to an address", errors.ParameterFileError, "s3://bucket", "local path", "put(")
def params_to_an_address():
    fluid.Trainer(regression, SGD).save_params("s3://bucket/line.params")


@THEME.mistake("A handler writes to an address", errors.ArgumentError, "s3://bucket", "local path")
def handler_to_an_address():
    fluid.handlers.CSVLogger("s3://bucket/log.csv")


@THEME.mistake("The folder of a Trainer is given to an OnlineTrainer", errors.JournalError, "'saved'", "params=")
def online_in_a_folder_of_checkpoints():
    config = fluid.CheckpointConfig("saved", step_interval=1)
    fluid.Trainer(regression, SGD, checkpoint_config=config).train(READER)
    fluid.OnlineTrainer(regression, SGD, "saved", batch_size=2)


@THEME.mistake("The folder of an OnlineTrainer is given to a Trainer", errors.CheckpointError, "saved/checkpoints")
def trainer_in_a_folder_of_rows():
    fluid.OnlineTrainer(regression, SGD, "saved", batch_size=2).close()
    fluid.Trainer(regression, SGD, checkpoint_config=fluid.CheckpointConfig("saved"))


@THEME.mistake("A Trainer is served", errors.ArgumentTypeError, "Trainer", "save_inference_model")
def trainer_served():
    fluid.serve(fluid.Trainer(regression, SGD), port=0)


@THEME.mistake("A Trainer is given as parameters", errors.ArgumentTypeError, "trainer.params")
def trainer_as_parameters():
    fluid.Inferencer(classifier, params=fluid.Trainer(regression, SGD))


@THEME.mistake("Everything is skipped", errors.ParameterError, "skip=", "fc_0.w_0")
def everything_skipped():
    trainer = fluid.Trainer(regression, SGD)
    trainer.load_params(trainer.params, skip=["*"])


@THEME.mistake("Parameters are float64", errors.ParameterError, "float64", "astype('float32')")
def float64_parameters():
    trainer = fluid.Trainer(regression, SGD)
    trainer.load_params({name: np.asarray(array, "float64") for name, array in trainer.params.items()})


@THEME.mistake("A session is loaded into another optimizer", errors.ParameterError, "@slots", "strict=False")
def session_of_another_optimizer():
    fluid.Trainer(regression, fluid.optimizer.Adam()).session.save("all.session")
    fluid.Trainer(regression, SGD).session.load("all.session")


@THEME.mistake("A value is kept for the next step", errors.ProgramError, "mistake.py", "layers.create_state")
def value_kept():
    kept = {"mean": 0.0}

    def train_program():
        loss = regression()
        kept["mean"] = 0.9 * kept["mean"] + 0.1 * loss
        return loss - kept["mean"]

    fluid.Trainer(train_program, SGD).train(READER)


@THEME.mistake("Values are kept in a list", errors.ShapeError, "stand-in", "layers.create_state")
def values_in_a_list():
    seen = []

    def train_program():
        guess = layers.fc(layers.data("x", shape=[4]), size=1)
        seen.append(guess)
        return layers.mean(guess - seen[0])

    fluid.Trainer(train_program, SGD).train(fluid.reader.arrays({"x": X}, batch_size=8))


@THEME.mistake("`if` in a training step", errors.ProgramError, "mistake.py", "jnp.where")
def if_in_a_step():
    def clipped(step):
        here = step.losses_and_gradients()
        if here.losses[0] > 1:
            here = step.losses_and_gradients()
        parameters, slots = step.update(here.gradients)
        return parameters, slots, here

    fluid.Trainer(regression, SGD, step=clipped).train(READER)


@THEME.mistake("A handler reads a value of the program", errors.ProgramError, "event.metrics", "event.fetched")
def traced_value_in_a_handler():
    seen = []

    def train_program():
        guess = layers.fc(layers.data("x", shape=[4]), size=1)
        seen.append(guess)
        return layers.mean(guess)

    reader = fluid.reader.arrays({"x": X}, batch_size=8)
    fluid.Trainer(train_program, SGD).train(reader, event_handler=lambda event: print(np.asarray(seen[0])))


@THEME.mistake("`auc` among the outputs", errors.ProgramError, "'auc'", "auc[0]", "mistake.py")
def auc_as_an_output():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        guess = layers.fc(layers.data("x", shape=[4]), size=2, act="softmax")
        return {"loss": layers.mean(layers.cross_entropy(guess, label)), "auc": layers.auc(guess, label)}

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The random key is a constant", errors.FluidWarning, "mistake.py", 'layers.random_key("noise")')
def constant_key():
    def train_program():
        guess = layers.fc(layers.data("x", shape=[4]), size=1)
        noise = jax.random.normal(jax.random.PRNGKey(0), guess.shape)
        return layers.mean(jnp.square(guess + noise))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A layer of PyTorch is used", errors.ArgumentTypeError, "torch", "layers.fc")
def module_of_torch():
    class Linear:
        __module__ = "torch.nn.modules.linear"

        def __call__(self, x):
            return x

    fluid.Program(lambda: layers.module(Linear(), layers.data("x", shape=[4])))


@THEME.mistake("A module of Flax NNX is created inside the program", errors.ProgramError, "outside the function")
def module_created_inside():
    from flax import nnx

    fluid.Program(lambda: layers.module(nnx.Linear(4, 1, rngs=nnx.Rngs(0)), layers.data("x", shape=[4])))


@THEME.mistake("The program of 2018 for several machines", errors.MissingNameError, "parallel=True", "launch")
def transpiler():
    fluid.DistributeTranspiler()
