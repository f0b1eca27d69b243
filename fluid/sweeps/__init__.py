"""Populations: many independent trainings with different seeds and hyperparameters, compiled to one XLA program."""

from fluid.sweeps.population import Population

__all__ = ["Population"]
