"""Normalisation layers and dropout."""
