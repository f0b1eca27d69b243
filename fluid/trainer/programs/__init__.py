"""Programs of a Trainer: their declarations, the order of their training, their readers, and feeds between programs."""

from fluid.trainer.programs.program_input import (
    ProgramInput,
    ReadersLike,
    Source,
    check_data,
    pipeline_of,
    plan_of,
    program_input_called,
    program_inputs_of,
    readers_of,
    source_of,
    warn_of_idle,
)
from fluid.trainer.programs.schedule import ScheduleLike, Turns
from fluid.trainer.programs.training_program import (
    InferenceFunction,
    ProgramFunction,
    ProgramsLike,
    TrainingProgram,
    declared_programs,
    discovered,
    inference_program,
    minimizing,
)

__all__ = [
    "InferenceFunction",
    "ProgramInput",
    "ProgramFunction",
    "ProgramsLike",
    "ReadersLike",
    "ScheduleLike",
    "Source",
    "TrainingProgram",
    "Turns",
    "check_data",
    "declared_programs",
    "discovered",
    "inference_program",
    "minimizing",
    "program_input_called",
    "program_inputs_of",
    "pipeline_of",
    "plan_of",
    "readers_of",
    "source_of",
    "warn_of_idle",
]
