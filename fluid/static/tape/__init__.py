"""The record of layer calls: variables, recorded calls, and programs, which are lists of calls."""
