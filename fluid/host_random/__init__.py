"""Host random: random numbers drawn on the host, equal to the numbers of `jax.random` to the bit.

XLA would compile a program for each shape of a parameter, in each first process. Without this package the first step
takes 2.0 times the CPU time with LeNet, and 1.8 times with the README's net. These figures are from jax and jaxlib
0.10.2 on two cores, 24 November 2026: `python benchmarks/startup.py lenet --beside "drawn by jax"`. One `jax.jit`
around all initial values compiles for as long, and rounds some values differently. This package can go when the ratio
is at most 1.1.

Uniform numbers between two bounds equal the numbers of a processor that multiplies and adds with one rounding.
"""

from fluid.host_random.fractions import between, blocks_of_fractions, fractions_of
from fluid.host_random.threefry import bits_of, fold_in, key_data, root_key

__all__ = ["between", "bits_of", "blocks_of_fractions", "fold_in", "fractions_of", "key_data", "root_key"]
