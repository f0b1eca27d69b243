"""The inference program of a Trainer: `infer_func`, which shares parameters with the trained programs."""

from collections.abc import Callable, Sequence
from typing import Any

from fluid import errors
from fluid.core import Program
from fluid.runtime import Session
from fluid.trainer.programs.sharing import warn_of_shared_by_number

InferenceFunction = Callable[[], Any] | Program


def inference_program(
    infer_func: InferenceFunction | None, programs: Sequence[Program], session: Session, precision: str | None
) -> Program | None:
    """Discover the inference program of a Trainer; return None if `infer_func` is None.

    Args:
      infer_func: as for Trainer.
      programs: the trained programs.
      session: holds the parameters of the trained programs.
      precision: as for Trainer.

    Raises:
      ParameterError: the inference program has a parameter or state that the trained programs lack, or have in another
        shape.
    """
    if infer_func is None:
        return None
    found = infer_func if isinstance(infer_func, Program) else Program(infer_func, precision=precision)
    trained = " and ".join(program.name for program in programs)
    specs = session.scope.specs
    for name, spec in (found.parameters | found.states).items():
        if name not in specs:
            raise errors.ParameterError(
                f"infer_func={found.name} has the parameter {name!r}, created at {spec.site}, which the trained "
                f"program {trained} lacks, so nothing would train it. {errors.nearest(name, specs)} Make the net in "
                f'one function that both call, or give its parameters names: param_attr="out.w"'
            )
        if specs[name].shape != spec.shape:
            raise errors.ParameterError(
                f"infer_func={found.name} has the parameter {name!r} of shape {list(spec.shape)}, created at "
                f"{spec.site}, and the trained program {trained} has it of shape {list(specs[name].shape)}, created at "
                f"{specs[name].site}; make the net in one function that both call"
            )
    warn_of_shared_by_number([*programs, found])
    return found
