"""Kernels: faster implementations of computations in layers, selected by the shapes and the platform."""
