"""How many training steps run in one call of the device."""

from fluid.trainer.dispatch.together import StepsPerDispatch, Together

__all__ = ["StepsPerDispatch", "Together"]
