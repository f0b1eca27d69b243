"""Populations: many independent trainings of one program, with different seeds and numbers, as one XLA program."""

from fluid.sweeps.population import Population

__all__ = ["Population"]
