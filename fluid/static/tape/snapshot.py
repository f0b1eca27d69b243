"""Snapshots: the calls that a program has recorded so far, as a program function; and the call that minimises."""

from typing import Any

import jax.numpy as jnp

from fluid import core
from fluid.static.tape import values
from fluid.static.tape.calls import Call, Environment, run_calls
from fluid.static.tape.variable import Variable


class Tape:
    """The calls that a Program had recorded at one time, as a program function.

    Args:
      program: the Program.
      calls: the calls of its global block.
      variables: the variables to return.
    """

    def __init__(self, program: Any, calls: list[Call], variables: list[Variable]):
        self._program = program
        self._calls = calls
        self._variables = variables

    def __call__(self) -> dict[str, Any]:
        """Run the calls; return the final values of the variables by name, the loss first."""
        environment = self.run()
        first = self._program.first
        order = [*([first] if first is not None else []), *self._variables]
        found = {v.name: environment.find(v) for v in (*order, *environment.written())}
        results = {n: v for n, v in found.items() if v is not None and values.is_value(v)}
        return results or {"nothing": jnp.zeros([1])}

    def run(self) -> Environment:
        """Run the calls, and set the states that they assign; return the final values of all variables."""
        for variable in self._program.list_vars():
            variable.check()
        environment = run_calls(self._calls)
        for variable in environment.written():
            if not variable.is_parameter:
                variable.held()  # declares the state, because maybe no call has read it
                core.set_state(variable.name, environment[variable])
        return environment


def minimized(optimizer: Any, loss: Any, parameters: Any, excluded: Any, rate: Any) -> None:
    """Minimise a loss, inside a run.

    Args:
      optimizer: an optimizer of fluid.
      loss: the loss, `[1]`.
      parameters: names of the parameters to change; None for all trainable parameters.
      excluded: names of the parameters to leave unchanged.
      rate: the learning rate `[1]`, if the program computes one; None for the learning rate of the optimizer.
    """
    optimizer.minimize(loss, parameter_list=parameters, no_grad_set=excluded)
    if rate is not None:
        made = core.current_frame("optimizer.minimize").made.minimizations
        made[-1] = made[-1]._replace(rate=jnp.reshape(rate, ()))


def changes(call: Call, name: str) -> bool:
    """Return whether a call of `minimized` changes the parameter `name`."""
    names, excluded = call.args[2:4]
    return (names is None or name in names) and name not in excluded
