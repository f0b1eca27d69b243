"""Mistakes in names of attributes, arguments and modules; most of these names belong to other libraries."""

from fluid import errors
from mistakes.common import READER, SGD, X, classifier, fluid, layers, np, regression
from mistakes.theme import Theme

THEME = Theme("Names of attributes and arguments")


@THEME.mistake("A parameter is assigned in the copies", errors.ArgumentTypeError, "scope['fc_0.w_0']", "load_params(")
def params_assigned():
    trainer = fluid.Trainer(regression, SGD)
    trainer.params["fc_0.w_0"] = np.zeros((4, 1))


@THEME.mistake("All parameters are assigned", errors.MissingNameError, "'params'", "trainer.load_params(")
def all_params_assigned():
    trainer = fluid.Trainer(regression, SGD)
    trainer.params = {"fc_0.w_0": np.zeros((4, 1)), "fc_0.b_0": np.zeros(1)}


@THEME.mistake("The place is set after the first step", errors.ArgumentError, "cpu:0", "fluid.Trainer(", "params=")
def place_after_training():
    trainer = fluid.Trainer(regression, SGD)
    trainer.train(READER)
    trainer.place = "cpu:3"


@THEME.mistake("An attribute is misspelled where it is set", errors.MissingNameError, "'learning_rate'")
def attribute_set():
    trainer = fluid.Trainer(regression, SGD)
    trainer.lerning_rate = 0.1


@THEME.mistake("An attribute is misspelled where it is read", errors.MissingNameError, "'predict'")
def attribute_read():
    fluid.Trainer(regression, SGD).predcit(READER)


@THEME.mistake("The setting of a handler is misspelled", errors.MissingNameError, "'patiense'", "'patience'")
def handler_attribute():
    stopping = fluid.handlers.EarlyStopping("loss", mode="min")
    stopping.patiense = 10
    fluid.Trainer(regression, SGD).train(READER, handlers=[stopping])


@THEME.mistake("The rate is set in the optimizer", errors.MissingNameError, "trainer.learning_rate = 0.01")
def rate_of_optimizer():
    adam = fluid.optimizer.Adam(1e-3)
    adam.learning_rate = 1e-4


@THEME.mistake("`history.history`, as in Keras", errors.MissingNameError, 'history["loss"]')
def history_of_keras():
    history = fluid.Trainer(regression, SGD).train(READER)
    history.history["loss"]


@THEME.mistake("`load_weights`, as in Keras", errors.MissingNameError, "trainer.load_params(")
def load_weights():
    fluid.Trainer(regression, SGD).load_weights("w.params")


@THEME.mistake("`.to(device)`, as in PyTorch", errors.MissingNameError, "trainer.place = ")
def to_device():
    fluid.Trainer(regression, SGD).to("cuda")


@THEME.mistake("`get_weights`, as in Keras", errors.MissingNameError, "trainer.params")
def get_weights():
    fluid.Trainer(regression, SGD).get_weights()


@THEME.mistake("`train_on_batch`, as in Keras", errors.MissingNameError, "trainer.session.step(feed)")
def train_on_batch():
    fluid.Trainer(regression, SGD).train_on_batch({"x": X})


@THEME.mistake("`fluid.save`, of Fluid 1.6", errors.MissingNameError, "trainer.save_params(path)")
def save():
    fluid.save(regression, "model")


@THEME.mistake("`ModelCheckpoint`, as in Keras and Lightning", errors.MissingNameError, "SaveBest", "CheckpointConfig")
def model_checkpoint():
    fluid.handlers.ModelCheckpoint("best.params")


@THEME.mistake("`AUC`, as in Keras", errors.MissingNameError, "'Auc'")
def auc():
    fluid.metrics.AUC()


@THEME.mistake("`F1Score`, as in Keras", errors.MissingNameError, "Precision", "Recall")
def f1_score():
    fluid.metrics.F1Score()


@THEME.mistake("`HeNormal`, as in Keras", errors.MissingNameError, "fluid.initializer.MSRA(uniform=False)")
def he_normal():
    fluid.initializer.HeNormal()


@THEME.mistake("`DataLoader`, as in PyTorch", errors.MissingNameError, "fluid.reader.arrays(", "batch_size=32")
def data_loader():
    fluid.reader.DataLoader(X, batch_size=8)


@THEME.mistake("`clip_grad_norm_`, as in PyTorch", errors.MissingNameError, "GradientClipByGlobalNorm(1.0)")
def clip_grad_norm():
    fluid.clip.clip_grad_norm_([], 1.0)


@THEME.mistake("`L2`, as in Keras", errors.MissingNameError, "fluid.regularizer.L2Decay(1e-4)")
def l2():
    fluid.regularizer.L2(1e-4)


@THEME.mistake("An optimizer in small letters, as in optax", errors.FluidError, "fluid.optimizer.Adam(")
def optimizer_module():
    fluid.optimizer.Adam(1e-3)
    fluid.optimizer.adam(1e-3)


@THEME.mistake("The module in place of the class", errors.ArgumentTypeError, "fluid.Trainer(...)")
def trainer_module():
    fluid.trainer(regression, SGD)


@THEME.mistake("`class_weight`, as in Keras", errors.ArgumentTypeError, "'class_weight'", "layers.mean(cost * ")
def class_weight():
    fluid.Trainer(regression, SGD).train(READER, class_weight={0: 1.0, 1: 5.0})


@THEME.mistake("The batch size is given to `train`", errors.ArgumentTypeError, "fluid.reader.arrays(", "batch_size=32")
def batch_size():
    fluid.Trainer(regression, SGD).train(READER, batch_size=32)


@THEME.mistake(
    "The batch size is given to `predict`", errors.ArgumentTypeError, "batch_size=32)", "fluid.reader.arrays"
)
def batch_size_of_predict():
    trainer = fluid.Trainer(regression, SGD)
    trainer.predict({"x": X[:4]}, batch_size=2)


@THEME.mistake("`validation_split`, as in Keras", errors.ArgumentTypeError, "test_reader=fluid.reader.arrays(")
def validation_split():
    fluid.Trainer(regression, SGD).train(READER, validation_split=0.2)


@THEME.mistake("`verbose`, as in Keras", errors.ArgumentTypeError, "'progress'")
def verbose():
    fluid.Trainer(regression, SGD).train(READER, verbose=1)


@THEME.mistake("Handlers are given to the Trainer", errors.ArgumentTypeError, "trainer.train(reader, handlers=[...])")
def handlers_of_trainer():
    fluid.Trainer(regression, SGD, handlers=[fluid.handlers.Timer()])


@THEME.mistake("`max_epochs`, as in Lightning", errors.ArgumentTypeError, "trainer.train(reader, num_epochs=10)")
def max_epochs():
    fluid.Trainer(regression, SGD, max_epochs=5)


@THEME.mistake("`gradient_clip_val`, as in Lightning", errors.ArgumentTypeError, "GradientClipByGlobalNorm(1.0)")
def gradient_clip_val():
    fluid.Trainer(regression, SGD, gradient_clip_val=1.0)


@THEME.mistake("`clipnorm`, as in Keras", errors.ArgumentTypeError, "grad_clip=fluid.clip.GradientClipByNorm(1.0)")
def clipnorm():
    fluid.optimizer.Adam(1e-3, clipnorm=1.0)


@THEME.mistake("`weight_decay` of Adam", errors.ArgumentTypeError, "fluid.optimizer.AdamW(", "L2Decay")
def weight_decay():
    fluid.optimizer.Adam(1e-3, weight_decay=0.01)


@THEME.mistake("`betas`, as in PyTorch", errors.ArgumentTypeError, "beta1=0.9, beta2=0.999")
def betas():
    fluid.optimizer.Adam(1e-3, betas=(0.9, 0.99))


@THEME.mistake("`kernel_initializer`, as in Keras", errors.ArgumentTypeError, "param_attr=fluid.ParamAttr(initializer=")
def kernel_initializer():
    def program():
        return layers.fc(layers.data("x", shape=[4]), size=3, kernel_initializer="he_normal")

    fluid.Program(program)


@THEME.mistake("`requires_grad`, as in PyTorch", errors.ArgumentTypeError, "'trainable'")
def requires_grad():
    fluid.ParamAttr(name="w", requires_grad=False)


@THEME.mistake("`every=` of a CheckpointConfig", errors.ArgumentTypeError, "step_interval=1000", "epoch_interval=1")
def checkpoint_every():
    fluid.CheckpointConfig("checkpoints", every=100)


@THEME.mistake("`monitor=` of a CheckpointConfig", errors.ArgumentTypeError, 'keep_best=("test_loss", "min")')
def checkpoint_monitor():
    fluid.CheckpointConfig("checkpoints", monitor="val_loss")


@THEME.mistake("`restore_best_weights`, as in Keras", errors.ArgumentTypeError, "restore_best=True")
def restore_best_weights():
    fluid.handlers.EarlyStopping("test_loss", patience=3, restore_best_weights=True)


@THEME.mistake("An Inferencer on a device by PyTorch's name", errors.ArgumentTypeError, "'place'")
def device_of_inferencer():
    fluid.Inferencer(classifier, param_path="w.params", device="cuda")
