"""Adapters that convert modules of Flax (Linen and NNX), Haiku and Equinox to pure functions, for `layers.module`."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors

# The argument names by which modules receive the mode (training or test). Each has the value to pass in training.
_MODES = {"train": True, "training": True, "is_training": True, "deterministic": False, "use_running_average": False}


class Adapted(NamedTuple):
    """A module of Flax, Haiku or Equinox, converted to two pure functions.

    Attributes:
      init: `(key, *inputs) -> (parameters, states)`, both pytrees.
      apply: `(parameters, states, key, train, *inputs) -> (result, states)`; the returned states are the updated
        states, and may be empty in test mode.
    """

    init: Callable[..., Any]
    apply: Callable[..., Any]


@dataclass(frozen=True)
class Init:
    """The initialization of a module, such as a Flax module: `function` computes all arrays, `leaf` returns one.

    Attributes:
      function: `(key, *inputs) -> (parameters, states)`.
      inputs: shapes and dtypes of the inputs.
      found: a cache with one entry: the random key of the latest call, as bytes, and a list of its arrays. An array
        that `leaf` has returned is replaced by None.
    """

    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    found: dict[Any, list[Any]] = field(default_factory=dict)

    def shapes(self) -> Any:
        """Return the pytrees of parameters and states, with a ShapeDtypeStruct in place of each array."""
        return jax.eval_shape(self.function, jax.random.key(0), *self.inputs)

    def leaf(self, key: Any, place: int) -> Any:
        """Return the initial array with index `place` among all arrays of a module (such as a Flax module)."""
        if isinstance(key, jax.core.Tracer):
            return self._run(key)[place]
        mark = jax.random.key_data(key).tobytes()
        values = self.found.get(mark)
        if values is None or values[place] is None:
            self.found.clear()
            values = self.found.setdefault(mark, list(jax.jit(self._run)(key)))
        value = values[place]
        # Each initial array is requested only once, so remove the array from the list to free its memory.
        values[place] = None
        return value

    def _run(self, key: Any) -> list[Any]:
        zeros = [jnp.zeros(spec.shape, spec.dtype) for spec in self.inputs]
        return jax.tree.leaves(self.function(key, *zeros))


@dataclass(frozen=True)
class Leaf:
    """The initializer of one array (a parameter or a state) of a module.

    Attributes:
      init: the `Init` of the module, which computes all arrays.
      place: the index of the array among the leaves of parameters and states.
      key_name: the name from which the random key is computed. All arrays of a module share this name, so that one run
        of `init` computes all of them.
    """

    init: Init
    place: int
    key_name: str

    def __call__(self, key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the initial value of the array for a random key, in the given shape and dtype."""
        return jnp.asarray(self.init.leaf(key, self.place), dtype).reshape(shape)


def leaves(tree: Any) -> list[tuple[str, Any]]:
    """Return the leaves of a pytree, each with its path, such as "Dense_0/kernel"."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in found]


def adapt(module: Any, call: Callable[..., Any] | None) -> Adapted:
    """Convert a module of Flax, Haiku or Equinox to pure functions.

    Raises:
      ArgumentTypeError: `module` is not one of the accepted objects.
      ProgramError: the program function itself created `module`, so the arrays of `module` have no values.
    """
    library = _library(module)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(module)):
        raise errors.ProgramError(
            f"layers.module: the program function created the {type(module).__name__}, so each run of the function "
            f"would create another one; create it outside the function: net = {type(module).__name__}(...), and "
            f"layers.module(net, x) inside"
        )
    return _ADAPT[library](module, call)


def update(module: Any, name: str, parameters: Mapping[str, Any], states: Mapping[str, Any]) -> Any:
    """Copy trained values of a program into a module or its variables; implements `fluid.io.update_module`.

    Raises:
      ArgumentTypeError: `module` is not a module of Flax, Haiku or Equinox.
      UnknownNameError: the program has no array for an array of the module.
    """
    prefix = f"{name}/"
    if not any(known.startswith(prefix) for known in (*parameters, *states)):
        layers = dict.fromkeys(known.rpartition("/")[0] for known in parameters)
        raise errors.UnknownNameError(
            f"update_module(name={name!r}): no parameter begins with {prefix!r}; expected the name of a layers.module. "
            f"{errors.nearest(name, layers)}"
        )
    own = [
        {known.removeprefix(prefix): jnp.asarray(array) for known, array in arrays.items() if known.startswith(prefix)}
        for arrays in (parameters, states)
    ]
    return _UPDATE[_library(module)](module, *own)


def makes_module(module: Any) -> bool:
    """Return whether `module` is a class or a function of rngs, which makes another module in each call."""
    return inspect.isclass(module) or (_library(module) == "nnx" and "rngs" in _arguments(module))


def _library(module: Any) -> str:
    """Return the library of a module: "linen", "nnx", "haiku" or "equinox"."""
    # Compare the names of base classes instead of the classes, because this needs no import of Flax, Haiku or Equinox.
    first = module[0] if isinstance(module, tuple) and module else module
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
        return "linen"
    if any(base.startswith("flax.nnx.") for base in bases) or (callable(module) and "rngs" in _arguments(module)):
        return "nnx"
    if any(base.__module__.startswith("equinox.") for base in type(first).__mro__):
        return "equinox"
    if callable(module) or any(base.startswith("haiku.") for base in bases):
        return "haiku"
    raise errors.ArgumentTypeError(
        f"layers.module takes a module of Flax, a function of rngs that makes one, or a function that calls modules of "
        f"Haiku, found {type(module).__name__}; as in layers.module(flax.linen.Dense(10), x)"
    )


def _is_foreign(base: type) -> bool:
    return base.__module__.startswith(("torch.nn.", "tensorflow.", "paddle.")) or (
        base.__module__.startswith("keras.") and base.__name__ == "Layer"
    )


def _arguments(function: Any) -> set[str]:
    """Return the argument names of a function or a class constructor; an empty set if Python finds no signature."""
    while isinstance(function, functools.partial):
        function = function.func
    function = function.__init__ if inspect.isclass(function) else function
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _mode(function: Any, train: bool) -> dict[str, bool]:
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

    def init(key: Any, *inputs: Any) -> Any:
        _, parameters, _, rest = _nnx_parts(make(key))
        return nnx.to_pure_dict(parameters), nnx.to_pure_dict(rest)

    def apply(parameters: Any, states: Any, key: Any, train: bool, *inputs: Any) -> Any:
        graph, params, rngs, rest = _nnx_parts(nnx.eval_shape(make, jax.random.key(0)))
        nnx.replace_by_pure_dict(params, parameters)
        nnx.replace_by_pure_dict(rest, states)
        model = nnx.merge(graph, params, _with_keys(rngs, key), rest)
        model.train() if train else model.eval()
        if call is None:
            result = model(*inputs, **_mode(model.__call__, train))
        else:
            result = call(model, *inputs, train)
        return result, nnx.to_pure_dict(_nnx_parts(model)[3])

    return Adapted(init, apply)


def _nnx_parts(module: Any) -> Any:
    from flax import nnx

    return nnx.split(module, nnx.Param, nnx.RngState, ...)


def _with_keys(rngs: Any, key: Any) -> Any:
    """Return the random states of an NNX module with new keys, computed from `key`, and with counters at 0."""

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
        # The result of `haiku.transform` hides the signature of the user's function, so the mode cannot be passed to
        # it.
        if is_transformed:
            return (), {}
        return ((train,), {}) if call else ((), _mode(function, train))

    def init(key: Any, *inputs: Any) -> Any:
        extra, options = settings(train=True)
        return transformed.init(key, *inputs, *extra, **options)

    def apply(parameters: Any, states: Any, key: Any, train: bool, *inputs: Any) -> Any:
        extra, options = settings(train)
        return transformed.apply(parameters, states, key, *inputs, *extra, **options)

    return Adapted(init, apply)


def _equinox(given: Any, call: Callable[..., Any] | None) -> Adapted:
    import equinox

    def init(key: Any, *inputs: Any) -> Any:
        return _equinox_parts(given)[:2]

    def apply(parameters: Any, states: Any, key: Any, train: bool, *inputs: Any) -> Any:
        fixed = _equinox_parts(given)[2]
        model = equinox.nn.inference_mode(equinox.combine(parameters, fixed), value=not train)
        if call is not None:
            result = call((model, states["state"]) if states else model, *inputs, train)
        else:
            # A module of Equinox takes one example, not a batch, so map it over the batch. Normalization layers of
            # Equinox reduce over the mapped axis by the name "batch".
            held = [states["state"]] if states else []
            extra = {}
            if "key" in _arguments(type(model).__call__):
                extra["key"] = jax.random.split(key, inputs[0].shape[0])
            result = jax.vmap(
                lambda batched, extra: model(*batched, *held, **extra),
                axis_name="batch",
                out_axes=(0, None) if held else 0,
            )(inputs, extra)
        return (result[0], {"state": result[1]} if train else {}) if states else (result, {})

    return Adapted(init, apply)


def _equinox_parts(given: Any) -> tuple[Any, Any, Any]:
    """Split an Equinox module into its trainable arrays, its states, and everything else."""
    import equinox

    model, states = (given[0], {"state": given[1]}) if isinstance(given, tuple) else (given, {})
    parameters, fixed = equinox.partition(model, equinox.is_inexact_array)
    return parameters, states, fixed


def _update_linen(module: Any, parameters: Mapping[str, Any], states: Mapping[str, Any]) -> Any:
    return {"params": _nested(parameters), **_nested(states)}


def _update_nnx(given: Any, parameters: Mapping[str, Any], states: Mapping[str, Any]) -> Any:
    from flax import nnx

    module = given if isinstance(given, nnx.Module) else given(rngs=nnx.Rngs(0))
    _, params, _, rest = _nnx_parts(module)
    for part, values in ((params, parameters), (rest, states)):
        nnx.replace_by_pure_dict(part, _filled(nnx.to_pure_dict(part), values))
    nnx.update(module, params, rest)
    return module


def _update_haiku(function: Any, parameters: Mapping[str, Any], states: Mapping[str, Any]) -> Any:
    import haiku

    params, state = (_nested(arrays, depth=2) for arrays in (parameters, states))
    return params if isinstance(function, haiku.Transformed) else (params, state)


def _update_equinox(given: Any, parameters: Mapping[str, Any], states: Mapping[str, Any]) -> Any:
    import equinox

    params, held, fixed = _equinox_parts(given)
    model = equinox.combine(_filled(params, parameters), fixed)
    return (model, _filled(held, states)["state"]) if held else model


def _filled(tree: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a pytree whose leaves are taken from `values` by their path, such as "Dense_0/kernel"."""
    absent = next((path for path, _ in leaves(tree) if path not in values), None)
    if absent is not None:
        raise errors.UnknownNameError(
            f"update_module: the module has an array {absent!r} that the program lacks; expected the module that "
            f"layers.module was given. {errors.nearest(absent, values)}"
        )
    return jax.tree.unflatten(jax.tree.structure(tree), [values[path] for path, _ in leaves(tree)])


def _nested(arrays: Mapping[str, Any], depth: int | None = None) -> dict[str, Any]:
    """Split the names of arrays at each "/", or with `depth=2` at the last "/", and return nested dicts."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *above, last = name.split("/") if depth is None else name.rsplit("/", depth - 1)
        inner = tree
        for part in above:
            inner = inner.setdefault(part, {})
        inner[last] = array
    return tree


_ADAPT = {"linen": _linen, "nnx": _nnx, "haiku": _haiku, "equinox": _equinox}
_UPDATE = {"linen": _update_linen, "nnx": _update_nnx, "haiku": _update_haiku, "equinox": _update_equinox}
