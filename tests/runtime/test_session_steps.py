"""Custom loops over a Session: training steps, and minibatches that are read ahead."""

import numpy as np
import pytest
from resumed_programs import ROWS, X, Y, arrays, assert_equal, small, state, trainer

import fluid
from fluid import errors
from fluid.runtime.in_flight import IN_FLIGHT

STEPS = -(-len(ROWS) // 8)


def minimised():
    outputs = small()
    fluid.optimizer.Adam(0.1).minimize(outputs["loss"])
    return outputs


def of_lengths():
    """Build a training program with sequences as input."""
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    pooled = fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[20, 2]), "sum")
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(pooled, size=1)))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return {"loss": loss}


def held(session):
    return {name: np.array(value) for name, value in session.state().items()}


def test_a_loop_of_steps_matches_a_trainer_exactly():
    expected = trainer()
    expected.train(arrays(), 3)
    session = fluid.Session(minimised, seed=3)
    feeds = fluid.reader.prefetch(arrays(), session)
    while feeds.epoch < 3:
        for feed in feeds:
            session.step(feed)
    found = {name.replace("/minimised/", "/small/"): value for name, value in held(session).items()}
    assert_equal(found, state(expected))
    assert len(session.compilations) == 2  # one compilation for each of the two minibatch sizes


def test_a_step_trains_in_any_session_mode():
    session = fluid.Session(minimised, seed=3, mode="test")
    results = session.step({"x": X, "y": Y}, fetch=["loss", "learning_rate_0"])
    assert int(session.scope.step) == 1 and results.keys() == ["loss", "learning_rate_0"]


def test_state_goes_back_to_an_earlier_step():
    session = fluid.Session(minimised, seed=3)
    session.step({"x": X, "y": Y})
    earlier, expected = session.state(), held(session)
    losses = [float(session.step({"x": X, "y": Y})["loss"]) for _ in range(3)]
    assert_equal({name: np.array(value) for name, value in earlier.items()}, expected)
    session.restore(earlier)
    assert [float(session.step({"x": X, "y": Y})["loss"]) for _ in range(3)] == losses
    session.restore(earlier)
    assert_equal(held(session), expected)


def test_a_program_without_a_loss_has_no_step():
    with pytest.raises(errors.ArgumentError, match=r"minimises nothing.*session.run\('small', feed\)"):
        fluid.Session(small).step({"x": X, "y": Y})


def test_the_number_of_steps_in_flight_is_limited():
    session = fluid.Session(minimised)
    for _ in range(5 * IN_FLIGHT):
        session.step({"x": X, "y": Y})
        assert len(session._in_flight) <= IN_FLIGHT


def test_a_step_reads_a_single_minibatch_ahead():
    log = []

    def rows():
        for i in range(4):
            log.append(f"read {i}")
            yield X[:2], Y[:2]

    session = fluid.Session(minimised)
    for feed in fluid.reader.prefetch(rows, session):
        log.append("begin")
        loss = session.step(feed)
        session.run(feed=feed, mode="test")
        log.append("end" if np.isfinite(loss[0]) else "NaN")
    assert log == [
        "read 0",
        "begin",
        "read 1",
        "end",
        "begin",
        "read 2",
        "end",
        "begin",
        "read 3",
        "end",
        "begin",
        "end",
    ]


@pytest.mark.parametrize("given", [0, 1, STEPS, STEPS + 2, 2 * STEPS])
def test_the_position_follows_the_last_returned_feed(given):
    session = fluid.Session(minimised)

    def prefetched():
        return fluid.reader.prefetch(fluid.reader.arrays((X, Y), batch_size=8, shuffle=True), session)

    def two_passes(feeds):
        while feeds.epoch < 2:
            for feed in feeds:
                session.run(feed=feed, mode="test")  # `run` reads the next minibatch ahead
                yield np.array(feed["x"])

    every = list(two_passes(prefetched()))
    interrupted = prefetched()
    seen = [x for _, x in zip(range(given), two_passes(interrupted), strict=False)]
    continued = prefetched()
    continued.restore(interrupted.state())
    assert continued.epoch == max(given - 1, 0) // STEPS
    seen += two_passes(continued)
    assert len(seen) == len(every) == 2 * STEPS and all(map(np.array_equal, seen, every))


def test_sequences_are_padded_as_before_after_a_restore():
    rng = np.random.default_rng(0)
    rows = [([int(w) for w in rng.integers(0, 20, rng.integers(1, 40))],) for _ in range(40)]
    session = fluid.Session(of_lengths)

    def shapes(feeds):
        return [feed["words"].shape for feed in feeds]

    feeds = fluid.reader.prefetch(fluid.reader.batch(rows, 2), session)
    every = shapes(feeds) + shapes(feeds)
    again = fluid.reader.prefetch(fluid.reader.batch(rows, 2), session)
    some = [feed["words"].shape for _, feed in zip(range(7), again, strict=False)]
    fresh = fluid.reader.prefetch(fluid.reader.batch(rows, 2), session)
    fresh.restore(again.state())
    assert some + shapes(fresh) + shapes(fresh) == every


def test_extended_feeds_are_checked():
    session = fluid.Session(minimised)
    (feed, *_) = fluid.reader.prefetch(arrays(), session)
    assert list(feed) == ["x", "y"] and len(feed) == 2
    before = float(session.run(feed=feed, mode="test").loss)
    assert float(session.run(feed={**feed, "fc_0": feed["y"]}, mode="test").loss) == 0.0 < before
    with pytest.raises(errors.FeedError):
        session.step({**feed, "x": np.zeros((8, 5))})
    with pytest.raises(TypeError):
        feed["x"] = 0


def test_wrong_readers_and_minibatches_are_refused():
    session = fluid.Session(minimised)
    with pytest.raises(errors.ArgumentTypeError, match="reader"):
        fluid.reader.prefetch(3, session)
    with pytest.raises(errors.UnknownNameError, match="no program 'other'"):
        fluid.reader.prefetch(arrays(), session, "other")
    with pytest.raises(errors.FeedError, match="batch 1"):
        list(fluid.reader.prefetch([(X, Y), (X[:, :3], Y)], session))
    with pytest.raises(errors.ReaderError, match="gave nothing"):
        list(fluid.reader.prefetch(list, session))
