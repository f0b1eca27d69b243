"""Attention layers and positional encodings."""
