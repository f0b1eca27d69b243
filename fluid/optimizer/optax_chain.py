"""Components of optimizers: optax transformations, learning rates, gradient accumulation, and norms of updates."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util.lazy import optax
from fluid.core import Parameter, decide

Rate = float | Callable[[Any], Any]
Kind = TypeVar("Kind")


class Accumulated(NamedTuple):
    """The optimizer state of gradient accumulation, see `accumulate`.

    Attributes:
      gathered: the number of accumulated gradients since the last update, int32 `[]`.
      mean: the mean of the accumulated gradients, for each parameter.
      inner: the state of the optax transformation that computes the updates.
    """

    gathered: Any
    mean: Any
    inner: Any


def with_rate(scale: optax.GradientTransformation, rate: Rate) -> optax.GradientTransformation:
    """Return `scale`, an optax transformation, followed by a multiplication by the negative learning rate."""
    return optax.chain(scale, optax.scale_by_learning_rate(rate))


def instead_of(rate: Rate, given: Any) -> Rate:
    """Return the learning rate that an optimizer uses after the user has set the rate `given`."""
    if not callable(rate):
        return given
    return lambda count: jnp.where(given < 0, rate(count), given)


def same_rate(first: Rate | None, second: Rate | None) -> bool:
    """Return whether two learning rates are equal numbers, or schedules that compute equal values."""
    if callable(first) and callable(second):
        return first is second or _computation(first) == _computation(second)
    if callable(first) or callable(second) or first is None or second is None:
        return first is second
    return float(first) == float(second)


def _computation(schedule: Callable[[Any], Any]) -> tuple[str, list[Any]]:
    closed = jax.make_jaxpr(schedule)(jax.ShapeDtypeStruct((), jnp.int32))
    return str(closed.jaxpr), [np.asarray(constant).tolist() for constant in closed.consts]


def replaced(optimizer: Kind, **settings: Any) -> Kind:
    """Return a copy of an optimizer with the given settings; the settings may be tracers, so nothing checks them."""
    copied = copy.copy(optimizer)
    for name, value in settings.items():
        object.__setattr__(copied, name, value)
    return copied


def unless(exclude: Callable[[Parameter], bool] | None) -> Callable[[Any], dict[str, bool]] | None:
    """Return the argument `mask` of optax, which selects the parameters with weight decay; None for all parameters.

    The mask is a function of the parameters. It returns a dict from their names to bools: True for weight decay.

    Args:
      exclude: a function of a parameter that returns True for no weight decay. None means weight decay for all
        parameters.
    """
    if exclude is None:
        return None
    argument = "exclude_from_weight_decay_fn"
    return lambda params: {n: not decide(argument, exclude, n, p) for n, p in params.items()}


def clip_each(clips: Mapping[str, Any]) -> optax.GradientTransformation:
    """Return an optax transformation that clips each gradient separately."""
    rules = {n: clip.transformation() for n, clip in clips.items()}

    def clip(grads: Any, params: Any) -> Any:
        clipped = {
            n: rule.update({n: grads[n]}, rule.init({n: grads[n]}))[0][n] for n, rule in rules.items() if n in grads
        }
        return {**grads, **clipped}

    return optax.stateless(clip)


def add_decay(decays: Mapping[str, Any]) -> optax.GradientTransformation:
    """Return an optax transformation that adds the gradients of regularizers to the gradients."""
    return optax.stateless(
        lambda grads, params: {n: g + decays[n].gradient(params[n]) if decays[n] else g for n, g in grads.items()}
    )


def multiply(factors: Mapping[str, float]) -> optax.GradientTransformation:
    """Return an optax transformation that multiplies each update by a factor; `factors` has one for each parameter."""
    return optax.stateless(lambda updates, _: {n: u * factors[n] for n, u in updates.items()})


def leave_out(rule: optax.GradientTransformation, names: frozenset[str]) -> optax.GradientTransformation:
    """Return an optax transformation that freezes the named parameters and updates all others by `rule`.

    The optimizer state also has entries for the frozen parameters, which never change.
    """

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        mine = {n: p for n, p in params.items() if n not in names}
        still = {n: jnp.zeros_like(p) for n, p in params.items() if n in names}
        if not mine:
            return still, state
        part = _part(state, jax.eval_shape(rule.init, mine))
        updates, after = rule.update({n: grads[n] for n in mine}, part, mine)
        return {**still, **updates}, _with_part(state, after)

    return optax.GradientTransformation(rule.init, update)


def _part(state: Any, shapes: Any) -> Any:
    """Return the part of an optimizer state that belongs to some of the parameters, while the others are frozen."""
    known = dict(jax.tree_util.tree_leaves_with_path(state))
    paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
    for path, shape in paths:
        if path not in known or jnp.shape(known[path]) != shape.shape:
            raise errors.ArgumentError(
                f"the slot {jax.tree_util.keystr(path, simple=True, separator='/')} of the optimizer belongs to all "
                f"parameters together, so that none of them can be frozen while it is used; name those to train in the "
                f'program: minimize(loss, parameter_list=["head/*"])'
            )
    return jax.tree.unflatten(structure, [known[path] for path, _ in paths])


def _with_part(state: Any, part: Any) -> Any:
    new = dict(jax.tree_util.tree_leaves_with_path(part))
    return jax.tree_util.tree_map_with_path(lambda path, slot: new.get(path, slot), state)


def accumulate(rule: optax.GradientTransformation, steps: int) -> optax.GradientTransformation:
    """Return an optax transformation that accumulates the gradients of `steps` steps and passes their mean to `rule`.

    The last of these steps updates the parameters. In all other steps, the updates are zeros.
    """

    def init(params: Any) -> Accumulated:
        return Accumulated(jnp.zeros([], jnp.int32), optax.tree.zeros_like(params), rule.init(params))

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, Accumulated]:
        gathered = state.gathered + 1
        mean = jax.tree.map(lambda m, g: m + (g - m) / gathered, state.mean, grads)
        still = optax.tree.zeros_like(mean)

        def act() -> tuple[Any, Accumulated]:
            updates, inner = rule.update(mean, state.inner, params)
            inner = optax.tree.cast_like(inner, state.inner)
            return optax.tree.cast_like(updates, mean), Accumulated(jnp.zeros_like(gathered), still, inner)

        def wait() -> tuple[Any, Accumulated]:
            return still, Accumulated(gathered, mean, state.inner)

        return jax.lax.cond(gathered == steps, act, wait)

    return optax.GradientTransformation(init, update)


def updates_done(slots: Any) -> Any:
    """Return the number of completed updates: the first field named `count` in an optimizer state."""
    return next(v for path, v in jax.tree_util.tree_leaves_with_path(slots) if path[-1] == _COUNT)


_COUNT = jax.tree_util.GetAttrKey("count")


def norm(arrays: Any) -> Any:
    """Return the L2 norm of all numbers in a pytree of arrays, float32 `[]`; 0 if there are no arrays.

    Example:
      >>> float(norm({"w": jnp.array([[3.0]]), "b": jnp.array([4.0])}))
      5.0
    """
    squares = [jnp.sum(jnp.square(array.astype(jnp.float32))) for array in jax.tree.leaves(arrays)]
    return jnp.sqrt(jnp.sum(jnp.stack(squares))) if squares else jnp.float32(0)


def ratio(before: Mapping[str, Any], after: Mapping[str, Any]) -> Any:
    """Return the norm of an update divided by the norm of the parameters before the update, float32 `[]`.

    A usual value is about 1e-3. The ratio is infinite if all parameters were 0 before the update. It is 0 if `before`
    is empty, because all parameters are frozen.

    Example:
      >>> round(float(ratio({"w": jnp.array([3.0, 4.0])}, {"w": jnp.array([3.0, 4.1])})), 3)
      0.02
    """
    if not before:
        return jnp.float32(0)
    return norm({name: after[name] - before[name] for name in before}) / norm(before)


START = 2.0**15
LEAST = 1.0
MOST = 2.0**24
PATIENCE = 2000


class Scaled(NamedTuple):
    """The optimizer state of loss scaling, see `skip_overflows`.

    Attributes:
      scale: the number by which a step multiplies the loss, float32 `[]`.
      finite: the number of successive steps with finite gradients since the scale changed, int32 `[]`; at most 1999.
      inner: the state of the optax transformation that computes the updates.
    """

    scale: Any
    finite: Any
    inner: Any


def skip_overflows(rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Return an optax transformation that skips updates with non-finite gradients, and adapts the loss scale.

    The method is from Micikevicius et al. (2018), section 3.2: for non-finite gradients, it skips the update and halves
    the scale. After 2000 successive steps with finite gradients, it doubles the scale, up to `2**24`. At a scale of 1,
    it skips no update: non-finite gradients then have another cause, and the user must see them.
    """

    def init(params: Any) -> Scaled:
        return Scaled(jnp.float32(START), jnp.zeros([], jnp.int32), rule.init(params))

    def update(grads: Any, state: Scaled, params: Any = None) -> tuple[Any, Scaled]:
        finite = jnp.stack([jnp.isfinite(g).all() for g in jax.tree.leaves(grads)]).all()
        made = finite | (state.scale <= LEAST)
        updates, inner = rule.update(grads, state.inner, params)
        # Use `jnp.where` and not a Python branch: a branch would make the host wait for the device.
        updates = jax.tree.map(lambda u: jnp.where(made, u, jnp.zeros_like(u)), updates)
        inner = jax.tree.map(lambda new, old: jnp.where(made, new, old), inner, state.inner)
        grown = state.finite + 1 >= PATIENCE
        larger = jnp.where(grown, jnp.minimum(state.scale * 2, MOST), state.scale)
        smaller = jnp.maximum(state.scale / 2, LEAST)
        count = jnp.where(finite & ~grown, state.finite + 1, 0)
        return updates, Scaled(jnp.where(finite, larger, smaller), count, inner)

    return optax.GradientTransformation(init, update)


def scale_of(slots: Any) -> Any:
    """Return the loss scale of the next step, a scalar, from the optimizer state `slots`; 1 without loss scaling."""
    return slots.scale if isinstance(slots, Scaled) else 1.0


def was_skipped(before: Any, after: Any) -> Any:
    """Return whether loss scaling skipped an update; `before` and `after` are its states, of the class Scaled."""
    return after.scale < before.scale
