"""Helpers for all packages: text for messages, globs, paths, lazy imports, protobuf, and random numbers on the host."""
