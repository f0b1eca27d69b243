"""Helpers for every room: text of messages, globs, paths, lazy imports, protobuf, random numbers on the host."""
