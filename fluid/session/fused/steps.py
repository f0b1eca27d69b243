"""The loop over training steps that is compiled as a whole, and the feeds that it goes over."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.reader.resident import picked


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stack:
    """The feeds of several steps, one behind the other.

    Attributes:
      feeds: by name; each leaf is `[room, batch, ...]`, of which the first `count` are fed.
      count: how many steps there are, int32 `[]`.

    Example:
      >>> stack = Stack.of([{"x": np.ones((4, 2))}, {"x": np.zeros((4, 2))}], room=3)
      >>> stack.feeds["x"].shape, int(stack.count)
      ((3, 4, 2), 2)
    """

    feeds: dict[str, Any]
    count: Any

    @classmethod
    def of(cls, feeds: Sequence[Mapping[str, Any]], room: int) -> "Stack":
        """A stack of feeds of the same shapes, with room for so many; on the host, if they are."""
        stacked = jax.tree.map(lambda *leaves: _stacked(leaves, room), *map(dict, feeds))
        return cls(stacked, np.int32(len(feeds)))

    def feed(self, number: Any) -> dict[str, Any]:
        """The feed of one step; inside a compiled function."""
        pick = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False)  # noqa: E731
        picked: dict[str, Any] = jax.tree.map(pick, self.feeds)
        return picked


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Picks:
    """The feeds of several steps as rows of columns that lie on the device.

    Attributes:
      columns: by name of feed, `[rows, ...]`.
      rows: which of them each step is fed, int32 `[room, batch]`.
      count: how many steps there are, int32 `[]`.
    """

    columns: dict[str, Any]
    rows: Any
    count: Any

    def feed(self, number: Any) -> dict[str, Any]:
        """The feed of one step; inside a compiled function."""
        return picked(self.columns, jax.lax.dynamic_index_in_dim(self.rows, number, keepdims=False))


def _stacked(leaves: Sequence[Any], room: int) -> Any:
    """Arrays of one shape as `[room, ...]`; what is behind the last of them is never read."""
    if isinstance(leaves[0], jax.Array):
        return _stacked_there((*leaves, *[leaves[-1]] * (room - len(leaves))))
    every = np.zeros((room, *leaves[0].shape), leaves[0].dtype)
    np.stack(leaves, out=every[: len(leaves)])
    return every


@jax.jit
def _stacked_there(leaves: Sequence[Any]) -> Any:
    return jnp.stack(leaves)


Fed = Stack | Picks
"""What several steps are fed with."""


def fused(train: Callable[..., tuple[Any, Any]]) -> Callable[[Any, Any, Fed], tuple[Any, Any]]:
    """A function of several training steps, one after the other, for `jax.jit`.

    The number of steps is an input of the loop and no part of its shape, so that one compilation does for any number
    up to the room that there is.

    Args:
      train: one step: from what changes, what does not, feeds and overrides to what has changed, and results.

    Returns:
      A function of what changes, what does not, and the feeds. It returns what has changed after the last step, and the
      results of all steps, stacked: each leaf is `[room, ...]`, of which the first `count` are meant.
    """

    def several(carry: Any, kept: Any, fed: Fed) -> tuple[Any, Any]:
        room = jax.tree.leaves(fed.rows if isinstance(fed, Picks) else fed.feeds)[0].shape[0]
        shapes = jax.eval_shape(lambda: train(carry, kept, fed.feed(0), {})[1])
        empty = jax.tree.map(lambda shape: jnp.zeros((room, *shape.shape), shape.dtype), shapes)

        def step(number: Any, so_far: tuple[Any, Any]) -> tuple[Any, Any]:
            before, stacked = so_far
            after, results = train(before, kept, fed.feed(number), {})
            write = lambda every, one: jax.lax.dynamic_update_index_in_dim(every, one, number, 0)  # noqa: E731
            return after, jax.tree.map(write, stacked, results)

        done: tuple[Any, Any] = jax.lax.fori_loop(0, fed.count, step, (carry, empty))
        return done

    return several
