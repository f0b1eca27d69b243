"""Populations: many independent trainings of one program as one XLA program, with different seeds and numbers."""

from fluid.population.population import Population

__all__ = ["Population"]
