"""Control-flow layers: branches, loops, repeated blocks, and helpers such as `Print` and TensorArray."""
