"""`LayerHelper`: a helper that creates the parameters, results and ops of a user's custom layer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluid import errors
from fluid.param_attr import ParamAttr, ParamSetting, to_attr
from fluid.static import layers, unique_name
from fluid.static.tape.calls import Call
from fluid.static.tape.program import Program, default_main_program, default_startup_program
from fluid.static.tape.variable import Persistent, Variable

__all__ = ["LayerHelper"]


class LayerHelper:
    """A helper that creates the parameters, results and ops of one call of a user's custom layer.

    Args:
      kwargs: the arguments of the layer, as in `LayerHelper("scaled", **locals())`. The helper reads `name`, `input`,
        `param_attr`, `bias_attr` and `act`.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> def scaled(input, param_attr=None, act=None, name=None):
      ...     helper = fluid.layer_helper.LayerHelper("scaled", **locals())
      ...     w = helper.create_parameter(helper.param_attr, shape=[2], dtype="float32")
      ...     out = helper.create_variable_for_type_inference(input.dtype)
      ...     helper.append_op(type="elementwise_mul", inputs={"X": input, "Y": w}, outputs={"Out": out})
      ...     return helper.append_activation(out)
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     y = scaled(fluid.layers.data("x", shape=[2]), act="relu")
      ...     y.shape, [v.name for v in fluid.default_main_program().all_parameters()]
      ((-1, 2), ['scaled_0.w_0'])
    """

    def __init__(self, layer_type: str, **kwargs: Any):
        self.layer_type = layer_type
        self.kwargs = kwargs
        self.name: str = kwargs.get("name") or unique_name.generate(layer_type)

    @property
    def main_program(self) -> Program:
        """Return the default main program, into which the layer is recorded."""
        return default_main_program()

    @property
    def startup_program(self) -> Program:
        """Return the default startup program, which initializes the parameters of the layer."""
        return default_startup_program()

    @property
    def param_attr(self) -> ParamAttr | None:
        """Return the `param_attr` of the layer as a ParamAttr; None if the user passed False."""
        return to_attr(self.kwargs.get("param_attr"))

    @property
    def bias_attr(self) -> ParamAttr | None:
        """Return the `bias_attr` of the layer as a ParamAttr; None if the user passed False."""
        return to_attr(self.kwargs.get("bias_attr"))

    def multiple_input(self, input_param_name: str = "input") -> list[Variable]:
        """Return the inputs of the layer as a list.

        Raises:
          ArgumentError: the layer has no argument of the name `input_param_name`.
        """
        if input_param_name not in self.kwargs:
            raise errors.ArgumentError(
                f"{self.name} has no {input_param_name}=; pass the arguments of the layer: "
                f"LayerHelper({self.layer_type!r}, **locals())"
            )
        found = self.kwargs[input_param_name]
        return list(found) if isinstance(found, list | tuple) else [found]

    def input(self, input_param_name: str = "input") -> Variable:
        """Return the only input of the layer.

        Raises:
          ArgumentError: the layer has no input, or several inputs.
        """
        found = self.multiple_input(input_param_name)
        if len(found) != 1:
            raise errors.ArgumentError(f"{self.name} has {len(found)} inputs in {input_param_name}=, expected one")
        return found[0]

    def iter_inputs_and_params(self, input_param_name: str = "input") -> Iterator[tuple[Variable, ParamAttr | None]]:
        """Yield each input of the layer with its ParamAttr; `param_attr` is one ParamAttr or one per input.

        Raises:
          ArgumentError: the list `param_attr` is longer or shorter than the list of inputs.
        """
        inputs, given = self.multiple_input(input_param_name), self.kwargs.get("param_attr")
        attrs = list(given) if isinstance(given, list | tuple) else [given] * len(inputs)
        if len(attrs) != len(inputs):
            raise errors.ArgumentError(f"{self.name} has {len(attrs)} param_attr for {len(inputs)} inputs")
        yield from zip(inputs, map(to_attr, attrs), strict=True)

    def input_dtype(self, input_param_name: str = "input") -> str:
        """Return the dtype of the inputs of the layer."""
        return self.multiple_input(input_param_name)[0].dtype

    def create_parameter(
        self,
        attr: ParamSetting,
        shape: Sequence[int],
        dtype: Any = "float32",
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Any:
        """Create a parameter of the layer; arguments as for `layers.create_parameter`.

        If `attr` has no name, the name is automatic, for example `fc_0.w_0`, or `fc_0.b_0` for a bias.
        """
        settings = to_attr(attr)
        if settings is None:
            return None
        name = settings.name or unique_name.generate(f"{self.name}.{'b' if is_bias else 'w'}")
        return layers.create_parameter(
            list(shape), dtype, None, replace(settings, name=name), is_bias, default_initializer
        )

    def create_variable_for_type_inference(self, dtype: Any = None, stop_gradient: bool = False) -> Variable:
        """Create a variable without a value, for an output of `append_op`; `dtype` has no effect.

        The name of the variable is automatic, for example `fc_0.tmp_0`."""
        del dtype
        return self.create_variable(unique_name.generate(f"{self.name}.tmp"), stop_gradient=stop_gradient)

    create_tmp_variable = create_variable_for_type_inference

    def create_variable(self, name: str | None = None, **kwargs: Any) -> Variable:
        """Return a new variable without a value; see `Program.create_var`."""
        return self.main_program.create_var(name or unique_name.generate(f"{self.name}.var"), **kwargs)

    def create_global_variable(
        self,
        persistable: bool = False,
        name: str | None = None,
        shape: Sequence[int] = (1,),
        dtype: Any = "float32",
        **others: Any,
    ) -> Variable:
        """Create a variable: if `persistable`, zeros that are stored between runs; else a variable without a value."""
        if not persistable:
            return self.create_variable(name, **others)
        name = name or unique_name.generate(f"{self.name}.var")
        return layers.create_global_var(list(shape), 0.0, dtype, persistable=True, name=name)

    def set_variable_initializer(self, var: Persistent, initializer: Any) -> Persistent:
        """Set the initializer of a persistable variable; return the variable."""
        var.spec = replace(var.spec, initializer=initializer)
        var.program.arrays[var.name] = var.spec
        return var

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Call:
        """Record an op in the default main program; see `Program.append_op`."""
        return self.main_program.append_op(type, inputs, outputs, attrs, stop_gradient)

    def append_bias_op(self, input_var: Variable, dim_start: int = 1, dim_end: int | None = None) -> Variable:
        """Return `input_var` plus a new bias of the shape `input_var.shape[dim_start:dim_end]`.

        With `bias_attr=False`, return `input_var` unchanged.
        """
        if self.bias_attr is None:
            return input_var
        shape = list(input_var.shape[dim_start:dim_end])
        bias = self.create_parameter(self.bias_attr, shape, input_var.dtype, is_bias=True)
        return layers.elementwise_add(input_var, bias, axis=dim_start)

    def append_activation(self, input_var: Variable) -> Variable:
        """Return `input_var` after the activation `act` of the layer; return `input_var` itself if `act` is None."""
        act = self.kwargs.get("act")
        if act is None:
            return input_var
        options = {"type": act} if isinstance(act, str) else dict(act)
        return getattr(layers, options.pop("type"))(input_var, **options)
