"""The tape: variables, calls of layers as they were written down, and the programs they make up."""
