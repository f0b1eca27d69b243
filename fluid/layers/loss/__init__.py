"""Layers for losses and metrics."""
