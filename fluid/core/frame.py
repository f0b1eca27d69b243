"""Frame: the state that one trace of a program function reads and writes; a ContextVar holds the current Frame."""

import contextlib
import functools
import itertools
import os
import pathlib
import sys
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

import jax
import numpy as np

from fluid import errors
from fluid._util.text import shape_text

# The folders of fluid, JAX and NumPy: source lines in these folders are not the user's code.
_LIBRARIES = tuple(
    os.path.dirname(os.path.realpath(file)) + os.sep for file in (errors.__file__, jax.__file__, np.__file__)
)
_MACHINERY = [os.path.realpath(file) for file in (contextlib.__file__, functools.__file__)]
# Code that a user typed has a name in angle brackets, and so has generated code, such as the `__init__` of a dataclass.
_TYPED = ("<stdin>", "<input>", "<console>", "<ipython-input", "<python-input", "<doctest")
# The code of the functions that call the user's program function or shared function; see `begins_path`.
_BEGINNINGS: set[CodeType] = set()
# `CALLED_AT`: in messages, the words between a source line inside a function and the source line that calls this
# function.
CALLED_AT = ", called at "
_current: ContextVar["Frame | None"] = ContextVar("fluid_frame", default=None)

TRAIN, TEST = "train", "test"


class Complete(BaseException):
    """An exception that stops a program function as soon as it has computed every requested value.

    The class derives from BaseException, so that an `except Exception` in the user's function does not catch it.
    """


class Array(NamedTuple):
    """The shape and dtype of a value; None stands for a dimension that depends on the batch size.

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
    """The declaration of one feed (a named input of a program) by `layers.data`.

    Attributes:
      name: the name of the feed.
      shape: the full shape, with None for the batch size and for undeclared sizes.
      dtype: the dtype as the user wrote it; "int64" data is stored in JAX's default integer type.
      lod_level: 0 for dense data, 1 for sequences, 2 for sequences of sequences.
      column: the index of this feed in each row of the reader, if the reader's order differs from the order of
        declaration; else None.
      limits: `(low, high, also)` when a layer restricts the values of the data: integers to `low <= v < high`, other
        numbers to `low <= v <= high`; `v == also` is valid too. `high` is None for the number of rows of the minibatch.
      site: the user's source line that declared the feed.
      allow_nan: True if the program expects NaN in the data.
      bounds: the smallest and the largest value that the user allows; None for no bound.
      labels: "shares" if a loss reads the data as class probabilities in each row, "signs" for -1 or 1, else "".
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    lod_level: int = 0
    column: int | None = None
    limits: tuple[int, int | None, int | None] | None = None
    site: str = ""
    allow_nan: bool = False
    labels: str = ""
    bounds: tuple[float | None, float | None] | None = None

    @functools.cached_property
    def held(self) -> np.dtype:
        """The dtype of this feed's arrays in JAX, such as int32 for a declared int64 without 64-bit mode."""
        return jax.dtypes.canonicalize_dtype(self.dtype)

    @property
    def indexes_rows(self) -> bool:
        """True if the data are indices of rows of the minibatch, so that another minibatch has other limits."""
        return self.limits is not None and self.limits[1] is None

    def limits_for(self, rows: int) -> tuple[int, int, int | None] | None:
        """Return the limits of the values in a minibatch of `rows` rows; None without limits."""
        if self.limits is None:
            return None
        low, high, also = self.limits
        return (max(low, -rows), rows, also) if high is None else (low, high, also)


class Call(NamedTuple):
    """A call in the user's code: the function that contains it, and its position, `file:line:column`.

    The column distinguishes two calls in one line. Files store only the names of functions, because lines move.
    """

    function: str
    position: str = ""


@dataclass(frozen=True)
class ParameterSpec:
    """The description of a named array that outlives a step: a parameter, or a state if `trainable` is None.

    Attributes:
      initializer: called with `(key, shape, dtype)`.
      trainable: True or False for parameters; None for states, which layers write themselves.
      settings: the ParamAttr, which optimizers read.
      site: the user's source line that created the array.
      kind: the kind of layer that the automatic name comes from, such as "fc"; empty if the user named the array.
      layer: the name of the layer that created the array, such as "batch_norm_0"; empty if no layer did.
      device: the device of `with fluid.device_guard(...)`, such as "gpu:1"; empty outside.
      path: if the name is automatic, the calls that led to the array, innermost first; see `user_path`.
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
    path: tuple[Call, ...] = ()


@dataclass
class SharedFunction:
    """A shared function (see `fluid.shared`) that a run of a program has called.

    Attributes:
      function: the user's function.
      calls: the user's source line of each call, by the name prefix of the call's values.
    """

    function: Callable[..., Any]
    calls: dict[str, str] = field(default_factory=dict)


class SharedCall(NamedTuple):
    """A running call of a shared function (see `fluid.shared`), with the prefixes of its names.

    Attributes:
      arrays: the prefix of parameters and states, such as `net`, equal in every call.
      values: the prefix of named values and random keys: `net` in the first call, `net(2)` in the second, and so on.
      site: the user's source line that made the call.
    """

    arrays: str
    values: str
    site: str


class Opening(NamedTuple):
    """A record of one `with fluid.name_scope(...)` block that ran.

    Attributes:
      site: the user's source line that opened the scope.
      array: the name of the first parameter that was created in the scope.
      created: for each parameter that was created in the scope, its name without numbers, and its shape.
    """

    site: str
    array: str
    created: tuple[tuple[str, tuple[int, ...]], ...]


class Minimization(NamedTuple):
    """A record of one call of `optimizer.minimize(loss, parameter_list)`.

    `value` is the loss that the program passed, and `loss` is this loss reshaped to `[]`. `rate` is the learning rate,
    a scalar, if the program computes it; else None.
    """

    value: Any
    loss: Any
    optimizer: Any
    parameter_list: tuple[str, ...] | None
    no_grad_set: tuple[str, ...]
    rate: Any = None


class Expected(NamedTuple):
    """A record that a layer reads a value as probabilities, logarithms of probabilities, logits, labels or scores.

    Attributes:
      layer: the public name of the layer, such as "layers.cross_entropy".
      site: the user's source line that called the layer.
      value: the array that the layer reads.
      kind: "probabilities", "shares", "logarithms", "logits", "labels" or "scores".
      instead: advice if the value is of another kind: the call that the user should write.
      made: "dropout" or "norm" if such a layer computed the value; else None.
    """

    layer: str
    site: str
    value: Any
    kind: str
    instead: str
    made: str | None


@dataclass
class Given:
    """The inputs of one run of a program function: JAX values, which exist as long as the trace.

    In the first traced run, each feed, parameter and state is an array of zeros, added when a layer declares it.

    Attributes:
      parameters: the parameters by name.
      states: the states by name, with their values before the run.
      feeds: the feeds (input arrays) by name.
      overrides: values that replace computed values, by name.
      perturbations: values that are added to named values, so that JAX can differentiate with respect to these values.
      row_perturbations: for each embedding table, the values that are added to the rows of each look-up.
      key: the random key of this step.
      gather: a function of the name of a stacked parameter (of repeated blocks) and of the slice for one block. It
        returns the slice with all its elements on each device. None if the parameters are not sharded.
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
    """The declarations of a program, recorded by a run: plain Python objects, equal in every run.

    Attributes:
      feeds: FeedSpecs by name, in order of declaration.
      arrays: ParameterSpecs of parameters and states by name, in order of creation.
      sites: the user's source line that computes each named value.
      kinds: the kind of layer that computes each named value, such as "fc", by the name of the value.
      bodies: records of the first run of each loop or branch; see `core.loop_body`.
      optimizers: the optimizer of each `minimize` call in the first traced run; empty during this first run.
      used_whole: names of parameters that are read as a whole, and not only by row look-ups (embeddings).
      shared: the shared functions by name.
      modules: by `id`, the objects that `layers.module` was called with, and the prefixes of the names of their arrays.
      openings: the `with` blocks of each name scope, in order, by the full prefix of the scope.
      only_frozen: the names of parameters that are not trainable for the only reason that every use so far is inside
        `with fluid.frozen():`.
      devices: the devices of `with fluid.device_guard(...)`.
      uses_randomness: True if a layer draws random numbers.
      asks_mode: True if the program asks for the mode, by `layers.is_training()`.
      table: the `fluid.reader.Table` that encodes raw rows as feeds of the program; None if there is no such table.
    """

    feeds: dict[str, FeedSpec] = field(default_factory=dict)
    arrays: dict[str, ParameterSpec] = field(default_factory=dict)
    sites: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    bodies: dict[str, Any] = field(default_factory=dict)
    optimizers: tuple[Any, ...] = ()
    used_whole: set[str] = field(default_factory=set)
    shared: dict[str, SharedFunction] = field(default_factory=dict)
    modules: dict[int, tuple[Any, str]] = field(default_factory=dict)
    openings: dict[str, list[Opening]] = field(default_factory=dict)
    only_frozen: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    uses_randomness: bool = False
    asks_mode: bool = False
    table: Any = None


@dataclass
class Made:
    """The results of a run of a program function: mostly JAX values, which exist as long as the trace.

    Attributes:
      values: every named value, by name.
      states: the new values of states that layers changed, by name.
      lookups: for each embedding table, the row ids of each look-up.
      minimizations: one record for each `optimizer.minimize` call, in order.
      expected: values of which a layer expects a kind, such as probabilities; the first traced run checks them.
      doubts: warnings of layers about computations that are legal but most likely mistakes.
      training_doubts: warnings that apply only to programs that minimise a loss.
      gradient_clip: the clip from `clip.set_gradient_clip`, for later `minimize` calls.
      late_clip: the user's source line that set a clip after the last `minimize` call, without effect; "" if none did.
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
    """The counters and prefixes from which automatic names, such as `encoder/fc_0`, are computed.

    Attributes:
      counters: the next number for each name stem, such as "generator/fc".
      prefix: the prefix of all automatic names.
      scopes: the open name scopes, outermost first.
      shared: the innermost running call of a shared function, or None.
    """

    counters: dict[str, int] = field(default_factory=dict)
    prefix: str = ""
    scopes: tuple[str, ...] = ()
    shared: SharedCall | None = None


@dataclass
class Frame:
    """The state that one run of a program function reads and writes while JAX traces the run.

    Attributes:
      mode: "train" or "test".
      precision: the dtype that the program computes in instead of float32; None for float32.
      settings_only: True while a user's function that returns an optimizer runs, which is not a program function.
      placeholder_batch: in the first traced run, on dummy data, the dummy batch size; else None.
      inside_loop: True for the inside of a loop or branch, whose values do not exist outside.
      labelling: True if named values in loops and branches carry their names in the equations; see
        `core.equations.label`.
      plain: True if layers use their simplest computation, for example for a drawing, and no platform-specific one.
      freezing: True inside `with fluid.frozen():`.
      device: the device of the open `with fluid.device_guard(...)`; empty outside.
      as_fluid: True for a program or model that was written for PaddlePaddle Fluid; see `core.as_fluid`.
      known: the ParameterSpecs of the first traced run, by name; empty during this first run.
      frozen: names of parameters and states that this run leaves unchanged, although the program would change them.
      site: in a program of `fluid.static`, the user's source line that recorded the current call; else empty.
      awaited: names of requested values that are not computed yet; the run ends when all are computed. None to run the
        whole function.
      given: the inputs of the run.
      declared: the declarations that the run records.
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
        """True in the first traced run of a program, which records its declarations on dummy data."""
        return self.placeholder_batch is not None

    @property
    def states(self) -> dict[str, Any]:
        """The current value of every state (such as a moving average) in a run of a program, by name.

        A state has the value that a layer has set in the run, or else the value before the run.
        """
        return {**self.given.states, **self.made.states}

    def compute(self, value: Any) -> Any:
        """Convert a float32 array to the dtype that the program computes in; return other arrays unchanged."""
        if self.precision is None or value.dtype != "float32":
            return value
        return value.astype(self.precision)

    def scoped(self, name: str) -> str:
        """Return a name with the open name scopes as prefix, such as `encoder/fc` for `fc`."""
        return "/".join((*self.naming.scopes, name))

    def unique(self, stem: str) -> str:
        """Append the next number to a name: the first `fc` becomes `fc_0`, the next `fc_1`."""
        count = self.naming.counters.get(stem, 0)
        self.naming.counters[stem] = count + 1
        # In a shared function (`fluid.shared`), names begin with the name of the function, not with `naming.prefix`.
        prefix = self.naming.prefix if self.naming.shared is None else ""
        return f"{prefix}{stem}_{count}"

    def array_name(self, name: str) -> str:
        """Return the full name of a parameter or state of a layer.

        In a shared function (`fluid.shared`), the name is equal in all calls: `net(2)/fc_0.w_0` becomes `net/fc_0.w_0`.

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
        # A number of 10 or more digits is part of a name that the user chose, and no counter of automatic names.
        if stem and number.isdecimal() and len(number) < 10:
            for prefixed in (stem, self.scoped(stem)):
                self.naming.counters[prefixed] = max(self.naming.counters.get(prefixed, 0), int(number) + 1)

    def note(self, value: Any, **facts: Any) -> None:
        """Attach facts, by name, to a value, such as the logits to the result of a softmax; `fact` returns them."""
        # The entry in `annotations` refers to the value, so that Python does not delete the value and give its `id` to
        # another object.
        self.annotations.setdefault(id(value), {"value": value}).update(facts)

    def fact(self, value: Any, name: str) -> Any:
        """Return the fact `name`, such as the logits of a softmax, that `note` has stored for `value`; else None."""
        return self.annotations.get(id(value), {}).get(name)

    def hand_on(self, value: Any, result: Any, *names: str) -> None:
        """Copy the facts `names` (see `note`) from a value to a result computed from it; skip missing facts."""
        known = self.annotations.get(id(value), {})
        self.note(result, **{name: known[name] for name in names if name in known})


@contextlib.contextmanager
def running(frame: Frame) -> Iterator[Frame]:
    """Make `frame`, the state of a run, current inside a `with` block, in which a program function runs."""
    token = _current.set(frame)
    try:
        yield frame
    finally:
        _current.reset(token)


def present_frame(settings: bool = False) -> Frame | None:
    """Return the Frame, which holds the state of the running program function; None if none is running."""
    frame = _current.get()
    return None if frame is not None and frame.settings_only and not settings else frame


def current_frame(caller: str) -> Frame:
    """Return the Frame, which holds the state of the running program function.

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
            + ("\nIn fluid.static: layers.dynamic_gru, layers.dynamic_lstm." if short.endswith("Cell") else "")
        )
    return frame


def mixed_prefix(name: str, site: str) -> str:
    """Return the error message for a name that the user has given to a name scope and also to a shared function."""
    return (
        f"{name!r} is the name of a shared function, and of a name scope that creates parameters at {site}; both would "
        f'name them {name}/...; open another scope, fluid.name_scope("{name}_scope"), or name the function: '
        f'fluid.shared({name}, name="{name}_net")'
    )


@functools.cache
def is_library(filename: str) -> bool:
    """Return whether a file belongs to fluid, JAX, NumPy or Python, or is generated code, rather than the user's file.

    Example:
      >>> is_library(errors.__file__), is_library("<string>"), is_library("<stdin>"), is_library("/home/me/net.py")
      (True, True, False, False)
    """
    if filename.startswith("<"):
        # `python -c` runs the user's text as "<string>".
        return not filename.startswith(_TYPED) and not (filename == "<string>" and sys.argv[:1] == ["-c"])
    real = os.path.realpath(filename)
    return real.startswith(_LIBRARIES) or real in _MACHINERY


def _user_frames(until: Collection[CodeType] = ()) -> Iterator[FrameType]:
    """Yield the Python frames of the user's code in the call stack, innermost first, up to a function in `until`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in until:
        if not is_library(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def begins_path(function: Callable[..., Any]) -> Callable[..., Any]:
    """Declare that the paths of automatic names begin with the user's function that `function` calls."""
    _BEGINNINGS.add(function.__code__)
    return function


def user_path() -> tuple[Call, ...]:
    """Return the calls of the user's code from the program function, or shared function, to a layer; innermost first.

    While a recorded call of `fluid.static` runs, the result has one Call, of the source line that recorded the call.
    """
    if (running_frame := _current.get()) is not None and running_frame.site:
        line, _, function = running_frame.site.rpartition(" in ")
        return (Call(function, f"{line}:0"),)
    return tuple(
        Call(
            frame.f_code.co_qualname.rpartition("<locals>.")[2],
            f"{os.path.realpath(frame.f_code.co_filename)}:{frame.f_lineno}:{_column(frame.f_code, frame.f_lasti)}",
        )
        for frame in _user_frames(_BEGINNINGS)
    )


@functools.lru_cache(4096)
def _column(code: CodeType, instruction: int) -> int:
    column = next(itertools.islice(code.co_positions(), instruction // 2, None))[2]
    return instruction if column is None else column  # None with `python -X no_debug_ranges`


def user_site() -> str:
    """Return the innermost source line of the user's code in the call stack, as `file:line in function`.

    While a recorded call of `fluid.static` runs, the result is the source line that recorded the call.
    """
    return _user_sites(1)


def user_sites() -> str:
    """Return the two innermost source lines of the user's code in the call stack, as one text.

    If the call stack has only one line of the user, return this line; see `user_site`.
    """
    return _user_sites(2)


def _user_sites(count: int) -> str:
    if (running_frame := _current.get()) is not None and running_frame.site:
        return running_frame.site
    found = itertools.islice(_user_frames(), count)
    lines = (f"{f.f_code.co_filename}:{f.f_lineno} in {f.f_code.co_name}" for f in found)
    return CALLED_AT.join(lines) or "unknown line"


def creation_sites(specs: Mapping[str, ParameterSpec]) -> dict[str, str]:
    """Return the user's source line that created each array, without folders, which differ between machines.

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


def creation_paths(specs: Mapping[str, ParameterSpec]) -> dict[str, str]:
    """Return the names of the user's functions that created each array with an automatic name, innermost first.

    Example:
      >>> path = (Call("block", "net.py:2"), Call("train", "net.py:9"))
      >>> creation_paths({"w": ParameterSpec("w", (3,), "float32", jax.nn.initializers.zeros, True, path=path)})
      {'w': 'block in train'}
    """
    return {name: " in ".join(call.function for call in spec.path) for name, spec in specs.items() if spec.path}


def shown_path(path: Sequence[Call]) -> str:
    """Return calls of the user's functions as text for messages: `net.py:2 in block, called at net.py:9 in train`."""
    return CALLED_AT.join(f"{call.position.rpartition(':')[0]} in {call.function}" for call in path)


def _without_folders(site: str) -> str:
    path, colon, line = site.rpartition(":")
    return f"{pathlib.PurePath(path).name}{colon}{line}"


def warn(message: str) -> None:
    """Issue a FluidWarning that points at the innermost source line of the user in the call stack."""
    user = next(_user_frames(), None)
    level, frame = 1, sys._getframe(0)
    while frame is not user and frame.f_back is not None:
        frame = frame.f_back
        level += 1
    warnings.warn(message, errors.FluidWarning, stacklevel=level)


# `_warned`: objects about which a warning was issued, by the `id` of the object and the subject of the warning. The
# references are weak, because Python may give the `id` of a deleted object to a new object.
_warned: "weakref.WeakValueDictionary[tuple[int, str], Any]" = weakref.WeakValueDictionary()


def warn_once(about: Any, subject: str, message: Callable[[], str]) -> None:
    """Issue a FluidWarning about an object, at most once for each subject."""
    if (id(about), subject) in _warned:
        return
    warn(message())
    _warned[id(about), subject] = about  # recorded last: if `warn` raises an error, the next call must raise it again
