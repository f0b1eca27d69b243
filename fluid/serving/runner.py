"""Runner: one version of a model, compiled for all its shapes, which runs requests together."""

import itertools
import logging
import math
import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import TEST, FeedSpec, NestedSequenceBatch, Program, SequenceBatch
from fluid.protocol import Output, Signature, Tensor, count_numbers
from fluid.reader.columns import batch_size, read_feed
from fluid.runtime import Request, Session
from fluid.runtime.compiled_step import bind
from fluid.runtime.seeds import Draw, Seeds
from fluid.serving.batching import Job, Values
from fluid.serving.settings import Settings
from fluid.serving.shapes import Shapes, cut, joined, made_up

LOG = logging.getLogger("fluid.serving")
_LEVELS = {SequenceBatch: 1, NestedSequenceBatch: 2}
# Batches of other sizes sum in another order; what is further apart than that depends on the number of rows.
_NEAR = 1e-2
# For what takes no longer than this many seconds nothing needs to be kept free meanwhile.
_QUICK = 1e-3


class Runner:
    """Runs a program on the rows of several requests at once.

    Args:
      session: which has the arrays.
      program: the model.
      settings: the sizes to compile it for.
      name: of the model, for messages.
      seeds: of requests that name none; None draws a seed from the system.

    Attributes:
      signature: what it takes and gives; known after `warm_up`.
      together: whether rows of different requests may be in one batch; known after `warm_up`.
    """

    def __init__(self, session: Session, program: Program, settings: Settings, name: str, seeds: Seeds | None = None):
        self.session = session
        self._seeds = seeds or Seeds("serve")
        self._step = bind(session.engine, program, Request(TEST, None, tuple(program.feeds), settled=True))
        site = f"the model {name}"
        # A message must not tell where the file of a model is.
        self._specs = {
            n: FeedSpec(n, s.shape, s.dtype, s.lod_level, limits=s.limits, site=site) for n, s in program.feeds.items()
        }
        self._program, self._settings = program, settings
        self._shapes = Shapes(program, settings)
        self._names = _names_of(program)
        self._keys: set[Any] = set()
        self._lock = threading.Lock()
        self._warm = 0
        self._seconds: dict[tuple[Any, int], float] = {}
        self._quick: set[tuple[Any, int]] = set()
        self.signature = Signature(self._specs, (), program.output_names is not None, program.draws)
        self.together = False
        self._padded = False
        self._name = name
        self._told = False  # whether it was said that a seed does nothing

    @property
    def max_rows(self) -> int:
        """How many rows run together."""
        return self._shapes.rows[-1]

    @property
    def compilations(self) -> int:
        """How often it was compiled."""
        return self._step.compiled

    def warm_up(self) -> None:
        """Compile every shape, see what comes out, and whether rows are independent of each other."""
        random = np.random.default_rng(0)
        sizes = self._shapes.rows if self._has_rows() else (1,)
        for index, rung in enumerate(self._shapes.rungs):
            for size in sizes:
                feeds = made_up(self._specs, size, rung, random)
                key = self._shapes.key(index, feeds)
                self._keys.add(key)
                values = self._run(feeds)
                self._seconds[key, size] = min(self._timed(feeds) for _ in range(3))
        self.signature = replace(self.signature, outputs=self._outputs(values))
        self._padded = self._has_rows() and self._is_independent(random)
        self.together = self._padded and not self._program.draws  # each request draws by itself
        self._warm = len(self._keys)
        if self.together and self.session.device.platform == "cpu":
            code = str(self._step.lowered(feeds).compile().as_text())
            self._quick = {k for k, seconds in self._seconds.items() if seconds <= _QUICK} if is_steady(code) else set()

    def job(self, values: Mapping[str, Any], timeout: float, seed: int | None = None) -> Job:
        """Check what a request feeds.

        Args:
          values: by name.
          timeout: seconds until nobody waits for the answer.
          seed: of its random numbers, or None.

        Raises:
          FeedError: data does not fit, or is more than is served.
          UnknownNameError: a feed is missing.
        """
        missing = [name for name in self._specs if name not in values]
        if missing:
            raise errors.FeedError(
                f"the inputs {', '.join(map(repr, missing))} are missing; expected {', '.join(map(repr, self._specs))}"
            )
        if seed is not None and not self._program.draws and not self._told:
            self._told = True
            LOG.warning("a request for the model %s has a seed, and its answers are the same with any", self._name)
        if self._has_rows():
            self._check_most(max(map(_count, values.values())))  # before each row is looked at
        checked = {name: read_feed(spec, values[name]) for name, spec in self._specs.items()}
        rung = self._shapes.rung(checked)
        rows = batch_size(checked) if self._has_rows() else 1
        self._check_rows(rows)
        checked = self._shapes.padded(rung, checked)
        key = self._shapes.key(rung, checked)
        self._check_key(key)
        return Job(checked, rows, key if self.together else None, time.monotonic() + timeout, seed)

    def check_sizes(self, tensors: Sequence[Tensor]) -> None:
        """Refuse lists of more numbers than are served before they are converted, which no other thread can do beside.

        Raises:
          FeedError: there are more.
        """
        for tensor in tensors:
            spec = self._specs.get(tensor.name)
            if spec is None or not isinstance(tensor.data, list) or None in spec.shape[1:]:
                continue
            most = (
                self.max_rows
                * math.prod(self._shapes.rungs[-1].get(spec.name, ()))
                * math.prod(size or 1 for size in spec.shape[1:])
            )
            if (found := count_numbers(tensor.data)) > most:
                raise errors.FeedError(
                    f"feed {spec.name!r}: found {found} numbers, expected at most {most}, {self.max_rows} rows of the "
                    f"longest; send them in several requests, or serve the model with larger buckets: --buckets"
                )

    def is_quick(self, job: Job) -> bool:
        """Whether a job by itself takes so little time, whatever its values are, that everything else may wait for it.

        Only on a CPU: an accelerator may be busy with the work of others.
        """
        return (job.shape, self._shapes.room(job.rows)) in self._quick

    def choose(self, key: Hashable, rows: int) -> int:
        """How many of the rows that wait to run next: all of them padded, or only as many as need no padding.

        Padding takes as long as rows do where arithmetic is what takes the time, and nothing where reading the
        parameters is. How long each size takes was measured when it was compiled.
        """
        room = self._shapes.room(rows)
        fewer = max((size for size in self._shapes.rows if size <= rows), default=room)
        if room == fewer or (key, room) not in self._seconds:
            return rows
        return rows if self._seconds[key, room] / rows <= self._seconds[key, fewer] / fewer else fewer

    def run(self, jobs: Sequence[Job]) -> list[Values]:
        """The results of jobs of the same shape, by name."""
        if len(jobs) > 1 and not self.together:
            return [values for job in jobs for values in self.run([job])]
        draw = self._draw(jobs[0].seed) if self._program.draws else None
        if not self._padded:
            return [dict(zip(self._names, self._run(jobs[0].values, draw), strict=True))]
        rows = sum(job.rows for job in jobs)
        room = self._shapes.room(rows)
        if len(jobs) == 1 and rows == room:
            return [dict(zip(self._names, self._run(jobs[0].values, draw), strict=True))]
        values = self._run(joined([job.values for job in jobs], room), draw)
        ends = itertools.accumulate(job.rows for job in jobs)
        return [
            {name: cut(value, end - job.rows, end) for name, value in zip(self._names, values, strict=True)}
            for job, end in zip(jobs, ends, strict=True)
        ]

    def _run(self, feeds: Mapping[str, Any], draw: Draw | None = None) -> list[Any]:
        # To go through a tree takes longer than to copy a small array.
        return [
            np.asarray(value) if isinstance(value, jax.Array) else jax.tree.map(np.asarray, value)
            for value in self._step(feeds, draw=draw).values
        ]

    def _draw(self, seed: int | None) -> Draw | None:
        """Return the random key of a request."""
        return self.session.engine.draw(self._seeds.next() if seed is None else seed)

    def _timed(self, feeds: Mapping[str, Any]) -> float:
        """How many seconds a batch takes."""
        start = time.perf_counter()
        self._run(feeds)
        return time.perf_counter() - start

    def _has_rows(self) -> bool:
        """Whether all feeds and outputs have the batch for their first dimension."""
        specs = self._specs.values()
        return bool(specs) and all(spec.shape[:1] == (None,) for spec in specs)

    def _check_most(self, rows: int) -> None:
        if rows > self.max_rows:
            raise errors.FeedError(
                f"found {rows} rows, expected at most {self.max_rows}; send them in several requests"
            )

    def _check_rows(self, rows: int) -> None:
        self._check_most(rows)
        sizes = self._shapes.rows
        if not self._padded and self._has_rows() and rows not in sizes:
            raise errors.FeedError(
                f"found {rows} rows, expected one of {', '.join(map(str, sizes))}: the rows of this model depend on "
                f"each other, so that none can be added"
            )

    def _check_key(self, key: Any) -> None:
        """Compile no more shapes than were allowed."""
        if key in self._keys:
            return
        with self._lock:  # large requests are checked in another thread
            if len(self._keys) - self._warm >= self._settings.max_shapes:
                raise errors.FeedError(
                    f"no more than {self._settings.max_shapes} shapes are compiled for inputs whose sizes are not "
                    f"fixed, and this would be another one; pad the inputs, or serve the model with a larger max_shapes"
                )
            self._keys.add(key)

    def _outputs(self, values: Sequence[Any]) -> list[Output]:
        found = []
        for name, array, value in zip(self._names, self._program.outputs, values, strict=True):
            level = _LEVELS.get(type(value), 0)
            shape = (*array.shape[:1], *array.shape[1 + level :])
            found.append(Output(name, shape, str(np.dtype(value.dtype)), level))
        return found

    def _is_independent(self, random: np.random.Generator) -> bool:
        """Whether a row has the same results whatever the other rows are, and however many there are."""
        if any(output.shape[:1] != (None,) for output in self.signature.outputs):
            return False
        small, *_ = sizes = [size for size in self._shapes.rows if size > 1] or [0]
        if not small:
            return True  # there never is another row
        rung = self._shapes.rungs[0]
        mine = made_up(self._specs, 1, rung, random)
        others = [made_up(self._specs, small - 1, rung, random) for _ in range(3)]
        found = [cut_all(self._run(joined([mine, other], small)), 1) for other in others]
        most = cut_all(self._run(joined([mine, others[0]], sizes[-1])), 1)
        return all(_same(found[0], each) for each in found) and _near(found[0], most)


def _count(value: Any) -> int:
    """Return how many rows a value of a request has; 0 for a number."""
    data = value.data if isinstance(value, SequenceBatch | NestedSequenceBatch) else value
    return len(data) if isinstance(data, list) or np.ndim(data) else 0


def cut_all(values: Sequence[Any], rows: int) -> list[Any]:
    """The first rows of all results."""
    return [cut(value, 0, rows) for value in values]


def is_steady(code: str) -> bool:
    """Whether code takes equally long for all values: it has no loop, which might go on, and calls no Python."""
    return " while(" not in code and "callback" not in code


def _names_of(program: Program) -> list[str]:
    """A name for each output: what the program calls it, else the named value that it is, else its number."""
    if program.output_names is not None:
        return list(program.output_names)
    return [f"output_{i}" for i in range(len(program.outputs))]


def _same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)


def _near(first: Sequence[Any], second: Sequence[Any]) -> bool:
    pairs = [
        (np.asarray(a, np.float64), np.asarray(b, np.float64))
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    ]
    return all(np.allclose(a, b, _NEAR, _NEAR * (np.abs(a).max(initial=0) + 1e-6), equal_nan=True) for a, b in pairs)
