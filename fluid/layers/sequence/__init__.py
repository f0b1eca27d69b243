"""Layers on sequences of any length."""
