"""A program function that minimises what it returns first: how a Trainer joins a function and an optimizer."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluid import errors
from fluid.core import Program, current_frame
from fluid.optimizer.base import Minimizer, OptimizerLike, as_optimizer


def trained_program(
    function: Callable[[], Any] | None,
    optimizer: OptimizerLike | None,
    precision: str | None,
    parameter_list: str | Sequence[str] | None = None,
) -> Program:
    """The Program that a Trainer trains.

    Args:
      function: as for `minimizing`, or None.
      optimizer: as for `minimizing`; None for a function that minimises something itself.
      precision: see `fluid.Program`.
      parameter_list: as for `minimizing`.

    Raises:
      ArgumentTypeError: there is no function, or nothing that minimises.
      UnknownNameError: `parameter_list` names no parameter of the program.
      ArgumentError: there is a `parameter_list`, and the function minimises something itself.
    """
    if function is None:
        raise errors.ArgumentTypeError("a Trainer needs a program function: fluid.Trainer(train_program, optimizer)")
    if optimizer is not None:
        function = minimizing(function, optimizer, parameter_list)
    elif parameter_list is not None:
        raise errors.ArgumentError(
            f"parameter_list={parameter_list!r} says what an optimizer moves, and none is given with it: "
            f"fluid.TrainingProgram(program, fluid.optimizer.Adam(1e-3), parameter_list=...); a program that calls "
            f"optimizer.minimize itself says it there: minimize(loss, parameter_list=...)"
        )
    program = Program(function, precision=precision)
    if not program.minimizes:
        raise errors.ArgumentTypeError(
            "a Trainer needs an optimizer: fluid.Trainer(train_program, fluid.optimizer.Adam(1e-3)), "
            "or a program function that calls optimizer.minimize(loss)"
        )
    return program


def minimizing(
    function: Callable[[], Any], optimizer: OptimizerLike, parameter_list: str | Sequence[str] | None = None
) -> Callable[[], Any]:
    """A program function that does what the given one does, and then minimises its loss.

    The loss is the output named "loss" of a dict, wherever it stands, or else the first output.

    Args:
      function: returns a value, or a list, tuple or dict of values. One that cannot be called, or that returns nothing
        to minimise, is left for Program to complain of.
      optimizer: a fluid optimizer, an optax transformation, or a function that returns one.
      parameter_list: names and globs of the parameters that it moves; all that are trainable by default.

    Raises:
      ArgumentTypeError: the optimizer is none of these.
      ArgumentError: when the function runs: it minimises something itself, so there would be two rules.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.Program(minimizing(program, fluid.optimizer.SGD(0.1))).minimizes[0].parameters
      ('fc_0.w_0', 'fc_0.b_0')
    """
    chosen = as_optimizer(optimizer)
    if not callable(function):
        return function

    @functools.wraps(function)
    def program() -> Any:
        outputs = function()
        _refuse_two_rules(chosen)
        loss = _loss_of(outputs)
        if loss is not None and not isinstance(loss, list | tuple):
            if isinstance(outputs, Mapping) and "loss" not in outputs:
                current_frame("optimizer.minimize").note(loss, first_of_dict=True)
            chosen.minimize(loss, parameter_list=parameter_list)
        return outputs

    if not hasattr(program, "__name__"):  # a functools.partial has none
        program.__name__ = getattr(getattr(function, "func", None), "__name__", "program")
    return program


def _loss_of(outputs: Any) -> Any:
    """What a program function returned as its loss."""
    if isinstance(outputs, Mapping):
        return outputs["loss"] if "loss" in outputs else next(iter(outputs.values()), None)
    return outputs[0] if isinstance(outputs, list | tuple) and outputs else outputs


def _refuse_two_rules(optimizer: Minimizer) -> None:
    recorded = current_frame("optimizer.minimize").made.minimizations
    if recorded:
        raise errors.ArgumentError(
            f"the program calls {type(recorded[0].optimizer).__name__}.minimize itself, and the Trainer was given "
            f"{type(optimizer).__name__} as well, so both rules would change the parameters; leave one out: "
            f"fluid.Trainer(program), or a program that returns its loss only"
        )
