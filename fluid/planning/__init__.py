"""Plans: the memory, FLOPs and communication of a training step on a mesh, computed without the devices of the mesh."""

from fluid.planning.plan import Candidate, Plan, plan

__all__ = ["Candidate", "Plan", "plan"]
