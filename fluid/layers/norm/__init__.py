"""Layers that normalise values, and dropout."""
