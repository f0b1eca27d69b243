"""Layers that find objects in images: boxes, what they are matched with, and what is left of them."""
