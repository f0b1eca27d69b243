"""Mistakes in calls of `Session.run`: names of programs, feeds and fetches."""

from fluid import errors
from mistakes.common import SGD, X, Y, classifier, fluid, np, regression
from mistakes.theme import Theme

THEME = Theme("Sessions, names and fetches")


@THEME.mistake("A program that the session does not have", errors.UnknownNameError, "'classifier'", "'regression'")
def unknown_program():
    session = fluid.Session(regression)
    session.run("classifier", feed={"x": X})


@THEME.mistake("Which of two programs is not said", errors.ArgumentTypeError, "'twice'", "'classifier'")
def which_program():
    def twice():
        return classifier() * 2

    session = fluid.Session(twice, classifier)
    session.run(feed={"x": X})


@THEME.mistake("The data is not handed over as a dict", errors.ArgumentTypeError, "ndarray", "feed={")
def feed_without_names():
    session = fluid.Session(classifier)
    session.run("classifier", X)


@THEME.mistake("A feed that the result needs is missing", errors.FeedError, "'y'")
def missing_feed():
    session = fluid.Session(regression)
    session.run(feed={"x": X})


@THEME.mistake("A value to fetch is misspelled", errors.UnknownNameError, "'fc_0.tmp_3'", "'fc_0.tmp_")
def fetch():
    session = fluid.Session(classifier)
    session.run(feed={"x": X}, fetch=["fc_0.tmp_3"])


@THEME.mistake(
    "The learning rate is fetched where nothing is trained", errors.UnknownNameError, "learning_rate_0", 'mode="train"'
)
def rate_in_a_test():
    trainer = fluid.Trainer(regression, SGD)
    trainer.run({"x": X, "y": Y}, fetch=["learning_rate_0"])


@THEME.mistake("A value is replaced by one of another shape", errors.FluidError, "fc_0.tmp_0", "[2, 8]")
def override_shape():
    session = fluid.Session(classifier)
    session.run(feed={"fc_0.tmp_0": np.ones((2, 8))})


@THEME.mistake("A mode that is neither", errors.ArgumentError, "'eval'", '"test"')
def mode():
    session = fluid.Session(classifier)
    session.run(feed={"x": X}, mode="eval")


@THEME.mistake("A session that is closed", errors.FluidError, "closed")
def closed():
    with fluid.Session(classifier) as session:
        session.run(feed={"x": X})
    session.run(feed={"x": X})


@THEME.mistake(
    "A parameter of another program has another shape", errors.ParameterError, "'fc_0.w_0'", "[4, 1]", "[4, 3]"
)
def shared_by_accident():
    fluid.Session(regression, classifier)


@THEME.mistake("A metric is read before anything was measured", errors.FluidError, "update")
def metric_without_data():
    fluid.metrics.Accuracy().eval()
