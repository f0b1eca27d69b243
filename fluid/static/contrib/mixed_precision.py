"""Training in half precision: `decorate` of PaddlePaddle's `contrib.mixed_precision`."""

from collections.abc import Sequence
from typing import Any

from fluid import errors
from fluid.static.tape.calls import minimized
from fluid.static.tape.program import in_a_function

__all__ = ["AutoMixedPrecisionLists", "decorate"]


class AutoMixedPrecisionLists:
    """PaddlePaddle's lists of ops for half precision, without effect: each layer chooses a safe precision itself.

    Example:
      >>> import fluid.static as fluid
      >>> lists = fluid.contrib.mixed_precision.AutoMixedPrecisionLists(custom_black_list={"scale"})
    """

    def __init__(self, custom_white_list: Any = None, custom_black_list: Any = None, custom_black_varnames: Any = None):
        del custom_white_list, custom_black_list, custom_black_varnames


class OptimizerWithMixedPrecision:
    """An optimizer that trains in float16: its `minimize` sets the precision of the program."""

    def __init__(self, optimizer: Any):
        self._optimizer = optimizer
        self._scale: str | None = None

    def minimize(self, loss: Any, *args: Any, **kwargs: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Record that the optimizer minimises `loss` in float16; see `minimize` of the optimizers in `fluid.optimizer`.

        Raises:
          ProgramError: the call is inside the function of a `fluid.Program` or `fluid.Trainer`.
        """
        if in_a_function():
            raise errors.ProgramError(
                "mixed_precision.decorate is for programs that are written down; a program function has the precision "
                'of its Trainer: fluid.Trainer(program, optimizer, precision="float16")'
            )
        self._begin(loss)
        found: tuple[list[Any], list[tuple[Any, Any]]] = self._optimizer.minimize(loss, *args, **kwargs)
        return found

    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """Return a list of pairs `(parameter, gradient)` for `apply_gradients`; the first half of `minimize`."""
        self._begin(loss)
        found: list[tuple[Any, Any]] = self._optimizer.backward(loss, *args, **kwargs)
        return found

    def apply_gradients(self, params_grads: Sequence[tuple[Any, Any]]) -> list[Any]:
        """Record the update of the parameters by their gradients; the second half of `minimize`."""
        found: list[Any] = self._optimizer.apply_gradients(params_grads)
        return found

    def get_loss_scaling(self) -> str:
        """Return the name under which `fetch_list` fetches the loss scaling factor.

        Raises:
          ProgramError: the optimizer minimises no loss yet.
        """
        if self._scale is None:
            raise errors.ProgramError("get_loss_scaling: nothing is minimised yet; first optimizer.minimize(loss)")
        return self._scale

    def _begin(self, loss: Any) -> None:
        loss.program.precision = "float16"
        self._scale = f"loss_scale_{sum(call.function is minimized for call in loss.program.ops)}"


def decorate(
    optimizer: Any,
    amp_lists: Any = None,
    init_loss_scaling: float = 2.0**15,
    incr_every_n_steps: int = 2000,
    decr_every_n_nan_or_inf: int = 1,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.5,
    use_dynamic_loss_scaling: bool = True,
) -> OptimizerWithMixedPrecision:
    """Return an optimizer that trains in float16, with parameters in float32 and a scaled loss.

    The program computes as with `fluid.Trainer(precision="float16")`. The factor that scales the loss begins at 32768.
    A step with an infinite gradient changes no parameter and halves the factor; 2000 finite steps double the factor.

    Args:
      amp_lists: accepted for programs written for Fluid, but has no effect: layers compute statistics and losses in
        float32.
      init_loss_scaling: accepted for programs written for Fluid, but has no effect: the factor adapts itself
        within a few steps.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1))
      ...     optimizer = fluid.contrib.mixed_precision.decorate(fluid.optimizer.Adam(1e-3))
      ...     pairs = optimizer.minimize(loss)
      ...     loss.program.precision, optimizer.get_loss_scaling()
      ('float16', 'loss_scale_0')
    """
    del amp_lists, init_loss_scaling, incr_every_n_steps, decr_every_n_nan_or_inf, incr_ratio, decr_ratio
    del use_dynamic_loss_scaling
    return OptimizerWithMixedPrecision(optimizer)
