"""Unique names: Fluid's functions for automatic names. In this package, the counters start at 0 in each program."""

import contextlib
from collections.abc import Iterator

from fluid import core, errors


@contextlib.contextmanager
def guard(new_generator: None = None) -> Iterator[None]:
    """Accept Fluid's call that resets automatic names. It changes nothing: each program already starts new names.

    Inside a program function, the guard must come before all layers. A later reset would create two layers with one
    name, which would share their parameters.

    Raises:
      ArgumentTypeError: `new_generator` is given.
      ProgramError: the program function has called layers before the guard.

    Example:
      >>> import fluid
      >>> with fluid.unique_name.guard():
      ...     session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> sorted(session.scope)
      ['fc_0.b_0', 'fc_0.w_0']
    """
    if new_generator is not None:
        raise errors.ArgumentTypeError(
            f"unique_name.guard({new_generator!r}): names have no generators; to put something before them write "
            f'with fluid.name_scope("teacher"):'
        )
    frame = core.present_frame()
    if frame is not None and frame.naming.counters:
        raise errors.ProgramError(
            "unique_name.guard() inside a program function, behind layers that have names already, would give these "
            'names out once more; write with fluid.name_scope("second"): instead, or share parameters by '
            'ParamAttr(name="shared")'
        )
    yield


def generate(key: str) -> str:
    """Return a new automatic name inside a program function, such as `fc_0` for "fc".

    Raises:
      OutsideProgramError: no program function is running.

    Example:
      >>> import fluid
      >>> def program():
      ...     name = fluid.unique_name.generate("table")
      ...     return fluid.layers.create_parameter([2], name=name)
      >>> list(fluid.Program(program).parameters)
      ['table_0']
    """
    return core.current_frame("unique_name.generate").unique(key)
