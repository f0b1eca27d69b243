"""Naming: names of parameters, states and values, and globs that match several names."""

from fluid.naming.globs import is_glob, select

__all__ = ["is_glob", "select"]
