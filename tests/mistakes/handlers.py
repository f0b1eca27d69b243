"""Mistakes in event handlers of a training, and in the use of events."""

from fluid import errors
from mistakes.common import LABELED, READER, SGD, X, Y, classification, fluid, regression
from mistakes.theme import Theme

THEME = Theme("Handlers and events")


@THEME.mistake(
    "A handler that is called instead of handed over", errors.ArgumentTypeError, "None", "event_handler=on_event"
)
def called_handler():
    def on_event(event=None):
        print("event", event)

    fluid.Trainer(regression, SGD).train(READER, handlers=[on_event()])


@THEME.mistake("A handler of the wrong arguments", errors.ArgumentTypeError, "def on_event(event)")
def handler_arguments():
    def on_event(epoch, loss):
        print(epoch, loss)

    fluid.Trainer(regression, SGD).train(READER, event_handler=on_event)


@THEME.mistake("A handler without its arguments", errors.ArgumentTypeError, "[TestEvery(...)]")
def handler_class():
    fluid.Trainer(regression, SGD).train(READER, handlers=[fluid.handlers.TestEvery])


@THEME.mistake("A method has the name that it has in Keras", errors.FluidWarning, "on_epoch_end", "end_epoch")
def keras_method():
    class Report(fluid.Handler):
        def on_epoch_end(self, epoch, logs=None):
            print(epoch, logs)

    fluid.Trainer(regression, SGD).train(READER, handlers=[Report()])


@THEME.mistake("A method of a handler without the event", errors.ArgumentTypeError, "end_epoch(self, event)")
def method_without_event():
    class Report(fluid.Handler):
        def end_epoch(self):
            print("an epoch is done")

    fluid.Trainer(regression, SGD).train(READER, handlers=[Report()])


@THEME.mistake("A value that nobody measures is monitored", errors.FluidError, "'val_loss'", "'test_loss'")
def monitor():
    handlers = [fluid.handlers.EarlyStopping("val_loss"), fluid.handlers.TestEvery(LABELED)]
    fluid.Trainer(classification, SGD).train(LABELED, handlers=handlers)


@THEME.mistake("The test that a handler monitors is missing", errors.FluidError, "'test_loss'", "TestEvery")
def monitor_without_test():
    fluid.Trainer(classification, SGD).train(LABELED, handlers=[fluid.handlers.EarlyStopping("test_loss")])


@THEME.mistake("A direction that is neither", errors.ArgumentError, "'maximum'", '"max"')
def direction():
    fluid.handlers.EarlyStopping("accuracy", mode="maximum")


@THEME.mistake("An interval that is none", errors.ArgumentError, "'each'", '"epoch"')
def interval():
    fluid.handlers.TestEvery(READER, every="each")


@THEME.mistake("A metric of an event by a name that is not there", errors.UnknownNameError, "'acc'", "'accuracy'")
def metric_of_an_event():
    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            print(event.metrics["acc"])

    fluid.Trainer(classification, SGD).train(LABELED, event_handler=on_event)


@THEME.mistake("Two handlers that announce the same name", errors.FluidError, "test_loss", "name=")
def same_names():
    handlers = [fluid.handlers.TestEvery(LABELED), fluid.handlers.TestEvery(LABELED)]
    fluid.Trainer(classification, SGD).train(LABELED, handlers=handlers)


@THEME.mistake("A checkpoint is asked for without a folder", errors.CheckpointError, "checkpoint_config")
def checkpoint_without_folder():
    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            trainer.save_checkpoint()

    trainer = fluid.Trainer(regression, SGD)
    trainer.train(READER, event_handler=on_event)


@THEME.mistake("Two handlers write one file", errors.ArgumentError, "SaveBest and SaveBest", "'best.params'")
def two_handlers_one_file():
    handlers = [
        fluid.handlers.SaveBest("best.params", "test_loss"),
        fluid.handlers.SaveBest("best.params", "test_accuracy"),
    ]
    fluid.Trainer(classification, SGD).train(LABELED, test_reader=LABELED, handlers=handlers)


@THEME.mistake(
    "An event is compared with its class", errors.ArgumentTypeError, "isinstance(event, fluid.EndEpochEvent)"
)
def event_equals_class():
    def on_event(event):
        if event == fluid.EndEpochEvent:
            print("an epoch has ended")

    fluid.Trainer(classification, SGD).train(LABELED, event_handler=on_event)


@THEME.mistake("A handler returns -1 to end the training", errors.FluidWarning, "returned -1", "trainer.stop()")
def returned_to_stop():
    def on_event(event):
        if isinstance(event, fluid.EndStepEvent) and event.metrics[0] < 10:
            return -1

    fluid.Trainer(regression, SGD).train(READER, event_handler=on_event)


@THEME.mistake("A loop with handlers trains without them", errors.FluidWarning, "loop.step(feed)", "session.step(feed)")
def loop_without_its_step():
    def train_program():
        loss = regression()
        SGD.minimize(loss)
        return loss

    session = fluid.Session(train_program)
    with fluid.Loop(session, [{"x": X, "y": Y}], handlers=[fluid.handlers.CSVLogger("log.csv")]) as loop:
        for feed in loop:
            session.step(feed)


@THEME.mistake(
    "A loop goes over its feeds instead of itself", errors.ArgumentError, "for feed in loop: loop.step(feed)"
)
def loop_over_its_feeds():
    def train_program():
        loss = regression()
        SGD.minimize(loss)
        return loss

    session = fluid.Session(train_program)
    feeds = fluid.reader.prefetch(fluid.reader.arrays({"x": X, "y": Y}, batch_size=8), session)
    with fluid.Loop(session, feeds) as loop:
        for feed in feeds:
            loop.step(feed)


@THEME.mistake("A gain in percent of an accuracy", errors.FluidWarning, "min_delta=1", "share of 1", "min_delta=0.01")
def min_delta_in_percent():
    stopping = fluid.handlers.EarlyStopping("test_accuracy", min_delta=1)
    fluid.Trainer(classification, SGD).train(LABELED, test_reader=LABELED, handlers=[stopping])


@THEME.mistake("A loop is given a generator for several epochs", errors.ReaderError, "once only", "def rows()")
def loop_over_a_generator():
    def train_program():
        loss = regression()
        SGD.minimize(loss)
        return loss

    feeds = ({"x": X[i : i + 8], "y": Y[i : i + 8]} for i in (0, 8))
    with fluid.Loop(fluid.Session(train_program), feeds, num_epochs=2, progress=False) as loop:
        for feed in loop:
            loop.step(feed)


@THEME.mistake("A loop is left by break", errors.FluidWarning, "middle of an epoch", "loop.stop()")
def loop_left_by_break():
    def train_program():
        loss = regression()
        SGD.minimize(loss)
        return loss

    with fluid.Loop(fluid.Session(train_program), [{"x": X, "y": Y}] * 10, progress=False) as loop:
        for number, feed in enumerate(loop):
            loop.step(feed)
            if number == 4:
                break


@THEME.mistake("The name of an event is turned around", errors.FluidWarning, "'epoch_end'", "end_epoch")
def turned_name():
    class Report(fluid.Handler):
        def epoch_end(self, event):
            print(event.epoch)

    fluid.Trainer(regression, SGD).train(READER, handlers=[Report()])


@THEME.mistake("A placeholder in a path", errors.ArgumentError, "{epoch:02d}", 'f"')
def placeholder():
    best = fluid.handlers.SaveBest("best-{epoch:02d}.params", "loss")
    fluid.Trainer(regression, SGD).train(READER, handlers=[best])
