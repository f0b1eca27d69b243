"""ParamAttr: the user's settings for one parameter of a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluid import errors
from fluid.core import fitting, whole_number
from fluid.regularizer import L1Decay, L2Decay

# The type of a sharding: for each dimension of an array the mesh axis or axes that divide it, or None for no division.
# Dimensions after the last entry are not divided.
Sharding = Sequence[str | Sequence[str] | None]
# The type of `shardings=`: a mapping from names or globs of parameters to a Sharding, or to the one device that stores
# these parameters and runs their layers.
Shardings = Mapping[str, Sharding | str]


@fitting("fluid.ParamAttr")
@dataclass(frozen=True)
class ParamAttr:
    """The settings of a parameter: its name, initial value and training settings.

    Args:
      name: replaces the automatic name; equal names share one parameter, across layers and programs.
      initializer: an initializer of `fluid.initializer` or `jax.nn.initializers`; by default the layer's default.
      learning_rate: a factor of the optimizer's learning rate.
      regularizer: a regularizer of `fluid.regularizer`; replaces the optimizer's regularizer.
      trainable: False to freeze the parameter at its initial value.
      gradient_clip: a clip of `fluid.clip` for this parameter's gradient, before the optimizer's clip.
      do_model_average: accepted for programs written for Fluid, but has no effect: the average says which parameters it
        takes, see `fluid.optimizer.ModelAverage`.
      sharding: for each dimension the mesh axis that divides it, a tuple of axes, or None, as in `(None, "model")`. A
        mesh without these axes ignores the setting; see `fluid.Mesh`.

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
    """The settings of a parameter in weight normalization (Salimans and Kingma, 2016): `w = g * v / norm(v)`.

    The trained parameters are the direction `NAME_v`, with the shape of `w`, and the length `NAME_g`, one number for
    each output. The initial length is the norm of `v`.

    Args:
      dim: the dimension of the outputs, each of which has a length: 1 for weights of `fc`, 0 for filters of `conv2d`.
        None for a single length of the complete parameter.
      name: the name of the parameter; the names of direction and length begin with it.
      initializer: the initializer of the direction, see ParamAttr. All other settings apply to direction and length.
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


@fitting("fluid.LowRankParamAttr")
@dataclass(frozen=True, init=False)
class LowRankParamAttr(ParamAttr):
    """The settings of a matrix that is fine-tuned by a low-rank adapter (Hu et al., 2021): `w + alpha / rank * a @ b`.

    The matrix `NAME` is frozen. Training changes `NAME.low_rank_a`, `[in, rank]`, and `NAME.low_rank_b`, `[rank, out]`.
    The initial `b` is 0, so that training starts from the function of `w`. The parameter `NAME.low_rank_scale`, `[1]`,
    holds `alpha / rank` and is frozen too. `fluid.io.merge_low_rank` adds the product to `w`, for a program without
    adapters.

    Args:
      rank: the number of columns of `a` and of rows of `b`.
      alpha: the numerator of the scale `alpha / rank`; by default `rank`, so that the scale is 1.
      name: the name of the matrix.
      initializer: the initializer of the matrix, see ParamAttr.
      learning_rate: the learning rate factor of `a` and `b`, see ParamAttr.
      regularizer: the regularizer of `a` and `b`, see ParamAttr.
      gradient_clip: the gradient clip of `a` and `b`, see ParamAttr.
      sharding: the sharding of the matrix, see ParamAttr. The rows of `a` are divided like the rows of the matrix, and
        the columns of `b` like its columns.

    Raises:
      ArgumentError: `rank` is not a positive integer, or `alpha` is not a positive number.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.fc(x, size=3, param_attr=fluid.LowRankParamAttr(rank=2), bias_attr=False)
      >>> {name: (spec.shape, spec.trainable) for name, spec in fluid.Program(program).parameters.items()}
      ... # doctest: +NORMALIZE_WHITESPACE
      {'fc_0.w_0': ((4, 3), False), 'fc_0.w_0.low_rank_scale': ((1,), False),
       'fc_0.w_0.low_rank_a': ((4, 2), True), 'fc_0.w_0.low_rank_b': ((2, 3), True)}
    """

    rank: int = 8
    alpha: float | None = None

    def __init__(
        self,
        rank: int = 8,
        alpha: float | None = None,
        name: str | None = None,
        initializer: Callable[..., Any] | None = None,
        learning_rate: float = 1.0,
        regularizer: Any = None,
        gradient_clip: Any = None,
        sharding: Sharding | None = None,
    ):
        super().__init__(name, initializer, learning_rate, regularizer, True, gradient_clip, sharding=sharding)
        whole_number("LowRankParamAttr", "rank", rank)
        if alpha is not None and (isinstance(alpha, bool) or not isinstance(alpha, int | float) or not alpha > 0):
            raise errors.ArgumentError(f"LowRankParamAttr(alpha={alpha!r}): expected a positive number, such as 16")
        object.__setattr__(self, "rank", rank)
        object.__setattr__(self, "alpha", alpha)


# The types that layers accept as `param_attr=` and `bias_attr=`; `to_attr` converts them.
ParamSetting = ParamAttr | str | bool | Callable[..., Any] | L1Decay | L2Decay | None


def to_attr(value: ParamSetting) -> ParamAttr | None:
    """Convert an argument `param_attr=` or `bias_attr=` of a layer to a ParamAttr.

    Raises:
      ArgumentTypeError: the value is of another type.

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
