"""Kernels: faster forms of computations in layers. Shapes and platform select one that equals the plain form."""
