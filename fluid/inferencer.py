"""Inferencer: the serving face of a program function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import TEST, Array, Program, SequenceBatch
from fluid.place import Place
from fluid.reader import check_feed
from fluid.session import BoundStep, Request, Results, Session
from fluid.session.step import check_fetch


class Inferencer:
    """Computes the outputs of a program function from data, in test mode.

    Batches are padded to the next power of two, so that any number of batch sizes costs few compilations; outputs are
    cut back to the examples that were given. A program with an output that does not follow the batch, such as a mean
    over it, is run unpadded, and so is any program with `bucket=False`. Examples are taken not to see each other: turn it
    off for a program in which they do.

    Args:
      infer_func: the program function, the same that the training program calls.
      param_path: a file of `trainer.save_params`. It may hold more parameters than the program has.
      params: arrays by name, such as `trainer.params`, instead of a file.
      place: a device, see `fluid.place.device_of`.
      bucket: whether to pad batches.

    Attributes:
      program: the discovered Program.
      session: the Session underneath.

    Raises:
      ParameterFileError: there is no such file, or it holds something else.
      ParameterError: parameters are missing or misshapen.

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
        infer_func: Callable[[], Any],
        param_path: Any = None,
        params: Mapping[str, Any] | None = None,
        place: Place = None,
        bucket: bool = True,
    ):
        if (param_path is None) == (params is None):
            raise errors.ArgumentTypeError(
                "an Inferencer needs parameters, from one source: "
                'fluid.Inferencer(infer_func, param_path="digits.params") or (infer_func, params=trainer.params)'
            )
        self.session = Session(infer_func, place=place)
        self.program: Program = next(iter(self.session.programs.values()))
        self.session.load_params(params if param_path is None else param_path, strict=False)
        self._bucket = bucket
        self._plans: dict[Any, _Plan] = {}

    def infer(self, feed: Mapping[str, Any], fetch: Sequence[str] | None = None, return_numpy: bool = True) -> Results:
        """Run the program on data.

        Args:
          feed: by name: arrays or nested lists `[batch, ...]`, or SequenceBatches; any named value may be replaced
            too, and then feeds that are no longer needed need not be given.
          fetch: names of values to return instead of the outputs.
          return_numpy: False leaves the results on the device, as JAX arrays.

        Returns:
          Results: one array `[batch, ...]` for each output, or each name in `fetch`.

        Raises:
          FeedError: data does not fit; UnknownNameError: no such feed or value.
        """
        # The key costs more than the dictionary look-up that it saves, unless it is this small.
        key = (*feed, "", *fetch) if fetch else tuple(feed)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(feed, fetch)
        feeds = {name: check_feed(spec, feed[name]) for name, spec in plan.feeds.items()}
        overrides = {n: v if isinstance(v := feed[n], SequenceBatch) else jnp.asarray(v) for n in plan.overrides}
        size = None
        if plan.padded:
            size = _batch_size(feeds, overrides)
            room = 1 << (size - 1).bit_length()
            if room > size:
                feeds, overrides = jax.tree.map(lambda x: _pad(x, room), (feeds, overrides))
            else:
                size = None
        values = plan.step.raw(feeds, overrides)
        if return_numpy:
            values = [np.asarray(v) if isinstance(v, jax.Array) else v for v in values]
        if size is not None:
            values = [_cut(v, size) for v in values]
        return Results(values, plan.names)

    def _plan(self, feed: Mapping[str, Any], fetch: Sequence[str] | None) -> "_Plan":
        program = self.program
        known = [*program.feeds, *program.values, *program.parameters]
        for name in feed:
            if name not in known:
                raise errors.UnknownNameError(
                    f"the program {program.name} has no feed {name!r}. {errors.nearest(name, known)}"
                )
        names = None if fetch is None else check_fetch(program, fetch)
        feeds = {n: program.feeds[n] for n in feed if n in program.feeds}
        overrides = tuple(n for n in feed if n not in program.feeds)
        request = Request(TEST, names, tuple(feeds), overrides)
        wanted = program.outputs if names is None else [self._array(n) for n in names]
        given = [*(Array(s.shape, s.dtype) for s in feeds.values()), *(self._array(n) for n in overrides)]
        padded = self._bucket and bool(given) and all(a.shape[:1] == (None,) for a in (*wanted, *given))
        step = self.session.step(program, request)
        return _Plan(feeds, overrides, step, padded, program.output_names if names is None else names)

    def _array(self, name: str) -> Array:
        program = self.program
        if name in (program.output_names or ()):
            return program.outputs[(program.output_names or ()).index(name)]
        spec = program.parameters.get(name) or program.states.get(name)
        if spec is not None:
            return Array(spec.shape, spec.dtype)
        return program.values.get(name, Array((), "float32"))


class _Plan:
    """How to answer calls with the same names."""

    def __init__(self, feeds: Any, overrides: tuple[str, ...], step: BoundStep, padded: bool, names: Any):
        self.feeds, self.overrides, self.step, self.padded, self.names = feeds, overrides, step, padded, names


def _batch_size(feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> int:
    sizes = {n: (v.data if isinstance(v, SequenceBatch) else v).shape[0] for n, v in {**feeds, **overrides}.items()}
    if len(set(sizes.values())) != 1:
        raise errors.FeedError(f"the feeds have different batch sizes: {sizes}; give as many rows of each")
    size = next(iter(sizes.values()))
    if size == 0:
        raise errors.FeedError(f"the batch is empty: {sizes}; give at least one row")
    return size


def _pad(value: Any, room: int) -> Any:
    # Rows are repeated rather than filled with zeros, so that no layer meets a value that the data does not have.
    return np.concatenate([value, np.repeat(value[-1:], room - len(value), axis=0)])


def _cut(value: Any, size: int) -> Any:
    return jax.tree.map(lambda x: x[:size], value)
