"""Layers that make, reshape, index, compare, reduce and combine arrays."""
