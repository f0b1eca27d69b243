"""Updates: records of `minimize` calls, of gradient clips, and of values that PaddlePaddle Fluid changes in place."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp

from fluid import errors
from fluid._util.globs import is_glob, select
from fluid.core.frame import Frame, Minimization, current_frame, present_frame, user_site
from fluid.core.variables import doubt


class Parameter(NamedTuple):
    """The name, shape and dtype of a parameter, passed to user functions such as `need_clip`."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def described(name: str, value: Any) -> Parameter:
    """Return the `Parameter` (name, shape and dtype) of the array `value` with the name `name`."""
    return Parameter(name, tuple(value.shape), str(value.dtype))


def decide(argument: str, function: Callable[[Parameter], Any], name: str, value: Any) -> bool:
    """Call a user's function, such as `need_clip`, for one parameter, and return its result as a bool.

    Raises:
      ArgumentTypeError: `function` is not callable, or returns text or a negative number, such as -1 from `str.find`.
        Python would convert both to True.
    """
    if not callable(function):
        raise errors.ArgumentTypeError(
            f"{argument}={function!r}: expected a function of one parameter that returns True or False: "
            f'{argument}=lambda parameter: parameter.name.endswith(".b_0")'
        )
    found = function(described(name, value))
    if isinstance(found, str) or (isinstance(found, int | float) and found < 0):
        raise errors.ArgumentTypeError(
            f"{argument} returned {found!r} for the parameter {name!r}, expected True or False: "
            f'{argument}=lambda parameter: parameter.name.endswith(".b_0")'
        )
    return bool(found)


def record_minimize(
    loss: Any, optimizer: Any, parameter_list: Sequence[Any] | None = None, no_grad_set: Sequence[Any] | None = None
) -> Any:
    """Record that an optimizer minimises a loss by changing parameters. A Session builds its training step from this.

    Args:
      loss: a float array `[]` or `[1]` of the running program.

    Raises:
      ProgramError: the loss is not one floating-point number.
      UnknownNameError: a name is not a parameter of the program.
    """
    frame = current_frame("optimizer.minimize")
    shape = jnp.shape(loss)
    dtype = jnp.result_type(loss)
    if shape not in ((), (1,)) or not jnp.issubdtype(dtype, jnp.floating):
        found = ", ".join("batch" if d == frame.placeholder_batch else str(d) for d in shape)
        raise errors.ProgramError(
            f"the loss must be one float, found {dtype}[{found}]; reduce it first: "
            f"loss = fluid.layers.mean(loss), and return it first"
        )
    names = None if parameter_list is None else _parameter_names(frame, parameter_list)
    excluded = _parameter_names(frame, no_grad_set or ())
    for earlier in frame.made.minimizations:
        if earlier.value is loss and earlier.parameter_list == names:
            doubt(
                "minimize was called twice with one loss, so that each step changes the parameters twice; call it "
                "once, or give each call a parameter_list= of its own"
            )
    frame.made.late_clip = ""
    number = len(frame.made.minimizations)
    frame.made.minimizations.append(Minimization(loss, jnp.reshape(loss, ()), optimizer, names, excluded))
    recorded = frame.declared.optimizers
    return recorded[number] if number < len(recorded) else None


def record_gradient_clip(clip: Any) -> None:
    """Set the gradient clip of all parameters, in a program function or a function that returns an optimizer.

    Raises:
      OutsideProgramError: no program function and no function that returns an optimizer is running.
    """
    frame = present_frame(settings=True) or current_frame("clip.set_gradient_clip")
    frame.made.gradient_clip = clip
    frame.made.late_clip = user_site() if clip is not None and frame.made.minimizations else ""


def clip_parameters(clip: Any, parameter_list: Sequence[Any]) -> None:
    """Set the gradient clip of some parameters.

    Raises:
      UnknownNameError: a name is not a parameter of the program.
    """
    frame = current_frame("clip.set_gradient_clip")
    for name in _parameter_names(frame, parameter_list, "set_gradient_clip"):
        spec = frame.declared.arrays[name]
        frame.declared.arrays[name] = replace(spec, settings=replace(spec.settings, gradient_clip=clip))


def _parameter_names(frame: Frame, items: Sequence[Any], caller: str = "minimize") -> tuple[str, ...]:
    if isinstance(items, str):
        items = [items]
    parameters = [n for n, s in frame.declared.arrays.items() if s.trainable is not None]
    names = []
    for item in items:
        if isinstance(item, str) and is_glob(item):
            names += select(item, parameters, caller)
            continue
        name = item if isinstance(item, str) else frame.fact(item, "parameter") or getattr(item, "name", None)
        spec = frame.declared.arrays.get(name) if isinstance(name, str) else None
        if spec is None or spec.trainable is None:
            raise errors.UnknownNameError(
                f"{caller} was given {name if name is not None else item!r}, which is no parameter of this program. "
                f"{errors.nearest(str(name), parameters)}"
            )
        names.append(str(name))
    return tuple(dict.fromkeys(names))


def change_in_place(frame: Frame, value: Any, call: str) -> None:
    """Record that PaddlePaddle Fluid would change `value` in place; `check_not_changed` then refuses the old value."""
    frame.note(value, changed=f"in place at {user_site()}; use what that call returned, or keep both: {call}")


def check_not_changed(frame: Frame, value: Any) -> None:
    """Raise an error if code uses the old value of an array that PaddlePaddle Fluid would have changed in place.

    Raises:
      ProgramError: `change_in_place` has recorded the value.
    """
    changed = frame.fact(value, "changed")
    if changed is not None:
        raise errors.ProgramError(
            f"a value is used that Fluid would have changed {changed}. The values of a program function never change; "
            f"programs that assign to variables run in fluid.static"
        )
