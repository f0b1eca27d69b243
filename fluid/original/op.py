"""One op of a program while it runs, as a row of the table of ops sees it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fluid import errors
from fluid.original.description import OpDesc, VarDesc
from fluid.original.messages import DTYPES
from fluid.param_attr import ParamAttr

# Attributes that say how to compute and not what: devices, libraries, debugging, training in a cluster, quantization.
_HINTS = (
    "op_", "use_mkldnn", "use_cudnn", "use_quantizer", "mkldnn_data_type", "workspace_size_MB", "exhaustive_search",
    "force_fp32_output", "force_cpu", "is_test", "numeric_stable_mode", "trainable_statistics", "data_format",
    "x_data_format", "y_data_format", "in_dtype", "interp_method", "is_distributed", "remote_prefetch", "grad_inplace",
    "trainer_id", "table_names", "height_sections", "epmap", "Scale_", "scale_x", "scale_y", "scale_out", "fuse_alpha",
    "fuse_beta", "fuse_brelu_threshold", "head_number", "infer_flags", "padding_weights", "slope",
    "diag_step", "diag_val", "@",
)  # fmt: skip
# Values of attributes that switch something on which nobody asked for.
_UNSET: tuple[Any, ...] = (False, 0, -1, "", [])
# What a row returns: values by output slot, a list where a slot has several.
Outputs = Mapping[str, Any]


class Values(Protocol):
    """The variables of a program that runs."""

    def value(self, name: str) -> Any:
        """The value of a variable."""

    def parameter(self, name: str) -> ParamAttr:
        """What a layer needs to create this parameter."""

    def statistic(self, name: str) -> str:
        """Create a state that layers write themselves; returns its name."""

    def desc(self, name: str) -> VarDesc:
        """How the program declares a variable."""

    def maker(self, name: str) -> OpDesc | None:
        """The op that writes a variable."""


class Op:
    """One op: what stands in its slots, and its attributes.

    Args:
      desc: the op.
      values: the variables.
    """

    def __init__(self, desc: OpDesc, values: Values):
        self.desc = desc
        self._values = values
        self._read: set[str] = set()  # slots and attributes

    def names(self, slot: str) -> tuple[str, ...]:
        """The names of the variables in an input slot."""
        self._read.add(slot)
        return self.desc.inputs.get(slot, ())

    def name(self, slot: str) -> str:
        """The name of the one variable in an input slot."""
        names = self.names(slot)
        if len(names) != 1:
            raise errors.ProgramError(f"{self} has {len(names)} variables in its slot {slot}, expected one")
        return names[0]

    def given(self, slot: str) -> bool:
        """Whether there is anything in an input slot."""
        return bool(self.names(slot))

    def value(self, slot: str) -> Any:
        """The value in an input slot."""
        return self._values.value(self.name(slot))

    def values(self, slot: str) -> list[Any]:
        """All values in an input slot."""
        return [self._values.value(name) for name in self.names(slot)]

    def maybe(self, slot: str) -> Any:
        """The value in an input slot, None when it is empty."""
        return self.value(slot) if self.given(slot) else None

    def desc_of(self, slot: str) -> VarDesc:
        """How the program declares the variable in an input slot."""
        return self._values.desc(self.name(slot))

    def parameter(self, slot: str) -> ParamAttr:
        """The parameter in an input slot, for a layer that creates its own.

        Raises:
          ProgramError: it is no parameter, but computed.
        """
        name = self.name(slot)
        if not self._values.desc(name).persistable:
            raise errors.ProgramError(
                f"{self} takes {name!r} as its {slot}, which is no parameter but computed; only parameters are possible"
            )
        return self._values.parameter(name)

    def parameter_or_none(self, slot: str) -> ParamAttr | bool:
        """The parameter in an input slot, False when it is empty."""
        return self.parameter(slot) if self.given(slot) else False

    def statistic(self, slot: str) -> str:
        """Create the state in an input slot, which a layer moves itself; returns its name."""
        return self._values.statistic(self.name(slot))

    def maker(self, slot: str, type: str) -> "Op":
        """The op that computes the value in an input slot, which must be of a type.

        Raises:
          ProgramError: it is another one.
        """
        found = self._values.maker(self.name(slot))
        if found is None or found.type != type:
            raise errors.ProgramError(f"{self} is possible only behind an op {type!r}, which makes its {slot}")
        return Op(found, self._values)

    def attr(self, name: str, default: Any) -> Any:
        """An attribute.

        Args:
          name: of the attribute.
          default: what it is where the file does not say; a type, such as `int`, where the file must say it.

        Raises:
          ProgramError: it is missing or of another type; a number may stand for a list of one.
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
        """An attribute that is the number of a data type, as the name of that type.

        Raises:
          ProgramError: there is no such data type.
        """
        number = self.attr(name, default)
        if number not in DTYPES:
            raise errors.ProgramError(f"{self} has {name}={number}, which is no data type")
        return DTYPES[number]

    def dtype_or_none(self, name: str = "dtype") -> str | None:
        """The same, None for the -1 that stands for no particular one."""
        return None if self.attr(name, -1) == -1 else self.dtype(name, -1)

    def layout(self, name: str, dims: int = 2) -> str:
        """An attribute that says where channels are, in the letters for so many other dimensions: "NCHW", "NDHWC"."""
        last = self.attr(name, "NCHW" if dims == 2 else "NCDHW") in ("NHWC", "NDHWC")
        return ("NCHW", "NHWC", "NCDHW", "NDHWC")[2 * (dims - 2) + last]

    def outputs(self, slot: str) -> tuple[str, ...]:
        """The names of the variables in an output slot."""
        return self.desc.outputs.get(slot, ())

    def refuse(self, what: str) -> errors.ProgramError:
        """An error that says what about this op is not possible."""
        return errors.ProgramError(f"{self}: {what}")

    def check_read(self) -> None:
        """Refuse what the op is given and its row did not look at.

        Raises:
          ProgramError: there is something.
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


# One row of the table: calls layer functions, and returns what they compute.
Rule = Callable[[Op], Outputs]


@dataclass(frozen=True)
class Row:
    """A row for an op that is one call of a layer function.

    Attributes:
      layer: the function.
      inputs: input slot by argument.
      attrs: by argument an attribute and what it is by default, see `Op.attr`.
      optional: input slot by argument, which is left out where the slot is empty.
      out: output slot of the result, or of each of several.
    """

    layer: Callable[..., Any]
    inputs: Mapping[str, str]
    attrs: Mapping[str, tuple[str, Any]] | None = None
    optional: Mapping[str, str] | None = None
    out: str | tuple[str, ...] = "Out"

    def __call__(self, op: Op) -> Outputs:
        """Call the function; returns values by output slot."""
        arguments = {argument: op.value(slot) for argument, slot in self.inputs.items()}
        arguments |= {argument: op.value(slot) for argument, slot in (self.optional or {}).items() if op.given(slot)}
        arguments |= {argument: op.attr(*attribute) for argument, attribute in (self.attrs or {}).items()}
        result = self.layer(**arguments)
        return {self.out: result} if isinstance(self.out, str) else dict(zip(self.out, result, strict=True))


def unary(layer: Callable[..., Any], **attrs: tuple[str, Any]) -> Row:
    """A row for an op from X to Out."""
    return Row(layer, {"x": "X"}, attrs)
