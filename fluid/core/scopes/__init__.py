"""Scopes: the named arrays of a Session, name scopes, and shared functions."""

from fluid.core.scopes.name_scope import NameScope, name_scope
from fluid.core.scopes.scope import Scope, own_array
from fluid.core.scopes.sharing import Shared, check_same_nets, shared

__all__ = ["NameScope", "Scope", "Shared", "check_same_nets", "name_scope", "own_array", "shared"]
