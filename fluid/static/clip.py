"""Gradient clipping, for one optimizer or for all losses of a program."""

from collections.abc import Sequence
from typing import Any

from fluid import errors
from fluid.clip import GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue
from fluid.static.tape.program import Program, default_main_program

__all__ = ["GradientClipByGlobalNorm", "GradientClipByNorm", "GradientClipByValue", "set_gradient_clip"]

Clip = GradientClipByGlobalNorm | GradientClipByNorm | GradientClipByValue


def set_gradient_clip(clip: Clip, param_list: Sequence[Any] | None = None, program: Program | None = None) -> None:
    """Clip the gradients in each `minimize` of an optimizer that the program records after this call.

    Args:
      clip: a gradient clip of this module, for example GradientClipByGlobalNorm.
      param_list: not supported; pass `ParamAttr(gradient_clip=clip)` to the parameters instead.
      program: the program; by default the default main program.

    Raises:
      ArgumentError: `param_list` is given.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(clip_norm=1.0))
    """
    if param_list is not None:
        raise errors.ArgumentError(
            "set_gradient_clip(param_list=) is not here; say it where the parameters are made: "
            "fc(x, size=10, param_attr=fluid.ParamAttr(gradient_clip=clip))"
        )
    (program or default_main_program()).clip = clip
