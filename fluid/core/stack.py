"""Stacks: functions that call layers and run several times, each time with separate arrays."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core.body import Body, Found
from fluid.core.frame import Frame, ParameterSpec, current_frame
from fluid.core.variables import create_parameter, create_state


@dataclass(frozen=True)
class Stacked:
    """The initializer of a stack of arrays. Each array is drawn from a separate key.

    Attributes:
      one: initializer of one array.
      key_name: the name from which the random key is computed.
      axis: the axis of the mesh over which the stack is divided; None if each device has the whole stack.
    """

    one: Callable[..., Any]
    key_name: str
    axis: str | None = None

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
        """Draw `shape[0]` arrays of the shape `shape[1:]`, and stack them."""
        count, *rest = shape
        return jnp.stack([jnp.asarray(self.one(jax.random.fold_in(key, i), tuple(rest), dtype)) for i in range(count)])


def stack_axes(spec: ParameterSpec) -> tuple[str | None, ...]:
    """Return the mesh axis of each stack that an array is in, outermost first; None for a stack that is not divided.

    Each stack adds one leading dimension.

    Example:
      >>> blocks = Stacked(jnp.zeros, "w", axis="stage")
      >>> stack_axes(ParameterSpec("repeat_0/fc_0.w_0", (12, 4, 4), "float32", blocks, True))
      ('stage',)
    """
    axes = []
    initializer = spec.initializer
    while isinstance(initializer, Stacked):
        axes.append(initializer.axis)
        initializer = initializer.one
    return tuple(axes)


def stack_depth(spec: ParameterSpec) -> int:
    """Return the number of stacks that an array is in. Each stack adds one leading dimension.

    Example:
      >>> stack_depth(ParameterSpec("repeat_0/fc_0.w_0", (12, 4, 4), "float32", Stacked(jnp.zeros, "w"), True))
      1
    """
    return len(stack_axes(spec))


def check_stages(owner: str, axis: str, count: int, size: int) -> None:
    """Check that the blocks of a stack can be divided evenly over an axis of the mesh.

    Args:
      owner: the owner of the blocks, for the message.
      axis: the name of the axis.
      count: the number of blocks.
      size: the size of the axis.

    Raises:
      ArgumentError: `count` is not a multiple of `size`.
    """
    if count % size:
        down = max(size, count - count % size)
        raise errors.ArgumentError(
            f"{owner}: {count} blocks cannot be divided evenly into the {size} stages of the axis {axis!r}; take "
            f"{down} or {down + size} blocks, or a mesh such as fluid.Mesh({axis}={math.gcd(count, size)})"
        )


class Stack(Body):
    """A Body that runs `count` times, each time with separate arrays.

    Arrays whose names begin with the scope are created once as a stack, `[count, ...]`. All runs share the arrays with
    other names, which come from `ParamAttr(name=...)`.

    Args:
      function: takes and returns pytrees of arrays.
      examples: arguments for the first run; only their shapes and dtypes matter.
      caller: the public name for error messages, such as "layers.repeat".
      count: the number of runs.
      scope: the whole name scope of the arrays, such as "repeat_0".
      axis: the axis of the mesh over which the stacks are divided; None if each device has the whole stacks.

    Attributes:
      arrays: the stacked parameters and states by name. The argument `states` of a call includes one slice of each.

    Example:
      >>> import fluid, jax
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     stack = fluid.core.Stack(lambda h: fluid.layers.fc(h, size=3), [x], "layers.repeat", 4, "tower")
      ...     return jax.lax.scan(lambda h, slices: (stack(slices, None, h)[0], None), x, stack.arrays)[0]
      >>> {name: spec.shape for name, spec in fluid.Program(program).parameters.items()}
      {'tower/fc_0.w_0': (4, 3, 3), 'tower/fc_0.b_0': (4, 3)}
    """

    def __init__(
        self,
        function: Callable[..., Any],
        examples: Sequence[Any],
        caller: str,
        count: int,
        scope: str,
        axis: str | None = None,
    ):
        self._scope = scope
        self._prefix = current_frame(caller).array_name(scope) + "/"
        self._axis = axis
        super().__init__(function, examples, caller)
        self._own = {name: spec for name, spec in self._specs.items() if self._is_own(name)}
        made = {name: self._create(spec, count) for name, spec in self._specs.items()}
        self.arrays = {name: made[name] for name in self._own}

    def states(self) -> dict[str, Any]:
        """Return the present values of the changed states that all runs share."""
        now = self._frame.states
        return {name: now[name] for name in self.written if name not in self._own}

    def __call__(self, states: Mapping[str, Any], iteration: Any, *args: Any) -> tuple[Any, dict[str, Any]]:
        """Run the function, as `Body` does. `states` includes the slices of `arrays` for this run."""
        child = self._child(iteration)
        slices = {name: states[name] for name in self._own}
        gather = child.given.gather or (lambda _, array: array)
        child.given.parameters |= {n: gather(n, v) for n, v in slices.items() if self._own[n].trainable is not None}
        child.given.states |= states
        child.declared.arrays |= self._own
        result = self._run(child, args)
        now = child.states
        return result, {name: now[name] for name in self.written}

    def _child(self, iteration: Any) -> Frame:
        """Return the frame of one run, without the arrays of the stack."""
        child = super()._child(iteration)
        given = child.given
        given.parameters = self._others(given.parameters)
        given.states = self._others(given.states)
        stacks = self._frame.declared.arrays.keys() - self._others(self._frame.declared.arrays)
        given.overrides = {n: v for n, v in given.overrides.items() if n not in stacks}
        child.declared.arrays = self._others(child.declared.arrays)
        child.naming.scopes = (self._scope,)
        return child

    def _try_out(self, examples: Sequence[Any]) -> Found:
        return self._abstractly(examples)

    def _first_child(self) -> Frame:
        child = super()._first_child()
        child.placeholder_batch = child.placeholder_batch or -1  # a run like discovery creates stand-ins of the slices
        return child

    def _create(self, spec: ParameterSpec, count: int) -> Any:
        shape = spec.shape
        initializer = spec.initializer
        if self._is_own(spec.name):
            shape = (count, *shape)
            initializer = Stacked(initializer, getattr(initializer, "key_name", spec.name), self._axis)
        if spec.trainable is None:
            return create_state(spec.name, shape, spec.dtype, initializer, spec.layer)
        return create_parameter(
            spec.name, shape, spec.dtype, initializer, spec.trainable, spec.settings, kind=spec.kind, layer=spec.layer
        )

    def _is_own(self, name: str) -> bool:
        return name.startswith(self._prefix)

    def _others(self, named: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in named.items() if not self._is_own(name)}
