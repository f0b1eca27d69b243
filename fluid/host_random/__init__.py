"""Random numbers that are drawn on the host, and are those of `jax.random` to the bit."""

from fluid.host_random.generator import key_of_bits, padded_bits
from fluid.host_random.threefry import bits_of, fold_in, key_data

__all__ = ["bits_of", "fold_in", "key_data", "key_of_bits", "padded_bits"]
