"""`remat`: a part of a program whose values are computed again for the gradient instead of being kept."""

from collections.abc import Callable
from typing import Any

import jax

from fluid import core, errors
from fluid.layers.base import layer


@layer
def remat(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and keep nothing of what it computes for the gradient: that is computed again when it is needed.

    A training step keeps what layers have computed until the gradient has gone back through them. Of a function that is
    called through this layer it keeps only what goes in and what comes out, which takes less memory, and more time: the
    function is computed twice. Names, parameters, states and random numbers are those of `function(*args, **kwargs)`,
    and so are gradients, but for rounding. What is named inside may be fetched and overridden. In test mode nothing is
    done beside that call.

    Parts of a net, one after the other, save most where each is large and hands on little: the blocks of a deep net, an
    encoder and a decoder. To wrap all of a net saves nothing, since all of it is then computed again at once. Blocks of
    the same structure go through `layers.repeat(block, n, x, remat=True)`, which compiles them once. XLA is told not to
    compute again before the gradient is there. XLA for CPUs does not heed that when it puts operations into an order,
    so that outside of loops it saves little there, or nothing.

    Args:
      function: calls layers: a layer such as `layers.fc`, or a function of your own, in which name scopes may be opened
        as around it. It may use values from outside.
      args: its arguments, of any kind.
      kwargs: the same, by name.

    Returns:
      What the function returns: a value, or a pytree of values.

    Raises:
      ArgumentTypeError: there is no function, but what one has returned.

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
    if frame.discovering or frame.mode != core.TRAIN:  # where there is no gradient, nothing is kept anyway
        return function(*args, **kwargs)
    outside = _by_identity((args, kwargs, _seen(frame)))
    result: Any = None
    inside: dict[int, jax.Array] = {}

    def run() -> list[jax.Array]:
        # The frame stays that of the program, so all that layers write into it is a value of this inner trace now.
        nonlocal result, inside
        result = function(*args, **kwargs)
        inside = {i: leaf for i, leaf in _by_identity((result, _seen(frame))).items() if i not in outside}
        return list(inside.values())

    handed_out = jax.checkpoint(run)()
    exchange = _Exchange(dict(zip(inside, handed_out, strict=True)))
    exchange.in_frame(frame)
    return exchange(result)


class _Exchange:
    """Puts what a trace has handed out in the place of what is a value inside of it alone.

    Args:
      by_identity: the new arrays by the `id` of the old ones.
    """

    def __init__(self, by_identity: dict[int, jax.Array]):
        self._new: dict[int, Any] = dict(by_identity)
        self._old: list[Any] = []  # kept, so that no id is given to another object meanwhile

    def __call__(self, tree: Any) -> Any:
        """The same pytree of other values; what was one object, sequences included, is one object again."""
        return jax.tree.map(self._value, tree, is_leaf=_is_sequence)

    def in_frame(self, frame: core.Frame) -> None:
        """Exchange all values that a frame holds."""
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
    """All values that layers have written into a frame, as a pytree."""
    made = frame.made
    return made.values, made.states, made.lookups, made.minimizations, list(frame.annotations.values())


def _by_identity(tree: Any) -> dict[int, jax.Array]:
    """The arrays of a pytree by their `id`; held, they keep it to themselves."""
    return {id(leaf): leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)}


def _is_sequence(value: Any) -> bool:
    return isinstance(value, core.SequenceBatch | core.NestedSequenceBatch)
