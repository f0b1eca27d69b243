"""ParamAttr: what a user says about one parameter of a layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluid import errors
from fluid.core import fitting
from fluid.regularizer import L1Decay, L2Decay

# For each dimension of an array the axis that divides it, several axes, or None; dimensions behind the last are whole.
Sharding = Sequence[str | Sequence[str] | None]
# Shardings by names and globs of parameters.
Shardings = Mapping[str, Sharding]


@fitting("fluid.ParamAttr")
@dataclass(frozen=True)
class ParamAttr:
    """Name, initial value and training settings of a parameter.

    Args:
      name: instead of the automatic one; equal names share one parameter, across layers and programs.
      initializer: of `fluid.initializer`, or any `jax.nn.initializers` callable; the layer's own by default.
      learning_rate: multiplies the optimizer's rate.
      regularizer: of `fluid.regularizer`; takes the place of the optimizer's.
      trainable: False to keep it as it is.
      gradient_clip: of `fluid.clip`, applied to this parameter's gradient before the optimizer's own clip.
      do_model_average: accepted for programs written for Fluid, but has no effect: the average says which parameters it
        takes, see `fluid.optimizer.ModelAverage`.
      sharding: for each dimension the axis of the mesh that divides it, several axes, or None: `(None, "model")`. It
        counts where a mesh has those axes, see `fluid.Mesh`.

    Example:
      >>> ParamAttr(name="w", learning_rate=0.5).name
      'w'
    """

    name: str | None = None
    initializer: Callable[..., Any] | None = None
    learning_rate: float = 1.0
    regularizer: Any = None
    trainable: bool = True
    gradient_clip: Any = None
    do_model_average: bool = True
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise errors.ArgumentTypeError(f'ParamAttr(name=...) is a string such as "w", found {self.name!r}')
        if self.initializer is not None and not callable(self.initializer):
            write = "Xavier()" if isinstance(self.initializer, str) else f"Constant({self.initializer!r})"
            raise errors.ArgumentTypeError(
                f"an initializer is called with (key, shape, dtype), found {self.initializer!r}; "
                f"write initializer=fluid.initializer.{write}"
            )


@fitting("fluid.WeightNormParamAttr")
@dataclass(frozen=True, init=False)
class WeightNormParamAttr(ParamAttr):
    """A parameter that is trained as a length and a direction (Salimans and Kingma, 2016): `w = g * v / norm(v)`.

    `NAME_v` has the shape of the parameter, and `NAME_g` one length for each output, which begins as the norm of `v`.

    Args:
      dim: the dimension of the outputs, which have a length each: 1 for weights of `fc`, 0 for filters of `conv2d`.
        None for one length of everything.
      name: of the parameter, and what the names of its two parts begin with.
      initializer: of the direction, as for ParamAttr; so are all other settings, which hold for both parts.
      learning_rate: see ParamAttr.
      regularizer: see ParamAttr.
      trainable: see ParamAttr.
      gradient_clip: see ParamAttr.
      do_model_average: see ParamAttr.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.fc(x, size=3, param_attr=fluid.WeightNormParamAttr(dim=1))
      >>> {name: spec.shape for name, spec in fluid.Program(program).parameters.items()}
      {'fc_0.w_0_g': (1, 3), 'fc_0.w_0_v': (4, 3), 'fc_0.b_0': (3,)}
    """

    dim: int | None = None

    def __init__(
        self,
        dim: int | None = None,
        name: str | None = None,
        initializer: Callable[..., Any] | None = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        trainable: bool = True,
        gradient_clip: Any = None,
        do_model_average: bool = True,
    ):
        super().__init__(name, initializer, learning_rate, regularizer, trainable, gradient_clip, do_model_average)
        object.__setattr__(self, "dim", dim)


# What layers accept as `param_attr=` and `bias_attr=`; `to_attr` says what each kind means.
ParamSetting = ParamAttr | str | bool | Callable[..., Any] | L1Decay | L2Decay | None


def to_attr(value: ParamSetting) -> ParamAttr | None:
    """Understand what layers accept as `param_attr=` and `bias_attr=`.

    Args:
      value: None for the defaults, a ParamAttr, a string as name, an initializer, a regularizer, True, or False.

    Returns:
      A ParamAttr, or None for False: no such parameter.

    Raises:
      ArgumentTypeError: it is none of those.

    Example:
      >>> to_attr("table").name, to_attr(False)
      ('table', None)
    """
    if value is None or value is True:
        return ParamAttr()
    if value is False:
        return None
    if isinstance(value, ParamAttr):
        return value
    if isinstance(value, str):
        return ParamAttr(name=value)
    if hasattr(value, "gradient") and hasattr(value, "regularization_coeff"):
        return ParamAttr(regularizer=value)
    if callable(value):
        return ParamAttr(initializer=value)
    raise errors.ArgumentTypeError(
        f"param_attr and bias_attr take a ParamAttr, a name, an initializer, a regularizer or False, found {value!r}; "
        f'write ParamAttr(name="w", initializer=...)'
    )
