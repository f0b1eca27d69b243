"""Layers that create, reshape, index, compare, reduce and combine arrays."""
