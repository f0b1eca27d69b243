"""Training on several devices: sharding of each array on a mesh, or different layers on different devices."""

from fluid.parallel.layers_on_devices import OnDevices
from fluid.parallel.layout import OnMesh, layout_of
from fluid.parallel.sharding_rules import ShardingRules

__all__ = ["OnDevices", "OnMesh", "ShardingRules", "layout_of"]
