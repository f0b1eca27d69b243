"""Compilations: what one is taken to cost, where its result lies when the process ends, and how to call it quickly."""

from fluid.compilation.cache import keep_compilations, set_compilation_cache
from fluid.compilation.entries import Entries
from fluid.compilation.price import price_of
from fluid.compilation.settled import Settled

__all__ = ["Entries", "Settled", "keep_compilations", "price_of", "set_compilation_cache"]
