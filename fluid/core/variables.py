"""Variables of layers: parameters, states, random keys, and named values that users can fetch and override."""

import contextlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util import host_random
from fluid.core.equations import label
from fluid.core.frame import (
    CALLED_AT,
    TRAIN,
    Complete,
    Expected,
    Frame,
    Naming,
    ParameterSpec,
    current_frame,
    shown_path,
    user_path,
    user_site,
)
from fluid.core.sequence import NestedSequenceBatch, SequenceBatch, data_of, filled


def fold_name(key: jax.Array, name: str) -> jax.Array:
    """Compute a random key from `key` and a name, independent of other names and of their order."""
    return host_random.fold_in(key, zlib.crc32(name.encode()))


def create_parameter(
    name: str,
    shape: Sequence[int],
    dtype: str,
    initializer: Callable[..., Any],
    trainable: bool = True,
    settings: Any = None,
    rows_only: bool = False,
    kind: str = "",
    layer: str = "",
) -> jax.Array:
    """Return the value of a named parameter; create the parameter if the name is new in the program.

    Args:
      rows_only: True if the caller reads the parameter only by `look_up`. Then an update may change only the rows that
        were looked up.

    Raises:
      ParameterError: the program already uses the name with another shape or dtype.
    """
    frame = current_frame("layers.create_parameter")
    # A look-up of rows in a loop counts as a use of the whole array, because the row ids do not exist outside the loop.
    if not rows_only or frame.inside_loop:
        frame.declared.used_whole.add(name)
    sizes = _sizes(name, shape)
    path = user_path() if kind else ()
    spec = ParameterSpec(name, sizes, dtype, initializer, trainable, settings, _site(frame), kind, layer, path=path)
    _check_same_layer(frame, spec)
    return _named_array(_as_frozen(frame, spec), whole=not rows_only)


def _check_same_layer(frame: Frame, spec: ParameterSpec) -> None:
    """Raise an error if an automatic name belongs to different layers in train mode and test mode.

    A layer that only one mode calls causes this error: it changes the numbers in the names of later layers.
    """
    first = frame.known.get(spec.name)
    if first is None or spec.name in frame.declared.arrays or first.path == spec.path or not (first.path and spec.path):
        return
    then = next((name for name, known in frame.known.items() if known.path == spec.path), None)
    raise errors.ParameterError(
        f"{spec.site}: the parameter {spec.name!r} of {frame.mode} mode would be that of another layer, created in "
        f"training at {shown_path(first.path)}, and here at {shown_path(spec.path)}"
        f"{f'; there, the name here is {then!r}' if then else ''}. Automatic names count layers, so that a layer that "
        f"one mode leaves out, as under `if layers.is_training():`, changes the numbers of those after it; give that "
        f'layer a name of its own: name="auxiliary". For one layer in both places, share the function that calls it: '
        f"fluid.shared(function)"
    )


def named_array(name: str) -> jax.Array:
    """Return the value of a parameter or state that a layer of the running program has already created."""
    frame = current_frame("layers.create_parameter")
    frame.declared.used_whole.add(name)
    return _named_array(frame.declared.arrays[name])


def look_up(table: jax.Array, ids: jax.Array, touched: jax.Array | None = None) -> jax.Array:
    """Look up rows of a parameter and record their ids, so that an update can change only these rows.

    Args:
      table: `[rows, width]`, from `create_parameter(rows_only=True)`.
      ids: integers `[...]`. The row of an id outside the table is NaN.
      touched: bool `[...]`, False for ids whose rows the update may leave unchanged, such as padding; default all True.

    Returns:
      The rows `[..., width]`, in the dtype that the program computes in.
    """
    frame = current_frame("layers.embedding")
    rows = jnp.asarray(table).at[ids].get(mode="fill", fill_value=np.nan, wrap_negative_indices=False)
    rows = frame.compute(rows)
    name = frame.fact(table, "parameter")
    if name is None or frame.inside_loop:
        return rows
    known = frame.made.lookups.setdefault(name, [])
    if name in frame.given.row_perturbations:
        added = frame.given.row_perturbations[name][len(known)]
        rows = rows + (jax.lax.stop_gradient(added) if frame.freezing else added)
    real = (ids >= 0) & (ids < table.shape[0]) & (True if touched is None else touched)
    # Record no row ids for an embedding table that is overridden or frozen: an update must not change its rows.
    if name in frame.given.overrides or frame.freezing:
        real = jnp.zeros_like(real)
    known.append(jnp.where(real, ids, table.shape[0]))  # the id `table.shape[0]`, one after the last, means no row
    return rows


def create_state(
    name: str, shape: Sequence[int], dtype: str, initializer: Callable[..., Any], layer: str = "", kind: str = ""
) -> jax.Array:
    """Return the value of a named state: an array that layers change themselves, such as a moving average.

    States are saved with the parameters, and optimizers never change them. For arguments and errors, see
    `create_parameter`.
    """
    frame = current_frame("layers.create_state")
    path = user_path() if kind else ()
    sizes = _sizes(name, shape)
    spec = ParameterSpec(name, sizes, dtype, initializer, None, None, _site(frame), kind, layer, path=path)
    _check_same_layer(frame, spec)
    return _named_array(spec)


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Freeze the layers in a `with` block: parameters and moving statistics do not change.

    Layers with moving statistics, such as batch_norm, normalise with these statistics, as in test mode. If a layer
    outside the block uses a parameter by the same name, the outer use trains the parameter.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     with fluid.frozen():
      ...         features = fluid.layers.batch_norm(fluid.layers.fc(x, size=3))
      ...     loss = fluid.layers.mean(fluid.layers.fc(features, size=1, name="head"))
      ...     fluid.optimizer.SGD(0.1).minimize(loss)
      ...     return loss
      >>> fluid.Program(program).minimizes[0].parameters
      ('head.w_0', 'head.b_0')
    """
    frame = current_frame("frozen")
    outer = frame.freezing
    frame.freezing = True
    try:
        yield
    finally:
        frame.freezing = outer


def is_frozen(state: str) -> bool:
    """Return whether the state named `state` is frozen, so that training steps do not change it."""
    frame = current_frame("frozen")
    return frame.freezing or state in frame.frozen


def set_state(name: str, value: jax.Array) -> None:
    """Set the value of a state for the next step; in test mode, and for frozen states, do nothing.

    Raises:
      UnknownNameError: the program has created no state of this name.
      ShapeError: the shape of the value differs from the shape of the state.
    """
    frame = current_frame("core.set_state")
    if frame.mode == TRAIN and not is_frozen(name):
        before = frame.states.get(name)
        if before is None:
            raise errors.UnknownNameError(
                f"the program has no state {name!r}, expected one that it has created: core.create_state({name!r}, "
                f"...). {errors.nearest(name, frame.states)}"
            )
        if jnp.shape(value) != before.shape:
            raise errors.ShapeError(
                f"the state {name!r} is {before.dtype}{list(before.shape)}, and was given a value of shape "
                f"{list(jnp.shape(value))}; reshape it to {list(before.shape)} first"
            )
        if not jnp.issubdtype(before.dtype, jnp.inexact) and jnp.issubdtype(jnp.result_type(value), jnp.inexact):
            doubt(
                f"the state {name!r} holds {before.dtype} and is given {jnp.result_type(value)}, whose fractions are "
                f"cut off in each step; declare it layers.create_state(..., dtype='float32'), or convert the value: "
                f"layers.cast(value, '{before.dtype}')"
            )
        frame.made.states[name] = jnp.asarray(value, before.dtype)


def random_key(name: str) -> jax.Array:
    """Return a random key that depends on the current training step and on `name`."""
    frame = current_frame("core.random_key")
    frame.declared.uses_randomness = True
    return fold_name(frame.given.key, name)


def record(name: str, value: Any, caller: str = "layers.identity") -> Any:
    """Name a computed value, so that users can fetch it, override it, or read the gradient with respect to it.

    Raises:
      ProgramError: the program already has this name.
      Complete: the run has computed all requested values.
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
    if frame.awaited is not None and not frame.inside_loop:
        frame.awaited.discard(name)
        if not frame.awaited:
            raise Complete
    return value


@contextlib.contextmanager
def unrecorded(scope: str) -> Iterator[None]:
    """Discard the names that layers record in a `with` block; the code around the block names the results."""
    frame = current_frame("core.unrecorded")
    made, declared = frame.made, frame.declared
    outer = made.values, declared.sites, declared.kinds, frame.naming, frame.labelling
    made.values, declared.sites, declared.kinds = {}, {}, {}
    frame.naming, frame.labelling = Naming(scopes=(scope,)), False
    try:
        yield
    finally:
        made.values, declared.sites, declared.kinds, frame.naming, frame.labelling = outer


def perturbed(value: Any, perturbation: Any) -> Any:
    """Add zeros, with respect to which JAX can compute gradients, to the floating-point arrays of a pytree.

    Integers, such as lengths, stay unchanged.
    """
    return jax.tree.map(lambda v, p: v + p if jnp.issubdtype(v.dtype, jnp.inexact) else v, value, perturbation)


def limit_feed(value: Any, low: int, high: int | None, also: int | None = None) -> None:
    """Record that integers of a feed must be in `[low, high)` or equal `also`; the input pipeline checks them.

    With None for `high`, the integers must be below the number of rows of the minibatch. This holds only for dense data
    with rows, and not if another layer has set a limit. For floating-point data, `high` is valid too. If `value` is a
    list or NumPy array that the user wrote into the program, this function checks it immediately. Computed values are
    on the device, and nothing checks them.

    Raises:
      ArgumentError: an integer that the user wrote into the program is out of range.
    """
    frame = current_frame("core.limit_feed")
    name = frame.fact(value, "feed")
    if name is None and high is not None and frame.discovering and _is_written(value):
        array = np.asarray(value)
        bad = array[((array < low) | (array >= high)) & (array != also)]
        if bad.size:
            raise errors.ArgumentError(
                f"the number {bad.flat[0]} does not exist here; expected {low} <= value < {high}"
            )
    if name is None or not frame.discovering:
        return
    spec = frame.declared.feeds[name]
    if high is None and (spec.limits is not None or spec.lod_level or spec.shape[:1] != (None,)):
        return
    if spec.limits is not None and spec.limits[1] is not None and high is not None:
        low = max(low, spec.limits[0])
        high = min(high, spec.limits[1])
        also = also if also == spec.limits[2] else None
    frame.declared.feeds[name] = replace(spec, limits=(low, high, also))


def _is_written(value: Any) -> bool:
    written = isinstance(value, list | tuple) and all(isinstance(v, int) for v in value)
    return written or isinstance(value, np.ndarray)


def limit_to_probabilities(value: Any, also: int | None = None) -> None:
    """Record that integer labels must be 0 or 1, and floating-point labels between 0 and 1.

    The number `also`, such as a label to ignore, is valid too. The input pipeline checks the labels of a feed; see
    `limit_feed`. If the program converts a feed to floats, the limits apply to the data before the conversion.
    """
    frame = current_frame("core.limit_to_probabilities")
    converted = frame.fact(value, "cast_from")
    value = value if converted is None else converted
    name = frame.fact(value, "feed")
    if name is not None and frame.discovering:
        limit_feed(value, 0, 1 if frame.declared.feeds[name].held.kind == "f" else 2, also)


def doubt_labels(value: Any, labels: str) -> None:
    """Record the meaning of labels for a loss, so that the input pipeline can check the first minibatch."""
    frame = current_frame("core.doubt_labels")
    name = frame.fact(value, "feed")
    if name is not None and frame.discovering:
        frame.declared.feeds[name] = replace(frame.declared.feeds[name], labels=labels)


def expect(kind: str, layer: str, value: Any, instead: str) -> None:
    """Record the kind of value that a layer expects. The first traced run warns if the equations show another kind.

    Args:
      kind: "probabilities", "shares" (probabilities that add up to 1), "logarithms" (of probabilities), "logits", or
        "scores" (any numbers).
    """
    frame = current_frame("core.expect")
    if frame.discovering and not frame.inside_loop:
        made = frame.fact(value, "made")
        frame.made.expected.append(Expected(layer, user_site(), data_of(value), kind, instead, made))


def doubt(message: str, training: bool = False) -> None:
    """Record a warning about a likely mistake. The first traced run of the program issues the warning once."""
    frame = current_frame("core.doubt")
    if frame.discovering:
        kept = frame.made.training_doubts if training else frame.made.doubts
        kept.append(f"{user_site()}: {message}")


def _site(frame: Frame) -> str:
    shared = frame.naming.shared
    return user_site() if shared is None else f"{user_site()}{CALLED_AT}{shared.site}"


def _second_array(frame: Frame, name: str) -> str:
    """Return advice for the error message if a program uses the name `name` for two different arrays."""
    shared = frame.naming.shared
    if shared is None or not name.startswith(f"{shared.arrays}/"):
        return f'one name is one array; give the second another: ParamAttr(name="{name}_2")'
    function = shared.arrays
    return (
        f"a shared function has one set of parameters, so that each call is given inputs of the same shapes; for a "
        f'second set make a second net: fluid.shared({function}, name="{function}_2")'
    )


def _check_name(name: str) -> None:
    """Raise an error for a name that files cannot hold: a leading "@" marks optimizer state and counters."""
    if name.startswith("@") and not name.endswith("@"):  # Fluid has counters such as @LR_DECAY_COUNTER@
        raise errors.ParameterError(
            f"the name {name!r} begins with '@', which marks optimizer state and counters in saved files, so that this "
            f"array could not be loaded; choose another name: name={name.lstrip('@').partition('.')[0]!r}"
        )


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


def _as_frozen(frame: Frame, spec: ParameterSpec) -> ParameterSpec:
    """Return `spec` with `trainable=False` for a new parameter inside `with fluid.frozen():`; else return `spec`.

    The first use outside `with fluid.frozen():` makes the parameter trainable again.
    """
    arrays = frame.declared.arrays
    only_frozen = frame.declared.only_frozen
    if frame.freezing and spec.trainable and spec.name not in arrays:
        only_frozen.add(spec.name)
        return replace(spec, trainable=False)
    if not frame.freezing and spec.trainable and spec.name in only_frozen and spec.name in arrays:
        only_frozen.remove(spec.name)
        arrays[spec.name] = replace(arrays[spec.name], trainable=True)
    return spec


def _named_array(spec: ParameterSpec, whole: bool = True) -> jax.Array:
    """Return the current value of a parameter or state, of shape `spec.shape`; declare it if its name is new.

    Args:
      whole: False if the caller reads only some rows of the parameter; then the array is not converted to the dtype
        that the program computes in.
    """
    frame = current_frame("layers.create_parameter")
    known = frame.declared.arrays.setdefault(spec.name, replace(spec, device=frame.device) if frame.device else spec)
    if (known.shape, known.dtype) != (spec.shape, spec.dtype):
        raise errors.ParameterError(
            f"the parameter {spec.name!r} is used with two shapes:\n"
            f"  {known.dtype}{list(known.shape)} at {known.site}\n"
            f"  {spec.dtype}{list(spec.shape)} at {spec.site}\n"
            f"{_second_array(frame, spec.name)}"
        )
    arrays = frame.given.states if spec.trainable is None else frame.given.parameters
    if frame.discovering and spec.name not in arrays:
        _check_name(spec.name)
        # In a loop, use a NumPy array: a JAX value traced inside the loop does not exist outside, where another layer
        # may use this parameter.
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
        value = _overridden(spec.name, value, frame.given.overrides[spec.name], batched=False)
    if spec.trainable is not None:
        # Convert the array to the dtype that the program computes in. If only some rows are read, `look_up` converts
        # these rows instead.
        value = frame.compute(value) if whole else value
        value = jax.lax.stop_gradient(value) if frame.freezing else value
        frame.note(value, parameter=spec.name)
    return value


def _overridden(name: str, value: Any, given: Any, batched: bool = True) -> Any:
    """Return `given`, the user's replacement of a named value, converted to the dtype of the value.

    Args:
      value: the computed value: an array `[batch, ...]` or a sequence batch.
      given: the replacement. A scalar replaces every element. Any other replacement has the type and shape of `value`,
        except for the batch size and, in sequences, the number of steps.
    """
    sequence = isinstance(value, SequenceBatch | NestedSequenceBatch)
    held = data_of(value).dtype
    if jnp.issubdtype(data_of(given).dtype, jnp.inexact) and not jnp.issubdtype(held, jnp.inexact):
        raise errors.FeedTypeError(
            f"the override of {name!r} holds floating-point numbers, expected {held}: fractions would be cut off; "
            f"feed={{{name!r}: value.astype('{held}')}}"
        )
    if not isinstance(given, SequenceBatch | NestedSequenceBatch) and jnp.ndim(given) == 0:
        numbers = jnp.full_like(value.data if sequence else value, given)
        return value.with_data(filled(value.with_data(numbers), 0)) if sequence else numbers
    if sequence and not isinstance(given, type(value)):
        kind = type(value).__name__
        raise errors.FeedError(f"{name!r} is a sequence batch; override it with a fluid.{kind}, found an array")
    free = (2 if isinstance(value, SequenceBatch) else 3) if sequence else int(batched)
    found = tuple(given.shape)
    wanted = tuple(value.shape)
    if len(found) != len(wanted) or found[free:] != wanted[free:]:
        may_differ = f" (the first {f'{free} dimensions' if sequence else 'dimension'} may differ)" if free else ""
        raise errors.FeedError(
            f"the override of {name!r} has shape {list(found)}, expected {list(wanted)}{may_differ}; "
            f'feed={{"{name}": array}}'
        )
    given = jax.tree.map(lambda v, g: jnp.asarray(g, v.dtype), value, given)
    return given.with_data(filled(given, 0)) if sequence else given
