"""Plans: what training on a mesh of devices would take, found out without the devices."""

from fluid.planning.plan import Candidate, Plan, plan

__all__ = ["Candidate", "Plan", "plan"]
