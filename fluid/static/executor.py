"""Executor: runs recorded programs over a Session."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.compat.lod_tensor import LoDTensor, Single
from fluid.place import Place
from fluid.static.backward import Gradient
from fluid.static.feeding import check_single_steps, run_as_fed
from fluid.static.processes import feeds_of_all
from fluid.static.scope import Scope, global_scope
from fluid.static.scope import scope_guard as scope_guard
from fluid.static.tape import values
from fluid.static.tape.program import Program, default_main_program
from fluid.static.tape.variable import Variable

# A variable to fetch, or its name.
Fetched = Variable | str
# A feed: arrays by name, or one dict of arrays for each device.
Feed = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Executor:
    """An executor of recorded programs.

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
        """Run a program once. A startup program initializes the parameters.

        Args:
          program: a Program or CompiledProgram; by default the default main program.
          feed: arrays by name. A feed that no result depends on may be left out.
          fetch_list: the variables to return, or their names.
          feed_var_name: accepted for programs written for Fluid, but has no effect: no variable holds feeds.
          fetch_var_name: accepted for programs written for Fluid, but has no effect: no variable holds fetches.
          scope: the scope that keeps values between runs; by default the global scope.
          return_numpy: True returns NumPy arrays, False LoDTensors.
          use_program_cache: accepted for programs written for Fluid, but has no effect: programs are compiled once.
          use_prune: accepted for programs written for Fluid, but has no effect: only fetches and updates are computed.

        Returns:
          The fetched values, in the order of `fetch_list`.

        Raises:
          ProgramError: parameters have no values yet.
          FeedError: a feed does not fit; UnknownNameError: the program has no variable of this name.
          ArgumentError: a batch of sequences is fetched with `return_numpy=True`.
        """
        del feed_var_name, fetch_var_name, use_program_cache, use_prune
        found = plain_program(program)
        scope = scope or global_scope()
        if found.mains and not found.version:
            scope.initialise(found, self.place)
            return []
        if not found.version:
            return []
        scope = scope.running
        inner = scope.program(found, self.place)
        scope.check(inner)
        names = [name_of(item) for item in fetch_list or ()]
        kept = [v.name for v in found.outliving()]
        later = scope.later(found)
        given = _joined(feed)
        fed = {**given, **found.read(given)}
        check_single_steps(found.single_steps, inner.feeds, fed)
        if scope.collective:
            divided = [n for n in fed if n in inner.feeds and inner.feeds[n].shape[:1] == (None,)]
            fed |= _joined(feeds_of_all(fed, divided))
        mode = "test" if found.for_test else "train"
        fetched = {name: scope.value(name) for name in names if name in found.rates}
        wanted = dict.fromkeys([*names, *kept, *(later.read if later else [])])
        fetch = [name for name in wanted if name not in fetched]
        fetched |= dict(zip(fetch, run_as_fed(scope.session, inner, fed, fetch, mode), strict=True))
        for name in kept:
            scope.keep(name, fetched[name])
        if later is not None:
            changed = later(scope.session.scope, fetched)
            scope.load(changed)
            fetched |= changed
        return [_handed_out(name, fetched[name], return_numpy) for name in names]

    def close(self) -> None:
        """Do nothing: values stay in the scope."""


def plain_program(program: Any) -> Program:
    """Return the Program that an argument means: a Program, the program of a CompiledProgram, or the default program.

    Raises:
      ArgumentTypeError: the argument is of another type.
    """
    found = getattr(program, "program", program)
    if found is None:
        return default_main_program()
    if not isinstance(found, Program):
        raise errors.ArgumentTypeError(
            f"found {type(program).__name__}, expected a Program: exe.run(fluid.default_main_program())"
        )
    return found


def fetch_var(name: Fetched, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """Return the value that a scope holds: a parameter, a state, a learning rate or another persistable variable.

    Args:
      name: a variable or its name.
      scope: the scope; by default the global scope.
      return_numpy: True returns a NumPy array, False a LoDTensor.

    Raises:
      UnknownNameError: the scope has no value of this name.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     with fluid.unique_name.guard():
      ...         y = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      ...     started = fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
      ...     fluid.executor.fetch_var("fc_0.b_0")
      array([0.], dtype=float32)
    """
    found = (scope or global_scope()).find_var(name_of(name))
    if found is None:
        raise errors.UnknownNameError(
            f"the scope has no value of {name_of(name)!r}; run the startup program first, or set "
            f"persistable = True of a variable that layers compute, and run its program"
        )
    return _handed_out(name_of(name), np.array(found), return_numpy)


_fetch_var = fetch_var


def name_of(item: Fetched) -> str:
    """Return the name of a variable; a name is returned unchanged.

    Raises:
      ProgramError: the variable is a gradient of another loss than the loss that the program differentiates.
    """
    if isinstance(item, Gradient) and item.program.differentiated(item.of.name) is not item.loss:
        raise errors.ProgramError(
            f"{item.name!r} is the gradient of another loss than the program minimises, or differentiates last; use "
            f"fluid.gradients(loss, parameter), whose variables can be read and fetched for any number of losses"
        )
    return item.name if isinstance(item, Variable) else item


def _handed_out(name: str, value: Any, return_numpy: bool) -> Any:
    """Convert a result to a NumPy array or a LoDTensor for the user."""
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
    """Join a list of feeds, one for each device, into one feed."""
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
