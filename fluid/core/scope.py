"""Scope: the mapping from names to the parameters and states of a Session."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util.host_random import root_key
from fluid.core.argument_checks import whole_number
from fluid.core.frame import ParameterSpec


def own_array(value: Any) -> jax.Array:
    """Copy a NumPy array or a JAX array to the device; the copy has no weak type.

    The function avoids `jax.numpy.array`, which compiles a program for each shape.
    """
    if not isinstance(value, jax.Array) or value.weak_type:
        return jax.device_put(np.array(value))
    return jax.device_put(value, value.sharding, may_alias=False)


class _Closed(dict[str, Any]):
    """An empty dict that replaces the arrays of a closed session; reading any name raises an error."""

    def __missing__(self, name: str) -> Any:
        raise errors.ArgumentError("this session is closed; make a new one: fluid.Session(program)")


class Scope(MutableMapping[str, jax.Array]):
    """A mapping from names to the parameters and states of a Session.

    Reading a name returns a copy, which stays valid during training. Assigning checks name, shape and dtype. Only the
    programs of the Session add names. The scope also holds the optimizer state, the step counter and the random seed.

    Attributes:
      specs: ParameterSpec by name.
      arrays: the arrays by name; a training step donates the buffers and stores new arrays.
      slots: one optimizer state for each call of `minimize`, by program and index of the call; donated like `arrays`.
      step: the number of completed training steps, int32 scalar; donated like `arrays`.
      root: the key data, uint32 [2], from which all random keys of the Session are computed.
      lock: a lock for steps that donate and replace arrays, and for code that reads several arrays.
      trained: True if the Session has training steps, which donate arrays.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> session.scope["fc_0.b_0"] = [0.5]
      >>> session.scope["fc_0.b_0"].tolist(), sorted(session.scope)
      ([0.5], ['fc_0.b_0', 'fc_0.w_0'])
    """

    def __init__(self, seed: int, place: Callable[[Any], Any]):
        self.lock = threading.RLock()
        self.trained = False
        self.specs: dict[str, ParameterSpec] = {}
        self.arrays: dict[str, Any] = {}
        self.slots: dict[str, Any] = {}
        self.step: Any = place(np.int32(0))
        self.root: Any = place(jax.random.key_data(root_key(whole_number("Session", "seed", seed, least=0))))

    def declare(self, specs: Mapping[str, ParameterSpec], init: Callable[[], Mapping[str, Any]]) -> None:
        """Add the parameters and states of a program to this Scope, which holds the arrays of a session.

        Programs share arrays by name: an array that an earlier program has added stays as it is.

        Args:
          specs: the ParameterSpec of each parameter and state, by name.
          init: returns the initial values, already on their devices; called only if a name is new.

        Raises:
          ParameterError: another program declared a name with another shape or dtype.
        """
        for name, spec in specs.items():
            known = self.specs.get(name, spec)
            if (known.shape, known.dtype) != (spec.shape, spec.dtype):
                raise errors.ParameterError(
                    f"two programs use the parameter {name!r} with different shapes:\n"
                    f"  {known.dtype}{list(known.shape)} at {known.site}\n"
                    f"  {spec.dtype}{list(spec.shape)} at {spec.site}\n"
                    f"programs of one Session share by name; rename one: ParamAttr(name=...) or fluid.name_scope(...)"
                )
        if any(name not in self.specs for name in specs):
            values = init()
            new = [n for n in specs if n not in self.specs]
            self.arrays |= {n: values[n] for n in sorted(new)}  # arrays are sorted by name, as in saved files
            self.specs |= {n: specs[n] for n in new}

    def move(self, place: Callable[[Any], Any]) -> None:
        """Move all arrays of this scope to another device; this is allowed only before the first training step.

        Args:
          place: puts a pytree of arrays on a device.
        """
        with self.lock:
            self.arrays, self.slots = place(self.arrays), place(self.slots)
            self.step, self.root = place(self.step), place(self.root)

    def close(self) -> None:
        """Release the memory of all arrays in the scope; later reads of an array raise an error."""
        self.arrays, self.slots = _Closed(), {}

    def known_step(self) -> int | None:
        """Return the number of completed training steps; None while a step runs, because this method never waits."""
        step = self.step
        return None if step.is_deleted() or not step.is_ready() else int(step)

    def __getitem__(self, name: str) -> jax.Array:
        self._check_name(name)
        with self.lock:
            return own_array(self.arrays[name])

    def copies(self, names: Iterable[str] | None = None) -> dict[str, jax.Array]:
        """Return copies of the named arrays, by default of all arrays. No training step runs between the copies."""
        with self.lock:
            return {name: self[name] for name in (self.arrays if names is None else names)}

    def __setitem__(self, name: str, value: Any) -> None:
        self._check_name(name)
        spec = self.specs[name]
        array = np.asarray(value) if not isinstance(value, jax.Array) else value
        same_kind = np.can_cast(array.dtype, jnp.dtype(spec.dtype), "same_kind")
        if tuple(array.shape) != spec.shape or not same_kind:
            raise errors.ParameterError(
                f"{name!r} is {spec.dtype}{list(spec.shape)}, found {array.dtype}{list(array.shape)}; "
                f"assign an array of that shape: scope[{name!r}] = array.reshape({list(spec.shape)})"
            )
        with self.lock:
            own = own_array(array.astype(jnp.dtype(spec.dtype)))
            self.arrays[name] = jax.device_put(own, self.arrays[name].sharding)

    def __delitem__(self, name: str) -> None:
        raise errors.ArgumentError(f"{name!r} belongs to a program and cannot be deleted; assign to it instead")

    def __iter__(self) -> Iterator[str]:
        return iter(self.arrays)

    def __len__(self) -> int:
        return len(self.arrays)

    def __repr__(self) -> str:
        return "Scope(" + ", ".join(f"{n}: {s.dtype}{list(s.shape)}" for n, s in self.specs.items()) + ")"

    def _check_name(self, name: str) -> None:
        if name not in self.arrays:
            raise errors.UnknownNameError(f"no parameter or state {name!r} here. {errors.nearest(name, self.arrays)}")
