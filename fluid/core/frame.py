"""The Frame: all that one trace of a program function can see, and the one ContextVar that holds it."""

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
from fluid.formatting import shape_text

# Lines of these folders are not the user's.
_LIBRARIES = tuple(
    str(pathlib.Path(file).resolve().parent) + os.sep for file in (errors.__file__, jax.__file__, np.__file__)
)
_MACHINERY = ("<frozen importlib._bootstrap>", contextlib.__file__)
_CALLED = ", called at "  # between two lines of a site
_current: ContextVar["Frame | None"] = ContextVar("fluid_frame", default=None)

TRAIN, TEST = "train", "test"


class Complete(BaseException):
    """The end of a program function that has computed every value that was requested of it.

    It derives from BaseException, so that an `except Exception` of the function lets it pass.
    """


class Array(NamedTuple):
    """Shape and dtype of a value; None stands for a dimension that follows the batch.

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
    """What `layers.data` declares about one feed.

    Attributes:
      shape: the whole shape, None where the batch size (or an undeclared size) stands.
      dtype: the dtype as the user wrote it; "int64" data is held in JAX's default integer.
      lod_level: 0 for dense data, 1 for rows of any length.
      column: position in a row when the reader's order differs from the order of declaration, else None.
      limits: `(low, high, also)` when a layer restricts the values of the data: integers to `low <= v < high`, other
        numbers to `low <= v <= high`; `v == also` is valid too.
      site: the user's line that declared it.
      allow_nan: whether NaN is data that the program expects.
      labels: how a loss reads the data: "shares" of the classes in each row, "signs" of -1 or 1, or empty.
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
      kind: of the layer whose automatic name it has, such as "fc"; empty where the user named it.
      layer: the name of the layer that created it, such as "batch_norm_0"; empty where none did.
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


@dataclass
class SharedFunction:
    """A shared function that a run has called.

    Attributes:
      function: the user's function.
      calls: the user's line of each call, by the prefix of the values that are named in it.
    """

    function: Callable[..., Any]
    calls: dict[str, str] = field(default_factory=dict)


class SharedCall(NamedTuple):
    """The call of a shared function that is running.

    Attributes:
      arrays: the prefix of its parameters and states, the same in every call.
      values: the prefix of its named values and random keys: `arrays` in the first call, then `arrays(2)`, ...
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
      created: name, without its numbers, and shape of each parameter that was created in the scope.
    """

    site: str
    array: str
    created: tuple[tuple[str, tuple[int, ...]], ...]


class Minimization(NamedTuple):
    """What `optimizer.minimize(loss, parameter_list)` recorded.

    `value` is the loss as the program has it, `rate` the learning rate where the program computes it, a scalar.
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
      layer: such as "layers.cross_entropy".
      site: the user's line that called the layer.
      value: the array.
      kind: "probabilities", "shares", "logarithms", "logits", "labels" or "scores".
      instead: the call to write where the value is something else.
      made: the kind of layer that says that it made the value, "dropout" or "norm", or None.
    """

    layer: str
    site: str
    value: Any
    kind: str
    instead: str
    made: str | None


@dataclass
class Given:
    """What one run of a program function works on: JAX values, which live as long as the trace.

    Attributes:
      parameters: by name.
      states: by name, with the values that they have before the run.
      feeds: by name.
      overrides: values that replace named values.
      perturbations: values that are added to named values, so that their gradients can be taken.
      row_perturbations: for each table, what is added to the rows of each look-up.
      key: the random root of this step.
      gather: brings one array of a stack together by name, where it lies in parts on several devices; or None.
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
    """What a run shows of the program itself: plain Python, the same in every run.

    Attributes:
      feeds: by name, in order of declaration.
      arrays: parameters and states by name, in order of creation.
      sites: the user's line that made each named value.
      kinds: the kind of layer that made each of them, such as "fc".
      bodies: what the first run of each loop or branch showed, see `core.body`.
      optimizers: of each `minimize`, as the discovery of the program recorded it; empty while it is discovered.
      used_whole: the parameters of which more is used than some rows.
      shared: the shared functions by name.
      openings: of each name scope that the user has opened, in order, by its whole prefix.
      only_frozen: the parameters that only `with fluid.frozen():` keeps from being trainable.
      uses_randomness: whether a layer draws random numbers.
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
    uses_randomness: bool = False


@dataclass
class Made:
    """What a run leaves behind: JAX values again.

    Attributes:
      values: every named value.
      states: those that layers gave a new value.
      lookups: for each table of which rows were taken, the ids of each time.
      minimizations: what `optimizer.minimize` recorded, in order.
      expected: values that layers take for probabilities, their logarithms, or logits; discovery checks them.
      doubts: what layers take for a mistake, although it can be computed, as sentences.
      training_doubts: the same for programs that minimise a loss; in others it is none.
      gradient_clip: what `clip.set_gradient_clip` gave, for the `minimize` calls that follow.
      late_clip: the user's line that gave it where only earlier calls of `minimize` are known; else "".
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
    """Where automatic names stand.

    Attributes:
      counters: the next number for each stem, such as "generator/fc".
      scopes: the open name scopes, outermost first.
      shared: the call of a shared function that is running, the innermost one; or None.
    """

    counters: dict[str, int] = field(default_factory=dict)
    scopes: tuple[str, ...] = ()
    shared: SharedCall | None = None


@dataclass
class Frame:
    """All that one run of a program function reads and writes while it is traced.

    Attributes:
      mode: "train" or "test".
      precision: the dtype that the program computes in instead of float32; None for float32.
      settings_only: whether this is no program function, but a function that returns an optimizer.
      placeholder_batch: while the program is discovered, the stand-in for the batch size; else None.
      inside_loop: whether this is the inside of a loop or branch, whose values are none outside it.
      labelling: whether named values in there carry their names in the equations, see `core.equations.label`.
      freezing: whether this is the inside of `with fluid.frozen():`.
      as_fluid: whether layers are called by a program or model that was written for Fluid, see `core.as_fluid`.
      known: the parameters as the discovery of the program declared them, by name; empty while it is discovered.
      frozen: names of the parameters and states that this run leaves as they are, although the program would not.
      awaited: names of the values after which this run ends, as far as they are not computed yet; None for a run of
        the whole function.
      given: what the run works on.
      declared: what it shows of the program.
      made: what it leaves behind.
      naming: where automatic names stand.
      annotations: by the identity of a value, what its array does not say; see `note`.
    """

    mode: str = TRAIN
    precision: str | None = None
    settings_only: bool = False
    placeholder_batch: int | None = None
    inside_loop: bool = False
    labelling: bool = False
    freezing: bool = False
    as_fluid: bool = False
    known: dict[str, ParameterSpec] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    awaited: set[str] | None = None
    given: Given = field(default_factory=Given)
    declared: Declared = field(default_factory=Declared)
    made: Made = field(default_factory=Made)
    naming: Naming = field(default_factory=Naming)
    annotations: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def discovering(self) -> bool:
        """Whether this run only finds out what the program declares; placeholders stand in for data."""
        return self.placeholder_batch is not None

    @property
    def states(self) -> dict[str, Any]:
        """Every state as it is now: with the value that a layer gave it, or else the one from before the run."""
        return {**self.given.states, **self.made.states}

    def compute(self, value: Any) -> Any:
        """A float32 array in the dtype that the program computes in; everything else as it is."""
        if self.precision is None or value.dtype != "float32":
            return value
        return value.astype(self.precision)

    def scoped(self, name: str) -> str:
        """Prefix a name with the open name scopes."""
        return "/".join((*self.naming.scopes, name))

    def unique(self, stem: str) -> str:
        """Number a name: the first `fc` is `fc_0`, the next `fc_1`."""
        count = self.naming.counters.get(stem, 0)
        self.naming.counters[stem] = count + 1
        return f"{stem}_{count}"

    def array_name(self, name: str) -> str:
        """Return the name of a parameter or state of a layer. All calls of a shared function get one name.

        Args:
          name: begins with the name of the layer, and so with the prefix of the values of this call.

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
        """Let automatic names begin behind one that was given out elsewhere: behind `fc_3.w_0` the next is `fc_4`."""
        stem, _, number = name.partition(".")[0].rpartition("_")
        if stem and number.isdecimal() and len(number) < 10:  # what is longer is no counter
            for prefixed in (stem, self.scoped(stem)):
                self.naming.counters[prefixed] = max(self.naming.counters.get(prefixed, 0), int(number) + 1)

    def note(self, value: Any, **facts: Any) -> None:
        """Remember something about a value that its array does not say, such as the logits of a softmax."""
        # The value is kept beside its facts, so that its id cannot be given to another object during the trace.
        self.annotations.setdefault(id(value), {"value": value}).update(facts)

    def fact(self, value: Any, name: str) -> Any:
        """What `note` remembered about this very value, or None."""
        return self.annotations.get(id(value), {}).get(name)

    def hand_on(self, value: Any, result: Any, *names: str) -> None:
        """Note of a result what is known of the value that it was made of, as far as it is named here."""
        known = self.annotations.get(id(value), {})
        self.note(result, **{name: known[name] for name in names if name in known})


@contextlib.contextmanager
def running(frame: Frame) -> Iterator[Frame]:
    """Make a frame the current one while a program function runs."""
    token = _current.set(frame)
    try:
        yield frame
    finally:
        _current.reset(token)


def present_frame(settings: bool = False) -> Frame | None:
    """The frame of the program function that is running, or None.

    Args:
      settings: whether that of a function that returns an optimizer counts, too.
    """
    frame = _current.get()
    return None if frame is not None and frame.settings_only and not settings else frame


def current_frame(caller: str) -> Frame:
    """The frame of the program function that is running.

    Args:
      caller: the public name to blame when there is none, such as "layers.fc".

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
    """Return the message for a name scope and a shared function of one name, whose parameters would mix."""
    return (
        f"{name!r} is the name of a shared function, and of a name scope that creates parameters at {site}; both would "
        f'name them {name}/...; open another scope, fluid.name_scope("{name}_scope"), or name the function: '
        f'fluid.shared({name}, name="{name}_net")'
    )


def is_library(filename: str) -> bool:
    """Whether a file belongs to fluid, JAX, NumPy or Python's machinery, rather than to the user."""
    return filename.startswith(_LIBRARIES) or filename in _MACHINERY


def user_site() -> str:
    """The innermost line of the call stack that belongs neither to fluid nor to JAX, as `file:line in function`."""
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if not is_library(code.co_filename):
            return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return "unknown line"


def creation_sites(specs: Mapping[str, ParameterSpec]) -> dict[str, str]:
    """Return the user's line that created each array, without folders, which differ between machines.

    Example:
      >>> spec = ParameterSpec("w", (3,), "float32", jax.nn.initializers.zeros, True, site="/home/me/net.py:12 in head")
      >>> creation_sites({"w": spec})
      {'w': 'net.py:12 in head'}
    """
    return {
        name: _CALLED.join(map(_without_folders, spec.site.split(_CALLED))) for name, spec in specs.items() if spec.site
    }


def _without_folders(site: str) -> str:
    path, colon, line = site.rpartition(":")
    return f"{pathlib.PurePath(path).name}{colon}{line}"


def user_sites() -> str:
    """Return the line of `user_site`, and the user's line that called the function around it, if there is one."""
    found: list[str] = []
    frame: Any = sys._getframe(1)
    while frame is not None and len(found) < 2:
        code = frame.f_code
        if not is_library(code.co_filename):
            found.append(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
    return _CALLED.join(found) or "unknown line"


def warn(message: str) -> None:
    """Give a FluidWarning that points at the user's line, however deep in fluid it was found."""
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    warnings.warn(message, errors.FluidWarning, stacklevel=level)


# Objects that a warning was given about, by id and subject. They are held weakly: an id may be that of a new object.
_warned: "weakref.WeakValueDictionary[tuple[int, str], Any]" = weakref.WeakValueDictionary()


def warn_once(about: Any, subject: str, message: Callable[[], str]) -> None:
    """Give a FluidWarning about an object, unless this was done before.

    Args:
      about: an object that can be referred to weakly, such as a FeedSpec or a Reader.
      subject: a word for the reason of the warning; each reason warns once.
      message: returns the text; called only if it is needed.
    """
    if (id(about), subject) in _warned:
        return
    warn(message())
    _warned[id(about), subject] = about  # only now: a warning that is an error is raised again by the next call
