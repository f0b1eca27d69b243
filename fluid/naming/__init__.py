"""Names of parameters, states and values, and the globs that stand for several of them."""

from fluid.naming.globs import is_glob, select

__all__ = ["is_glob", "select"]
