"""A dry run: try to read, train, test, save and export with one minibatch, then restore the Trainer exactly."""

import contextlib
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid._util.text import counted, html_table, scaled, shape_text, text_table
from fluid.core import TEST, TRAIN
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.runtime import Request, Session
from fluid.runtime.compiled_step import bind
from fluid.runtime.seeds import Seeds
from fluid.runtime.state_io import live_state
from fluid.trainer.evaluation.evaluate import DatasetEvaluator
from fluid.trainer.programs import ProgramInput

Export = Callable[[str, str], object]
"""The type of a function that exports a program; its arguments are the path and the name of the program."""


@dataclass(frozen=True)
class CheckedPart:
    """The result of one part of a dry run, such as the training step.

    Attributes:
      name: "read", "train", "test", "save" or "export"; with several programs, also the name of the program.
      found: the result of the part as text, such as "64 rows"; empty if the part failed or did not run.
      error: the exception that the part raised, or None.
    """

    name: str
    found: str = ""
    error: Exception | None = None

    @property
    def state(self) -> str:
        """The state of this part of a dry run: "works", "fails" or "not run"."""
        return "fails" if self.error is not None else "works" if self.found else "not run"


@dataclass(frozen=True)
class Check:
    """The result of `Trainer.check`, which prints as a table.

    Attributes:
      parts: the parts of the check, such as "train", in the order in which they ran.

    Example:
      >>> Check((CheckedPart("read", "64 rows"), CheckedPart("train", error=ValueError("no memory"))))
      part   state  found
      read   works  64 rows
      train  fails  ValueError: no memory
    """

    parts: tuple[CheckedPart, ...]

    @property
    def ok(self) -> bool:
        """True if the dry run has found no error: every part of it, such as "test" or "save", works."""
        return all(part.state == "works" for part in self.parts)

    def __getitem__(self, name: str) -> CheckedPart:
        for part in self.parts:
            if part.name == name:
                return part
        known = [part.name for part in self.parts]
        raise errors.UnknownNameError(f"the check has no part {name!r}. {errors.nearest(name, known)}")

    def _rows(self) -> list[tuple[str, str, str]]:
        return [
            (
                p.name,
                p.state,
                p.found if p.error is None else f"{type(p.error).__name__}: {' '.join(str(p.error).split())}",
            )
            for p in self.parts
        ]

    def __repr__(self) -> str:
        return text_table([_HEADER, *self._rows()])

    def _repr_html_(self) -> str:
        return html_table(self._rows(), _HEADER)


_HEADER = ("part", "state", "found")


class DryRun:
    """A trial of each program of a Trainer with one minibatch, after which the Trainer is unchanged."""

    def __init__(self, session: Session, evaluator: DatasetEvaluator, export: Export):
        self._session = session
        self._evaluator = evaluator
        self._export = export
        self._parts: list[CheckedPart] = []

    def run(self, inputs: Sequence[ProgramInput], readers: Sequence[ReaderLike | None], order: FeedOrder) -> Check:
        """In a dry run, check every program from reading to export; then restore the session and the readers."""
        for input, reader in zip(inputs, readers, strict=True):
            suffix = f" {input.name}" if len(inputs) > 1 else ""
            with unchanged(self._session, reader):
                self._run(input, reader, order, suffix)
        return Check(tuple(self._parts))

    def _run(self, input: ProgramInput, reader: ReaderLike | None, order: FeedOrder, suffix: str) -> None:
        """In a dry run, check the parts "read", "train", "test", "save" and "export" for one program.

        If "read" fails, the other parts do not run.
        """
        read = self._part(f"read{suffix}", lambda: self._read(input, reader, order))
        later = {
            "train": lambda: self._train(input, read[1]),
            "test": lambda: self._test(input, read[0], order),
            "save": lambda: self._save(),
            "export": lambda: self._exported(input, read[1]),
        }
        for name, part in later.items():
            if read is None:
                self._parts.append(CheckedPart(name + suffix))
            else:
                self._part(name + suffix, part)

    def _part(self, name: str, run: Callable[[], tuple[str, Any]]) -> Any:
        """Run one part of the dry run, such as "train", and record the result; return the value, None if it fails."""
        try:
            found, value = run()
        except Exception as error:
            self._parts.append(CheckedPart(name, error=error))
            return None
        self._parts.append(CheckedPart(name, found))
        return value

    def _read(self, input: ProgramInput, reader: ReaderLike | None, order: FeedOrder) -> tuple[str, tuple[Any, Any]]:
        """Read one minibatch for the dry run, and convert it to arrays.

        Return the shapes of the arrays as text, and a pair: the minibatch as the reader yields it, and the arrays by
        feed name.
        """
        if reader is None:
            return "no feeds", ({}, {})
        with contextlib.closing(minibatches(reader)()) as rows:
            minibatch = next(rows)
        convert = input.converter(order, self._session.engine.buckets(input.program), trains=True)
        with contextlib.closing(InputPipeline(minibatches([minibatch]), [convert]).start()) as batches:
            feed = next(iter(batches)).feed
        shapes = [f"{n} {shape_text(str(np.dtype(v.dtype)), v.shape)}" for n, v in feed.items()]
        return ", ".join(shapes) or "no feeds", (minibatch, feed)

    def _train(self, input: ProgramInput, feed: Mapping[str, Any]) -> tuple[str, None]:
        program = input.program
        trained = dict.fromkeys(name for minimize in program.minimizes for name in minimize.parameters)
        before = {name: np.array(self._session.scope.arrays[name]) for name in trained}
        step = bind(self._session.engine, program, Request(TRAIN, None, tuple(program.feeds)))
        # restore the old parameters after this step, because the later checks "test", "save" and "export" need them
        with unchanged(self._session, None):
            losses = np.asarray(step(input.fed(feed)).values[program.loss_output])
            after = {name: np.asarray(self._session.scope.arrays[name]) for name in trained}
        if not np.isfinite(losses).all():
            raise errors.NonFiniteError(
                f"the loss of the first step is {losses}, expected a finite number; handlers=[fluid.handlers."
                f"TerminateOnNaN(report=True)] says which layer it comes from"
            )
        same = [name for name in trained if np.array_equal(before[name], after[name])]
        changed = f"{len(trained) - len(same)} of {counted(len(trained), 'parameter')} changed"
        not_changed = f"; not {', '.join(same[:4])}" if same else ""
        return f"loss {_number(losses)}, {changed}{not_changed}", None

    def _test(self, input: ProgramInput, minibatch: Any, order: FeedOrder) -> tuple[str, None]:
        results = self._evaluator.test(input, [minibatch], order, {}, interrupts=None)
        names = results.names or [f"output {index}" for index in range(len(results))]
        shown = [f"{name} {_shown(value)}" for name, value in zip(names, results, strict=True)]
        return ", ".join(shown), None

    def _save(self) -> tuple[str, None]:
        with tempfile.TemporaryDirectory() as folder:
            parameters, state = os.path.join(folder, "net.params"), os.path.join(folder, "all.session")
            self._session.save_params(parameters)
            report = self._session.load_params(parameters)
            self._session.save(state)
            self._session.load(state)
            size = scaled(os.path.getsize(state), "B")
        return f"{counted(len(report.taken), 'array')} written and read, {size} with the optimizer", None

    def _exported(self, input: ProgramInput, feed: Mapping[str, Any]) -> tuple[str, None]:
        from fluid import export  # imported only when needed, because few trainings export

        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.fluid")
            self._export(path, input.name)
            size = scaled(os.path.getsize(path), "B")
            model = export.load(path)
            program = model.program(place=self._session.device)
            given = {name: value for name, value in feed.items() if name in program.feeds}
            with Session(program, place=self._session.device) as session:
                results = session.run(program, given, mode=TEST)
                jax.block_until_ready(list(results))
        names = results.names or [f"output {index}" for index in range(len(results))]
        return f"{', '.join(names)} computed from {', '.join(program.feeds) or 'no feed'}, {size}", None


@contextlib.contextmanager
def unchanged(session: Session, reader: ReaderLike | None) -> Iterator[None]:
    """Return a context manager that restores the session and the position of a reader, bit for bit, at its end.

    It restores all arrays, the counters, the learning rates, the names of frozen parameters and the sequence of random
    numbers. A reader without the methods `state` and `restore` keeps its new position.
    """
    keeps_position = hasattr(reader, "state") and hasattr(reader, "restore")
    position = reader.state() if keeps_position else None  # type: ignore[union-attr]
    state = {name: np.array(value) for name, value in live_state(session).items()}
    seeds, session.engine.seeds = session.engine.seeds, Seeds("check", 0)
    try:
        yield
    finally:
        session.engine.seeds = seeds
        session.restore(state)
        if keeps_position:
            reader.restore(position)  # type: ignore[union-attr]


def _number(value: Any) -> str:
    flat = np.asarray(value, np.float64).ravel()
    return f"{flat[0]:.4g}" if flat.size == 1 else f"{flat[0]:.4g} ... ({flat.size} values)"


def _shown(value: Any) -> str:
    array = getattr(value, "data", value) if hasattr(value, "lengths") else np.asarray(value)
    return _number(array) if math.prod(array.shape) == 1 else shape_text(str(array.dtype), array.shape)
