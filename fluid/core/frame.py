"""The Frame: all that one trace of a program function can see, and the one ContextVar that holds it."""

import contextlib
import functools
import pathlib
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from fluid import errors

_PACKAGE = str(pathlib.Path(__file__).resolve().parent.parent) + "/"
_current: ContextVar["Frame | None"] = ContextVar("fluid_frame", default=None)

TRAIN, TEST = "train", "test"


class Array(NamedTuple):
    """Shape and dtype of a value; None stands for a dimension that follows the batch.

    Example:
      >>> str(Array((None, 10), "float32"))
      'float32[batch, 10]'
    """

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('batch' if d is None else str(d) for d in self.shape)}]"


@dataclass(frozen=True)
class FeedSpec:
    """What `layers.data` declares about one feed.

    Attributes:
      shape: the whole shape, None where the batch size (or an undeclared size) stands.
      dtype: the dtype as the user wrote it; "int64" data is held in JAX's default integer.
      lod_level: 0 for dense data, 1 for rows of any length.
      column: position in a row when the reader's order differs from the order of declaration, else None.
      limits: `(low, high, also)` when a layer restricts the values of integer data to `low <= v < high` or `v == also`.
      site: the user's line that declared it.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    lod_level: int = 0
    column: int | None = None
    limits: tuple[int, int, int | None] | None = None
    site: str = ""

    @functools.cached_property
    def held(self) -> np.dtype:
        """The dtype that arrays of this feed have: the declared one, within the integers and floats that JAX uses."""
        return jax.dtypes.canonicalize_dtype(self.dtype)


@dataclass(frozen=True)
class ParameterSpec:
    """One named array that outlives a step: a parameter, or a state when `trainable` is None.

    Attributes:
      initializer: called with `(key, shape, dtype)`.
      trainable: True or False for parameters; None for states, which layers write themselves.
      settings: the record that an optimizer reads (a ParamAttr); opaque here.
      site: the user's line that created it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    initializer: Callable[..., Any]
    trainable: bool | None
    settings: Any = None
    site: str = ""


class Minimization(NamedTuple):
    """What `optimizer.minimize(loss, parameter_list)` recorded."""

    loss: Any
    optimizer: Any
    parameter_list: tuple[str, ...] | None
    no_grad_set: tuple[str, ...]


@dataclass
class Frame:
    """What one run of a program function reads and writes while it is traced.

    The first group holds JAX values that live for the trace; the second plain Python.
    """

    parameters: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    perturbations: dict[str, Any] = field(default_factory=dict)
    row_perturbations: dict[str, list[Any]] = field(default_factory=dict)
    lookups: dict[str, list[Any]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    minimizations: list[Minimization] = field(default_factory=list)
    facts: dict[int, dict[str, Any]] = field(default_factory=dict)
    key: Any = None

    mode: str = TRAIN
    precision: str | None = None
    placeholder_batch: int | None = None
    feed_specs: dict[str, FeedSpec] = field(default_factory=dict)
    array_specs: dict[str, ParameterSpec] = field(default_factory=dict)
    sites: dict[str, str] = field(default_factory=dict)
    dense_uses: set[str] = field(default_factory=set)
    random: bool = False
    inner: bool = False
    written: set[str] = field(default_factory=set)
    bodies: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    scopes: tuple[str, ...] = ()

    @property
    def discovering(self) -> bool:
        """Whether this run only finds out what the program declares; placeholders stand in for data."""
        return self.placeholder_batch is not None

    def compute(self, value: Any) -> Any:
        """A float32 array in the dtype that the program computes in; everything else as it is."""
        if self.precision is None or value.dtype != "float32":
            return value
        return value.astype(self.precision)

    def scoped(self, name: str) -> str:
        """Prefix a name with the open name scopes."""
        return "/".join((*self.scopes, name))

    def unique(self, stem: str) -> str:
        """Number a name: the first `fc` is `fc_0`, the next `fc_1`."""
        count = self.counters.get(stem, 0)
        self.counters[stem] = count + 1
        return f"{stem}_{count}"

    def note(self, value: Any, **facts: Any) -> None:
        """Remember something about a value that its array does not say, such as the logits of a softmax."""
        # The value is kept beside its facts, so that its id cannot be given to another object during the trace.
        self.facts.setdefault(id(value), {"value": value}).update(facts)

    def fact(self, value: Any, name: str) -> Any:
        """What `note` remembered about this very value, or None."""
        return self.facts.get(id(value), {}).get(name)


@contextlib.contextmanager
def running(frame: Frame) -> Iterator[Frame]:
    """Make a frame the current one while a program function runs."""
    token = _current.set(frame)
    try:
        yield frame
    finally:
        _current.reset(token)


def current_frame(caller: str) -> Frame:
    """The frame of the program function that is running.

    Args:
      caller: the public name to blame when there is none, such as "layers.fc".

    Raises:
      OutsideProgramError: no program function is running.
    """
    frame = _current.get()
    if frame is None:
        short = caller.rpartition(".")[2]
        raise errors.OutsideProgramError(
            f"fluid.{caller} was called outside a program function; fluid runs the function itself, to trace it. "
            f"Write it into a function and hand that over:\n"
            f"    def program():\n        ... fluid.{caller}(...)\n"
            f"    fluid.Trainer(program, optimizer)   # or fluid.Session(program), fluid.Inferencer(program, ...)"
            + ("" if short != "data" else "\nData for a call goes through feed={...}.")
        )
    return frame


def user_site() -> str:
    """The innermost line of the call stack that is not fluid's own, as `file:line in function`."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE) and "/jax/" not in code.co_filename:
            if code.co_filename != "<frozen importlib._bootstrap>" and not code.co_filename.endswith("/contextlib.py"):
                return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "unknown line"


@contextlib.contextmanager
def name_scope(prefix: str) -> Iterator[None]:
    """Prefix the names of layers created inside; counters start afresh for each new prefix.

    Names given by `ParamAttr(name=...)` and the names of feeds stay as they are, so that sharing works across scopes.
    Opening the same scope again goes on counting.

    Args:
      prefix: one name, without "/".

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     with fluid.name_scope("generator"):
      ...         return fluid.layers.fc(x, size=2)
      >>> sorted(fluid.Program(program).parameters)
      ['generator/fc_0.b_0', 'generator/fc_0.w_0']
    """
    frame = current_frame("name_scope")
    if not isinstance(prefix, str) or not prefix or "/" in prefix:
        raise errors.ArgumentError(
            f"name_scope needs one name without '/', found {prefix!r}; nest scopes instead: "
            'with fluid.name_scope("a"), fluid.name_scope("b"): ...'
        )
    frame.scopes = (*frame.scopes, prefix)
    try:
        yield
    finally:
        frame.scopes = frame.scopes[:-1]
