"""What a program is: Frame, variables, Program, SequenceBatch, Scope. Knows no layer and no optimizer."""

from fluid.core.arguments import is_compiled_with_cuda, is_size, one_of, refuse_parallel, whole_number
from fluid.core.body import Body, inner_frame, leave
from fluid.core.frame import (
    TEST,
    TRAIN,
    Array,
    FeedSpec,
    Frame,
    ParameterSpec,
    current_frame,
    name_scope,
    record_gradient_clip,
    running,
    user_site,
    warn,
)
from fluid.core.lod import LoDTensor
from fluid.core.nested import NestedSequenceBatch, Value, stand_in
from fluid.core.program import Applied, Minimize, Program
from fluid.core.reduction import Part, Reduced, Reduction
from fluid.core.scope import Scope
from fluid.core.sequence import SequenceBatch, filled, spread_mask
from fluid.core.stack import Stack
from fluid.core.stages import Staged, Stages
from fluid.core.variables import (
    Parameter,
    clip_parameters,
    create_parameter,
    create_state,
    described,
    expect_probabilities,
    fold_name,
    limit_feed,
    look_up,
    perturbed,
    random_key,
    record,
    record_minimize,
    set_state,
    unrecorded,
)

__all__ = [
    "TEST",
    "TRAIN",
    "Applied",
    "Array",
    "Body",
    "FeedSpec",
    "Frame",
    "LoDTensor",
    "Minimize",
    "NestedSequenceBatch",
    "Parameter",
    "ParameterSpec",
    "Part",
    "Program",
    "Reduced",
    "Reduction",
    "Scope",
    "SequenceBatch",
    "Staged",
    "Stages",
    "Stack",
    "Value",
    "clip_parameters",
    "create_parameter",
    "create_state",
    "current_frame",
    "described",
    "expect_probabilities",
    "filled",
    "fold_name",
    "inner_frame",
    "is_compiled_with_cuda",
    "is_size",
    "leave",
    "limit_feed",
    "look_up",
    "name_scope",
    "one_of",
    "perturbed",
    "random_key",
    "record",
    "record_gradient_clip",
    "record_minimize",
    "refuse_parallel",
    "running",
    "set_state",
    "spread_mask",
    "stand_in",
    "unrecorded",
    "user_site",
    "warn",
    "whole_number",
]
