"""Tools for custom layers, beside parameters: the mode, random keys, and arrays that persist between steps."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers.base import Layer, layer


@layer
def is_training() -> bool:
    """Return whether the program runs in train mode rather than in test mode.

    The result is an ordinary bool, so `if` works: the program is traced once for each mode. Create parameters and
    states in both modes, since a program is discovered in train mode.

    Returns:
      True while a training step is traced; False for `trainer.test`, `Inferencer` and `mode="test"`.

    Example:
      >>> import fluid
      >>> def noisy(x):
      ...     if not fluid.layers.is_training():
      ...         return x
      ...     return x + 0.1 * jax.random.normal(fluid.layers.random_key(), x.shape)
      >>> print(fluid.Program(lambda: noisy(fluid.layers.data("x", shape=[4]))).outputs[0])
      float32[batch, 4]
    """
    return core.current_frame("layers.is_training").mode == core.TRAIN


class _IsTraining:
    """A wrapper that refuses `if layers.is_training:`, which would always be true."""

    def __init__(self, function: Callable[[], bool]):
        functools.update_wrapper(self, function)

    def __call__(self) -> bool:
        return self.__wrapped__()  # type: ignore[attr-defined]

    def __bool__(self) -> bool:
        raise errors.ArgumentTypeError(
            "layers.is_training is a function, which is always true as a condition; call it: if layers.is_training():"
        )


is_training = _IsTraining(is_training)


@layer
def random_key(name: str | None = None) -> jax.Array:
    """Return a key for `jax.random`, a different key in each step.

    The key depends only on the seed of the Session, on the step and on the name. So a new layer does not change the
    random numbers of other layers, and a resumed training draws the numbers of an uninterrupted one. Inside
    `layers.scan` and other loops each iteration has its own key.

    Args:
      name: the name of the key: equal names give equal keys. By default `random_key_N`, a new name for each call.

    Returns:
      A key, `[]`; `jax.random.split` makes several keys of it.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return x * jax.random.bernoulli(fluid.layers.random_key("mask"), 0.5, x.shape)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return core.random_key(Layer("random_key", name).name)


@dataclass(frozen=True)
class State:
    """An array that a layer keeps from one training step to the next, created by `create_state`.

    Attributes:
      name: the name in checkpoints, in the scope and for `fetch`.
      value: the value at creation: after the previous step, or after an earlier update in this step.
      frozen: whether `fluid.frozen` or `trainer.freeze` has frozen the state, so that updates have no effect. A layer
        that normalizes with moving statistics then uses them in training too.
    """

    name: str
    value: jax.Array
    frozen: bool = False

    def update(self, value: Any) -> None:
        """Set the value for the next step. In test mode, or while the state is frozen, the call has no effect.

        No gradient passes through the update.

        Args:
          value: an array of the state's shape.

        Raises:
          ShapeError: the value has another shape.
        """
        core.current_frame("layers.create_state")
        core.set_state(self.name, jax.lax.stop_gradient(value))


def _refuse(self: State, name: str, value: Any) -> None:
    """Refuse an assignment; the error shows the call that changes a state."""
    raise errors.MissingNameError(
        f"the state {self.name!r}: found an assignment to {name!r}, expected the call that sets its value for the next "
        f"step: state.update(value)",
        name=name,
    )


State.__setattr__ = _refuse  # type: ignore[assignment, method-assign]


@layer
def create_state(
    shape: Sequence[int], dtype: Any = "float32", name: str | None = None, initializer: Any = None
) -> State:
    """Create an array that a custom layer updates, such as a moving average or a counter.

    The array is saved with the parameters, in checkpoints and by `save_params`. No optimizer changes it.

    Args:
      shape: the shape of the array.
      dtype: the dtype of the array, also while the program computes in half precision.
      name: `create_state_N.w_0` by default. Two layers with one name share one state.
      initializer: of `fluid.initializer`, or a number for all elements; zeros by default.

    Returns:
      A State: `state.value` is the array, `state.update(value)` changes it for the next step.

    Raises:
      ParameterError: the name is used already with another shape or dtype.
      ArgumentTypeError: the initializer is neither a number nor a function of key, shape and dtype.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[1])
      ...     largest = fluid.layers.create_state([1], name="largest")
      ...     largest.update(fluid.layers.elementwise_max(largest.value, fluid.layers.reduce_max(x, dim=0)))
      ...     return fluid.layers.reduce_max(x)
      >>> with fluid.Session(program) as session:
      ...     _ = session.run(feed={"x": np.array([[3.0], [5.0]])}, mode="train")
      ...     session.scope["largest"].tolist()
      [5.0]
    """
    this = Layer("create_state", name)
    start = 0.0 if initializer is None else initializer
    if isinstance(start, int | float | np.number):
        start = Constant(float(start))
    if not callable(start):
        raise errors.ArgumentTypeError(
            f"{this.name}: initializer={initializer!r}; expected a number, or an initializer as in "
            f"initializer=fluid.initializer.Normal(0.0, 1.0)"
        )
    full = this.array_name("w") if name is None else this.owner
    value = core.create_state(full, shape, str(jax.dtypes.canonicalize_dtype(dtype)), start, this.owner)
    return State(full, value, core.is_frozen(full))
