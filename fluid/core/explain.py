"""Errors of JAX and NumPy that a program function brings about, in the words of a program function."""

import traceback

import jax

from fluid import errors
from fluid.core.frame import is_library

# What needs the numbers of a value, by the kind of error, and what to write instead; the first kind that fits counts.
_NEEDS_NUMBERS: tuple[tuple[type[Exception], str, str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "`if`, `while`, `and`, `or`, `not` and bool() need",
        "Choose for each example with layers.where(condition, x, y), for all of them with layers.cond(condition, "
        "true_fn, false_fn), repeat with layers.while_loop(condition, body, values); logical_and and logical_not are "
        "layers too.",
    ),
    (
        jax.errors.TracerArrayConversionError,
        "functions of NumPy need",
        "Use jax.numpy, which has the same functions, or a layer.",
    ),
    (
        jax.errors.NonConcreteBooleanIndexError,
        "an index made of conditions needs",
        "How many it selects would be a size that depends on data; use layers.where(condition, x, 0.0), or weights of "
        "0 and 1.",
    ),
    (
        jax.errors.TracerIntegerConversionError,
        "range() and the index of a list need",
        "Take from an array with layers.gather(x, index), repeat with layers.while_loop or layers.scan.",
    ),
    (
        jax.errors.ConcretizationTypeError,
        "float(), int(), item(), tolist() and sizes need",
        "Compute with the value itself; to see it, use layers.Print(x), or fetch it: session.run(program, feed, "
        'fetch=["fc_0"]). Sizes must be known in advance, as x.shape is.',
    ),
)


def in_own_words(error: Exception, program: str) -> errors.FluidError | None:
    """The error that says what is wrong with a program function; None when the original says it best.

    Args:
      error: what was raised while the function was traced.
      program: its name.
    """
    place = _place(error)
    if isinstance(error, errors.FluidError) or place is None:
        return None
    for kind, what, instead in _NEEDS_NUMBERS:
        if isinstance(error, kind):
            return _needs_numbers(place, what, instead)
    text = str(error).partition("\n")[0].rstrip(".")
    if isinstance(error, TypeError) and text.startswith("Shapes must be 1D sequences of concrete values"):
        return _needs_numbers(place, *_NEEDS_NUMBERS[-1][1:])
    if isinstance(error, TypeError) and "format string" in text and "Tracer" in text:
        return _needs_numbers(place, "formats such as f'{x:.3f}' need", "To see a value, use layers.Print(x).")
    if isinstance(error, TypeError | AttributeError) and "SequenceBatch" in text:
        return errors.ArgumentTypeError(
            f"{place}: {text}. In the program {program} this value is a SequenceBatch: rows of different lengths, "
            f"padded. Layers take it and leave the padding out, as in layers.relu(x) or layers.sequence_pool(x, "
            f"'average'), and so do operators; for jax.numpy use x.data, [batch, time, ...], with x.mask, [batch, "
            f"time], which says what is no padding"
        )
    return None


def _needs_numbers(place: str, what: str, instead: str) -> errors.ProgramError:
    return errors.ProgramError(
        f"{place}: {what} the numbers of a value, and while a program is traced there are none: it becomes one "
        f"compiled computation, which runs later. {instead}"
    )


def _place(error: Exception) -> str | None:
    """The innermost line of the user's that an exception came through, and what stands there."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    if not frames:
        return None
    line = f", `{frames[-1].line}`" if frames[-1].line else ""
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}{line}"
