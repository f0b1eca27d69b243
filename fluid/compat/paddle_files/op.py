"""The class Op: an op of a PaddlePaddle program, with access to its inputs and attributes.

The table of ops maps each type of op to a row: a function that takes an Op and computes its results with layers of
fluid.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fluid import errors
from fluid.compat.paddle_files.program_desc import DTYPES, OpDesc, VarDesc
from fluid.param_attr import ParamAttr

# Prefixes of the names of op attributes that do not change results. They concern devices, libraries, debugging,
# training in a cluster, or quantization.
_HINTS = (
    "op_", "use_mkldnn", "use_cudnn", "use_quantizer", "mkldnn_data_type", "workspace_size_MB", "exhaustive_search",
    "force_fp32_output", "force_cpu", "is_test", "numeric_stable_mode", "trainable_statistics", "data_format",
    "x_data_format", "y_data_format", "in_dtype", "interp_method", "is_distributed", "remote_prefetch", "grad_inplace",
    "trainer_id", "table_names", "height_sections", "epmap", "Scale_", "scale_x", "scale_y", "scale_out", "fuse_alpha",
    "fuse_beta", "fuse_brelu_threshold", "head_number", "infer_flags", "padding_weights", "slope",
    "diag_step", "diag_val", "@",
)  # fmt: skip
# Attribute values that turn an optional feature off. An attribute with one of these values may stay unread by the
# function that computes the op.
_UNSET: tuple[Any, ...] = (False, 0, -1, "", [])
# The results of an op by output slot (a named list of variables): one value, or a list of values if the slot has
# several variables.
Outputs = Mapping[str, Any]


class Values(Protocol):
    """A protocol for access to the variables of a running program; an Op reads its inputs through these methods."""

    def value(self, name: str) -> Any:
        """Return the value of the variable `name`."""

    def parameter(self, name: str) -> ParamAttr:
        """Return the ParamAttr with which a layer creates the parameter `name`."""

    def statistic(self, name: str) -> str:
        """Create the saved state `name`, such as a moving mean, which a layer updates; return `name`."""

    def desc(self, name: str) -> VarDesc:
        """Return the declaration of the variable `name`: shape, dtype, nesting level (LoD level), `persistable`."""

    def maker(self, name: str) -> OpDesc | None:
        """Return the op (operator) that has computed the variable `name`; None for a feed or a parameter."""


class Op:
    """A running op: the values in its input slots, and its attributes.

    A slot is a named list of variables, like an argument. An Op records which input slots and attributes the code that
    computes the op has read.
    """

    def __init__(self, desc: OpDesc, values: Values):
        self.desc = desc
        self._values = values
        # The names of the op's input slots (arguments) and attributes that were read so far.
        self._read: set[str] = set()

    def names(self, slot: str) -> tuple[str, ...]:
        """Return the names of the variables in the input slot `slot` of the op."""
        self._read.add(slot)
        return self.desc.inputs.get(slot, ())

    def name(self, slot: str) -> str:
        """Return the name of the only variable in the slot `slot` (a named list of inputs) of the PaddlePaddle op."""
        names = self.names(slot)
        if len(names) != 1:
            raise errors.ProgramError(f"{self} has {len(names)} variables in its slot {slot}, expected one")
        return names[0]

    def given(self, slot: str) -> bool:
        """Return whether the input slot `slot` of the op holds at least one variable."""
        return bool(self.names(slot))

    def value(self, slot: str) -> Any:
        """Return the value of the only variable in the input slot `slot` of the op."""
        return self._values.value(self.name(slot))

    def values(self, slot: str) -> list[Any]:
        """Return the values of all variables in the input slot `slot` of the op."""
        return [self._values.value(name) for name in self.names(slot)]

    def maybe(self, slot: str) -> Any:
        """Return the value of the variable in the input slot `slot` of the op; None for an empty slot."""
        return self.value(slot) if self.given(slot) else None

    def desc_of(self, slot: str) -> VarDesc:
        """Return the declaration of the variable in the input slot `slot` of the op."""
        return self._values.desc(self.name(slot))

    def parameter(self, slot: str) -> ParamAttr:
        """Return the ParamAttr with which a layer creates the parameter in the input slot `slot` of the op.

        Raises:
          ProgramError: the slot holds a computed value, not a parameter.
        """
        name = self.name(slot)
        if not self._values.desc(name).persistable:
            raise errors.ProgramError(
                f"{self} takes {name!r} as its {slot}, which is no parameter but computed; only parameters are possible"
            )
        return self._values.parameter(name)

    def parameter_or_none(self, slot: str) -> ParamAttr | bool:
        """Return the ParamAttr of the parameter in the input slot `slot` of the op; False if the slot is empty."""
        return self.parameter(slot) if self.given(slot) else False

    def statistic(self, slot: str) -> str:
        """Create the state in the input slot `slot`, for example a moving mean; return the name of the state."""
        return self._values.statistic(self.name(slot))

    def maker(self, slot: str, type: str) -> "Op":
        """Return the op of type `type` that has computed the variable in the input slot `slot`.

        Raises:
          ProgramError: no op computes the variable, or the op that computes it has another type.
        """
        found = self._values.maker(self.name(slot))
        if found is None or found.type != type:
            raise errors.ProgramError(f"{self} is possible only behind an op {type!r}, which makes its {slot}")
        return Op(found, self._values)

    def attr(self, name: str, default: Any) -> Any:
        """Return the value of an attribute.

        Args:
          default: the value that is returned if the op lacks the attribute. A type, for example `int`, means that the
            op must have the attribute, with a value of this type.

        Raises:
          ProgramError: the attribute is absent or has the wrong type. A single number is allowed in place of a list.
        """
        self._read.add(name)
        required = isinstance(default, type)
        if required and name not in self.desc.attributes:
            raise errors.ProgramError(f"{self} lacks its attribute {name!r}")
        found = self.desc.attributes.get(name, default)
        kind = default if required else type(default)
        if kind is list and not isinstance(found, list):
            found = [found]
        right = isinstance(found, int | float if kind is float else kind) and isinstance(found, bool) == (kind is bool)
        if not right:
            raise errors.ProgramError(f"{self} has {name}={found!r}, expected {kind.__name__}")
        return found

    def dtype(self, name: str = "dtype", default: Any = 5) -> str:
        """Convert the attribute `name`, a PaddlePaddle dtype number, to the name of the dtype, such as "float32".

        Raises:
          ProgramError: no dtype has this number.
        """
        number = self.attr(name, default)
        if number not in DTYPES:
            raise errors.ProgramError(f"{self} has {name}={number}, which is no data type")
        return DTYPES[number]

    def dtype_or_none(self, name: str = "dtype") -> str | None:
        """Return the name of the dtype in the attribute `name`; None if the attribute is -1, which means no dtype."""
        return None if self.attr(name, -1) == -1 else self.dtype(name, -1)

    def layout(self, name: str, dims: int = 2) -> str:
        """Return the data layout, such as "NCHW", in the attribute `name` of the op.

        For two spatial dimensions (`dims`), the result is "NCHW" or "NHWC"; for three, "NCDHW" or "NDHWC".
        """
        last = self.attr(name, "NCHW" if dims == 2 else "NCDHW") in ("NHWC", "NDHWC")
        return ("NCHW", "NHWC", "NCDHW", "NDHWC")[2 * (dims - 2) + last]

    def outputs(self, slot: str) -> tuple[str, ...]:
        """Return the names of the variables in the output slot `slot` of this op (operator)."""
        return self.desc.outputs.get(slot, ())

    def refuse(self, what: str) -> errors.ProgramError:
        """Return a ProgramError for an unsupported feature of this op (operator); `what` describes the feature."""
        return errors.ProgramError(f"{self}: {what}")

    def check_read(self) -> None:
        """Check that all input slots and attributes of the op were read by the function that computes the op.

        Attributes that do not change results, or that turn an optional feature off, need not be read.

        Raises:
          ProgramError: an input slot with variables, or another attribute, was not read.
        """
        slots = [slot for slot, names in self.desc.inputs.items() if names and slot not in self._read]
        attributes = [
            f"{name}={value!r}"
            for name, value in self.desc.attributes.items()
            if name not in self._read and not name.startswith(_HINTS) and value not in _UNSET
        ]
        if slots or attributes:
            raise errors.ProgramError(f"{self} is given {', '.join(slots + attributes)}, which no layer of fluid takes")

    def __str__(self) -> str:
        return f"the op {self.desc.type!r} that makes {', '.join(map(repr, self.desc.writes())) or 'nothing'}"


# A function that computes an op (an operator of a PaddlePaddle program) with layers of fluid. It returns a dict of
# results by output slot.
Rule = Callable[[Op], Outputs]


@dataclass(frozen=True)
class OpRow:
    """A function that computes an op of a PaddlePaddle program by one call of a layer function.

    A slot of an op is a named list of variables, like an argument.

    Attributes:
      layer: the layer function.
      inputs: a dict from an argument of the layer function to the input slot that holds its value.
      attrs: a dict from an argument to the name of the op attribute that holds its value, and a default.
      optional: like `inputs`, but the argument is left out if the slot is empty.
      out: the output slot of the result; a tuple of slots for several results.
    """

    layer: Callable[..., Any]
    inputs: Mapping[str, str]
    attrs: Mapping[str, tuple[str, Any]] | None = None
    optional: Mapping[str, str] | None = None
    out: str | tuple[str, ...] = "Out"

    def __call__(self, op: Op) -> Outputs:
        """Call the layer function with inputs and attributes of an op (operator); return the results by output slot."""
        arguments = {argument: op.value(slot) for argument, slot in self.inputs.items()}
        arguments |= {argument: op.value(slot) for argument, slot in (self.optional or {}).items() if op.given(slot)}
        arguments |= {argument: op.attr(*attribute) for argument, attribute in (self.attrs or {}).items()}
        result = self.layer(**arguments)
        return {self.out: result} if isinstance(self.out, str) else dict(zip(self.out, result, strict=True))


def unary(layer: Callable[..., Any], **attrs: tuple[str, Any]) -> OpRow:
    """Return an OpRow for an op with the input X and the output Out, computed by `layer`; `attrs` are as for OpRow."""
    return OpRow(layer, {"x": "X"}, attrs)
