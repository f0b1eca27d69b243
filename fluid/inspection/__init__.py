"""Inspection of programs: tables and drawings of their layers."""

from fluid.inspection.api import draw, summary

__all__ = ["draw", "summary"]
