"""Executor: runs programs that are written down, over a Session."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.lod_tensor import LoDTensor
from fluid.place import Place
from fluid.static.scope import Scope, global_scope
from fluid.static.tape import values
from fluid.static.tape.program import Program, default_main_program
from fluid.static.tape.variable import Variable

# What may be fetched: a variable, or its name.
Fetched = Variable | str
# What may be fed: arrays by name, or one such dict for each device.
Feed = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Executor:
    """Runs programs that are written down.

    Args:
      place: a device; None for JAX's default.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> main, startup = fluid.Program(), fluid.Program()
      >>> with fluid.program_guard(main, startup):
      ...     y = fluid.layers.scale(fluid.layers.data("x", shape=[2]), scale=2.0)
      >>> exe = fluid.Executor(fluid.CPUPlace())
      >>> exe.run(startup)
      []
      >>> exe.run(main, feed={"x": np.ones((1, 2), "float32")}, fetch_list=[y])
      [array([[2., 2.]], dtype=float32)]
    """

    def __init__(self, place: Place = None):
        self.place = place

    def run(
        self,
        program: Any = None,
        feed: Feed = None,
        fetch_list: Sequence[Fetched] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a program once. A startup program gives parameters their initial values.

        Args:
          program: a Program or CompiledProgram; the default main program if it is left out.
          feed: arrays by name. What the results do not depend on need not be given.
          fetch_list: the variables to return, or their names.
          feed_var_name: accepted for programs written for Fluid, but has no effect: no variable holds feeds.
          fetch_var_name: the same for fetches.
          scope: where values outlive the run; the global one by default.
          return_numpy: whether to return NumPy arrays, instead of LoDTensors.
          use_program_cache: accepted for programs written for Fluid, but has no effect: programs are compiled once.
          use_prune: the same; what is not fetched is never computed, except for updates.

        Returns:
          What was fetched, in order.

        Raises:
          ProgramError: parameters have no values yet.
          FeedError: data does not fit; UnknownNameError: there is no such variable.
          ArgumentError: a sequence is fetched as an array.
        """
        del feed_var_name, fetch_var_name, use_program_cache, use_prune
        found = plain_program(program)
        scope = scope or global_scope()
        if found.mains and not found.version:
            scope.initialise(found, self.place)
            return []
        if not found.version:
            return []
        inner = scope.program(found, self.place)
        scope.check(inner)
        names = [name_of(item) for item in fetch_list or ()]
        kept = [v.name for v in found.outliving() if v.name not in names]
        given = _joined(feed)
        fed = {**given, **found.read(given)}
        mode = "test" if found.for_test else "train"
        results = scope.session.run(inner, feed=fed, fetch=[*names, *kept], mode=mode)
        for name, value in zip(kept, results[len(names) :], strict=True):
            scope.keep(name, value)
        return [_handed_out(name, v, return_numpy) for name, v in zip(names, results[: len(names)], strict=True)]

    def close(self) -> None:
        """Does nothing: what a scope holds goes with the scope."""


def plain_program(program: Any) -> Program:
    """The Program that is meant: itself, that of a CompiledProgram, or the default one.

    Raises:
      ArgumentTypeError: it is none of these.
    """
    found = getattr(program, "program", program)
    if found is None:
        return default_main_program()
    if not isinstance(found, Program):
        raise errors.ArgumentTypeError(
            f"found {type(program).__name__}, expected a Program: exe.run(fluid.default_main_program())"
        )
    return found


def name_of(item: Fetched) -> str:
    """The name of a variable, or the name itself."""
    return item.name if isinstance(item, Variable) else item


class Single(np.ndarray):
    """A fetched array of one element, which is a number too, as it was before NumPy 2."""

    def __float__(self) -> float:
        return float(np.asarray(self).item())

    def __int__(self) -> int:
        return int(np.asarray(self).item())

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def _handed_out(name: str, value: Any, return_numpy: bool) -> Any:
    """A result as the user gets it."""
    if isinstance(value, values.SEQUENCES):
        if return_numpy:
            raise errors.ArgumentError(
                f"{name!r} is a batch of sequences, which is no array; fetch it with return_numpy=False, and "
                f"np.array(tensor), tensor.lod() are its steps and where each sequence begins"
            )
        return LoDTensor.of(jax.tree.map(np.asarray, value))
    array = np.asarray(value)
    if not return_numpy:
        return LoDTensor(array)
    return array.view(Single) if array.size == 1 else array


def _joined(feed: Feed) -> dict[str, Any]:
    """One feed of what may be one for each device."""
    if feed is None or isinstance(feed, Mapping):
        return dict(feed or {})
    return {name: _concatenated([part[name] for part in feed]) for name in feed[0]} if feed else {}


def _concatenated(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], LoDTensor):
        return np.concatenate([np.asarray(p) for p in parts])
    lengths = [[n for part in parts for n in part.recursive_sequence_lengths()[i]] for i in range(_levels(parts[0]))]
    return LoDTensor(np.concatenate([np.asarray(p) for p in parts]), lengths)


def _levels(tensor: LoDTensor) -> int:
    return len(tensor.recursive_sequence_lengths())
