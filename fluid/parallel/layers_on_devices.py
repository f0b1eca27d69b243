"""Layers on different devices: the equations of a step are split by device, and compiled separately for each device."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid._util.globs import pattern_of, select
from fluid.core import Program, own_array
from fluid.core.equations import DEFAULT, device_in, is_literal
from fluid.place import OneDevice, device_of


class OnDevices(OneDevice):
    """A layout of the arrays of a Session on several devices: each array is undivided, and on one of the devices.

    A function that XLA compiles for several devices runs on all of them, so it cannot contain parts for single devices
    (jax 0.10.2). With this layout, each device has its own compiled functions.

    Attributes:
      device: the device of feeds, and of arrays for which no other device is set.

    Example:
      >>> import fluid, jax
      >>> layout = OnDevices(jax.devices()[0], {"fc_1.*": "cpu:0"})
      >>> layout.in_parts
      True
    """

    in_parts = True

    def __init__(self, device: jax.Device, places: Mapping[str, Any] | None = None):
        super().__init__(device)
        self._places = dict(places or {})
        self._rules = {pattern: device_of(place) for pattern, place in self._places.items()}
        self._devices: dict[str, jax.Device] = {}

    def on(self, device: jax.Device) -> "OnDevices":
        """Return a copy of this layout, which chooses a device for each array, with another default device."""
        return OnDevices(device, self._places)

    def add(self, program: Program) -> None:
        """Register a program: choose the device of each parameter and state."""
        for name, spec in (program.parameters | program.states).items():
            pattern = pattern_of(name, self._rules, "shardings")
            guard = device_of(spec.device) if spec.device else self.device
            self._devices.setdefault(name, guard if pattern is None else self._rules[pattern])

    def check(self, names: Collection[str]) -> None:
        """Check that each name or glob in `shardings=` matches one of `names`.

        Raises:
          UnknownNameError: a name or glob matches nothing.
        """
        select(list(self._places), names, "shardings")

    def place(self, value: Any) -> Any:
        """Put each array of a tree on the device chosen for its parameter or state, else on the default device.

        A key in the path of an array names the parameter or state.
        """
        return jax.tree_util.tree_map_with_path(
            lambda path, array: jax.device_put(array, self.device_at(path) or self.device), value
        )

    def replace(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """Copy each array of `new` to the device of the array with the same name in `old`."""
        return {name: own_array(jax.device_put(value, old[name].sharding)) for name, value in new.items()}

    def device_at(self, path: Sequence[Any]) -> jax.Device | None:
        """Return the device of an array in a pytree, by its path in the pytree.

        Return None if the path contains no name of a parameter or state.
        """
        names = (getattr(entry, "key", None) for entry in path)
        return next((self._devices[name] for name in names if name in self._devices), None)

    def jit_train(self, step: Callable[..., Any], state: Any) -> "InParts":
        """Return a training step that is compiled in parts, each for one device."""
        return InParts(step, self, updates=True)

    def jit_test(self, step: Callable[..., Any]) -> "InParts":
        """Return a test-mode step that is compiled in parts, each for one device."""
        return InParts(step, self, updates=False)


class _DeviceEquations(NamedTuple):
    """A group of equations that are compiled as one function for one device.

    Attributes:
      device: the device.
      run: the compiled function.
      reads: the variables of the arguments of the function.
      makes: the variables of the results of the function.
    """

    device: jax.Device
    run: Callable[..., Any]
    reads: list[Any]
    makes: list[Any]


class _Plan(NamedTuple):
    """A training or inference step that is divided into parts for single devices, for arguments of given shapes.

    Attributes:
      jaxpr: the equations of the step, with their constants.
      parts: the groups of equations for one device each, in the order in which they run.
      tree: the structure of the results.
    """

    jaxpr: Any
    parts: list[_DeviceEquations]
    tree: Any


class InParts:
    """A step that runs in parts, each compiled for one device; values move to the parts that need them."""

    def __init__(self, function: Callable[..., Any], layout: OnDevices, updates: bool):
        self._function = function
        self._layout = layout
        self._updates = updates
        self._plans: dict[Any, _Plan] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Run the parts of the step in order, each on its device, and return the results of the step."""
        leaves, tree = jax.tree.flatten(arguments)
        key = (tree, tuple(map(_signature, leaves)))
        plan = self._plans.get(key) or self._plans.setdefault(key, self._planned(arguments))
        jaxpr = plan.jaxpr.jaxpr
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*plan.jaxpr.consts, *leaves), strict=True))
        for part in plan.parts:
            made = part.run(*jax.device_put([known[v] for v in part.reads], part.device))
            known |= zip(part.makes, made, strict=True)
        results = jax.tree.unflatten(plan.tree, [v.val if is_literal(v) else known[v] for v in jaxpr.outvars])
        if not self._updates:
            return results
        state = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), results[0], arguments[0])
        return (state, *results[1:])

    def _planned(self, arguments: Any) -> _Plan:
        """Trace the step for arguments of these shapes, and divide its equations into parts, each for one device."""
        closed, shapes = jax.make_jaxpr(self._function, return_shape=True)(*arguments)
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(arguments)]
        arrays = {v: self._layout.device_at(path) for path, v in zip(paths, closed.jaxpr.invars, strict=True)}
        devices = _devices(closed.jaxpr, {v: d for v, d in arrays.items() if d is not None}, self._layout.device)
        return _Plan(closed, _parts(closed.jaxpr, devices), jax.tree.structure(shapes))


def _signature(leaf: Any) -> Any:
    return jnp.shape(leaf), jnp.result_type(leaf), getattr(leaf, "weak_type", False)


def _devices(jaxpr: Any, arrays: Mapping[Any, jax.Device], default: jax.Device) -> list[jax.Device]:
    """Choose the device of each equation, in order.

    An equation runs on the device of the `device_guard` around it; else of the first parameter that it reads; else of
    its first input.
    """
    # `fixed` is a dict from parameters to their devices. The loop adds values that are computed only from parameters,
    # because these values count as parameters in the choice of devices.
    fixed = dict(arrays)
    moving: dict[Any, jax.Device] = {}
    found = []
    for equation in jaxpr.eqns:
        inputs = [v for v in equation.invars if not is_literal(v)]
        guard = device_in(equation)
        parameters = [fixed[v] for v in inputs if v in fixed]
        guarded = [default if guard == DEFAULT else device_of(guard)] if guard else []
        chosen = guarded or parameters + [moving[v] for v in inputs if v in moving]
        found.append((*chosen, default)[0])
        kind = fixed if inputs and len(parameters) == len(inputs) and not guard else moving
        if chosen:
            kind.update(dict.fromkeys(equation.outvars, found[-1]))
    return found


def _parts(jaxpr: Any, devices: Sequence[jax.Device]) -> list[_DeviceEquations]:
    """Group the equations of a program into parts; all equations of a part run on one device.

    A part contains every remaining equation of its device that does not wait for a later part.
    """
    groups: list[tuple[jax.Device, list[Any]]] = []
    waiting = list(zip(jaxpr.eqns, devices, strict=True))
    while waiting:
        device = waiting[0][1]
        taken, rest, late = [], [], set[Any]()
        for equation, where in waiting:
            if where == device and not any(v in late for v in equation.invars if not is_literal(v)):
                taken.append(equation)
            else:
                rest.append((equation, where))
                late |= set(equation.outvars)
        groups.append((device, taken))
        waiting = rest
    needed = {v for v in jaxpr.outvars if not is_literal(v)}
    parts = []
    for device, equations in reversed(groups):
        made = dict.fromkeys(
            v for equation in equations for v in equation.outvars
        )  # `made` is a dict instead of a set, because a set has no fixed order
        read = dict.fromkeys(v for equation in equations for v in equation.invars if not is_literal(v))
        reads, makes = [v for v in read if v not in made], [v for v in made if v in needed]
        needed.update(reads)
        part = jaxpr.replace(constvars=[], invars=reads, eqns=equations, outvars=makes)
        parts.append(_DeviceEquations(device, _compiled(part), reads, makes))
    return parts[::-1]


def _compiled(jaxpr: Any) -> Callable[..., Any]:
    return jax.jit(lambda *inputs: jax.core.eval_jaxpr(jaxpr, (), *inputs))
