"""Random numbers that are drawn on the host, and are those of `jax.random` to the bit."""

from fluid.host_random.generator import blocks_of_bits, key_of_bits
from fluid.host_random.threefry import bits_of, fold_in, key_data, root_key

__all__ = ["bits_of", "blocks_of_bits", "fold_in", "key_data", "key_of_bits", "root_key"]
