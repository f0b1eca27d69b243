"""Branches, loops, and layers for use inside them."""
