"""Compiled programs that outlive a process: where they lie, and how JAX is made to keep them there."""

from fluid.compilation.cache import keep_compilations, set_compilation_cache
from fluid.compilation.entries import Entries

__all__ = ["Entries", "keep_compilations", "set_compilation_cache"]
