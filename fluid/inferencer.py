"""Inferencer: computes the outputs of a program function from data."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import TEST, Array, FeedSpec, LoDTensor, NestedSequenceBatch, Program, SequenceBatch, refuse_parallel
from fluid.place import Place
from fluid.reader.buckets import Buckets, Ladders
from fluid.reader.columns import read_feed
from fluid.session import BoundStep, Request, Results, Session
from fluid.session.names import Fetch, as_array, check_fetch, split_names
from fluid.session.shown import ShowsProgram
from fluid.storage import PathLike, Rename

_SEQUENCES = (SequenceBatch, NestedSequenceBatch)


class Inferencer(ShowsProgram):
    """Computes the outputs of a program function, or of an exported model, from data, in test mode.

    Batches are padded to the next power of two, so that many batch sizes need few compilations, and outputs are cut
    back to the examples that were given. A program runs unpadded if its examples depend on each other, which shows when
    two different paddings give different results; if an output has no batch dimension; or with `bucket=False`.

    Args:
      infer_func: the program function, the same that the training program calls; None for an exported model, or one
        that the original saved.
      param_path: a file of `trainer.save_params`, or one that ends in ".safetensors". It may hold more parameters than
        the program has. Without `infer_func`, a file of `trainer.save_inference_model`, or what `fluid.artifact.load`
        made of it; or the folder of a model that the original saved, see `fluid.io.load_inference_model`.
      params: arrays by name, such as `trainer.params`, instead of a file.
      place: a device, see `fluid.place.device_of`.
      bucket: whether to pad batches.
      precision: "bfloat16" or "float16" to compute in it, see `fluid.Program`.
      buckets: to which sizes sequences are padded, as for `fluid.Trainer`; None for powers of two, so that an answer
        never depends on those before it.
      rename: names in the file to names of the program, see `fluid.io.load_params`.
      entry: which entry point of an exported model that has several.
      parallel: None or False; an Inferencer works on one device.

    Attributes:
      program: the discovered Program.
      session: the Session underneath.

    Raises:
      ParameterFileError: there is no such file, or it holds something else.
      ParameterError: parameters are missing or misshapen.
      ArtifactError: the exported model is missing, damaged, of a newer version, or made for other devices.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     return fluid.layers.fc(x, size=1)
      >>> params = {"fc_0.w_0": np.ones((2, 1), "float32"), "fc_0.b_0": np.zeros(1, "float32")}
      >>> result, = fluid.Inferencer(program, params=params).infer({"x": [[1, 2], [3, 4]]})
      >>> result.tolist()
      [[3.0], [7.0]]
    """

    def __init__(
        self,
        infer_func: Callable[[], Any] | Program | None = None,
        param_path: PathLike | Any = None,
        params: Mapping[str, Any] | None = None,
        place: Place = None,
        bucket: bool = True,
        precision: str | None = None,
        buckets: Ladders = None,
        rename: Rename = None,
        entry: str | None = None,
        parallel: bool | None = None,
    ):
        refuse_parallel("Inferencer", parallel)
        sources = [source for source in (param_path, params) if source is not None]
        if len(sources) != 1:
            raise errors.ArgumentTypeError(
                "an Inferencer needs parameters, from one source: "
                'fluid.Inferencer(infer_func, param_path="digits.params") or (infer_func, params=trainer.params)'
            )
        if infer_func is None and (saved := _saved_by_the_original(param_path)) is not None:
            infer_func = saved
            sources = [saved.params]
        if infer_func is None:
            self.session = Session(_exported(param_path, entry, place, precision, rename), place=place)
        else:
            self.session = Session(infer_func, place=place, precision=precision)
            self.session.load_params(sources[0], strict=False, rename=rename)
        self.program = next(iter(self.session.programs.values()))
        self._bucket = bucket
        ladders = self.program.buckets if buckets is None else buckets
        self._buckets = Buckets(self.program.feeds, ladders, max_compilations=None)
        self._plans: dict[Any, _Plan] = {}

    def infer(self, feed: Mapping[str, Any], fetch: Fetch | None = None, return_numpy: bool = True) -> Results:
        """Run the program on data.

        Args:
          feed: by name: arrays or nested lists `[batch, ...]`; for sequences lists of rows, SequenceBatches or
            LoDTensors. Any other named value can be given as well, and replaces what the program computes; feeds that
            are not needed then can be left out.
          fetch: names of values to return instead of the outputs.
          return_numpy: False leaves arrays on the device, as JAX arrays, and returns sequences as LoDTensors.

        Returns:
          Results: one value for each output, or each name in `fetch`: an array `[batch, ...]`; for sequences a
          SequenceBatch or NestedSequenceBatch of NumPy arrays, or else a LoDTensor.

        Raises:
          FeedError: data does not fit.
          UnknownNameError: the program has no such feed or value.
        """
        key = tuple(feed) if fetch is None else (*feed, None, *([fetch] if isinstance(fetch, str) else fetch))
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(feed, fetch)
            self._plans[key] = plan
        feeds = {name: read_feed(spec, feed[name]) for name, spec in plan.feeds}
        if plan.ragged:
            feeds = self._buckets.pad(feeds)
        overrides = {n: as_array(feed[n]) for n in plan.overrides} if plan.overrides else {}
        if not return_numpy:  # the step may still run after this call, when the caller changes its arrays
            feeds = self.session.take(feeds)
            overrides = self.session.take(overrides)
        values = plan.run_padded(feeds, overrides) if plan.padded else plan.step.raw(feeds, overrides)
        if return_numpy:
            values = [jax.tree.map(np.asarray, v) if isinstance(v, _SEQUENCES) else np.asarray(v) for v in values]
        else:
            values = [LoDTensor.of(v) if isinstance(v, _SEQUENCES) else self.session.place(v) for v in values]
        return Results(values, plan.names)

    def _plan(self, feed: Mapping[str, Any], fetch: Fetch | None) -> "_Plan":
        """Decide how calls with these names are answered."""
        program = self.program
        names = None if fetch is None else check_fetch(program, fetch)
        given_feeds, overrides = split_names(program, feed)
        feeds = [(n, program.feeds[n]) for n in given_feeds]
        request = Request(TEST, names, given_feeds, overrides)
        wanted = program.outputs if names is None else [self._array(n) for n in names]
        given = [*(Array(s.shape, s.dtype) for _, s in feeds), *(self._array(n) for n in overrides)]
        padded = self._bucket and bool(given) and all(a.shape[:1] == (None,) for a in (*wanted, *given))
        step = self.session.step(program, request)
        names = program.output_names if names is None else names
        return _Plan(feeds, overrides, step, padded, names, program.batch_sizes)

    def _array(self, name: str) -> Array:
        program = self.program
        if name in (program.output_names or ()):
            return program.outputs[(program.output_names or ()).index(name)]
        spec = program.parameters.get(name) or program.states.get(name)
        if spec is not None:
            return Array(spec.shape, spec.dtype)
        return program.values.get(program.aliases.get(name, name), Array((), "float32"))


class _Plan:
    """How calls with the same names are answered.

    Args:
      feeds: name and declaration of the feeds that are given.
      overrides: names of the values that are replaced.
      step: the compiled step.
      padded: whether batches may be padded.
      names: of the results, or None.
      sizes: to which batches may be padded; None for powers of two.
    """

    def __init__(
        self,
        feeds: Sequence[tuple[str, FeedSpec]],
        overrides: tuple[str, ...],
        step: BoundStep,
        padded: bool,
        names: Sequence[str] | None,
        sizes: Sequence[int] | None,
    ):
        self.feeds = feeds
        self.overrides = overrides
        self.step = step
        self.padded = padded
        self.names = names
        self._sizes = sizes
        self.ragged = any(spec.lod_level for _, spec in feeds)
        self._proven = False  # whether padding was shown to leave the results as they are

    def run_padded(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> Sequence[Any]:
        """Run a batch padded to the next power of two, unless padding changes the results."""
        size = _batch_size(feeds, overrides)
        room = self._room(size)
        if room == size:
            return self.step.raw(feeds, overrides)
        values = self._run(feeds, overrides, room, _repeat_last)
        if not self._proven:
            if not _equal(values, self._run(feeds, overrides, room, _add_zeros)):
                self.padded = False
                return self.step.raw(feeds, overrides)
            self._proven = True
        return values

    def _room(self, size: int) -> int:
        """To how many rows a batch is padded."""
        if self._sizes is None:
            return 1 << (size - 1).bit_length()
        return min((room for room in self._sizes if room >= size), default=size)

    def _run(self, feeds: Any, overrides: Any, room: int, pad: Callable[[Any, int], Any]) -> list[Any]:
        size = _batch_size(feeds, overrides)
        feeds, overrides = jax.tree.map(lambda x: pad(x, room - size), (feeds, overrides))
        # Results are cut on the host: on the device each size would be a compilation of its own.
        return [jax.tree.map(lambda x: np.asarray(x)[:size], v) for v in self.step.raw(feeds, overrides)]


def _exported(path: Any, entry: str | None, place: Place, precision: str | None, rename: Rename) -> Program:
    if path is None or precision is not None or rename is not None:
        raise errors.ArgumentTypeError(
            "without infer_func, an Inferencer runs an exported model as it is, "
            'fluid.Inferencer(param_path="digits.fluid"); params= belongs to a function, precision= and rename= to '
            "save_inference_model"
        )
    from fluid import artifact  # not everybody needs it

    return artifact.load(path).program(entry, place)


def _saved_by_the_original(path: Any) -> Any:
    """The program function of a folder that `save_inference_model` of the original wrote; None of anything else."""
    from fluid import original  # not everybody needs it

    return original.load_inference_model(path).program if original.is_inference_model(path) else None


def _batch_size(feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> int:
    sizes = [value.shape[0] for value in feeds.values()]
    if overrides:
        sizes += [value.shape[0] for value in overrides.values()]
    if sizes.count(sizes[0]) != len(sizes):
        shown = {name: value.shape[0] for name, value in {**feeds, **overrides}.items()}
        raise errors.FeedError(f"the feeds have different batch sizes: {shown}; give as many rows of each")
    if sizes[0] == 0:
        raise errors.FeedError("the batch is empty; give at least one row")
    return sizes[0]


def _repeat_last(value: Any, count: int) -> Any:
    """A value padded with copies of its last row: no layer gets values that it would not have got unpadded."""
    return np.concatenate([value, np.repeat(np.asarray(value[-1:]), count, axis=0)])


def _add_zeros(value: Any, count: int) -> Any:
    return np.concatenate([value, np.zeros((count, *value.shape[1:]), value.dtype)])


def _equal(first: Sequence[Any], second: Sequence[Any]) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in pairs)
