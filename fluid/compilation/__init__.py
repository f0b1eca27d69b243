"""Compilations: what one is taken to cost, and where its result lies, so that it outlives the process."""

from fluid.compilation.cache import keep_compilations, set_compilation_cache
from fluid.compilation.entries import Entries
from fluid.compilation.price import price_of

__all__ = ["Entries", "keep_compilations", "price_of", "set_compilation_cache"]
