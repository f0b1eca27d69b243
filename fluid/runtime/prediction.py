"""Prediction: plans of inference calls, and results over an entire data set.

While the device computes the results of one minibatch, the host reads the next one. The jaxpr of the requested values
shows which feeds they need. So the minibatches of a training reader can be used for prediction, with or without labels.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fluid import errors
from fluid._util.paths import PathLike, local_path
from fluid.checkpoint import replaced
from fluid.core import NOT_KNOWN, TEST, FeedSpec, NestedSequenceBatch, Program, SequenceBatch, warn, warn_once
from fluid.place import Place
from fluid.reader import Table
from fluid.reader.columns import batch_size, repeat_last
from fluid.reader.pipeline import InputPipeline
from fluid.runtime.compiled_step import bind
from fluid.runtime.engine import Engine
from fluid.runtime.fetch import check_feed, split_names
from fluid.runtime.request import Request
from fluid.runtime.results import Results, StepResults
from fluid.runtime.seeds import Draw
from fluid.runtime.session import Session

_SEQUENCES = (SequenceBatch, NestedSequenceBatch)
# The size in bytes of all parameters and states from which on they are not compiled as constants. Each MB of constants
# makes the compilation about 10 ms longer, and calls of large nets take as long with constants as without.
_LARGE = 8 << 20


class ConstantFeeds(NamedTuple):
    """Constant arrays on the device, which are added to every minibatch of a data set.

    Attributes:
      feeds: constant feeds (input arrays), by name.
      overrides: arrays that replace other values of the program, by name.
    """

    feeds: dict[str, Any]
    overrides: dict[str, Any]

    @property
    def has_rows(self) -> bool:
        """True if a constant array has rows, so that it cannot be padded together with a minibatch."""
        return bool(self.feeds) or any(value.shape for value in self.overrides.values())


def continued(feeds: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the feeds of the next call in a stream, a chain of calls in which outputs become feeds of equal names.

    Raises:
      ArgumentError: no output is a sequence with the name of a feed.
    """
    replaced = {name: value for name, value in outputs.items() if name in feeds}
    sequences = [name for name, value in replaced.items() if isinstance(value, SequenceBatch)]
    if not sequences:
        raise errors.ArgumentError(
            f"a stream continues the sequences that a model returns with the names of their feeds; found the outputs "
            f"{', '.join(map(repr, outputs)) or 'without names'} and the feeds {', '.join(map(repr, feeds))}, "
            f'expected a common name, as in return {{"prompt": layers.sequence_concat([prompt, text]), "text": text}}'
        )
    if not any(np.sum(replaced[name].lengths) > np.sum(feeds[name].lengths) for name in sequences):
        return None
    return {**feeds, **replaced}


class Ensemble(Protocol):
    """An interface of several models of one program that predict together, such as a `fluid.Population`."""

    def inference_session(self, function: Any, place: Place, precision: str | None) -> Session:
        """Return a Session that runs a program function for all models of the ensemble."""


def ensemble_session(
    ensemble: Any, function: Any, place: Place, precision: str | None, refused: Sequence[Any]
) -> Session | None:
    """Return a Session that runs a program for all models of an ensemble; None if `ensemble` is not an Ensemble.

    Raises:
      ArgumentTypeError: one of the values in `refused` is neither None nor False.
    """
    make = getattr(ensemble, "inference_session", None)
    if make is None:
        return None
    if any(given not in (None, False) for given in refused):
        raise errors.ArgumentTypeError(
            "an ensemble lies on one device, with the names that it was trained with, found rename=, names=, "
            "parallel= or shardings=, expected fluid.Inferencer(program, params=population)"
        )
    session: Session = make(function, place, precision)
    return session


def constant(session: Session, program: Program, feed: Mapping[str, Any] | None) -> ConstantFeeds:
    """Check the feeds that a user passes in addition to every minibatch, and put them on the device.

    Raises:
      FeedError: the data does not match a feed.
      UnknownNameError: a name in `feed` belongs to no value of the program.
    """
    checked = check_feed(program, {} if feed is None else feed)
    given, replaced = split_names(program, checked)
    return ConstantFeeds(*session.engine.take(program, checked, given, replaced, session.engine.buckets(program)))


def needed_feeds(
    session: Session, program: Program, names: tuple[str, ...] | None, fixed: ConstantFeeds
) -> tuple[str, ...]:
    """Return the feeds on which values of a program depend in test mode, except the constant feeds."""
    step = bind(session.engine, program, Request(TEST, names, tuple(fixed.feeds), tuple(fixed.overrides)))
    needed = step.needed_feeds(fixed.feeds, fixed.overrides)
    return tuple(name for name in program.feeds if name in needed)


def order_of_results(program: Program, names: Sequence[str] | None) -> str | None:
    """Return the argument `in_order_for` of `minibatches`: "predict" to warn of a reader that shuffles, else None.

    If a feed is among the results, users can match results with rows of data by this feed, and the function returns
    None. Otherwise users can match results only by their order, and the function returns "predict".
    """
    return "predict" if program.feeds.keys().isdisjoint(names or ()) else None


class Predictions(Iterator[Results]):
    """An iterator over the Results of each minibatch, computed when they are read.

    Example:
      >>> [results["p"] for results in Predictions(iter([Results([1], ["p"]), Results([2], ["p"])]))]
      [1, 2]
    """

    def __init__(self, results: Iterator[Results], classes: Sequence[str] = ()):
        self._results = results
        self._classes = tuple(classes)
        self._ended = False

    def to_pandas(self) -> Any:
        """Compute the results of all minibatches, and return them as a pandas DataFrame with a row for each example.

        A result with one value for each row becomes a column with the result's name, or `output_0` if the results have
        no names. Other results become a column for each value: `name[0]`, `name[1]`. If the program reads a Table whose
        label has as many classes as the result has values, the columns are `name[yes]`, `name[no]`; see
        `fluid.reader.frame`.

        Raises:
          ArgumentError: pandas is not installed; or a result is a sequence, or has no row for each example.

        Example:
          >>> predictions = Predictions(iter([Results([np.array([[0.2, 0.8]])], ["p"])]), ["no", "yes"])
          >>> predictions.to_pandas().to_dict("records")
          [{'p[no]': 0.2, 'p[yes]': 0.8}]
        """
        try:
            import pandas
        except ImportError as error:
            raise errors.ArgumentError(
                "predict(...).to_pandas() needs pandas, which is not installed: pip install 'fluid-jax[table]'"
            ) from error
        parts = [pandas.DataFrame(self._columns(results)) for results in self]
        return pandas.concat(parts, ignore_index=True) if parts else pandas.DataFrame()

    def to_csv(self, path: PathLike) -> None:
        """Compute the results minibatch by minibatch, and write them to a CSV file with a line for each example.

        The columns are named as by `to_pandas`. The file replaces an existing file when it is complete.

        Raises:
          ArgumentError: a result is a sequence, or has no row for each example.
          ParameterFileError: the file cannot be written.
        """
        with replaced(local_path(path)) as (_, file):
            text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
            writer = csv.writer(text)
            for number, results in enumerate(self):
                columns = self._columns(results)
                if number == 0:
                    writer.writerow(columns)
                writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
            text.detach()

    def _columns(self, results: Results) -> dict[str, np.ndarray]:
        """Return the results of a minibatch as table columns, which are arrays `[rows]` by column name."""
        names = results.names or [f"output_{index}" for index in range(len(results))]
        columns: dict[str, np.ndarray] = {}
        rows = None
        for name, value in zip(names, results, strict=True):
            array = None if isinstance(value, _SEQUENCES) else np.asarray(value)
            if array is None or not array.ndim or rows not in (None, len(array)):
                raise errors.ArgumentError(
                    f"the result {name!r} has no row for each example, found "
                    f"{'sequences' if array is None else f'the shape {list(array.shape)}'}; choose other results: "
                    f"predict(reader, fetch=['prediction'])"
                )
            rows = len(array)
            flat = array.reshape(rows, -1)
            width = flat.shape[1]
            keys = self._classes if len(self._classes) == width else range(width)
            columns |= {name: flat[:, 0]} if width == 1 else {f"{name}[{k}]": flat[:, i] for i, k in enumerate(keys)}
        return columns

    def __iter__(self) -> Predictions:
        if self._ended:
            warn(
                "the results of predict are read a second time, and there are none: they are computed while they are "
                "read, and not kept. Keep them, results = list(trainer.predict(reader)), or call predict again"
            )
        return self

    def __next__(self) -> Results:
        try:
            return next(self._results)
        except StopIteration:
            self._ended = True
            raise

    def close(self) -> None:
        """Stop the prediction and close the reader, which runs the reader's `finally` blocks."""
        if hasattr(self._results, "close"):
            self._results.close()

    def __getitem__(self, name: Any) -> Any:
        raise self._several(f"[{name!r}]", name)

    def __len__(self) -> int:
        raise errors.ArgumentTypeError(
            "predict gives the Results of one minibatch after the other, whose number is known at the end only: "
            "results = list(trainer.predict(reader)); len(results)"
        )

    def __bool__(self) -> bool:
        return True

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise self._several(" as an array", "prediction")

    def _several(self, how: str, name: Any) -> errors.FluidError:
        key = name if isinstance(name, str) else 0
        fetch = f", fetch={key!r}" if isinstance(name, str) else ""
        return errors.ArgumentTypeError(
            f"predict gives the Results of one minibatch after the other, found that they are read{how}; expected a "
            f"loop over them: np.concatenate([results[{key!r}] for results in trainer.predict(reader{fetch})])"
        )


def stream(
    pipeline: InputPipeline, begin: Callable[[Any], Callable[[], Results]], table: Table | None = None
) -> Predictions:
    """Return the results of all minibatches, in order. While the device computes, the next minibatch is read."""
    return Predictions(_streamed(pipeline, begin), (table and table.classes) or ())


def _streamed(pipeline: InputPipeline, begin: Callable[[Any], Callable[[], Results]]) -> Iterator[Results]:
    """Run a prediction for each minibatch of an input pipeline, and yield the Results of the prediction.

    While the device computes, the function reads the next minibatch.
    """
    with contextlib.closing(pipeline.start()) as batches:
        for batch in batches:
            results = begin(batch.feed)
            batches.read_ahead()
            yield results()


def on_host(values: Sequence[Any]) -> list[Any]:
    """Wait for the device, and return values as NumPy arrays, or as sequence batches of NumPy arrays."""
    return [jax.tree.map(np.asarray, v) if isinstance(v, _SEQUENCES) else np.asarray(v) for v in values]


def are_constants(engine: Engine) -> bool:
    """Return whether an Inferencer compiles its arrays as constants: on one CPU, if they are smaller than 8 MB.

    XLA then transposes filters when it compiles, and not in each call. For one image, LeNet takes 20 percent less time:
    `python benchmarks/run.py inference`, jax 0.10.2, 2 cores.
    """
    layout = engine.layout
    one_cpu = layout.mesh is None and not layout.in_parts and engine.members is None and layout.device.platform == "cpu"
    return one_cpu and sum(array.nbytes for array in engine.scope.arrays.values()) < _LARGE


class InferencePlan:
    """A compiled step and the padding rules for inference calls with equal names of feeds and results.

    Args:
      mixing: returns the source line where the results for one row depend on other rows, see `Program.mixing`, or None.
        It is called before the first batch that would be padded.
    """

    def __init__(
        self,
        feeds: Sequence[tuple[str, FeedSpec]],
        overrides: tuple[str, ...],
        step: Callable[..., StepResults],
        padded: bool,
        names: Sequence[str] | None,
        sizes: Sequence[int] | None,
        draw: Callable[[], Draw | None] | None = None,
        mixing: Callable[[], str | None] = lambda: None,
        program: Program | None = None,
    ):
        self.feeds = feeds
        self.overrides = overrides
        self.step = step
        self.padded = padded
        self.names = names
        self._sizes = sizes
        self._draw = draw
        self._mixing: Callable[[], str | None] | None = mixing
        self._program = program
        self.ragged = any(spec.lod_level for _, spec in feeds)

    def begin(
        self, feeds: Mapping[str, Any], overrides: Mapping[str, Any], draw: Draw | None = None
    ) -> Callable[[], Sequence[Any]]:
        """Start the step for a batch, which is padded to an allowed size unless padding changes the results."""
        if draw is None and self._draw is not None:
            draw = self._draw()
        rows = _with_rows(feeds, overrides) if self.padded else {}
        size = batch_size(rows) if rows else 0
        capacity = self.padded_size(size) if size else 0
        if capacity != size and not self._pads():
            capacity = size
        if capacity == size:
            values = self.step(feeds, overrides, draw).values
            return lambda: values
        feeds, overrides = jax.tree.map(
            lambda x: repeat_last(x, capacity - size) if np.ndim(x) else x, (feeds, overrides)
        )
        values = self.step(feeds, overrides, draw).values
        # Remove the rows of padding with NumPy: on the device, each number of rows would need another compilation.
        return lambda: [jax.tree.map(lambda x: np.asarray(x)[:size], v) for v in values]

    def _pads(self) -> bool:
        """Return whether rows may be added; warn once if the results for one row depend on other rows."""
        if self._mixing is not None:
            line, self._mixing = self._mixing(), None
            if line is not None:
                self.padded = False
                if self._program is not None:
                    warn_once(self._program, "mixed rows", functools.partial(mixing_text, self._program, line))
        return self.padded

    def padded_size(self, size: int) -> int:
        """Return the number of rows, at least `size`, to which a batch of `size` rows is padded for a compiled step."""
        if self._sizes is None:
            return 1 << (size - 1).bit_length()
        return min((capacity for capacity in self._sizes if capacity >= size), default=size)


def mixing_text(program: Program, line: str) -> str:
    """Return the text of the warning that the results for one row depend on other rows of the batch, from `line` on."""
    if line == NOT_KNOWN:
        return (
            f"an earlier fluid exported the program {program.name}, and its file does not say whether the results for "
            f"one row depend on the other rows of a batch, so batches are neither padded nor shared; export it again"
        )
    return (
        f"the results of the program {program.name} for one row depend on the other rows of its batch, at {line}, so "
        f"the answer for a row changes with the batch that holds it. Compute each row by itself: axis=1 or "
        f"axis=-1 instead of axis=0, and dim=1 in layers.reduce_mean, reduce_max and the like; or declare that a "
        f"function treats each row alone: layers.rowwise(f)(x)"
    )


def _with_rows(feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return all inputs of a run that have one row per example: the feeds, and the overrides that are not scalars.

    An override replaces a named value of the program.
    """
    return {**feeds, **{n: v for n, v in overrides.items() if v.shape}} if overrides else feeds
