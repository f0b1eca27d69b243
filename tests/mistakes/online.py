"""Mistakes with an OnlineTrainer, and with a RemoteTrainer, which controls an OnlineTrainer over HTTP."""

from fluid import errors
from mistakes.common import SGD, X, Y, fluid, regression
from mistakes.theme import Theme

THEME = Theme("Training on a stream")


@THEME.mistake("A verb before the training was started", errors.OnlineError, "nothing is trained now", "start()")
def not_started():
    online = fluid.OnlineTrainer(regression, SGD, "online")
    try:
        online.save()
    finally:
        online.close()


@THEME.mistake("The same folder twice", errors.JournalError, "another OnlineTrainer is at work", "a folder of its own")
def same_folder():
    with fluid.OnlineTrainer(regression, SGD, "online"):
        fluid.OnlineTrainer(regression, SGD, "online")


@THEME.mistake("Another batch size for a stream", errors.JournalError, '"batch_size": 16', "another folder")
def other_batch_size():
    fluid.OnlineTrainer(regression, SGD, "online", batch_size=16).close()
    fluid.OnlineTrainer(regression, SGD, "online", batch_size=32)


@THEME.mistake("A model is published, and nobody said where to", errors.OnlineError, 'publish_to="models/digits"')
def nowhere_to_publish():
    with fluid.OnlineTrainer(regression, SGD, "online") as online:
        online.publish()


@THEME.mistake("What is published is chosen, and not where to", errors.ArgumentError, "fetch=", "publish_to=")
def fetch_without_a_folder():
    fluid.OnlineTrainer(regression, SGD, "online", fetch=["fc_0.tmp_1"])


@THEME.mistake("Fewer rows may wait than a minibatch has", errors.ArgumentError, "max_rows=10")
def too_little_room():
    fluid.OnlineTrainer(regression, SGD, "online", batch_size=32, max_rows=10)


@THEME.mistake("More rows at once than may wait", errors.FeedError, "16 rows", "at most 10", "in parts")
def too_many_rows():
    with fluid.OnlineTrainer(regression, SGD, "online", batch_size=4, max_rows=10) as online:
        online.send({"x": X, "y": Y})


@THEME.mistake("NaN among the rows", errors.FeedError, "'y'", "NaN", "expected numbers")
def not_a_number():
    with fluid.OnlineTrainer(regression, SGD, "online") as online:
        online.send([([1.0, 2.0, 3.0, 4.0], float("nan"))])


@THEME.mistake("One key for two lots of rows", errors.OnlineError, "'monday'", "a new key")
def one_key():
    with fluid.OnlineTrainer(regression, SGD, "online") as online:
        online.send({"x": X[:8], "y": Y[:8]}, key="monday")
        online.send({"x": X[8:], "y": Y[8:]}, key="monday")


@THEME.mistake("Rows for a trainer that is not there", errors.RemoteError, "http://127.0.0.1:9")
def nobody_listens():
    remote = fluid.RemoteTrainer("http://127.0.0.1:9")
    remote.send({"x": X, "y": Y})


@THEME.mistake("A port beyond the last one", errors.ArgumentError, "port=99999", "65535")
def no_such_port():
    with fluid.OnlineTrainer(regression, SGD, "online") as online:
        online.serve(port=99999)
