"""Frame: the state that one trace of a program function reads and writes, and the ContextVar that holds it."""

import contextlib
import functools
import os
import pathlib
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from fluid import errors
from fluid._util.text import shape_text

# Lines in these folders do not belong to the user.
_LIBRARIES = tuple(
    str(pathlib.Path(file).resolve().parent) + os.sep for file in (errors.__file__, jax.__file__, np.__file__)
)
_MACHINERY = ("<frozen importlib._bootstrap>", contextlib.__file__)
CALLED_AT = ", called at "  # in a site: between a line in a shared function, and the line that called the function
_current: ContextVar["Frame | None"] = ContextVar("fluid_frame", default=None)

TRAIN, TEST = "train", "test"


class Complete(BaseException):
    """The exception that ends a program function after it has computed every requested value.

    The class derives from BaseException, so that an `except Exception` in the function does not catch the exception.
    """


class Array(NamedTuple):
    """Shape and dtype of a value; None stands for a dimension that depends on the batch size.

    Example:
      >>> str(Array((None, 10), "float32"))
      'float32[batch, 10]'
    """

    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        return shape_text(self.dtype, self.shape)


@dataclass(frozen=True)
class FeedSpec:
    """The declaration of one feed by `layers.data`.

    Attributes:
      shape: the whole shape, with None for the batch size and for undeclared sizes.
      dtype: the dtype as the user wrote it; "int64" data is stored in JAX's default integer.
      lod_level: 0 for dense data, 1 for rows of any length.
      column: index in a row of the reader if the reader's order differs from the order of declaration, else None.
      limits: `(low, high, also)` when a layer restricts the values of the data: integers to `low <= v < high`, other
        numbers to `low <= v <= high`; `v == also` is valid too.
      site: the user's line that declared the feed.
      allow_nan: whether the program expects NaN in the data.
      labels: the meaning of the data for a loss: "shares" of the classes in each row, "signs" of -1 or 1, or empty.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    lod_level: int = 0
    column: int | None = None
    limits: tuple[int, int, int | None] | None = None
    site: str = ""
    allow_nan: bool = False
    labels: str = ""

    @functools.cached_property
    def held(self) -> np.dtype:
        """The dtype of arrays of this feed: the declared dtype, in the precision that JAX uses."""
        return jax.dtypes.canonicalize_dtype(self.dtype)


@dataclass(frozen=True)
class ParameterSpec:
    """One named array that outlives a step: a parameter, or a state when `trainable` is None.

    Attributes:
      initializer: called with `(key, shape, dtype)`.
      trainable: True or False for parameters; None for states, which layers write themselves.
      settings: the ParamAttr, which optimizers read; the core does not look into it.
      site: the user's line that created the array.
      kind: the kind of layer that the automatic name comes from, such as "fc"; empty if the user named the array.
      layer: the name of the layer that created the array, such as "batch_norm_0"; empty if no layer did.
      device: the device of `with fluid.device_guard(...)`, such as "gpu:1"; empty outside.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    initializer: Callable[..., Any]
    trainable: bool | None
    settings: Any = None
    site: str = ""
    kind: str = ""
    layer: str = ""
    device: str = ""


@dataclass
class SharedFunction:
    """A shared function that a run has called.

    Attributes:
      function: the user's function.
      calls: the user's line of each call, by the prefix of the call's named values.
    """

    function: Callable[..., Any]
    calls: dict[str, str] = field(default_factory=dict)


class SharedCall(NamedTuple):
    """A running call of a shared function.

    Attributes:
      arrays: the prefix of parameters and states, equal in every call.
      values: the prefix of named values and random keys: `arrays` in the first call, then `arrays(2)`, ...
      site: the user's line that made the call.
    """

    arrays: str
    values: str
    site: str


class Opening(NamedTuple):
    """One opening of a name scope.

    Attributes:
      site: the user's line that opened the scope.
      array: the name of the first parameter that was created in the scope.
      created: for each parameter that was created in the scope, its name without numbers, and its shape.
    """

    site: str
    array: str
    created: tuple[tuple[str, tuple[int, ...]], ...]


class Minimization(NamedTuple):
    """A record of one call of `optimizer.minimize(loss, parameter_list)`.

    `value` is the loss that the program passed, and `loss` is the same loss reshaped to `[]`. `rate` is the learning
    rate, a scalar, if the program computes it; else None.
    """

    value: Any
    loss: Any
    optimizer: Any
    parameter_list: tuple[str, ...] | None
    no_grad_set: tuple[str, ...]
    rate: Any = None


class Expected(NamedTuple):
    """A value that a layer reads as probabilities, as their logarithms, as logits or as other scores.

    Attributes:
      layer: the public name of the layer, such as "layers.cross_entropy".
      site: the user's line that called the layer.
      value: the array.
      kind: "probabilities", "shares", "logarithms", "logits", "labels" or "scores".
      instead: the call to write if the value is of another kind.
      made: the kind of layer that noted that it made the value, "dropout" or "norm", or None.
    """

    layer: str
    site: str
    value: Any
    kind: str
    instead: str
    made: str | None


@dataclass
class Given:
    """The inputs of one run of a program function: JAX values, which live as long as the trace.

    Attributes:
      parameters: by name.
      states: by name, with their values before the run.
      feeds: by name.
      overrides: values that replace named values.
      perturbations: values that are added to named values, so that their gradients can be computed.
      row_perturbations: for each table, the values that are added to the rows of each look-up.
      key: the random root of this step.
      gather: called with the name of a stack and a sharded array of this stack, returns the whole array; None if the
        arrays are whole.
    """

    parameters: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    feeds: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    perturbations: dict[str, Any] = field(default_factory=dict)
    row_perturbations: dict[str, list[Any]] = field(default_factory=dict)
    key: Any = None
    gather: Callable[[str, Any], Any] | None = None


@dataclass
class Declared:
    """The declarations of a program that a run finds: plain Python objects, equal in every run.

    Attributes:
      feeds: by name, in order of declaration.
      arrays: parameters and states by name, in order of creation.
      sites: the user's line that made each named value.
      kinds: the kind of layer that made each named value, such as "fc", by the name of the value.
      bodies: the findings of the first run of each loop or branch; see `core.body`.
      optimizers: the optimizer of each `minimize`, recorded by discovery; empty during discovery.
      used_whole: the parameters that are not only used by row look-ups.
      shared: the shared functions by name.
      openings: the openings of each name scope, in order, by the whole prefix of the scope.
      only_frozen: the parameters that would be trainable outside `with fluid.frozen():`.
      devices: the devices of `with fluid.device_guard(...)`.
      uses_randomness: whether a layer draws random numbers.
      table: the `fluid.reader.Table` that encodes raw rows as feeds of the program; None without one.
    """

    feeds: dict[str, FeedSpec] = field(default_factory=dict)
    arrays: dict[str, ParameterSpec] = field(default_factory=dict)
    sites: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, Any] = field(default_factory=dict)
    optimizers: tuple[Any, ...] = ()
    used_whole: set[str] = field(default_factory=set)
    shared: dict[str, SharedFunction] = field(default_factory=dict)
    openings: dict[str, list[Opening]] = field(default_factory=dict)
    only_frozen: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    uses_randomness: bool = False
    table: Any = None


@dataclass
class Made:
    """The results of a run: mostly JAX values, which live as long as the trace.

    Attributes:
      values: every named value, by name.
      states: the new values of states that layers changed, by name.
      lookups: for each table whose rows were looked up, the ids of each look-up.
      minimizations: one record for each `optimizer.minimize` call, in order.
      expected: values that layers read as probabilities, logarithms of probabilities, or logits; discovery checks them.
      doubts: warnings of layers about computations that are legal and most likely mistakes.
      training_doubts: warnings that apply only to programs that minimise a loss.
      gradient_clip: the clip of `clip.set_gradient_clip`, for the `minimize` calls that follow.
      late_clip: the user's line that set a clip after every `minimize` call; else "".
    """

    values: dict[str, Any] = field(default_factory=dict)
    states: dict[str, Any] = field(default_factory=dict)
    lookups: dict[str, list[Any]] = field(default_factory=dict)
    minimizations: list[Minimization] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    training_doubts: list[str] = field(default_factory=list)
    gradient_clip: Any = None
    late_clip: str = ""


@dataclass
class Naming:
    """The counters and prefixes of automatic names.

    Attributes:
      counters: the next number for each stem, such as "generator/fc".
      prefix: the beginning of all automatic names.
      scopes: the open name scopes, outermost first.
      shared: the innermost running call of a shared function, or None.
    """

    counters: dict[str, int] = field(default_factory=dict)
    prefix: str = ""
    scopes: tuple[str, ...] = ()
    shared: SharedCall | None = None


@dataclass
class Frame:
    """The state that one run of a program function reads and writes while it is traced.

    Attributes:
      mode: "train" or "test".
      precision: the dtype that the program computes in instead of float32; None for float32.
      settings_only: True while a user's function that returns an optimizer runs, which is not a program function.
      placeholder_batch: during discovery, the stand-in for the batch size; else None.
      inside_loop: whether the frame belongs to the inside of a loop or branch, whose values do not exist outside.
      labelling: whether named values in loops and branches carry their names in the equations; see
        `core.equations.label`.
      plain: whether layers compute in their plain form, as for a drawing, and not in a form for one platform.
      freezing: whether `with fluid.frozen():` is open.
      device: the device of the open `with fluid.device_guard(...)`; empty outside.
      as_fluid: whether layers are called by a program or model that was written for Fluid; see `core.as_fluid`.
      known: the parameters as the discovery of the program declared them, by name; empty during discovery.
      frozen: names of parameters and states that this run leaves unchanged, although the program would change them.
      site: in a program of `fluid.static`, the user's line that recorded the call that runs now; else empty.
      awaited: names of requested values that are not computed yet; the run ends when none is left. None for a run of
        the whole function.
      given: the inputs of the run.
      declared: the declarations of the program that the run finds.
      made: the results of the run.
      naming: the counters and prefixes of automatic names.
      annotations: facts about values by the `id` of the value; see `note`.
    """

    mode: str = TRAIN
    precision: str | None = None
    settings_only: bool = False
    placeholder_batch: int | None = None
    inside_loop: bool = False
    labelling: bool = False
    plain: bool = False
    freezing: bool = False
    device: str = ""
    as_fluid: bool = False
    known: dict[str, ParameterSpec] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    site: str = ""
    awaited: set[str] | None = None
    given: Given = field(default_factory=Given)
    declared: Declared = field(default_factory=Declared)
    made: Made = field(default_factory=Made)
    naming: Naming = field(default_factory=Naming)
    annotations: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def discovering(self) -> bool:
        """True if this run only finds the declarations of the program, on placeholders instead of data."""
        return self.placeholder_batch is not None

    @property
    def states(self) -> dict[str, Any]:
        """The present value of every state: the value that a layer set, else the value before the run."""
        return {**self.given.states, **self.made.states}

    def compute(self, value: Any) -> Any:
        """Convert a float32 array to the dtype that the program computes in; return other arrays unchanged."""
        if self.precision is None or value.dtype != "float32":
            return value
        return value.astype(self.precision)

    def scoped(self, name: str) -> str:
        """Prefix a name with the open name scopes."""
        return "/".join((*self.naming.scopes, name))

    def unique(self, stem: str) -> str:
        """Append the next number to a name: the first `fc` becomes `fc_0`, the next `fc_1`."""
        count = self.naming.counters.get(stem, 0)
        self.naming.counters[stem] = count + 1
        # In a shared function, names begin with the name of this function instead of the prefix of automatic names.
        prefix = self.naming.prefix if self.naming.shared is None else ""
        return f"{prefix}{stem}_{count}"

    def array_name(self, name: str) -> str:
        """Return the name of a parameter or state of a layer. All calls of a shared function use one name.

        Args:
          name: the name in this call; begins with the name of the layer, and so with the prefix of the call's values.

        Raises:
          ParameterError: an open name scope has the name of a shared function.
        """
        shared = self.naming.shared
        if shared is not None:
            return shared.arrays + name.removeprefix(shared.values)
        owner = name.partition("/")[0]
        if "/" in name and owner in self.declared.shared:
            raise errors.ParameterError(mixed_prefix(owner, user_site()))
        return name

    def reserve(self, name: str) -> None:
        """Advance the counters past an existing name: after `fc_3.w_0`, the next automatic name is `fc_4`."""
        stem, _, number = name.partition(".")[0].rpartition("_")
        if stem and number.isdecimal() and len(number) < 10:  # a longer number is part of a user's name
            for prefixed in (stem, self.scoped(stem)):
                self.naming.counters[prefixed] = max(self.naming.counters.get(prefixed, 0), int(number) + 1)

    def note(self, value: Any, **facts: Any) -> None:
        """Attach facts to a value, by name, such as the logits of a softmax. The array itself does not hold them."""
        # The entry keeps the value alive, so that no other object can get its id during the trace.
        self.annotations.setdefault(id(value), {"value": value}).update(facts)

    def fact(self, value: Any, name: str) -> Any:
        """Return a fact that `note` attached to this object, or None."""
        return self.annotations.get(id(value), {}).get(name)

    def hand_on(self, value: Any, result: Any, *names: str) -> None:
        """Copy the named facts of a value to a result that was computed from it; missing facts are skipped."""
        known = self.annotations.get(id(value), {})
        self.note(result, **{name: known[name] for name in names if name in known})


@contextlib.contextmanager
def running(frame: Frame) -> Iterator[Frame]:
    """Make a frame the current frame while a program function runs."""
    token = _current.set(frame)
    try:
        yield frame
    finally:
        _current.reset(token)


def present_frame(settings: bool = False) -> Frame | None:
    """Return the frame of the running program function, or None.

    Args:
      settings: also return the frame of a running function that returns an optimizer.
    """
    frame = _current.get()
    return None if frame is not None and frame.settings_only and not settings else frame


def current_frame(caller: str) -> Frame:
    """Return the frame of the running program function.

    Args:
      caller: the public name for the error message if there is no frame, such as "layers.fc".

    Raises:
      OutsideProgramError: no program function is running.
    """
    frame = present_frame()
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


def mixed_prefix(name: str, site: str) -> str:
    """Return the message for a name scope and a shared function with one name, whose parameters would mix."""
    return (
        f"{name!r} is the name of a shared function, and of a name scope that creates parameters at {site}; both would "
        f'name them {name}/...; open another scope, fluid.name_scope("{name}_scope"), or name the function: '
        f'fluid.shared({name}, name="{name}_net")'
    )


def is_library(filename: str) -> bool:
    """Return whether a file belongs to fluid, JAX, NumPy or Python's import machinery, rather than to the user."""
    return filename.startswith(_LIBRARIES) or filename in _MACHINERY


def user_site() -> str:
    """Return the innermost line of the call stack that belongs to the user, as `file:line in function`.

    While a recorded call runs, the result is the line that recorded the call, see `Frame.site`.
    """
    if (running_frame := _current.get()) is not None and running_frame.site:
        return running_frame.site
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "unknown line"


def creation_sites(specs: Mapping[str, ParameterSpec]) -> dict[str, str]:
    """Return the user's line that created each array. Folders are left out, because they differ between machines.

    Example:
      >>> spec = ParameterSpec("w", (3,), "float32", jax.nn.initializers.zeros, True, site="/home/me/net.py:12 in head")
      >>> creation_sites({"w": spec})
      {'w': 'net.py:12 in head'}
    """
    return {
        name: CALLED_AT.join(map(_without_folders, spec.site.split(CALLED_AT)))
        for name, spec in specs.items()
        if spec.site
    }


def _without_folders(site: str) -> str:
    path, colon, line = site.rpartition(":")
    return f"{pathlib.PurePath(path).name}{colon}{line}"


def user_sites() -> str:
    """Return the line of `user_site`, and the line of the user's code that led to it, if there is one.

    The second line is the next one of the user up the call stack.
    """
    if (running_frame := _current.get()) is not None and running_frame.site:
        return running_frame.site
    found: list[str] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(found) < 2:
        code = frame.f_code
        if not is_library(code.co_filename):
            found.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return CALLED_AT.join(found) or "unknown line"


def warn(message: str) -> None:
    """Issue a FluidWarning that points at the user's line, from any depth of the call stack."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    warnings.warn(message, errors.FluidWarning, stacklevel=level)


# Objects that were warned about, by id and subject. The references are weak: a new object may get the id of a dead one.
_warned: "weakref.WeakValueDictionary[tuple[int, str], Any]" = weakref.WeakValueDictionary()


def warn_once(about: Any, subject: str, message: Callable[[], str]) -> None:
    """Issue a FluidWarning about an object, at most once for each subject.

    Args:
      about: an object that allows weak references, such as a FeedSpec or a Reader.
      subject: a word for the reason of the warning.
      message: returns the text; called only if the warning is issued.
    """
    if (id(about), subject) in _warned:
        return
    warn(message())
    _warned[id(about), subject] = about  # after `warn`: a warning that raises as an error raises again in the next call
