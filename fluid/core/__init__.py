"""What a program is: Frame, variables, Program, SequenceBatch, Scope. Knows no layer and no optimizer."""

from fluid.core.arguments import fitting, is_size, misfit_of, one_of, whole_number
from fluid.core.body import Body, inner_frame, leave
from fluid.core.frame import (
    TEST,
    TRAIN,
    Array,
    FeedSpec,
    Frame,
    ParameterSpec,
    current_frame,
    doubt,
    name_scope,
    present_frame,
    running,
    user_site,
    warn,
)
from fluid.core.lod import LoDTensor
from fluid.core.nested import NestedSequenceBatch, Value, stand_in
from fluid.core.origins import Origin
from fluid.core.program import Applied, Minimize, Program
from fluid.core.reduction import Part, Reduced, Reduction
from fluid.core.scope import Scope
from fluid.core.sequence import SequenceBatch, filled, spread_mask
from fluid.core.stack import Stack
from fluid.core.stages import Staged, Stages
from fluid.core.variables import (
    create_parameter,
    create_state,
    expect_probabilities,
    fold_name,
    frozen,
    is_frozen,
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
    "Origin",
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
    "create_parameter",
    "create_state",
    "current_frame",
    "doubt",
    "expect_probabilities",
    "filled",
    "fitting",
    "fold_name",
    "frozen",
    "inner_frame",
    "is_frozen",
    "is_size",
    "leave",
    "limit_feed",
    "look_up",
    "misfit_of",
    "name_scope",
    "one_of",
    "perturbed",
    "present_frame",
    "random_key",
    "record",
    "record_minimize",
    "running",
    "set_state",
    "spread_mask",
    "stand_in",
    "unrecorded",
    "user_site",
    "warn",
    "whole_number",
]
