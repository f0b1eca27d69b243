"""Losses, and metrics that a program computes."""
