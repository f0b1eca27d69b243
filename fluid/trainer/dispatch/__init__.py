"""How training steps come to the device: several in one call, compiled ahead of the first, and what they wait for."""

from fluid.trainer.dispatch.first_step import compile_ahead
from fluid.trainer.dispatch.losses import Losses
from fluid.trainer.dispatch.together import StepsPerDispatch, Together
from fluid.trainer.dispatch.waits import Waits

__all__ = ["Losses", "StepsPerDispatch", "Together", "Waits", "compile_ahead"]
