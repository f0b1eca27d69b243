"""Looking at programs: tables and drawings of their layers."""

from fluid.looking.api import draw, summary

__all__ = ["draw", "summary"]
