"""Adapters: modules of Flax (Linen and NNX) and Haiku as pure functions, for `layers.module`."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors

# The argument names by which modules receive the mode (training or test). The bool is the value in training.
_MODES = {"train": True, "training": True, "is_training": True, "deterministic": False, "use_running_average": False}


class Adapted(NamedTuple):
    """A module of any of these libraries, as two pure functions.

    Attributes:
      init: `(key, *inputs) -> (parameters, states)`, both pytrees.
      apply: `(parameters, states, key, train, *inputs) -> (result, states)`; the returned states are the changed ones,
        and may be empty in test mode.
    """

    init: Callable[..., Any]
    apply: Callable[..., Any]


@dataclass(frozen=True)
class Init:
    """The initialization of a module: one run of `function` computes all arrays, which `leaf` returns one by one.

    Attributes:
      function: `(key, *inputs) -> (parameters, states)`.
      inputs: shapes and dtypes of the inputs.
      found: the arrays of the latest run, by the bytes of its random key; None for arrays that `leaf` has returned.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    found: dict[Any, list[Any]] = field(default_factory=dict)

    def shapes(self) -> Any:
        """Return parameters and states, with a shape and dtype instead of each array."""
        return jax.eval_shape(self.function, jax.random.key(0), *self.inputs)

    def leaf(self, key: Any, place: int) -> Any:
        """Return the initial array with index `place` among the leaves of parameters and states, for a random key."""
        if isinstance(key, jax.core.Tracer):
            return self._run(key)[place]
        mark = jax.random.key_data(key).tobytes()
        values = self.found.get(mark)
        if values is None or values[place] is None:
            self.found.clear()
            values = self.found.setdefault(mark, list(jax.jit(self._run)(key)))
        value = values[place]
        values[place] = None  # each array is requested once, so it need not be kept
        return value

    def _run(self, key: Any) -> list[Any]:
        zeros = [jnp.zeros(spec.shape, spec.dtype) for spec in self.inputs]
        return jax.tree.leaves(self.function(key, *zeros))


@dataclass(frozen=True)
class Leaf:
    """The initializer of one array of a module, a parameter or a state.

    Attributes:
      init: the initialization of the module.
      place: index of the array among the leaves of parameters and states.
      key_name: the name from which the random key is computed. All arrays of a module share this name, so that one run
        of `init` computes all of them.
    """

    init: Init
    place: int
    key_name: str

    def __call__(self, key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the initial value of this array."""
        return jnp.asarray(self.init.leaf(key, self.place), dtype).reshape(shape)


def leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a pytree, each with its path, such as "Dense_0/kernel"."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in found]


def adapt(module: Any, call: Callable[..., Any] | None) -> Adapted:
    """Convert a module to pure functions.

    Args:
      module: a module of Flax or Haiku; see `layers.module` for its forms.
      call: called as `call(module, *inputs, train)` instead of `module(*inputs)`.

    Raises:
      ArgumentTypeError: `module` has none of these forms.
    """
    # Only the names of base classes are compared, so that a library is imported only for its own modules.
    kind = module if inspect.isclass(module) else type(module)
    bases = {f"{base.__module__}.{base.__qualname__}" for base in type(module).__mro__}
    foreign = next((base.__module__.partition(".")[0] for base in kind.__mro__ if _is_foreign(base)), None)
    if foreign is not None:
        raise errors.ArgumentTypeError(
            f"layers.module takes modules of Flax or Haiku, found {kind.__name__} of {foreign}, which JAX cannot "
            f"trace; write the layer with fluid.layers, as in layers.fc(x, size=10), and take its arrays by "
            f'trainer.load_params({{"fc_0.w_0": weight, "fc_0.b_0": bias}}), the weight of a torch.nn.Linear transposed'
        )
    if "flax.linen.module.Module" in bases:
        return _linen(module, call)
    if any(base.startswith("flax.nnx.") for base in bases) or (callable(module) and "rngs" in _arguments(module)):
        return _nnx(module, call)
    if callable(module) or any(base.startswith("haiku.") for base in bases):
        return _haiku(module, call)
    raise errors.ArgumentTypeError(
        f"layers.module takes a module of Flax, a function of rngs that makes one, or a function that calls modules of "
        f"Haiku, found {type(module).__name__}; as in layers.module(flax.linen.Dense(10), x)"
    )


def _is_foreign(base: type) -> bool:
    """Return whether a class is a module or layer of a library that JAX cannot trace."""
    return base.__module__.startswith(("torch.nn.", "tensorflow.", "paddle.")) or (
        base.__module__.startswith("keras.") and base.__name__ == "Layer"
    )


def _arguments(function: Any) -> set[str]:
    """Return the names of the parameters of a function or class; an empty set if Python finds no signature."""
    while isinstance(function, functools.partial):
        function = function.func
    function = function.__init__ if inspect.isclass(function) else function
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _mode(function: Any, train: bool) -> dict[str, bool]:
    """Return keyword arguments that pass the mode to a function, such as `train=True`: those that its signature has."""
    return {name: train is says for name, says in _MODES.items() if name in _arguments(function)}


def _linen(net: Any, call: Callable[..., Any] | None) -> Adapted:
    from flax import linen

    def settings(train: bool) -> tuple[tuple[bool, ...], dict[str, Any]]:
        return ((train,), {"method": call}) if call else ((), _mode(net.__call__, train))

    def keys(key: Any) -> dict[str, Any]:
        return {name: core.fold_name(key, name) for name in ("params", "dropout")}

    def init(key: Any, *inputs: Any) -> Any:
        extra, options = settings(train=True)
        variables = linen.meta.unbox(net.init(keys(key), *inputs, *extra, **options))
        return variables.get("params", {}), {k: v for k, v in variables.items() if k not in ("params", "intermediates")}

    def apply(parameters: Any, states: Any, key: Any, train: bool, *inputs: Any) -> Any:
        extra, options = settings(train)
        variables = {"params": parameters, **states}
        mutable = list(states) if train else False
        result = net.apply(variables, *inputs, *extra, rngs=keys(key), mutable=mutable, **options)
        return (result[0], linen.meta.unbox(result[1])) if train else (result, {})

    return Adapted(init, apply)


def _nnx(given: Any, call: Callable[..., Any] | None) -> Adapted:
    from flax import nnx

    def make(key: Any) -> Any:
        return given if isinstance(given, nnx.Module) else given(rngs=nnx.Rngs(key))

    def parts(model: Any) -> Any:
        return nnx.split(model, nnx.Param, nnx.RngState, ...)

    def init(key: Any, *inputs: Any) -> Any:
        _, parameters, _, rest = parts(make(key))
        return nnx.to_pure_dict(parameters), nnx.to_pure_dict(rest)

    def apply(parameters: Any, states: Any, key: Any, train: bool, *inputs: Any) -> Any:
        graph, params, rngs, rest = parts(nnx.eval_shape(make, jax.random.key(0)))
        nnx.replace_by_pure_dict(params, parameters)
        nnx.replace_by_pure_dict(rest, states)
        model = nnx.merge(graph, params, _with_keys(rngs, key), rest)
        model.train() if train else model.eval()
        if call is None:
            result = model(*inputs, **_mode(model.__call__, train))
        else:
            result = call(model, *inputs, train)
        return result, nnx.to_pure_dict(parts(model)[3])

    return Adapted(init, apply)


def _with_keys(rngs: Any, key: Any) -> Any:
    """Return the random states of an NNX module, with keys computed from `key` and with counters of 0."""

    def fresh(path: Any, leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jnp.zeros(leaf.shape, leaf.dtype)
        own = core.fold_name(key, jax.tree_util.keystr(path))
        return jax.random.split(own, leaf.shape) if leaf.shape else own

    return jax.tree_util.tree_map_with_path(fresh, rngs)


def _haiku(function: Any, call: Callable[..., Any] | None) -> Adapted:
    try:
        import haiku
    except ImportError as error:
        raise errors.ArgumentTypeError(
            f"layers.module takes a module of Flax, or a function that calls modules of Haiku, which is not installed: "
            f"pip install dm-haiku. Found {function!r}; a function that calls layers is called by itself, without "
            f"layers.module"
        ) from error

    is_transformed = isinstance(function, haiku.Transformed | haiku.TransformedWithState)
    if isinstance(function, haiku.Transformed):
        transformed = haiku.with_empty_state(function)
    elif isinstance(function, haiku.TransformedWithState):
        transformed = function
    else:
        transformed = haiku.transform_with_state(function if call is None else functools.partial(call, function))

    def settings(train: bool) -> tuple[tuple[bool, ...], dict[str, bool]]:
        if is_transformed:  # the signature of the function inside is hidden, so the mode cannot be passed
            return (), {}
        return ((train,), {}) if call else ((), _mode(function, train))

    def init(key: Any, *inputs: Any) -> Any:
        extra, options = settings(train=True)
        return transformed.init(key, *inputs, *extra, **options)

    def apply(parameters: Any, states: Any, key: Any, train: bool, *inputs: Any) -> Any:
        extra, options = settings(train)
        return transformed.apply(parameters, states, key, *inputs, *extra, **options)

    return Adapted(init, apply)
