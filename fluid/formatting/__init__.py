"""Formatting: numbers, shapes, objects and tables as text."""

from fluid.formatting.numbers import counted, scaled, shape_text
from fluid.formatting.objects import described
from fluid.formatting.plain import printable
from fluid.formatting.tables import html_table, text_table

__all__ = ["counted", "described", "html_table", "printable", "scaled", "shape_text", "text_table"]
