"""Shared functions: functions whose calls all use one set of parameters and states.

The second call of a shared function `net` has two name prefixes. Named values and random keys begin with `net(2)/`,
parameters and states with `net/`. Layers use the first prefix. Only `Layer.array_name`, `Layer.owner` and
`StackedBody`, which serve parameters and states, use the second prefix.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

from fluid import errors
from fluid.core.argument_checks import name_of
from fluid.core.frame import Frame, SharedCall, SharedFunction, begins_path, current_frame, mixed_prefix, user_site


def shared(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Make every call of a function use one set of parameters and states.

    The names of parameters and states begin with the name of the function, as in `discriminator/fc_0.w_0`. Other layers
    of the program and open name scopes do not change these names, so the names are equal in all calls, programs and
    parameter files. Each call draws separate dropout masks. The moving averages of `batch_norm` follow all calls, in
    order. A value of the first call is named `discriminator/fc_0.tmp_0`; of the second call,
    `discriminator(2)/fc_0.tmp_0`; and so on.

    The pattern `"discriminator/*"` selects these parameters in the `parameter_list` of `minimize`, and in `freeze`,
    `load_params`, `save_params` and shardings.

    Args:
      function: a function that calls layers, with any arguments and results. A method has separate parameters for each
        instance.
      name: the prefix of the names of the parameters; by default the name of the function. A different name creates a
        second set of parameters for one function: `target = fluid.shared(q, name="target")`.

    Returns:
      The shared function; a decorator if `function` is left out.

    Raises:
      ArgumentError: the function has no name, for example a lambda, or `name` is not a valid prefix.
      ArgumentTypeError: `function` is not callable.
      ParameterError: (in a call) the inputs of two calls need parameters of different shapes.
      ProgramError: (in a call) a program shares two functions under one name.
      OutsideProgramError: (in a call) no program function is running.

    Example:
      >>> import fluid
      >>> @fluid.shared
      ... def encoder(x):
      ...     return fluid.layers.fc(x, size=3, act="relu")
      >>> def siamese():
      ...     first, second = fluid.layers.data("first", shape=[4]), fluid.layers.data("second", shape=[4])
      ...     return fluid.layers.cos_sim(encoder(first), encoder(second))
      >>> list(fluid.Program(siamese).parameters)
      ['encoder/fc_0.w_0', 'encoder/fc_0.b_0']
    """
    if function is None:
        return functools.partial(shared, name=name)
    if isinstance(function, Shared):
        function = function.function
    if not callable(function):
        raise errors.ArgumentTypeError(
            f"fluid.shared takes a function that calls layers, found {type(function).__name__}; hand over the function "
            f"itself, and call what is returned: encoder = fluid.shared(encode), then encoder(x)"
        )
    if name is None:
        name = name_of(function)
        if name in ("program", "<lambda>") and getattr(function, "__name__", "") != name:
            raise errors.ArgumentError(
                f'fluid.shared needs a name for the parameters of {function!r}: fluid.shared(function, name="encoder")'
            )
    elif not isinstance(name, str) or not name or set(name) & set("/()[]*?@"):
        raise errors.ArgumentError(
            f"fluid.shared(name={name!r}): expected one name without any of / ( ) [ ] * ? @, such as "
            f'fluid.shared(function, name="encoder")'
        )
    return Shared(function, name)


class Shared:
    """A function whose calls all use one set of parameters and states. `shared` creates it.

    Attributes:
      function: the argument `function`.
      name: the argument `name`.
    """

    def __init__(self, function: Callable[..., Any], name: str):
        functools.update_wrapper(self, function)
        self.function = function
        self.name = name

    def __repr__(self) -> str:
        return f"fluid.shared({name_of(self.function)}, name={self.name!r})"

    def __get__(self, instance: Any, owner: type | None = None) -> "Shared":
        """Bind a method to its instance, as Python does for functions."""
        return self if instance is None else Shared(self.function.__get__(instance, owner), self.name)

    @begins_path
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the shared function: all its calls use the same parameters and states, which the first call creates."""
        frame = current_frame("shared")
        naming = frame.naming
        outer = naming.scopes, naming.shared
        naming.shared = self._begin(frame)
        naming.scopes = (naming.shared.values,)
        try:
            return self.function(*args, **kwargs)
        finally:
            naming.scopes, naming.shared = outer

    def _begin(self, frame: Frame) -> SharedCall:
        """Record a call of this shared function in a program; return the name prefixes and source line of the call."""
        site = user_site()
        if frame.discovering and self.name not in frame.declared.shared:
            _check_prefix(frame, self.name)
        known = frame.declared.shared.setdefault(self.name, SharedFunction(self.function))
        # JAX traces a loop body several times, and each trace may define the shared function again: compare its code.
        same = _identity(self.function) == _identity(known.function)
        if not same and not (frame.inside_loop and _code(self.function) is _code(known.function)):
            raise errors.ProgramError(
                f"two functions are shared under the name {self.name!r}: {_described(known.function)}, called at "
                f"{next(iter(known.calls.values()))}, and {_described(self.function)}, called at {site}. For two nets, "
                f'name the second: fluid.shared(function, name="{self.name}_2"); for one net, call fluid.shared once, '
                f"outside of the function that uses it"
            )
        number = frame.naming.counters.get(f"call of {self.name}", 0) + 1
        frame.naming.counters[f"call of {self.name}"] = number
        values = self.name if number == 1 else f"{self.name}({number})"
        known.calls.setdefault(values, site)
        return SharedCall(self.name, values, site)


def check_same_nets(program: str, nets: Mapping[str, SharedFunction], others: Mapping[str, SharedFunction]) -> None:
    """Raise an error if two programs of one Session share different functions that have the same default name.

    Raises:
      ProgramError: two different functions have one default name.
    """
    for name in nets.keys() & others.keys():
        mine, its = nets[name].function, others[name].function
        if name_of(mine) == name_of(its) == name and _definition(mine) != _definition(its):
            raise errors.ProgramError(
                f"the program {program} shares another function under the name {name!r} than a program before it: "
                f"{_described(mine)}, called at {next(iter(nets[name].calls.values()))}, and {_described(its)}, called "
                f"at {next(iter(others[name].calls.values()))}; for two nets, name one of them: "
                f'fluid.shared({name}, name="{name}_2"); for one net, give both one name: fluid.shared(..., '
                f'name="{name}")'
            )


def _definition(function: Callable[..., Any]) -> tuple[Any, ...]:
    """Return the module and the qualified name of a function, and for a method the `id` of its instance.

    These values stay equal if a notebook cell defines the function again.
    """
    while isinstance(function, functools.partial):
        function = function.func
    names = [getattr(function, attribute, "") for attribute in ("__module__", "__qualname__")]
    return (*names, id(getattr(function, "__self__", None)))


def _check_prefix(frame: Frame, name: str) -> None:
    """Raise an error if `name`, the name of a shared function, is also a name scope that holds parameters."""
    for array, spec in frame.declared.arrays.items():
        if array.startswith(f"{name}/") and spec.layer and array.startswith(f"{spec.layer}."):
            raise errors.ParameterError(mixed_prefix(name, spec.site))


def _identity(function: Callable[..., Any]) -> Any:
    """Return a key that is equal for equal functions: one function, one method of one object, or equal partials."""
    if not isinstance(function, functools.partial):
        return function
    plain = str | int | float | None
    given = [
        (key, v if isinstance(v, plain) else id(v))
        for key, v in [*enumerate(function.args), *function.keywords.items()]
    ]
    return _identity(function.func), tuple(given)


def _code(function: Callable[..., Any]) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return getattr(function, "__code__", function)


def _described(function: Callable[..., Any]) -> str:
    """Return text with the name of a function and the source line that defines it."""
    code = _code(function)
    if not hasattr(code, "co_filename"):
        return repr(function)
    return f"{name_of(function)} of {code.co_filename}:{code.co_firstlineno}"
