"""Attention, and positions of steps."""
