"""Recurrences over the steps of sequences."""
