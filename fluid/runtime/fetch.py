"""The names that a user gives: of values to fetch, to replace, and to differentiate with respect to."""

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import TEST, TRAIN, LoDTensor, NestedSequenceBatch, Program, SequenceBatch
from fluid.naming import is_glob

GRAD = "@GRAD"
# Values that only a training step has, one for each `minimize`: learning_rate_0, learning_rate_1 ...
RATE = "learning_rate"
GRAD_NORM = "grad_norm"
UPDATE_RATIO = "update_ratio"
LOSS_SCALE = "loss_scale"
Fetch = str | Sequence[str]


def rate_names(program: Program) -> list[str]:
    """The names under which a training step gives the learning rates of the `minimize` of a program, in order."""
    return [f"{RATE}_{i}" for i in range(len(program.minimizes))]


def step_names(program: Program) -> list[str]:
    """The names of all values that a training step has beside those of the program.

    These are for each `minimize` its learning rate, the norm of its gradients before any clip, and the norm of its
    update divided by that of its parameters; with precision="float16" also what its loss is multiplied by.
    """
    kinds = (RATE, GRAD_NORM, UPDATE_RATIO, *([LOSS_SCALE] if program.precision == "float16" else []))
    return [f"{kind}_{i}" for kind in kinds for i in range(len(program.minimizes))]


def check_fetch(program: Program, fetch: Fetch, mode: str = TEST) -> tuple[str, ...]:
    """Names that can be fetched from a program.

    Args:
      program: the program.
      fetch: a name or several: outputs of a dict, named values, layers (their last result), feeds, parameters, states;
        globs such as "fc_*.w_0", which stand for all names that match; a line of the program, "net.py:12", for the
        last value made there; and any of them with "@GRAD" behind it.
      mode: "train" or "test"; only a training step has the values of `step_names`.

    Returns:
      The names, with those that match a glob in the order in which the program makes them.

    Raises:
      UnknownNameError: the program has no such value, or `NAME@GRAD` asks for the gradient of what has none.
    """
    names = [fetch] if isinstance(fetch, str) else list(fetch)
    known = _fetchable(program, mode) if names else {}
    found: list[str] = []
    for name in names:
        if not isinstance(name, str):
            raise errors.ArgumentTypeError(
                f'fetch is a list of names such as ["fc_0.tmp_0"], found {type(name).__name__}; '
                f'name a value with fluid.layers.identity(x, name="h")'
            )
        base = name.removesuffix(GRAD)
        if base in known:
            found.append(_checked_gradient(program, name))
        elif is_line(base):
            found.append(_line(program, name))
        elif is_glob(base):
            found += _matching(program, name, known)
        elif base in step_names(program):
            raise errors.UnknownNameError(
                f'{base!r} is a value of training steps, and this run is none; write fetch=[{base!r}], mode="train", '
                f"which trains one step; or let a handler list it in fetches()"
            )
        else:
            raise errors.UnknownNameError(
                f"the program {program.name} has no value {base!r}. {errors.nearest(base, known)}{_absent(program)}"
            )
    return tuple(found)


def check_feed(program: Program, feed: Any) -> Mapping[str, Any]:
    """What a user gives as a feed.

    Raises:
      ArgumentTypeError: it is no dict.
    """
    if isinstance(feed, Mapping):
        return feed
    names = ", ".join(f"{name!r}: array" for name in program.feeds)
    raise errors.ArgumentTypeError(
        f"feed is a dict of arrays by name, found {type(feed).__name__}; session.run(program, feed={{{names}}})"
    )


def no_program(program: Any, known: Iterable[str]) -> errors.FluidError:
    """The error for a program that a session does not have, or that is not said where it has several.

    Args:
      program: what was given: a name, a function, or None.
      known: the names of its programs.
    """
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
    """Which of the names that a feed gives are feeds of the program, and which replace other values of it.

    Raises:
      UnknownNameError: the program has no such name, or it cannot be replaced.
    """
    known = {**program.feeds, **program.values, **program.parameters, **program.states, **program.aliases}
    for name in names:
        if name in known:
            continue
        if name in (program.output_names or ()):
            raise errors.UnknownNameError(
                f"the output {name!r} of the program {program.name} has no name inside of it, so nothing can take its "
                f'place there; name it: fluid.layers.identity(x, name="{name}")'
            )
        raise errors.UnknownNameError(
            f"the program {program.name} has no feed {name!r}. {errors.nearest(name, known)}{_absent(program)}"
        )
    return tuple(n for n in names if n in program.feeds), tuple(n for n in names if n not in program.feeds)


def as_array(value: Any) -> Any:
    """An override as a step takes it: a sequence batch, a JAX array or a NumPy array."""
    if isinstance(value, LoDTensor):
        return value.batch()
    return value if isinstance(value, SequenceBatch | NestedSequenceBatch | jax.Array) else np.asarray(value)


def is_line(name: str) -> bool:
    """Whether a name is a line of a file, such as "net.py:12"."""
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
    if not found:
        raise errors.UnknownNameError(
            f"no value of the program {program.name} matches {name!r}. {errors.nearest(base, known)}{_absent(program)}"
        )
    return found


def _line(program: Program, name: str) -> str:
    if name.endswith(GRAD):
        raise errors.UnknownNameError(
            f"{name!r}: gradients exist with respect to values that have a name; give this one: "
            f'fluid.layers.identity(x, name="h")'
        )
    found = [line for line in program.lines if line == name or line.endswith(f"/{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise errors.UnknownNameError(f"{name!r} may be {' or '.join(found)}; give more of the path")
    raise errors.UnknownNameError(
        f"the program {program.name} makes no value at {name!r}. {errors.nearest(name, program.lines)}"
        f"{_absent(program)}"
    )


def _absent(program: Program) -> str:
    """What else to say when a program has no such name."""
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
