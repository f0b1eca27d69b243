"""Activations, and the elementary functions of one value."""
