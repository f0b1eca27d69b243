"""Mistakes with names of monitored values, the direction that is better, log files, and training without updates."""

from fluid import errors
from mistakes.common import READER, SGD, fluid, np, regression
from mistakes.theme import Logged, Theme

THEME = Theme("What is best, and what is written down")


@THEME.mistake(
    "A monitored name does not say which way is better",
    errors.ArgumentError,
    "'test_score'",
    "mode='max'",
    "mode='min'",
)
def early_stopping_of_a_score():
    fluid.handlers.EarlyStopping("test_score", patience=5)


@THEME.mistake(
    "The best of a name that says two things", errors.ArgumentError, "'loss_accuracy'", "('loss_accuracy', 'max')"
)
def best_of_two_words():
    fluid.Trainer(regression, SGD).train(READER, test_reader=READER, restore_best="loss_accuracy")


@THEME.mistake(
    "The best checkpoint of an output without a direction", errors.ArgumentError, "keep_best=('reward_gap', 'max')"
)
def keep_best_without_mode():
    fluid.CheckpointConfig("checkpoints", keep_best="reward_gap")


@THEME.mistake(
    "The best member by a position", errors.ArgumentError, "'output_1'", "population.best('output_1', mode='max')"
)
def best_member_without_mode():
    def two():
        loss = regression()
        return loss, loss * 2

    population = fluid.Population(two, SGD, size=2)
    population.test(READER)
    population.best("output_1")


@THEME.mistake("An output has the name of a column of the history", errors.ArgumentError, "'step'", "'my_step'")
def output_named_step():
    def counting():
        loss = regression()
        return {"loss": loss, "step": loss * 2}

    fluid.Trainer(counting, SGD).train(READER)


@THEME.mistake(
    "An output has the name that a test announces", errors.ArgumentError, "'test_loss'", "TestEvery(reader, name="
)
def output_named_as_a_test():
    def both():
        loss = regression()
        return {"loss": loss, "test_loss": loss * 2}

    fluid.Trainer(both, SGD).train(READER, test_reader=READER)


@THEME.mistake("A log file of another training", Logged, "another training", "log.1.csv")
def csv_of_another_training():
    for _ in range(2):
        fluid.Trainer(regression, SGD).train(READER, handlers=[fluid.handlers.CSVLogger("logs/log.csv")])


@THEME.mistake(
    "More steps are gathered for an update than there are", errors.FluidWarning, "accumulate_steps=64", "no parameter"
)
def accumulate_beyond_training():
    optimizer = fluid.optimizer.Adam(0.01, accumulate_steps=64)
    fluid.Trainer(regression, optimizer).train(READER, num_epochs=2)


@THEME.mistake(
    "A schedule has its length in epochs", errors.FluidWarning, "counts updates, not epochs", "step_each_epoch="
)
def schedule_in_epochs():
    optimizer = fluid.optimizer.Adam(fluid.layers.warmup_cosine(0.01, warmup_steps=1, total_steps=2))
    fluid.Trainer(regression, optimizer).train(READER, num_epochs=4)


@THEME.mistake("A test keeps the rows of an output", errors.FluidWarning, "'guess'", "fetch=['loss']")
def test_keeps_rows():
    def program():
        guess = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=8000)
        return {"loss": fluid.layers.mean(guess), "guess": guess}

    reader = fluid.reader.arrays(np.zeros((2400, 2), "float32"), batch_size=800)
    fluid.Trainer(program, SGD).test(reader)


@THEME.mistake("A process of several that has not joined the others", errors.FluidWarning, "distributed.initialize()")
def forgotten_initialize():
    import os

    os.environ["FLUID_COORDINATOR"] = "node0:8476"
    try:
        fluid.Trainer(regression, SGD)
    finally:
        del os.environ["FLUID_COORDINATOR"]


@THEME.mistake(
    "The best weights of tests that never come", errors.FluidWarning, "'test_loss'", "not measured once", "2 steps"
)
def never_tested():
    def program():
        return {"loss": regression()}

    fluid.Trainer(program, SGD).train(READER, test_reader=READER, test_every=1000, restore_best=True)


@THEME.mistake(
    "Early stopping by a value that is always NaN",
    errors.FluidWarning,
    "EarlyStopping follows 'score'",
    "was NaN or infinite each time",
    "2 steps",
)
def always_nan():
    def program():
        loss = regression()
        return {"loss": loss, "score": loss / 0.0 - loss / 0.0}

    stopping = fluid.handlers.EarlyStopping("score", mode="max", patience=1)
    fluid.Trainer(program, SGD).train(READER, num_epochs=3, handlers=[stopping])


@THEME.mistake(
    "A log whose interval is longer than the training",
    errors.FluidWarning,
    "CSVLogger records the mean over 1,000 steps",
    "not measured once",
    "2 steps",
)
def interval_never_ends():
    def program():
        return {"loss": regression()}

    fluid.Trainer(program, SGD).train(READER, handlers=[fluid.handlers.CSVLogger("log.csv", every=1000)])
