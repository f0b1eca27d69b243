"""What a compilation is taken to cost beside what it saves, without a clock: a run that is repeated decides alike."""

import math

from fluid.core import Program

# Fitted to nets of 70 to 2300 equations, recurrent, convolutional and with attention, on two cores.
_SECONDS_PER_EQUATION = 0.003
_FLOPS_PER_SECOND = {"cpu": 5e10}
_OF_OTHERS = 1e13
# A multiplication and an addition for each weight, once forward and twice for the gradients.
_FLOPS_PER_WEIGHT = 6
# What looks up, adds and pools has next to no weights, and takes its time all the same.
_LEAST_FLOPS = 1e5


def price_of(program: Program, platform: str) -> float:
    """The number of steps of one row of its sequences that a program computes while it could be compiled once.

    Args:
      program: all its weights are taken to be applied at each step, those of embeddings excepted.
      platform: "cpu", "gpu", ...

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.fc(fluid.layers.embedding(words, size=[1000, 64]), size=256)
      >>> price_of(fluid.Program(program), "cpu") < price_of(fluid.Program(program), "gpu")
      True
    """
    kinds = {name.partition(".tmp_")[0]: kind for name, kind in program.kinds.items()}
    weights = sum(math.prod(s.shape) for s in program.parameters.values() if kinds.get(s.layer) != "embedding")
    flops = _SECONDS_PER_EQUATION * program.equations * _FLOPS_PER_SECOND.get(platform, _OF_OTHERS)
    return flops / max(_FLOPS_PER_WEIGHT * weights, _LEAST_FLOPS)
