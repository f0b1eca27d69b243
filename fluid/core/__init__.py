"""What a program is: Frame, variables, Program, SequenceBatch, Scope. Knows no layer and no optimizer."""

from fluid.core.frame import TEST, TRAIN, Array, FeedSpec, Frame, ParameterSpec, current_frame, name_scope, user_site
from fluid.core.program import Applied, Minimize, Program
from fluid.core.scope import Scope
from fluid.core.sequence import SequenceBatch
from fluid.core.variables import (
    create_parameter,
    create_state,
    fold_name,
    limit_feed,
    look_up,
    random_key,
    record,
    record_minimize,
    set_state,
)

__all__ = [
    "TEST",
    "TRAIN",
    "Applied",
    "Array",
    "FeedSpec",
    "Frame",
    "Minimize",
    "ParameterSpec",
    "Program",
    "Scope",
    "SequenceBatch",
    "create_parameter",
    "create_state",
    "current_frame",
    "fold_name",
    "limit_feed",
    "look_up",
    "name_scope",
    "random_key",
    "record",
    "record_minimize",
    "set_state",
    "user_site",
]
