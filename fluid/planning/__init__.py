"""Plans: the memory, FLOPs and communication of a training step on a mesh, found without its devices."""

from fluid.planning.plan import Candidate, Plan, plan

__all__ = ["Candidate", "Plan", "plan"]
