"""Explanations: errors of JAX and NumPy in a program function, converted to errors of fluid with advice.

The module also explains dummy batch sizes in text that a program function prints during its first traced run.
"""

import contextlib
import functools
import inspect
import io
import os
import re
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, TextIO, TypeVar

import jax

from fluid import errors
from fluid._util.known_names import hints
from fluid.core.frame import is_library

F = TypeVar("F", bound=Callable[..., Any])

# `_NEEDS_NUMBERS`: errors of JAX for code that needs the numbers of a value, although a traced value has no numbers.
# For each class of error: the kind of code, such as `if`, and advice. The first class that matches an error is used.
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
# `_IN_A_STEP`: for each class of error, advice for a custom training step, which calls JAX functions and no layers.
_IN_A_STEP: tuple[tuple[type[Exception], str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "Choose with jnp.where(condition, x, y), or between computations with jax.lax.cond(condition, f, g, x).",
    ),
    (jax.errors.TracerArrayConversionError, "Use jax.numpy, which has the same functions."),
    (jax.errors.TracerIntegerConversionError, "Take from an array with jnp.take(x, index)."),
    (
        jax.errors.ConcretizationTypeError,
        'Compute with the value itself; to see it, use jax.debug.print("{}", x), or return it among the outputs of the '
        "Evaluation.",
    ),
)
_LEAKED = (
    "this value was computed in another run of the function and kept, in a list, an attribute or a global name. A "
    "program runs while it is traced, and its values exist only in that run. To keep numbers from one step to the "
    'next, use a state: average = layers.create_state([1], name="average"), average.value and average.update(...); to '
    "see or use a value elsewhere, return it from the function, or fetch it by name"
)
_WAYS_OUT = (
    'return the value from the function; fetch it by name, session.run(program, feed, fetch=["fc_0"]); or keep numbers '
    "of one step for the next in a state, layers.create_state([1])"
)
# `_ABOUT_SHAPES` matches messages of JAX errors about wrong shapes, axes or indices. Other errors are not converted.
_ABOUT_SHAPES = re.compile("shape|dimension|broadcast|axis|indices", re.IGNORECASE)
_JAX = os.path.dirname(jax.__file__) + os.sep


def explained_error(error: Exception, program: str, batch: int, running: bool = False) -> errors.FluidError | None:
    """Return an error that explains a mistake in a program function; None if the original error is clear."""
    place = _place(error)
    if isinstance(error, errors.FluidError) or place is None:
        return None
    for kind, what, instead in _NEEDS_NUMBERS:
        if isinstance(error, kind):
            return _needs_numbers(place, what, instead)
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return explained_leak(error, program)
    text = str(error).partition("\n")[0].rstrip(".")
    if isinstance(error, TypeError) and ("torch.Tensor" in text or "argument 'other' must be Tensor" in text):
        return errors.ArgumentTypeError(
            f"{place}: found a tensor of PyTorch, expected an array: a constant is converted by w = tensor.numpy(), "
            f'outside of the program; one that is trained is layers.create_parameter(shape, "float32")'
        )
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
    if isinstance(error, AttributeError) and "attribute 'stop_gradient'" in text:
        return errors.ProgramError(
            f"{place}: a value of a program has no attribute 'stop_gradient', as it had in Fluid; write "
            f"x = jax.lax.stop_gradient(x), through which no gradient passes. To keep a part of the net from being "
            f"trained, compute it inside `with fluid.frozen():`"
        )
    return _of_an_array(error, text, place, batch, running) if _raised_by_jax(error) else None


def explained_leak(error: Exception, program: str) -> errors.FluidError:
    """Return an error that explains a value which one run of a program function stored and another run used."""
    # The message of JAX lists the source lines that computed the value, the innermost line last.
    made = [f"{file}:{line}" for file, line in re.findall(r"(\S+\.py):(\d+)", str(error)) if not is_library(file)]
    place = made[-1] if made else _place(error)
    return errors.ProgramError(f"the program {program} uses a value made at {place or 'another place'}: {_LEAKED}")


class _Source:
    """The name and the code of a function, as JAX reads them for its messages."""

    def __init__(self, name: str, code: Any):
        self.__name__ = name
        self.__code__ = code


def traced_as(function: Callable[..., Any], program: str) -> Callable[[F], F]:
    """Return a decorator for a function that JAX traces: messages of JAX then name the program function in its place.

    A value that a program function keeps in a list, and that is used after the trace, raises an error of JAX in the
    code of the user, where nothing of fluid runs. The error says which function was traced, so it says there what to
    write instead.
    """

    def decorate(trace: F) -> F:
        inner = function
        while isinstance(inner, functools.partial):
            inner = inner.func
        code = getattr(inspect.unwrap(inner), "__code__", None)
        if code is not None:
            place = f"{code.co_firstlineno}, a program, whose values exist only while it is traced ({_WAYS_OUT}), and"
            trace.__signature__ = inspect.signature(trace)  # type: ignore[attr-defined]
            code = SimpleNamespace(co_filename=code.co_filename, co_firstlineno=place)
            trace.__wrapped__ = _Source(program, code)  # type: ignore[attr-defined]
        return trace

    return decorate


def explained_step(error: Exception) -> errors.FluidError | None:
    """Return an error that explains a mistake in a custom training step; None if the original error is clear."""
    place = _place(error)
    if isinstance(error, errors.FluidError) or place is None:
        return None
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return errors.ProgramError(
            f"{place}: this value was computed in another run of the step function and kept. A step is traced and "
            f"becomes one compiled computation, so its values exist only there. What one step keeps for the next is "
            f"among the parameters, the optimizer states and the states that it returns; for one more state, call "
            f"layers.create_state([1]) in the program"
        )
    for kind, instead in _IN_A_STEP:
        if isinstance(error, kind):
            what = next(what for other, what, _ in _NEEDS_NUMBERS if other is kind)
            return errors.ProgramError(
                f"{place}: {what} the numbers of a value, and while a training step is traced there are none: it "
                f"becomes one compiled computation, which runs later. {instead}"
            )
    return None


def explained_handler(error: Exception) -> errors.FluidError | None:
    """Return an error that explains an event handler's use of a tracer from a program; None for every other error."""
    place = _place(error)
    kinds = (
        jax.errors.UnexpectedTracerError | jax.errors.ConcretizationTypeError | jax.errors.TracerArrayConversionError
    )
    if place is None or not isinstance(error, kinds):
        return None
    return errors.ProgramError(
        f"{place}: a handler uses a value that was kept while a program was traced, which has no numbers. What a step "
        f"computes is in event.metrics; other values are asked for by name: a handler's fetches() returns "
        f'["fc_0"], and event.fetched["fc_0"] is the array'
    )


def _of_an_array(error: Exception, text: str, place: str, batch: int, running: bool) -> errors.FluidError | None:
    """Return an error that explains an invalid operation on a JAX array; None if the original error is clear."""
    if isinstance(error, ValueError) and text.startswith("The truth value of an array"):
        return _needs_numbers(place, *_NEEDS_NUMBERS[0][1:])
    if isinstance(error, AttributeError) and isinstance(error.obj, jax.Array):
        advice = hints("jax.Array").get(error.name or "")
        instead = "" if advice is None else f"; instead: {advice}"
        return errors.ProgramError(
            f"{place}: a value of a program is a jax.Array of shape {shape_text(error.obj.shape, batch)}, which has no "
            f"attribute {error.name!r}{instead}"
        )
    if isinstance(error, TypeError) and text.startswith("JAX arrays are immutable"):
        return errors.ProgramError(
            f"{place}: values of a program never change. Make a new one: x = x.at[:, 0].set(0.0), or choose for each "
            f"number with layers.where(condition, 0.0, x)"
        )
    if isinstance(error, TypeError) and text.startswith("_view()"):
        return errors.ProgramError(
            f"{place}: view() of a jax.Array reads it as another dtype; for another shape use layers.reshape(x, [...])"
        )
    if isinstance(error, TypeError | ValueError | IndexError) and _ABOUT_SHAPES.search(text):
        shown = re.sub(rf"(?<=[\[(, ]){batch}(?=[,)\]])", "batch", text)
        if running and shown != text:
            return errors.ShapeError(
                f"{place}: {text}. The size {batch} is that of stand-in data, with which the program runs first, so "
                f"{_LEAKED}"
            )
        return errors.ShapeError(
            f"{place}: {shown}. print(x.shape) shows the shape of a value, in which {batch} stands for the batch size; "
            f"layers.reshape, layers.unsqueeze and layers.transpose change it"
        )
    return None


def _raised_by_jax(error: Exception) -> bool:
    return traceback.extract_tb(error.__traceback__)[-1].filename.startswith(_JAX)


def shape_text(sizes: Sequence[int], batch: int | None) -> str:
    """Return a shape as text for messages: `[batch, 4]` for `[37, 4]` if the dummy batch size `batch` is 37."""
    rest = ["batch" if size == batch else str(size) for size in sizes[1:]]
    return f"[{', '.join([*(rows_text(size, batch) for size in sizes[:1]), *rest])}]"


def rows_text(rows: int, batch: int | None) -> str:
    """Return the size of a first dimension as text: "batch" for the dummy batch size, "3 * batch" for its triple."""
    if not batch or not rows or rows % batch:
        return str(rows)
    return "batch" if rows == batch else f"{rows // batch} * batch"


def _needs_numbers(place: str, what: str, instead: str) -> errors.ProgramError:
    return errors.ProgramError(
        f"{place}: {what} the numbers of a value, and while a program is traced there are none: it becomes one "
        f"compiled computation, which runs later. {instead}"
    )


def _place(error: Exception) -> str | None:
    """Return place and text of the innermost line of user code in an exception's traceback; None without user code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not is_library(f.filename)]
    if not frames:
        return None
    line = f", `{frames[-1].line}`" if frames[-1].line else ""
    return f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}{line}"


class _Watching(io.TextIOBase):
    """A text stream that writes to another stream, and sets `seen` if a given number occurs in the text."""

    def __init__(self, stream: TextIO, number: int):
        self.seen = False
        self._stream = stream
        self._number = re.compile(rf"(?<![\d.]){number}(?![\d.])")

    def write(self, text: str) -> int:
        self.seen = self.seen or self._number.search(text) is not None
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def explained_prints(batch: int, again: bool) -> Iterator[None]:
    """Print an explanation after a `with` block if the program function in it prints the dummy batch size.

    Standard output belongs to the whole process, so only the main thread checks the printed text.
    """
    if threading.current_thread() is not threading.main_thread() or sys.stdout is None:
        yield
    elif again:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    else:
        watching = _Watching(sys.stdout, batch)
        with contextlib.redirect_stdout(watching):
            yield
        if watching.seen:
            print(f"(fluid runs a program function on stand-in data first; {batch} stands for the batch size there)")
