"""Layers on sequences of different lengths."""
