"""Modules of Flax (Linen and NNX) and Haiku inside a program function."""

from collections.abc import Callable
from typing import Any

import jax

from fluid import core
from fluid.layers.base import Layer, array_of, layer, parameter_dtype
from fluid.param_attr import ParamAttr, ParamSetting, to_attr


@layer
def module(
    module: Any,
    *inputs: core.Value,
    name: str | None = None,
    call: Callable[..., Any] | None = None,
    param_attr: ParamSetting = None,
) -> Any:
    """Apply a module of Flax or Haiku as a layer: its parameters are named, trained and saved like all others.

    Its other variables, such as moving averages, become states, and its random keys come from the Session. An argument
    `train`, `training`, `is_training`, `deterministic` or `use_running_average` of the module follows the mode. While
    the module's states are frozen, by `fluid.frozen` or `trainer.freeze`, the module runs as in test mode.
    Flax and Haiku are not installed with fluid.

    A module object of NNX keeps its initial arrays. Training changes `trainer.params`, where the trained
    arrays have the names of the module, such as `module_0/kernel`.

    Args:
      module: a Flax Linen module; a Flax NNX module, whose arrays are the initial values, or a function of `rngs` that
        creates one, such as `functools.partial(nnx.Linear, 4, 3)`; a function that calls Haiku modules, or the result
        of `haiku.transform` or `haiku.transform_with_state`.
      inputs: the arrays that the module is called with.
      name: name of the layer; by default `module_N`; modules of one name share their parameters.
      call: called as `call(module, *inputs, train)` instead of `module(*inputs)`, to pass other arguments.
      param_attr: ParamAttr with the training settings of all parameters of the module.

    Returns:
      The result of the module: an array, or a pytree of arrays.

    Raises:
      ArgumentTypeError: the object is no such module.

    Example:
      >>> import fluid
      >>> from flax import linen
      >>> class Net(linen.Module):
      ...     @linen.compact
      ...     def __call__(self, x, train):
      ...         return linen.BatchNorm(use_running_average=not train)(linen.Dense(3)(x))
      >>> def program():
      ...     return fluid.layers.module(Net(), fluid.layers.data("x", shape=[4]))
      >>> p = fluid.Program(program)
      >>> print(p.outputs[0], *p.parameters)  # doctest: +NORMALIZE_WHITESPACE
      float32[batch, 3] module_0/BatchNorm_0/bias module_0/BatchNorm_0/scale module_0/Dense_0/bias
      module_0/Dense_0/kernel
      >>> list(p.states)
      ['module_0/batch_stats/BatchNorm_0/mean', 'module_0/batch_stats/BatchNorm_0/var']
    """
    from fluid.layers.adapters import Init, Leaf, adapt, leaves  # few programs need them

    this = Layer("module", name)
    settings = to_attr(param_attr) or ParamAttr(trainable=False)
    prefix = settings.name or this.owner
    arrays = [array_of(this, v) for v in inputs]
    adapted = adapt(module, call)
    init = Init(adapted.init, tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays))
    parameters, states = init.shapes()
    count = len(jax.tree.leaves(parameters))
    given = [
        core.create_parameter(
            f"{prefix}/{path}",
            leaf.shape,
            parameter_dtype(leaf.dtype),
            settings.initializer or Leaf(init, place, prefix),
            settings.trainable,
            settings,
            kind="" if settings.name else this.automatic_kind,
            layer=this.owner,
        )
        for place, (path, leaf) in enumerate(leaves(parameters))
    ]
    held = [
        core.create_state(
            f"{prefix}/{path}", leaf.shape, str(leaf.dtype), Leaf(init, count + place, prefix), this.owner
        )
        for place, (path, leaf) in enumerate(leaves(states))
    ]
    stands_still = bool(held) and all(core.is_frozen(f"{prefix}/{path}") for path, _ in leaves(states))
    result, changed = adapted.apply(
        jax.tree.unflatten(jax.tree.structure(parameters), given),
        jax.tree.unflatten(jax.tree.structure(states), held),
        core.random_key(this.name),
        this.frame.mode == core.TRAIN and not stands_still,
        *arrays,
    )
    for path, leaf in leaves(changed):
        core.set_state(f"{prefix}/{path}", leaf)
    return jax.tree.map(this.output, result)
