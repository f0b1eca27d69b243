"""What layers are made of: parameters, states, random keys, and named values that can be fetched and overridden."""

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core.equations import label
from fluid.core.frame import TRAIN, Frame, Minimization, Naming, ParameterSpec, Probabilities, current_frame, user_site
from fluid.core.nested import NestedSequenceBatch
from fluid.core.sequence import SequenceBatch, filled


def fold_name(key: jax.Array, name: str) -> jax.Array:
    """The random key of a name: independent of every other name and of the order in which names appear."""
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


class Parameter(NamedTuple):
    """A parameter, as functions such as `exclude_from_weight_decay_fn` and `need_clip` get it."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def described(name: str, value: Any) -> Parameter:
    """The description of the parameter with this name and value."""
    return Parameter(name, tuple(value.shape), str(value.dtype))


def create_parameter(
    name: str,
    shape: Sequence[int],
    dtype: str,
    initializer: Callable[..., Any],
    trainable: bool = True,
    settings: Any = None,
    rows_only: bool = False,
) -> jax.Array:
    """The value of a named parameter, which is created if the program has not named it before.

    Args:
      name: the whole name, for example "fc_0.w_0".
      shape: positive sizes.
      dtype: for example "float32".
      initializer: called once with `(key, shape, dtype)` when a Scope is filled.
      trainable: whether optimizers may change it.
      settings: what an optimizer shall know of it (a ParamAttr).
      rows_only: this use takes rows by `look_up` and nothing else, so that the update may follow the rows.

    Returns:
      The array, of that shape and dtype.

    Raises:
      ParameterError: the program uses the name already with another shape or dtype.
    """
    frame = current_frame("layers.create_parameter")
    if not rows_only or frame.inside_loop:  # the rows that a loop takes are not known outside it
        frame.declared.used_whole.add(name)
    spec = ParameterSpec(name, _sizes(name, shape), dtype, initializer, trainable, settings, user_site())
    return _named_array(spec, whole=not rows_only)


def look_up(table: jax.Array, ids: jax.Array, touched: jax.Array | None = None) -> jax.Array:
    """Take rows of a parameter in such a way that its update can be one of these rows alone.

    Args:
      table: `[rows, width]`, from `create_parameter(rows_only=True)`.
      ids: integers `[...]`. An id outside the table gives NaN.
      touched: bool `[...]`: which of the ids count as uses of their row; all by default.

    Returns:
      `[..., width]`.
    """
    frame = current_frame("layers.embedding")
    rows = jnp.asarray(table).at[ids].get(mode="fill", fill_value=np.nan, wrap_negative_indices=False)
    rows = frame.compute(rows)
    name = frame.fact(table, "parameter")
    if name is None or frame.inside_loop:
        return rows
    known = frame.made.lookups.setdefault(name, [])
    if name in frame.given.row_perturbations:
        rows = rows + frame.given.row_perturbations[name][len(known)]
    real = (ids >= 0) & (ids < table.shape[0]) & (True if touched is None else touched)
    if name in frame.given.overrides:  # then these are not rows of the parameter
        real = jnp.zeros_like(real)
    known.append(jnp.where(real, ids, table.shape[0]))  # behind the last row there is no row at all
    return rows


def create_state(name: str, shape: Sequence[int], dtype: str, initializer: Callable[..., Any]) -> jax.Array:
    """The value of a named state: an array that layers themselves change, such as a moving average.

    States are saved with the parameters and never given to an optimizer. Arguments and errors: see `create_parameter`.
    """
    return _named_array(ParameterSpec(name, _sizes(name, shape), dtype, initializer, None, None, user_site()))


def set_state(name: str, value: jax.Array) -> None:
    """Give a state its value for the next step. In test mode this does nothing: testing changes no Scope.

    Raises:
      ShapeError: the value has another shape than the state.
    """
    frame = current_frame("core.set_state")
    if frame.mode == TRAIN:
        before = frame.states[name]
        if jnp.shape(value) != before.shape:
            raise errors.ShapeError(
                f"the state {name!r} is {before.dtype}{list(before.shape)}, and was given a value of shape "
                f"{list(jnp.shape(value))}; reshape it to {list(before.shape)} first"
            )
        frame.made.states[name] = jnp.asarray(value, before.dtype)


def random_key(name: str) -> jax.Array:
    """A random key for this name and this step."""
    frame = current_frame("core.random_key")
    frame.declared.uses_randomness = True
    return fold_name(frame.given.key, name)


def record(name: str, value: Any, caller: str = "layers.identity") -> Any:
    """Give a value a name under which it can be fetched, overridden and differentiated with respect to.

    Args:
      name: unique in the program.
      value: an array or SequenceBatch.
      caller: the public name to blame when no program function is running, such as "layers.fc".

    Returns:
      The value to go on with: the override when there is one.

    Raises:
      ProgramError: the program has that name already.
    """
    frame = current_frame(caller)
    declared = frame.declared
    given = frame.given
    if name in frame.made.values or name in declared.arrays:
        raise errors.ProgramError(
            f"the name {name!r} is used twice: first at {declared.sites.get(name) or declared.arrays[name].site}, "
            f"then at {user_site()}; give the second one another name="
        )
    declared.sites[name] = user_site()
    declared.kinds[name] = caller.removeprefix("layers.")
    if name in given.overrides:
        value = _overridden(name, value, given.overrides[name])
    elif name in given.perturbations:
        value = perturbed(value, given.perturbations[name])
    frame.made.values[name] = value
    if frame.labelling and frame.inside_loop:
        label(name, value)
    return value


@contextlib.contextmanager
def unrecorded(scope: str) -> Iterator[None]:
    """Keep the names that layers called inside record out of the program; the caller names what they return.

    Args:
      scope: prefix of the names that they number, and so of their random keys; unique in the program.
    """
    frame = current_frame("core.unrecorded")
    outer_values = frame.made.values
    outer_naming = frame.naming
    outer_labelling = frame.labelling
    frame.made.values = {}
    frame.naming = Naming(scopes=(scope,))
    frame.labelling = False
    try:
        yield
    finally:
        for name in frame.made.values:
            frame.declared.sites.pop(name, None)
            frame.declared.kinds.pop(name, None)
        frame.made.values = outer_values
        frame.naming = outer_naming
        frame.labelling = outer_labelling


def perturbed(value: Any, perturbation: Any) -> Any:
    """A value with something added to its numbers; its lengths stay, whatever those of what is added are."""
    return jax.tree.map(lambda v, p: v + p if jnp.issubdtype(v.dtype, jnp.inexact) else v, value, perturbation)


def limit_feed(value: Any, low: int, high: int, also: int | None = None) -> None:
    """Note that integer data must lie in `[low, high)` or equal `also`, so that the feeder can check it on the host.

    Does nothing when the value is not a feed itself: what was computed is on the device.
    """
    frame = current_frame("core.limit_feed")
    name = frame.fact(value, "feed")
    if name is None or not frame.discovering:
        return
    spec = frame.declared.feeds[name]
    if spec.limits is not None:
        low = max(low, spec.limits[0])
        high = min(high, spec.limits[1])
        also = also if also == spec.limits[2] else None
    frame.declared.feeds[name] = replace(spec, limits=(low, high, also))


def expect_probabilities(layer: str, value: Any) -> None:
    """Note that a layer takes an array for probabilities, so that discovery can warn if it can be any numbers."""
    frame = current_frame("core.expect_probabilities")
    if frame.discovering and not frame.inside_loop:
        frame.made.probabilities.append(Probabilities(layer, user_site(), value))


def record_minimize(
    loss: Any, optimizer: Any, parameter_list: Sequence[Any] | None = None, no_grad_set: Sequence[Any] | None = None
) -> Any:
    """Record that the optimizer shall minimise a loss by changing parameters; Session builds the update from it.

    Args:
      loss: a scalar of the running program.
      optimizer: opaque here.
      parameter_list: names or values of the parameters to change; every trainable one by default.
      no_grad_set: names or values of parameters to leave alone.

    Returns:
      The optimizer that discovery has recorded here, which is the one that counts; None while it is on.

    Raises:
      ProgramError: the loss is no float scalar.
      UnknownNameError: a name is not a parameter of the program.
    """
    frame = current_frame("optimizer.minimize")
    shape = jnp.shape(loss)
    dtype = jnp.result_type(loss)
    if shape not in ((), (1,)) or not jnp.issubdtype(dtype, jnp.floating):
        found = ", ".join("batch" if d == frame.placeholder_batch else str(d) for d in shape)
        raise errors.ProgramError(
            f"the loss must be one float, found {dtype}[{found}]; reduce it first: "
            f"loss = fluid.layers.mean(loss), and return it first"
        )
    names = None if parameter_list is None else _parameter_names(frame, parameter_list)
    excluded = _parameter_names(frame, no_grad_set or ())
    number = len(frame.made.minimizations)
    frame.made.minimizations.append(Minimization(loss, jnp.reshape(loss, ()), optimizer, names, excluded))
    recorded = frame.declared.optimizers
    return recorded[number] if number < len(recorded) else None


def clip_parameters(clip: Any, parameter_list: Sequence[Any]) -> None:
    """Let the gradients of some parameters be clipped, each by itself.

    Args:
      clip: opaque here.
      parameter_list: names or values of the parameters.

    Raises:
      UnknownNameError: a name is not a parameter of the program.
    """
    frame = current_frame("clip.set_gradient_clip")
    for name in _parameter_names(frame, parameter_list, "set_gradient_clip"):
        spec = frame.declared.arrays[name]
        frame.declared.arrays[name] = replace(spec, settings=replace(spec.settings, gradient_clip=clip))


def _sizes(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(int(d) for d in shape)
    except TypeError as error:
        raise errors.ShapeError(f"parameter {name!r} needs a list of sizes as shape, found {shape!r}") from error
    if any(d < 0 for d in sizes):
        raise errors.ShapeError(
            f"parameter {name!r} needs sizes known in advance, found shape {list(sizes)}; "
            f"declare every size but the batch in layers.data(shape=...)"
        )
    return sizes


def _named_array(spec: ParameterSpec, whole: bool = True) -> jax.Array:
    """The parameter or state of a name as it is now, `spec.shape`; declared, if it is new.

    Args:
      spec: what is declared.
      whole: whether more of a parameter is used than some rows.

    Raises:
      ParameterError: the name is declared with another shape or dtype.
    """
    frame = current_frame("layers.create_parameter")
    known = frame.declared.arrays.setdefault(spec.name, spec)
    if (known.shape, known.dtype) != (spec.shape, spec.dtype):
        raise errors.ParameterError(
            f"the parameter {spec.name!r} is used with two shapes:\n"
            f"  {known.dtype}{list(known.shape)} at {known.site}\n"
            f"  {spec.dtype}{list(spec.shape)} at {spec.site}\n"
            f'one name is one array; give the second another: ParamAttr(name="{spec.name}_2")'
        )
    arrays = frame.given.states if spec.trainable is None else frame.given.parameters
    if frame.discovering and spec.name not in arrays:
        # What is traced inside a loop is no value outside it, where the next layer may want this array.
        zeros = np.zeros if frame.inside_loop else jnp.zeros
        arrays[spec.name] = zeros(spec.shape, jnp.dtype(spec.dtype))
    if spec.name not in arrays:
        raise errors.ProgramError(
            f"{spec.name!r} is created at {spec.site} now, and was not when the program was discovered, in train mode; "
            f"create parameters and states in both modes, whatever layers.is_training() says"
        )
    value = frame.made.states.get(spec.name, arrays[spec.name])
    if isinstance(value, np.ndarray):
        value = jnp.asarray(value)
    if spec.name in frame.given.overrides:
        value = _overridden(spec.name, value, frame.given.overrides[spec.name])
    if spec.trainable is not None:
        value = frame.compute(value) if whole else value  # of a large table, only the rows in use are converted
        frame.note(value, parameter=spec.name)
    return value


def _overridden(name: str, value: Any, given: Any) -> Any:
    """What takes the place of a named value, in its dtype; the batch, and the steps of sequences, may differ in number.

    Args:
      name: of the value, for messages.
      value: an array `[batch, ...]` or a sequence batch.
      given: of the same kind and the same size of each example or step.

    Raises:
      FeedError: it is not.
    """
    sequence = isinstance(value, SequenceBatch | NestedSequenceBatch)
    if sequence and not isinstance(given, type(value)):
        kind = type(value).__name__
        raise errors.FeedError(f"{name!r} is a sequence batch; override it with a fluid.{kind}, found an array")
    free = (2 if isinstance(value, SequenceBatch) else 3) if sequence else 1
    found = tuple(given.shape)
    wanted = tuple(value.shape)
    if len(found) != len(wanted) or found[free:] != wanted[free:]:
        raise errors.FeedError(
            f"the override of {name!r} has shape {list(found)}, expected {list(wanted)} "
            f'(the first {f"{free} dimensions" if sequence else "dimension"} may differ); feed={{"{name}": array}}'
        )
    given = jax.tree.map(lambda v, g: jnp.asarray(g, v.dtype), value, given)
    return given.with_data(filled(given, 0)) if sequence else given


def _parameter_names(frame: Frame, items: Sequence[Any], caller: str = "minimize") -> tuple[str, ...]:
    if isinstance(items, str):
        items = [items]
    names = []
    for item in items:
        name = item if isinstance(item, str) else frame.fact(item, "parameter") or getattr(item, "name", None)
        spec = frame.declared.arrays.get(name) if isinstance(name, str) else None
        if spec is None or spec.trainable is None:
            known = [n for n, s in frame.declared.arrays.items() if s.trainable is not None]
            raise errors.UnknownNameError(
                f"{caller} was given {name if name is not None else item!r}, which is no parameter of this program. "
                f"{errors.nearest(str(name), known)}"
            )
        names.append(str(name))
    return tuple(names)
