"""SavedProgram: a program function that runs a program from a PaddlePaddle Fluid model file.

A program function is a function that calls layers. For each op of the program, `SavedProgram` calls a function from the
table in `compat/paddle_files/ops`. The calls are inside `core.unrecorded`, so results have only the names from the
file. Parameters also have the names from the file, and begin with the saved arrays. An input slot or attribute that
the function of the op does not read is an error.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors, layers
from fluid._util.paths import local_path
from fluid.checkpoint import instead, recognized
from fluid.compat.paddle_files.op import Op, Rule
from fluid.compat.paddle_files.ops import (
    arithmetic,
    image,
    loss,
    sequence,
    shape,
)
from fluid.compat.paddle_files.parameters import MODEL, read_model, read_model_params
from fluid.compat.paddle_files.program_desc import OpDesc, ProgramDesc, VarDesc
from fluid.core import Program
from fluid.initializer import NumpyArray
from fluid.param_attr import ParamAttr

ROWS: dict[str, Rule] = {
    **arithmetic.ROWS,
    **image.ROWS,
    **loss.ROWS,
    **sequence.ROWS,
    **shape.ROWS,
}


class SavedProgram:
    """A program function (a function that calls layers), which runs the ops of a PaddlePaddle program.

    Parameters have their saved names and start with the saved values. All other values have their saved names too, by
    which users can fetch and override the values. Another program function can call a SavedProgram, for example for
    further training. Dropout and batch normalisation then follow the mode: in training, dropout drops elements and
    batch normalisation updates its statistics. Layers created after the call continue the numbering of names.

    Attributes:
      feeds: names of the feeds.
      fetches: names of the outputs.
      params: parameters and statistics by name, in the dtypes that JAX stores.

    Raises:
      ProgramError: the program has ops that are not in the table of ops; the message lists all of them.
      ParameterFileError: an op reads a variable that is not fed, not saved and not computed by an earlier op.
    """

    def __init__(self, desc: ProgramDesc, arrays: Mapping[str, np.ndarray], source: str):
        self.__name__ = "inference_program"
        self.feeds = desc.feeds
        self.fetches = desc.fetches
        self.params = {name: _held(name, array, source) for name, array in arrays.items()}
        self._desc = desc
        self._source = source
        self._saved = {name: _Saved.of(name, array) for name, array in self.params.items()}
        _check_ops(desc.needed(desc.fetches), source)
        _check_values(desc, source)

    def __repr__(self) -> str:
        return f"SavedProgram({', '.join(self.feeds)} -> {', '.join(self.fetches)}, from {self._source!r})"

    def __call__(self, fetch: Sequence[str] | None = None) -> list[Any]:
        """Run the ops of the program by calling layers, as a program function or inside another one.

        Args:
          fetch: names of the values to return instead of the outputs, for example the features before the last layer.
            Only the ops that these values depend on run.

        Raises:
          UnknownNameError: the program has no value with a name in `fetch`.
          ProgramError: another layer has already created a parameter with a name of this program.
        """
        wanted = self._wanted(fetch)
        frame = core.current_frame("io.load_inference_model")
        for name in self._desc.variables:
            frame.reserve(name)
        ops = self._desc.needed(wanted)
        read = {*wanted, *(name for op in ops for name in op.reads())}
        run = _Run(self._desc, self._saved)
        for name in self.feeds:
            if fetch is None or name in read:
                run.declare(name)
        last = {name: number for number, op in enumerate(ops) for name in op.writes()}
        for number, op in enumerate(ops):
            try:
                run.op(op, {name for name in op.writes() if last[name] == number})
            except Exception as error:
                error.add_note(f"in {Op(op, run)} of {self._source!r}")
                raise
        return [run.value(name) for name in wanted]

    def _wanted(self, fetch: Sequence[str] | None) -> tuple[str, ...]:
        if fetch is None:
            return self.fetches
        names = (fetch,) if isinstance(fetch, str) else tuple(fetch)
        known = {*self.feeds, *self.params, *(name for op in self._desc.needed(self.fetches) for name in op.writes())}
        for name in names:
            if name not in known:
                raise errors.UnknownNameError(
                    f"the program of {self._source!r} has no value {name!r}. {errors.nearest(name, sorted(known))}"
                )
        return names


class _Saved(NamedTuple):
    """A saved parameter or statistic: shape and dtype, and an initializer and a ParamAttr that restore its array."""

    shape: tuple[int, ...]
    dtype: str
    initializer: NumpyArray
    setting: ParamAttr

    @classmethod
    def of(cls, name: str, array: np.ndarray) -> "_Saved":
        initializer = NumpyArray(array)
        trainable = bool(jnp.issubdtype(array.dtype, jnp.floating))
        return cls(array.shape, str(array.dtype), initializer, ParamAttr(name, initializer, trainable=trainable))


class _Run:
    """The variables of one run of a SavedProgram; implements the protocol `Values` of `paddle_files.op`."""

    def __init__(self, desc: ProgramDesc, saved: Mapping[str, _Saved]):
        self._desc = desc
        self._saved = saved
        self._frame = core.current_frame("io.load_inference_model")
        self._known: dict[str, Any] = {}
        self._makers: dict[str, OpDesc] = {}

    def declare(self, name: str) -> None:
        """Declare the feed `name` of the program, by `layers.data`."""
        variable = self._desc.variables[name]
        shape = [-1, *variable.shape[1:]] if variable.lod_level else list(variable.shape)
        self._known[name] = layers.data(
            name, shape, str(variable.dtype), lod_level=variable.lod_level, append_batch_size=False
        )

    def op(self, desc: OpDesc, named: set[str]) -> None:
        """Run an op and store the values of its outputs."""
        op = Op(desc, self)
        with core.as_fluid(), core.unrecorded(self._frame.scoped(f"@{next(iter(desc.writes()))}")):
            results = ROWS[desc.type](op)
        op.check_read()
        self._check_sizes(op)
        for slot, result in results.items():
            values = result if isinstance(result, list) else [result]
            names = op.outputs(slot)
            if names and len(names) != len(values):
                raise op.refuse(f"{len(values)} values for the {len(names)} variables of its slot {slot}")
            for name, value in zip(names, values, strict=False):
                if name in self._saved:
                    raise op.refuse(f"{name!r} is a parameter, and only layers of normalisation write what is saved")
                shaped = self._shaped(name, value)
                self._known[name] = layers.identity(shaped, name=name) if name in named else shaped
                self._makers[name] = desc

    def value(self, name: str) -> Any:
        """Return the value of the PaddlePaddle variable `name`: a result of an op so far, or a saved parameter."""
        if name in self._known:
            return self._known[name]
        if name not in self._saved:
            raise errors.ProgramError(f"the variable {name!r} is not computed here: fluid's layers have no such result")
        saved = self._claimed(name)
        return core.create_parameter(
            name, saved.shape, saved.dtype, saved.initializer, saved.setting.trainable, saved.setting
        )

    def parameter(self, name: str) -> ParamAttr:
        return self._claimed(name).setting

    def statistic(self, name: str) -> str:
        saved = self._claimed(name)
        core.create_state(name, saved.shape, saved.dtype, saved.initializer)
        return name

    def desc(self, name: str) -> VarDesc:
        if name not in self._desc.variables:
            raise errors.ProgramError(f"the program does not declare the variable {name!r}")
        return self._desc.variables[name]

    def maker(self, name: str) -> OpDesc | None:
        return self._makers.get(name)

    def _claimed(self, name: str) -> _Saved:
        """Return the saved parameter `name`; raise a ProgramError if another layer has created a parameter `name`."""
        known = self._frame.declared.arrays.get(name)
        if known is not None and known.initializer is not self._saved[name].initializer:
            raise errors.ProgramError(
                f"the parameter {name!r} of a saved program was made already at {known.site}; call the saved program "
                f"before other layers, which then go on counting behind its names, or put them into a fluid.name_scope"
            )
        return self._saved[name]

    def _check_sizes(self, op: Op) -> None:
        """Raise a ProgramError if a layer has created a parameter whose shape differs from the saved array."""
        for name in op.desc.reads():
            known = self._frame.declared.arrays.get(name)
            if known is not None and name in self._saved and known.shape != self._saved[name].shape:
                raise op.refuse(f"{name!r} was saved as {list(self._saved[name].shape)}, expected {list(known.shape)}")

    def _shaped(self, name: str, value: Any) -> Any:
        """Reshape a scalar `[]` to `[1]` if the saved program declares `[1]`, because later ops may need this shape."""
        variable = self._desc.variables.get(name)
        scalar = isinstance(value, jax.Array) and value.ndim == 0
        if not scalar or variable is None or variable.shape != (1,):
            return value
        result = jnp.reshape(value, (1,))
        self._frame.hand_on(value, result, "weight")
        return result


def _check_ops(ops: Sequence[OpDesc], source: str) -> None:
    unknown: dict[str, list[str]] = {}
    for op in ops:
        if op.type not in ROWS:
            unknown.setdefault(op.type, []).append(next(iter(op.writes()), "nothing"))
    if unknown:
        listed = "\n".join(
            f"  {type}: {len(made)} of them, the first makes {made[0]!r}" for type, made in sorted(unknown.items())
        )
        blocks = sorted({op.type for op in ops if op.has_block})
        hint = f"; {', '.join(blocks)} run blocks that assign to variables, write these parts anew" if blocks else ""
        raise errors.ProgramError(
            f"the program of {source!r} has {len(unknown)} kinds of ops that fluid has no row for{hint}:\n{listed}\n"
            f"a net without them, or one written with fluid.layers, can take over the parameters: "
            f"fluid.io.load_fluid_params({source!r})"
        )


def _check_values(desc: ProgramDesc, source: str) -> None:
    there = {*desc.feeds, *desc.parameters()}
    for op in desc.needed(desc.fetches):
        for name in op.reads():
            if name not in there:
                raise errors.ParameterFileError(
                    f"{source!r}: the op {op.type!r} reads the variable {name!r}, which is neither fed nor saved nor "
                    f"computed before; expected a program that save_inference_model of the original wrote"
                )
        there.update(op.writes())
    missing = [name for name in desc.fetches if name not in there]
    if missing:
        raise errors.ParameterFileError(f"{source!r}: no op computes what is fetched: {', '.join(missing)}")


def _held(name: str, array: np.ndarray, source: str) -> np.ndarray:
    """Convert an array to the dtype in which JAX stores it, by default int32 in place of int64."""
    held = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    if array.dtype.kind in "iu" and not np.array_equal(held, array):
        raise errors.ParameterFileError(
            f"{source!r}: the numbers of {name!r} do not fit into {held.dtype}; allow 64 bits: "
            f'jax.config.update("jax_enable_x64", True)'
        )
    return held


class InferenceModel(NamedTuple):
    """The result of `load_inference_model`, a tuple with the fields in PaddlePaddle Fluid's order.

    Attributes:
      program: for PaddlePaddle's files a SavedProgram, a function with the parameters in `program.params`; for a model
        that fluid exported, a Program.
      feed_target_names: names of the feeds of the program.
      fetch_targets: names of the outputs of the program.
    """

    program: SavedProgram | Program
    feed_target_names: list[str]
    fetch_targets: list[str]


def is_inference_model(path: Any) -> bool:
    """Return whether `path` is a folder that PaddlePaddle's `save_inference_model` wrote."""
    return isinstance(path, str | os.PathLike) and (pathlib.Path(os.fspath(path)) / MODEL).is_file()


def load_inference_model(
    dirname: Any, session: Any = None, model_filename: str | None = None, params_filename: str | None = None
) -> InferenceModel:
    """Load an inference model of PaddlePaddle Fluid; add it to `session`, if given. See `fluid.io`."""
    folder = local_path(dirname, errors.ParameterFileError)
    if recognized(folder) != "original parameters" and (found := instead(folder, "original")):
        raise errors.ParameterFileError(found)
    if folder.is_file():
        raise errors.ParameterFileError(
            f"{str(folder)!r} is a file of unknown kind, expected an exported model of fluid, or a folder that "
            f"save_inference_model of the original wrote"
        )
    if not folder.is_dir():
        raise errors.ParameterFileError(
            f"there is no folder {str(folder)!r}; expected one that save_inference_model of the original wrote"
        )
    desc = read_model(folder, model_filename)
    arrays = read_model_params(folder, desc, model_filename, params_filename)
    program = SavedProgram(desc, arrays, str(folder))
    if session is not None:
        added = session.add(program)
        for name in {**added.parameters, **added.states}:
            session.scope[name] = program.params[name]
    return InferenceModel(program, list(program.feeds), list(program.fetches))
