"""How many training steps run in one call of the device, and what is compiled before the first of them."""

from fluid.trainer.dispatch.first_step import compile_ahead
from fluid.trainer.dispatch.together import StepsPerDispatch, Together

__all__ = ["StepsPerDispatch", "Together", "compile_ahead"]
