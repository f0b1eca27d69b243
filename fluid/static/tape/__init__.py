"""The tape: variables, recorded calls of layers, and the programs that consist of these calls."""
