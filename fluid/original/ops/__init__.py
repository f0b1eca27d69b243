"""The table of ops: how each op of the original is computed by fluid's own layers, one module for each family."""
