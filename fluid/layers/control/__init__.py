"""Branches, loops, and what belongs inside them."""
