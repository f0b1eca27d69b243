"""Values that Fluid would change in place. Values never change here, so using the old value later is an error."""

from typing import Any

from fluid import errors
from fluid.core.frame import Frame, user_site


def change_in_place(frame: Frame, value: Any, call: str) -> None:
    """Note that Fluid would have changed a value in place, so that `check_not_changed` refuses the old value.

    Args:
      frame: the frame of the running program function.
      value: the value that Fluid would have changed.
      call: an example of code that keeps the old value, for the message.
    """
    frame.note(value, changed=f"in place at {user_site()}; use what that call returned, or keep both: {call}")


def check_not_changed(frame: Frame, value: Any) -> None:
    """Check that Fluid would not have changed a value in place before this use.

    Raises:
      ProgramError: Fluid would have changed the value.
    """
    changed = frame.fact(value, "changed")
    if changed is not None:
        raise errors.ProgramError(
            f"a value is used that Fluid would have changed {changed}. The values of a program function never change; "
            f"programs that assign to variables run in fluid.static"
        )
