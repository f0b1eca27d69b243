"""What the event loop does for every request: it is woken, it gives up, it sends."""

import asyncio
import socket
import threading
import time

import jax
import jax.numpy as jnp

from fluid.serving.batching import Job
from fluid.serving.guard import Joined
from fluid.serving.runner import Runner, is_steady
from fluid.serving.server import _listening
from fluid.serving.waiting import Later, Mailbox, Timeouts


def a_job():
    return Job({}, 1, None, time.monotonic() + 60)


def test_no_result_is_left_in_the_mailbox():
    jobs = [a_job() for _ in range(400)]

    def compute(mine):
        for job in mine:
            job.future.set_result({})

    async def main():
        mailbox = Mailbox(60.0)
        waiting = [asyncio.ensure_future(mailbox.patiently(job)) for job in jobs]
        await asyncio.sleep(0)
        threads = [threading.Thread(target=compute, args=(jobs[i::4],)) for i in range(4)]
        for thread in threads:
            thread.start()
        found = await asyncio.gather(*waiting)
        for thread in threads:
            thread.join()
        return found, await mailbox.patiently(jobs[0])

    assert asyncio.run(main()) == ([True] * len(jobs), True)


def test_patience_ends_and_a_late_result_still_arrives():
    async def main():
        mailbox, job = Mailbox(0.001), a_job()
        first = await mailbox.patiently(job)
        arrival = mailbox.arrival(job)
        threading.Thread(target=job.future.set_result, args=({},)).start()
        await arrival
        return first, job.future.done()

    assert asyncio.run(main()) == (False, True)


def test_timeouts_end_in_order_and_one_timer_serves_them():
    class Loop(asyncio.SelectorEventLoop):
        timers = 0

        def call_at(self, *arguments, **options):
            self.timers += 1
            return super().call_at(*arguments, **options)

    async def main():
        late = []
        timeouts = Timeouts(0.001, late.append)
        for i in range(100):
            timeouts.watch(i)
        for i in range(1, 99):
            timeouts.forget(i)
        while len(late) < 2:
            await asyncio.sleep(0)
        return late, 0 in timeouts

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(main()) == ([0, 99], False)
        assert runner.get_loop().timers <= 3


def test_what_is_done_later_is_done_once_and_in_order():
    async def main():
        done = []
        later = Later(0.001, done.append)
        for i in range(3):
            later.put(i)
        later.do_now()
        at_once = list(done)
        later.put(3)
        while len(done) < 4:
            await asyncio.sleep(0.001)
        return at_once, done

    assert asyncio.run(main()) == ([0, 1, 2], [0, 1, 2, 3])


def test_only_code_without_loops_and_calls_is_steady():
    def code(function):
        return jax.jit(function).lower(jnp.ones(3)).compile().as_text()

    assert is_steady(code(lambda x: jnp.exp(x) @ x))
    assert not is_steady(code(lambda x: jax.lax.while_loop(lambda y: jnp.sum(y) < 1e9, lambda y: 2 * y, x)))
    assert not is_steady(code(lambda x: jax.lax.scan(lambda y, z: (jnp.sin(y * z), y), x, jnp.outer(x, x))[0]))
    assert not is_steady(code(lambda x: jax.pure_callback(lambda y: y, x, x)))


class Transport:
    """Notes what it sends."""

    def __init__(self):
        self.sent = []

    def write(self, data):
        self.sent.append(data)

    def close(self):
        self.sent.append("closed")

    def is_closing(self):
        return "closed" in self.sent


class Turns:
    """A loop that goes on when it is told."""

    def __init__(self):
        self.calls = []

    def call_soon(self, call):
        self.calls.append(call)


def test_what_is_written_together_is_sent_together():
    transport, loop = Transport(), Turns()
    joined = Joined(transport, loop)
    for data in (b"head", b"body"):
        joined.write(data)
    assert transport.sent == [] and len(loop.calls) == 1
    loop.calls.pop()()
    assert transport.sent == [b"headbody"]
    joined.write(b"last")
    joined.close()
    loop.calls.pop()()
    assert transport.sent == [b"headbody", b"last", "closed"] and joined.is_closing()


def test_answers_do_not_wait_for_acknowledgements():
    """Asyncio turns Nagle's algorithm off only for sockets that say that they speak TCP."""
    with _listening("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_padding_is_chosen_by_what_it_costs():
    class Shapes:
        rows = (1, 2, 4, 8)

        def room(self, rows):
            return next(size for size in self.rows if size >= rows)

    runner = object.__new__(Runner)
    runner._shapes = Shapes()
    runner._seconds = {("arithmetic", size): float(size) for size in Shapes.rows}
    runner._seconds |= {("parameters", size): 1.0 for size in Shapes.rows}
    assert [runner.choose("arithmetic", rows) for rows in range(1, 9)] == [1, 2, 2, 4, 4, 4, 4, 8]
    assert [runner.choose("parameters", rows) for rows in range(1, 9)] == list(range(1, 9))
    assert runner.choose("never seen", 5) == 5
    Shapes.rows = (4, 8)
    assert [runner.choose("arithmetic", rows) for rows in (1, 3, 4, 5)] == [1, 3, 4, 4], "fewer rows than any size has"
