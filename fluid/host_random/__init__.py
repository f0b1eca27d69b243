"""Random numbers that are drawn on the host, and are those of `jax.random` to the bit.

Uniform ones between two bounds are those of a processor that multiplies and adds with one rounding.
"""

from fluid.host_random.fractions import between, blocks_of_fractions, fractions_of
from fluid.host_random.threefry import bits_of, fold_in, key_data, root_key

__all__ = ["between", "bits_of", "blocks_of_fractions", "fold_in", "fractions_of", "key_data", "root_key"]
