"""`block.append_op`: ops that a user appends by type; the functions for ops of PaddlePaddle files compute them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fluid import errors, layers
from fluid.compat.paddle_files.op import Op
from fluid.compat.paddle_files.program import ROWS
from fluid.compat.paddle_files.program_desc import DTYPES, OpDesc, VarDesc
from fluid.param_attr import ParamAttr
from fluid.static.tape.calls import Call, outer_environment
from fluid.static.tape.variable import Persistent, Variable

# The type of an op's slot (argument): a variable, the name of a variable, or a list of these.
Slot = Variable | str | Sequence[Variable | str]
# Output slots (named results of an op) to ignore: only PaddlePaddle's gradient ops read these intermediate results.
_INTERIM = frozenset({"MeanOut", "Mask", "SavedMean", "SavedVariance", "VarianceOut", "XShape"})
# A dict from the beginning of an unsupported op's type to the advice in the error message: what to write instead.
_INSTEAD = {
    "c_": "train with python -m fluid launch, which sums gradients over processes",
    "allreduce": "train with python -m fluid launch, which sums gradients over processes",
    "conditional_block": "write layers.Switch() or layers.IfElse(cond)",
    "feed": "pass the array: exe.run(program, feed={name: array})",
    "fetch": "pass the variable: exe.run(program, fetch_list=[variable])",
    "load": "call fluid.io.load_params(exe, dirname) or fluid.io.load_vars",
    "print": "write layers.Print(x)",
    "py_func": "write layers.py_func(function, x, out)",
    "read_from_array": "write layers.array_read(array, i)",
    "save": "call fluid.io.save_params(exe, dirname) or fluid.io.save_vars",
    "while": "write layers.While(cond)",
    "write_to_array": "write layers.array_write(x, i, array)",
}
_UPDATES = ("sgd", "momentum", "adam", "adamax", "adagrad", "adadelta", "rmsprop", "ftrl", "lamb", "lars_momentum")
_NUMBERS = {name: number for number, name in DTYPES.items()}


def append(program: Any, type: str, inputs: Mapping[str, Slot], outputs: Mapping[str, Slot], attrs: Any) -> Call:
    """Record an op in `program`; arguments and errors as for `Program.append_op`."""
    _check_type(type)
    read = {slot: _variables(program, given) for slot, given in inputs.items() if given is not None}
    written = {slot: _variables(program, given) for slot, given in outputs.items() if slot not in _INTERIM}
    function = _Appended(type, read, written, _attributes(type, attrs or {}))
    found = {v.name: v for variables in read.values() for v in variables if not isinstance(v, Persistent)}
    program.apply(function, (found,), into=[v for variables in written.values() for v in variables])
    return program.present_block.calls[-1]


class _Appended:
    """A function that computes one appended op; it calls the function that the table of ops has for the op's type."""

    def __init__(
        self,
        type: str,
        inputs: Mapping[str, Sequence[Variable]],
        outputs: Mapping[str, Sequence[Variable]],
        attributes: Mapping[str, Any],
    ):
        self.__name__ = type
        slots = [{slot: tuple(v.name for v in found) for slot, found in given.items()} for given in (inputs, outputs)]
        self._desc = OpDesc(type, slots[0], slots[1], attributes)
        self._inputs = {v.name: v for found in inputs.values() for v in found}
        self.captures = tuple(v for v in self._inputs.values() if isinstance(v, Persistent))

    def __call__(self, found: Mapping[str, Any]) -> list[Any]:
        """Return the values of the output variables, in order.

        `found` is a dict with the values of the input variables that are not persistable, by name.
        """
        op = Op(self._desc, _Values(self._inputs, found))
        results = ROWS[self._desc.type](op)
        op.check_read()
        for slot in self._desc.outputs:
            if slot not in results:
                raise op.refuse(f"its result {slot!r} is not computed here, only {', '.join(results)}; leave it out")
        return [value for slot in self._desc.outputs for value in _listed(results[slot])]


class _Values:
    """The input variables of an appended op; implements the protocol `Values` of `compat.paddle_files.op`."""

    def __init__(self, variables: Mapping[str, Variable], found: Mapping[str, Any]):
        self._variables = variables
        self._found = found

    def value(self, name: str) -> Any:
        if name in self._found:
            return self._found[name]
        return outer_environment("block.append_op")[self._variables[name]]

    def parameter(self, name: str) -> ParamAttr:
        spec = self._persistent(name).spec
        settings = spec.settings or ParamAttr()
        return replace(settings, name=name, initializer=spec.initializer, trainable=bool(spec.trainable))

    def statistic(self, name: str) -> str:
        """Raise a ProgramError: an op cannot create statistics, such as a moving mean; only a layer can."""
        raise errors.ProgramError(
            f"append_op: {name!r} is a statistic that the op updates, and only a layer can create it; call the layer: "
            f"layers.batch_norm(x, moving_mean_name={name!r})"
        )

    def desc(self, name: str) -> VarDesc:
        found = self._variables[name]
        return VarDesc(name, found.shape, found.dtype, found.lod_level, found.persistable)

    def maker(self, name: str) -> OpDesc | None:
        """Return None: an appended op cannot find the op that has computed its input `name`.

        Some ops, for example range, must read the op that computed an input. Instead of such an op, users call the
        layer, for example `layers.range`.
        """
        return None

    def _persistent(self, name: str) -> Persistent:
        found = self._variables[name]
        assert isinstance(found, Persistent)  # the class Op asks only for persistable variables
        return found


def _check_type(type: str) -> None:
    """Check that the table of ops has a function for the op type `type`."""
    if type in ROWS:
        return
    if type in _UPDATES:
        advice = "let an optimizer of fluid.optimizer minimize the loss"
    elif type in layers.__all__:
        advice = f"call the layer: layers.{type}(...)"
    else:
        known = next((text for begin, text in _INSTEAD.items() if type.startswith(begin)), None)
        advice = known or f"call layers of fluid.layers instead. {errors.nearest(type, ROWS)}"
    raise errors.ProgramError(f"append_op(type={type!r}): no op of this type can be appended; {advice}")


def _variables(program: Any, given: Slot) -> list[Variable]:
    found: Sequence[Any] = given if isinstance(given, list | tuple) else [given]
    return [program.var(item) if isinstance(item, str) else item for item in found]


def _attributes(type: str, attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _attribute(type, name, value) for name, value in attrs.items() if value is not None}


def _attribute(type: str, name: str, value: Any) -> Any:
    if name.endswith("dtype") and not isinstance(value, int):
        kind = str(np.dtype(value))
        if kind not in _NUMBERS:
            raise errors.ArgumentError(f"append_op(type={type!r}): {name}={value!r} is no data type of Fluid")
        return _NUMBERS[kind]
    if isinstance(value, Variable):
        raise errors.ArgumentTypeError(
            f"append_op(type={type!r}): the attribute {name!r} is {value!r}, which has no number while the program is "
            f"written down; call the layer: layers.{type}(...)"
        )
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
