"""Compile cost: an estimate without a clock, so that a repeated run makes equal decisions."""

import math

from fluid.core import Program

# Fitted to nets of 70 to 2300 equations, recurrent, convolutional and with attention, on two cores.
_SECONDS_PER_EQUATION = 0.003
_FLOPS_PER_SECOND = {"cpu": 5e10}
_OF_OTHERS = 1e13
# A multiplication and an addition for each weight, once forward and twice for the gradients.
_FLOPS_PER_WEIGHT = 6
# Look-ups, additions and pooling have almost no weights, but take time nevertheless.
_LEAST_FLOPS = 1e5


def price_of(program: Program, platform: str) -> float:
    """Return the number of sequence steps of one row that a program computes in the time of one compilation.

    Args:
      program: the program; all its weights except embeddings count as applied at each step.
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
