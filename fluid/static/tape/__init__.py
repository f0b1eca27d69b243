"""The tape of recorded programs: variables, recorded calls of layers, and programs, which are lists of calls."""
