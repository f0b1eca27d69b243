"""Multi-process training: comparisons at the start, and agreement between two steps."""
