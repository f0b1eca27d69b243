"""Compilations: what one is taken to cost, where its result lies, which outlives the process, and one ahead of need."""

from fluid.compilation.ahead import Ahead
from fluid.compilation.cache import keep_compilations, set_compilation_cache
from fluid.compilation.entries import Entries
from fluid.compilation.price import price_of

__all__ = ["Ahead", "Entries", "keep_compilations", "price_of", "set_compilation_cache"]
