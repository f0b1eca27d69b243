"""`remat`: recompute the values of a part of a program for the gradient instead of keeping them in memory."""

from collections.abc import Callable
from typing import Any

import jax

from fluid import core, errors
from fluid.layers.base import layer


@layer
def remat(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and recompute its values for the gradient instead of keeping them in memory.

    A training step keeps the results of layers until the gradient has passed back through them. For a function that is
    called through this layer, the step keeps only inputs and results. This takes less memory, and more time: the
    function is computed twice. Names, parameters, states and random numbers equal `function(*args, **kwargs)`, and so
    do gradients, up to rounding. Values inside can be fetched and overridden by name. In test mode the layer only calls
    the function.

    Consecutive parts of a net save most memory if each part is large and has small results. Examples are the blocks of
    a deep net, or an encoder and a decoder. Wrapping the whole net saves nothing, because all values are then
    recomputed at once. For blocks of one structure use `layers.repeat(block, n, x, remat=True)`, which compiles them
    once. The layer forbids XLA to recompute before the gradient arrives. XLA for CPUs ignores this when it orders
    operations. So on a CPU, outside of loops, this layer saves little memory or none.

    Args:
      function: calls layers: a layer such as `layers.fc`, or a custom function. The function may open name scopes and
        use values from outside.
      args: its positional arguments, of any kind.
      kwargs: its keyword arguments, of any kind.

    Returns:
      The result of the function: a value, or a pytree of values.

    Raises:
      ArgumentTypeError: `function` is not callable, such as the result of a call.

    References:
      Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).

    Example:
      >>> import fluid
      >>> def block(h):
      ...     return h + fluid.layers.fc(fluid.layers.fc(h, size=64, act="gelu"), size=8)
      >>> def program():
      ...     h = fluid.layers.data("x", shape=[8])
      ...     for _ in range(3):
      ...         h = fluid.layers.remat(block, h)
      ...     return fluid.layers.mean(fluid.layers.remat(fluid.layers.fc, h, size=1))
      >>> list(fluid.Program(program).parameters)[-2:]
      ['fc_6.w_0', 'fc_6.b_0']
    """
    if not callable(function):
        raise errors.ArgumentTypeError(
            f"layers.remat calls a function, found {type(function).__name__}; hand it over, and behind it its "
            f"arguments: layers.remat(layers.fc, x, size=10)"
        )
    frame = core.current_frame("layers.remat")
    if frame.discovering or frame.mode != core.TRAIN:  # without a gradient no values are kept anyway
        return function(*args, **kwargs)
    outside = _by_identity((args, kwargs, _seen(frame)))
    result: Any = None
    inside: dict[int, jax.Array] = {}

    def run() -> list[jax.Array]:
        # The frame is still the frame of the program, so everything that layers write into it is a value of this trace.
        nonlocal result, inside
        result = function(*args, **kwargs)
        inside = {i: leaf for i, leaf in _by_identity((result, _seen(frame))).items() if i not in outside}
        return list(inside.values())

    handed_out = jax.checkpoint(run)()
    exchange = _Exchange(dict(zip(inside, handed_out, strict=True)))
    exchange.in_frame(frame)
    return exchange(result)


class _Exchange:
    """A replacement of the values inside a trace by the outputs of this trace.

    Args:
      by_identity: the new arrays by the `id` of the old arrays.
    """

    def __init__(self, by_identity: dict[int, jax.Array]):
        self._new: dict[int, Any] = dict(by_identity)
        self._old: list[Any] = []  # kept alive, so that no id is given to another object meanwhile

    def __call__(self, tree: Any) -> Any:
        """Return a pytree with the new values; a shared object, such as a sequence batch, stays one shared object."""
        return jax.tree.map(self._value, tree, is_leaf=_is_sequence)

    def in_frame(self, frame: core.Frame) -> None:
        """Replace all values that a frame holds."""
        made = frame.made
        made.values.update(self(made.values))
        made.states.update(self(made.states))
        made.lookups.update(self(made.lookups))
        made.minimizations[:] = self(made.minimizations)
        noted = list(frame.annotations.values())
        frame.annotations.clear()
        for facts in noted:
            facts.update(self(facts))
            frame.annotations[id(facts["value"])] = facts

    def _value(self, value: Any) -> Any:
        if _is_sequence(value) and id(value) not in self._new:
            leaves, structure = jax.tree.flatten(value)
            changed = [self._new.get(id(leaf), leaf) for leaf in leaves]
            same = all(a is b for a, b in zip(leaves, changed, strict=True))
            self._new[id(value)] = value if same else jax.tree.unflatten(structure, changed)
            self._old.append(value)
        return self._new.get(id(value), value)


def _seen(frame: core.Frame) -> Any:
    """Return all values that layers have written into a frame, as a pytree."""
    made = frame.made
    return made.values, made.states, made.lookups, made.minimizations, list(frame.annotations.values())


def _by_identity(tree: Any) -> dict[int, jax.Array]:
    """Return the arrays of a pytree by their `id`; the dict keeps the arrays alive, so the ids stay unique."""
    return {id(leaf): leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)}


def _is_sequence(value: Any) -> bool:
    return isinstance(value, core.SequenceBatch | core.NestedSequenceBatch)
