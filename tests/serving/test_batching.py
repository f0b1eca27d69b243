"""The request queue of a model: batching, waiting, and refusing requests."""

import concurrent.futures
import contextlib
import itertools
import select
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving.running_server import IMAGES, Held, connected, digits, params_of, post, raw, read_answer, sentiment

import fluid
from fluid.serving import protocol
from fluid.serving.batching import Batcher, Closed, Job, QueueFull


class Recorder:
    """A model that doubles its input and records its batches."""

    def __init__(self):
        self.batches = []
        self.go_on = threading.Event()
        self.running = threading.Event()

    def run(self, jobs):
        self.running.set()
        self.go_on.wait()
        self.batches.append([job.values["x"] for job in jobs])
        return [{"y": 2 * job.values["x"]} for job in jobs]


def a_job(x, rows=1, shape="a", deadline=60.0):
    return Job({"x": x}, rows, shape, time.monotonic() + deadline)


def queued(jobs, **options):
    """Submit `jobs` to a Batcher that is busy with another job; return the batches that the Batcher makes of `jobs`.

    A batch is the list of the inputs of its jobs.
    """
    recorder = Recorder()
    batcher = Batcher(recorder.run, **options)
    batcher.submit(a_job(0))
    recorder.running.wait()
    for job in jobs:
        batcher.submit(job)
    recorder.go_on.set()
    batcher.close()
    return recorder.batches[1:]


def test_waiting_requests_are_batched_up_to_the_limit():
    assert queued([a_job(i) for i in range(1, 8)], max_rows=3) == [[1, 2, 3], [4, 5, 6], [7]]
    assert queued([a_job(1, rows=2), a_job(2, rows=2), a_job(3)], max_rows=3) == [[1, 3], [2]]


def test_different_shapes_run_in_separate_batches():
    jobs = [a_job(1), a_job(2, shape="b"), a_job(3), a_job(4, shape=None), a_job(5, shape=None), a_job(6, shape="b")]
    assert queued(jobs, max_rows=8) == [[1, 3], [2, 6], [4], [5]]


@given(st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["a", "b", None])), max_size=12), st.integers(4, 9))
def test_every_job_is_answered_within_the_batch_limit(kinds, most):
    jobs = [a_job(i, rows, shape) for i, (rows, shape) in enumerate(kinds, 1)]
    batches = queued(jobs, max_rows=most)
    assert sorted(x for batch in batches for x in batch) == list(range(1, len(jobs) + 1))
    assert [job.future.result() for job in jobs] == [{"y": 2 * i} for i in range(1, len(jobs) + 1)]
    by_number = dict(enumerate(jobs, 1))
    for batch in batches:
        members = [by_number[x] for x in batch]
        assert sum(job.rows for job in members) <= most
        assert len({job.shape for job in members}) == 1 and (len(members) == 1 or members[0].shape is not None)
    firsts = [batch[0] for batch in batches]
    assert firsts == sorted(firsts), "who came first runs first"


def test_a_batch_waits_for_the_last_batch_size():
    recorder = Recorder()
    batcher = Batcher(recorder.run, max_rows=64, max_delay=3600.0)
    batcher.submit(a_job(0))
    recorder.running.wait()
    first = [a_job(x) for x in (1, 2, 3)]
    for job in first:
        batcher.submit(job)
    recorder.go_on.set()
    for job in first:
        job.future.result()
    again = [a_job(x) for x in (4, 5, 6)]
    for job in again:
        batcher.submit(job)
    assert again[-1].future.result() == {"y": 12}, "a fourth is not waited for"
    batcher.submit(a_job(7))
    batcher.close()
    assert recorder.batches == [[0], [1, 2, 3], [4, 5, 6], [7]]


def test_the_queue_is_bounded():
    recorder = Recorder()
    batcher = Batcher(recorder.run, max_rows=4, max_jobs=2)
    batcher.submit(a_job(0))
    recorder.running.wait()
    for x in (1, 2):
        batcher.submit(a_job(x))
    with pytest.raises(QueueFull):
        batcher.submit(a_job(3))
    assert batcher.waiting == 2
    recorder.go_on.set()
    batcher.close()
    with pytest.raises(Closed):
        batcher.submit(a_job(4))


def test_cancelled_and_late_jobs_are_skipped():
    recorder = Recorder()
    batcher = Batcher(recorder.run, max_rows=4)
    batcher.submit(a_job(0))
    recorder.running.wait()
    late, cancelled, good = a_job(1, deadline=-1), a_job(2), a_job(3)
    for job in (late, cancelled, good):
        batcher.submit(job)
    batcher.cancel(cancelled)
    assert batcher.waiting == 2
    recorder.go_on.set()
    assert good.future.result() == {"y": 6}
    assert late.future.cancelled() and cancelled.future.cancelled()
    only_late = a_job(4, deadline=-1)
    batcher.submit(only_late)
    with pytest.raises(concurrent.futures.CancelledError):
        only_late.future.result()
    alive = a_job(5)
    batcher.submit(alive)
    assert alive.future.result() == {"y": 10}
    batcher.close()
    assert recorder.batches == [[0], [3], [5]]


def test_a_thread_starts_with_the_first_job():
    before = threading.enumerate()
    batcher = Batcher(lambda jobs: [{}] * len(jobs), max_rows=1)
    assert threading.enumerate() == before
    batcher.close()
    with pytest.raises(Closed):
        batcher.submit(a_job(1))
    assert threading.enumerate() == before


def test_a_failing_batch_raises_and_the_queue_continues():
    failures = []

    def run(jobs):
        if jobs[0].values["x"] == 1:
            raise FloatingPointError("broken")
        return [{"y": 0}] * len(jobs)

    batcher = Batcher(run, max_rows=1, failed=failures.append)
    bad, good = a_job(1), a_job(2)
    batcher.submit(bad)
    batcher.submit(good)
    with pytest.raises(FloatingPointError):
        bad.future.result()
    assert good.future.result() == {"y": 0} and [str(f) for f in failures] == ["broken"]
    batcher.close()


def test_choose_leaves_rows_for_the_next_batch():
    asked = []

    def choose(shape, rows):
        asked.append((shape, rows))
        return 4 if rows == 5 else rows

    jobs = [a_job(1, rows=3), a_job(2, rows=2), a_job(3, shape="b"), a_job(4, shape=None)]
    assert queued(jobs, max_rows=8, choose=choose) == [[1], [2], [3], [4]]
    assert asked[1:] == [("a", 5), ("a", 2), ("b", 1)]


def written(name, *tensors):
    """Return the bytes of a request with binary tensors, whose answer is JSON."""
    body, length = protocol.write_request(
        protocol.InferRequest([protocol.MessageTensor(*tensor) for tensor in tensors])
    )
    return post(f"/v2/models/{name}/infer", body, f"Inference-Header-Content-Length: {length}")


def ids(rows, steps, word):
    lengths = np.full(rows, steps, np.int32)
    return ("words", np.full((rows, steps), word, np.int64)), ("words.lengths", lengths)


MINE = {"digits": [("image", IMAGES[:1])], "sentiment": ids(1, 3, 2)}
OTHERS = [
    *(("digits", [("image", np.full((3, 1, 8, 8), x, "float32"))]) for x in (np.inf, -np.inf, np.nan, 3e38, 1e-45)),
    *(
        ("sentiment", ids(3, steps, word))
        for steps, word in ((16, 9), (17, 9), (4, 9), (0, 0), (3, 2**31), (3, -(2**63)))
    ),
]


def test_row_66_another_client_changes_no_bit_of_an_answer(monkeypatch):
    """Let two requests wait for a busy model, so that they share its next batch if anything lets them."""
    models = {f.__name__: fluid.Inferencer(f, params=params_of(f)) for f in (digits, sentiment)}
    with fluid.serve(models, port=0, max_batch=4, batch_sizes=(4,), buckets=(4, 16)) as server:
        alone = {name: raw(server, written(name, *tensors)) for name, tensors in MINE.items()}
        shared = 0
        for (name, other), first in itertools.product(OTHERS, (True, False)):
            version = server.app.models.find(name)
            with contextlib.ExitStack() as stack, monkeypatch.context() as patch:
                held = Held(server, name, patch)
                mine, theirs, busy = [stack.enter_context(connected(server)) for _ in range(3)]
                busy.sendall(written(name, *MINE[name]))
                held.running.wait()
                request = {mine: written(name, *MINE[name]), theirs: written(name, *other)}
                refused = 0
                for count, one in enumerate([theirs, mine] if first else [mine, theirs], 1):
                    one.sendall(request[one])
                    while version.batcher.waiting + refused < count:
                        if one is theirs and select.select([one], [], [], 0)[0]:
                            refused = 1
                batches = held.batches
                held.release()
                assert read_answer(mine) == alone[name], (name, other)
                assert refused == (read_answer(theirs)[0] == 400)
                assert read_answer(busy) == alone[name]
                shared += max(map(len, batches)) == 2
        assert shared == 2 * 7  # longer sequences run in a batch of their own, and impossible ids are refused
