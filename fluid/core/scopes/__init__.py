"""Scopes: of arrays, which outlive a program function, and of names inside of one."""

from fluid.core.scopes.name_scope import NameScope, name_scope
from fluid.core.scopes.scope import Scope, own_array

__all__ = ["NameScope", "Scope", "name_scope", "own_array"]
