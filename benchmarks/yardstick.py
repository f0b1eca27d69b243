"""Measure the speed of this machine: compile and run a hand-written training step 20 times, without fluid.

    python benchmarks/yardstick.py

The command prints seconds of wall time. `make test` prints them beside its own time, so that the times of the suite on
two machines can be compared.
"""

import time

import jax
import numpy as np
from by_hand import NETS, Arrays

TIMES = 20


def main() -> None:
    net = NETS["digits"]
    parameters, states = net.init()
    images = np.random.default_rng(0).normal(size=(64, *net.shape)).astype("float32")

    def loss(parameters: Arrays) -> jax.Array:
        return jax.numpy.square(net.forward(parameters, states, images, True)[0]).mean()

    jax.config.update("jax_enable_compilation_cache", False)
    begin = time.perf_counter()
    for _ in range(TIMES):
        jax.block_until_ready(jax.jit(jax.grad(loss))(parameters))
        jax.clear_caches()
    print(f"yardstick: {time.perf_counter() - begin:.1f} s for {TIMES} compilations and steps of a hand-written net")


if __name__ == "__main__":
    main()
