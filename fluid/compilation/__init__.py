"""Compilations: what one is taken to cost, where its result outlives the process, one ahead of need; quick calls."""

from fluid.compilation.ahead import Ahead
from fluid.compilation.cache import keep_compilations, set_compilation_cache
from fluid.compilation.entries import Entries
from fluid.compilation.price import price_of
from fluid.compilation.settled import Settled
from fluid.compilation.soon import soon

__all__ = ["Ahead", "Entries", "Settled", "keep_compilations", "price_of", "set_compilation_cache", "soon"]
