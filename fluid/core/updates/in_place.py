"""Values that Fluid would have changed in place. Here none ever changes, so that nobody may use the old one."""

from typing import Any

from fluid import errors
from fluid.core.frame import Frame, user_site


def change_in_place(frame: Frame, value: Any, call: str) -> None:
    """Note that Fluid would have changed a value in place, so that whoever reads the old one is told.

    Args:
      frame: of the program function that is running.
      value: what was changed.
      call: how to keep the old value, an example.
    """
    frame.note(value, changed=f"in place at {user_site()}; use what that call returned, or keep both: {call}")


def check_not_changed(frame: Frame, value: Any) -> None:
    """Check that a value is not one that Fluid would have changed in place by now.

    Raises:
      ProgramError: it is.
    """
    changed = frame.fact(value, "changed")
    if changed is not None:
        raise errors.ProgramError(
            f"a value is used that Fluid would have changed {changed}. The values of a program function never change; "
            f"programs that assign to variables run in fluid.static"
        )
