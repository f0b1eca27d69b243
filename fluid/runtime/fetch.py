"""Checks of names from the user: names of values to fetch, to replace, and to differentiate with respect to."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid._util.globs import is_glob
from fluid.core import TEST, TRAIN, LoDTensor, NestedSequenceBatch, Program, SequenceBatch, numbers_of

GRAD = "@GRAD"
# Kinds of values that only a training step has. A value's name is its kind and the index of a `minimize` call, such as
# learning_rate_0.
RATE = "learning_rate"
GRAD_NORM = "grad_norm"
UPDATE_RATIO = "update_ratio"
LOSS_SCALE = "loss_scale"
Fetch = str | Sequence[str]


def rate_names(program: Program) -> list[str]:
    """Return the names under which a training step returns its learning rates, such as "learning_rate_0"."""
    return [f"{RATE}_{i}" for i in range(len(program.minimizes))]


def step_names(program: Program) -> list[str]:
    """Return the names of the values that a training step computes in addition to the values of its program.

    For each `minimize` call: the learning rate, the norm of the gradients before any clip, and the norm of the update
    divided by the norm of the parameters; with precision="float16" also the loss scale.
    """
    kinds = (RATE, GRAD_NORM, UPDATE_RATIO, *([LOSS_SCALE] if program.precision == "float16" else []))
    return [f"{kind}_{i}" for kind in kinds for i in range(len(program.minimizes))]


def check_fetch(program: Program, fetch: Fetch, mode: str = TEST) -> tuple[str, ...]:
    """Check the names in a fetch list, and return them with globs expanded.

    Args:
      fetch: one name or several. A name is a key of the program's dict of outputs, a named value, a layer (its last
        result), a feed, a parameter, a state, or a value inside a loop or branch. A glob such as "fc_*.w_0" stands for
        all matching names; values inside loops or branches count only if no other name matches. "NAME@GRAD" requests
        the gradient of a value.

    Raises:
      UnknownNameError: the program has no such value, or `NAME@GRAD` is for a value without a gradient.
    """
    names = [fetch] if isinstance(fetch, str) else list(fetch)
    for name in names:
        if not isinstance(name, str):
            raise errors.ArgumentTypeError(
                f'fetch is a list of names such as ["fc_0.tmp_0"], found {type(name).__name__}; '
                f'name a value with fluid.layers.identity(x, name="h")'
            )
    known = dict.fromkeys(program.output_names or ())
    if not known.keys() >= set(names):
        known = _fetchable(program, mode)  # `_fetchable` is slow, because it traces the program once more
    found: list[str] = []
    for name in names:
        base = name.removesuffix(GRAD)
        if base in known:
            found.append(_checked_gradient(program, name))
        elif is_glob(base):
            found += _matching(program, name, known)
        elif base in step_names(program):
            raise errors.UnknownNameError(
                f'{base!r} is a value of training steps, and this run is none; write fetch=[{base!r}], mode="train", '
                f"which trains one step; or let a handler list it in fetches()"
            )
        elif base in program.equation_values:
            found.append(_checked_gradient(program, name))
        else:
            known |= dict.fromkeys(program.equation_values)
            hint = errors.nearest(base, known)
            if _is_line(base) or base.startswith("elementwise_"):
                hint += ' Name the value of a line or an operator: fluid.layers.identity(x, name="h"), and fetch=["h"].'
            raise errors.UnknownNameError(f"the program {program.name} has no value {base!r}. {hint}{_absent(program)}")
    return tuple(found)


def is_inner(program: Program, name: str) -> bool:
    """Return True if a name belongs to a value inside a loop or branch, see `Program.equation_values`."""
    if name.endswith(GRAD) or name in step_names(program):
        return False
    declared = (program.output_names or (), program.feeds, program.parameters, program.states)
    # Test the names of outputs, feeds and arrays first, because the first read of `program.values` is slow: it traces
    # the program once more.
    if any(name in names for names in declared):
        return False
    return name not in program.values and name not in program.aliases and name in program.equation_values


def check_feed(program: Program, feed: Any) -> Mapping[str, Any]:
    """Check that `feed` is a dict, and return it unchanged.

    Raises:
      ArgumentTypeError: `feed` is not a dict.
    """
    if isinstance(feed, Mapping):
        return feed
    names = ", ".join(f"{name!r}: array" for name in program.feeds)
    raise errors.ArgumentTypeError(
        f"feed is a dict of arrays by name, found {type(feed).__name__}; session.run(program, feed={{{names}}})"
    )


def can_fetch(program: Program, fetch: Fetch) -> bool:
    """Return True if a program has all values that a fetch list names."""
    try:
        return bool(check_fetch(program, fetch))
    except errors.UnknownNameError:
        return False


def no_program(program: Any, known: Iterable[str]) -> errors.FluidError:
    """Return the error for an unknown program, or for a call that must name one of several programs."""
    if program is None:
        shown = " or ".join(map(repr, known)) or "none yet: session.add(function)"
        return errors.ArgumentTypeError(
            f"which program is not said: session.run(program, feed), where program is its function or its name, {shown}"
        )
    shown = program if isinstance(program, str) else getattr(program, "__name__", repr(program))
    return errors.UnknownNameError(
        f"this session has no program {shown!r}. {errors.nearest(str(shown), known)} "
        f"Hand program functions over at the start: fluid.Session(f, g)"
    )


def split_names(program: Program, names: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split the names in a feed dict into the names of feeds and the names of other values, which are replaced.

    Raises:
      UnknownNameError: the program has no such name, or the value cannot be replaced.
    """
    given = tuple(name for name in names if name in program.feeds)
    replaced = tuple(name for name in names if name not in program.feeds)
    if replaced:  # the check traces the program, which takes time: run the check only if values are replaced
        _check_replaced(program, replaced)
    return given, replaced


def _check_replaced(program: Program, names: Iterable[str]) -> None:
    """Check that arrays from the user can replace the values with these names, which are not feeds."""
    known = {**program.feeds, **program.values, **program.parameters, **program.states, **program.aliases}
    for name in names:
        if name in known or is_inner(program, name):
            continue
        if name in (program.output_names or ()):
            raise errors.UnknownNameError(
                f"the output {name!r} of the program {program.name} has no name inside of it, so nothing can take its "
                f'place there; name it: fluid.layers.identity(x, name="{name}")'
            )
        raise errors.UnknownNameError(
            f"the program {program.name} has no feed {name!r}. {errors.nearest(name, known)}{_absent(program)}"
        )


def as_array(value: Any) -> Any:
    """Convert an array from the user to a type that a step accepts: a sequence batch, a JAX or a NumPy array."""
    if isinstance(value, LoDTensor):
        return value.batch()
    if isinstance(value, SequenceBatch | NestedSequenceBatch):
        return jax.tree.map(as_array, value)
    return value if isinstance(value, jax.Array) else numbers_of(value, what="a value in feed=")


def _is_line(name: str) -> bool:
    path, colon, number = name.rpartition(":")
    return bool(path and colon) and number.isdecimal()


def _fetchable(program: Program, mode: str) -> dict[str, None]:
    outputs = program.output_names or ()
    steps = step_names(program) if mode == TRAIN else ()
    groups = (outputs, program.values, program.feeds, program.parameters, program.states, steps, program.aliases)
    return dict.fromkeys(name for group in groups for name in group)


def _checked_gradient(program: Program, name: str) -> str:
    base = name.removesuffix(GRAD)
    if name != base and not _differentiable(program, program.aliases.get(base, base)):
        raise errors.UnknownNameError(
            f"{name!r}: gradients exist of parameters, float feeds and float named values, and {base!r} is none"
            f"{_absent(program)}"
        )
    return name


def _matching(program: Program, name: str, known: Iterable[str]) -> list[str]:
    base = name.removesuffix(GRAD)
    aliases = set(program.aliases) - set(program.output_names or ())
    found = [n for n in known if n not in aliases and fnmatch.fnmatchcase(n, base)]
    if name != base:
        found = [n + GRAD for n in found if _differentiable(program, program.aliases.get(n, n))]
    if not found and name == base:
        found = [n for n, value in program.equation_values.items() if n == value.name and fnmatch.fnmatchcase(n, base)]
    if not found:
        raise errors.UnknownNameError(
            f"no value of the program {program.name} matches {name!r}. {errors.nearest(base, known)}{_absent(program)}"
        )
    return found


def _absent(program: Program) -> str:
    """Return a sentence for error messages about a value that an exported program lacks; "" if it is not exported."""
    if not program.exported:
        return ""
    return (
        " It was exported, without gradients, and holds what was fetched then: save_inference_model(..., fetch=[...])"
    )


def _differentiable(program: Program, name: str) -> bool:
    if program.exported:
        return False
    if name in program.parameters:
        return True
    dtype = program.values[name].dtype if name in program.values else getattr(program.feeds.get(name), "dtype", "int32")
    return jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
