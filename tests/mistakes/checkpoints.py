"""Mistakes when a training is continued, and with its checkpoints."""

from fluid import errors
from mistakes.common import READER, SGD, X, Y, fluid, layers, regression
from mistakes.theme import Logged, Theme

THEME = Theme("Continuing and checkpoints")


@THEME.mistake("Fewer epochs than are done, after a pause", Logged, "nothing to train", "resume=False")
def fewer_epochs():
    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent) and event.epoch == 1:
            trainer.pause()

    trainer = fluid.Trainer(regression, SGD)
    trainer.train(READER, 5, event_handler=on_event)
    trainer.train(READER, 1)


@THEME.mistake("Another reader after a pause", Logged, "is given up", "resume=True")
def other_reader():
    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            trainer.pause()

    trainer = fluid.Trainer(regression, SGD)
    trainer.train(READER, event_handler=on_event)
    trainer.train(fluid.reader.arrays({"x": X, "y": Y}, batch_size=8))


@THEME.mistake("There is nothing to continue", errors.ArgumentError, "resume")
def nothing_to_resume():
    fluid.Trainer(regression, SGD).train(READER, resume=True)


@THEME.mistake(
    "A script is run again with its first call changed", errors.ArgumentError, "num_epochs=1", "resume=False"
)
def changed_epochs():
    config = fluid.CheckpointConfig("checkpoints")
    with_checkpoints = fluid.Trainer(regression, SGD, checkpoint_config=config)
    with_checkpoints.train(READER, num_epochs=1)
    with_checkpoints.train(READER, num_epochs=1)

    again = fluid.Trainer(regression, SGD, checkpoint_config=config)
    again.train(READER, num_epochs=3)


@THEME.mistake("A finished script is run again", Logged, "nothing to train", "resume=False")
def run_again():
    config = fluid.CheckpointConfig("checkpoints")
    for _ in range(2):
        fluid.Trainer(regression, SGD, checkpoint_config=config).train(READER)


@THEME.mistake("The net has changed, the folder has not", errors.ParameterError, "fc_0.w_0", "checkpoint")
def changed_net():
    def larger():
        x = layers.data("x", shape=[4])
        y = layers.data("y", shape=[1])
        hidden = layers.fc(x, size=8, act="relu")
        return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1), y))

    config = fluid.CheckpointConfig("checkpoints")
    fluid.Trainer(regression, SGD, checkpoint_config=config).train(READER)
    fluid.Trainer(larger, SGD, checkpoint_config=config)


@THEME.mistake("The optimizer has changed, the folder has not", errors.ParameterError, "SGD", "Momentum")
def changed_optimizer():
    config = fluid.CheckpointConfig("checkpoints")
    fluid.Trainer(regression, SGD, checkpoint_config=config).train(READER)
    fluid.Trainer(regression, fluid.optimizer.Momentum(0.1, 0.9), checkpoint_config=config)


@THEME.mistake("The learning rate has changed, the folder has not", Logged, "0.1", "0.01")
def changed_rate():
    config = fluid.CheckpointConfig("checkpoints")
    fluid.Trainer(regression, SGD, checkpoint_config=config).train(READER)
    fluid.Trainer(regression, fluid.optimizer.SGD(0.01), checkpoint_config=config)


@THEME.mistake("The data has another order after a pause", errors.FluidWarning, "order")
def other_order():
    config = fluid.CheckpointConfig("checkpoints", step_interval=1)
    first = fluid.Trainer(regression, SGD, checkpoint_config=config)
    first.train(READER, event_handler=lambda event: first.stop() if isinstance(event, fluid.EndStepEvent) else None)
    again = fluid.Trainer(regression, SGD, checkpoint_config=config)
    again.train(fluid.reader.arrays({"x": X[::-1], "y": Y[::-1]}, batch_size=8))


@THEME.mistake("Two trainers use one folder", errors.CheckpointError, "checkpoints")
def one_folder():
    config = fluid.CheckpointConfig("checkpoints")
    first = fluid.Trainer(regression, SGD, checkpoint_config=config)
    second = fluid.Trainer(regression, SGD, checkpoint_config=config)
    first.train(READER, event_handler=lambda event: second.train(READER))


@THEME.mistake("The folder is a file", errors.CheckpointError, "net.params")
def folder_is_a_file():
    fluid.Trainer(regression, SGD).save_params("net.params")
    fluid.Trainer(regression, SGD, checkpoint_config=fluid.CheckpointConfig("net.params"))


@THEME.mistake(
    "The address is that of no store", errors.CheckpointError, "'s4://bucket/checkpoints'", "Protocol not known"
)
def folder_is_an_unknown_address():
    fluid.Trainer(regression, SGD, checkpoint_config=fluid.CheckpointConfig("s4://bucket/checkpoints"))


@THEME.mistake("The folder is given without a CheckpointConfig", errors.FluidError, "CheckpointConfig(")
def config_is_a_folder():
    fluid.Trainer(regression, SGD, checkpoint_config="checkpoints")


@THEME.mistake("The best by a value that the program does not return", errors.FluidError, "'accuracy'")
def keep_best():
    config = fluid.CheckpointConfig("checkpoints", keep_best=("accuracy", "max"))
    fluid.Trainer(regression, SGD, checkpoint_config=config).train(READER)


@THEME.mistake("Back to a step that was not saved", errors.CheckpointError, "7")
def restore_step():
    trainer = fluid.Trainer(regression, SGD, checkpoint_config=fluid.CheckpointConfig("checkpoints"))
    trainer.train(READER)
    trainer.restore(7)


@THEME.mistake("A checkpoint is not told of the steps of a loop", errors.FluidWarning, "2 steps", "after_step()")
def loop_without_after_step():
    def train_program():
        loss = regression()
        SGD.minimize(loss)
        return loss

    session = fluid.Session(train_program)
    feeds = fluid.reader.prefetch(fluid.reader.arrays({"x": X, "y": Y}, batch_size=8), session)
    with fluid.Checkpoint(session, "checkpoints", feeds):
        for feed in feeds:
            session.step(feed)


@THEME.mistake("A checkpoint keeps a loop without its feeds", errors.FluidWarning, "state_of=[feeds, loop]")
def loop_without_its_feeds():
    def train_program():
        loss = regression()
        SGD.minimize(loss)
        return loss

    session = fluid.Session(train_program)
    feeds = fluid.reader.prefetch(fluid.reader.arrays({"x": X, "y": Y}, batch_size=8), session)
    loop = fluid.Loop(session, feeds, progress=False)
    fluid.Checkpoint(session, "checkpoints", loop)


@THEME.mistake("The activation has changed, the folder has not", Logged, "in another way", "same parameters")
def changed_activation():
    def net(act):
        def program():
            x = layers.data("x", shape=[4])
            y = layers.data("y", shape=[1])
            return layers.mean(layers.square_error_cost(layers.fc(x, size=1, act=act), y))

        return program

    config = fluid.CheckpointConfig("checkpoints")
    fluid.Trainer(net("relu"), SGD, checkpoint_config=config).train(READER)
    fluid.Trainer(net("tanh"), SGD, checkpoint_config=config)


@THEME.mistake("The seed has changed, the folder has not", Logged, "the seed was another one", "seed of the checkpoint")
def changed_seed():
    config = fluid.CheckpointConfig("checkpoints")
    fluid.Trainer(regression, SGD, checkpoint_config=config).train(READER)
    fluid.Trainer(regression, SGD, checkpoint_config=config, seed=7)


@THEME.mistake("The data has changed, the folder has not", Logged, "12 rows, minibatches of 4", "gave 16 rows")
def changed_data():
    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            first.stop()

    config = fluid.CheckpointConfig("checkpoints")
    first = fluid.Trainer(regression, SGD, checkpoint_config=config)
    first.train(fluid.reader.arrays({"x": X, "y": Y}, batch_size=8), 3, event_handler=on_event)
    again = fluid.Trainer(regression, SGD, checkpoint_config=config)
    again.train(fluid.reader.arrays({"x": X[:12], "y": Y[:12]}, batch_size=4), 3)
