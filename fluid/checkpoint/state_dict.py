"""Weights of other libraries: read files of PyTorch, Keras, NumPy and safetensors, and convert names by a table."""

from __future__ import annotations

import contextlib
import fnmatch
import io
import os
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util import npy
from fluid._util.paths import PathLike, local_path
from fluid._util.text import counted, shape_text, text_table
from fluid.checkpoint import safetensors
from fluid.checkpoint.array_files import load_file
from fluid.checkpoint.match import Wanted
from fluid.checkpoint.recognize import instead, recognized
from fluid.checkpoint.source import ArraySource, RenameRule

# A dict from patterns of names in the file to names in the program. A value is a name, or a list of names among which
# the array is split. It may also be a pair: one of these, and "transpose" or the order of the axes.
NameTable = Mapping[str, Any]

_SHOWN = 20
_ROW = (
    'expected a name, a list of names, or a pair with "transpose" or axes: "fc_0.w_0", ["q.w_0", "k.w_0"], '
    '("fc_0.w_0", "transpose"), ("conv2d_0.w_0", (3, 2, 0, 1))'
)


@dataclass(frozen=True, repr=False)
class StateDictReport:
    """The result of `fluid.io.load_state_dict`; its text is a table with one line for each row of the table of names.

    Attributes:
      where: the origin of the weights.
      taken: for each parameter or state that was set, the name of its array in the origin.
      ignored: names in the origin that `ignore=` left out.
      kept: parameters and states that kept their values, because `ignore=` left them out.
      rows: the cells of the text, by line: pattern, target, conversion, number of arrays, dtype and shape.
    """

    where: str
    taken: Mapping[str, str]
    ignored: tuple[str, ...]
    kept: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __repr__(self) -> str:
        lines = [f"{counted(len(self.taken), 'array')} taken from {self.where}", text_table(self.rows, right=[3])]
        if self.ignored:
            lines.append(f"ignored there: {', '.join(self.ignored)}")
        if self.kept:
            lines.append(f"not changed here: {', '.join(self.kept)}")
        return "\n".join(lines)


def read_state_dict(path: PathLike) -> dict[str, np.ndarray]:
    """Read the arrays of a file that another library wrote, by their names in the file.

    Args:
      path: a file of safetensors, PyTorch (`.pt`, `.pth`, `.bin`), Keras (`.keras`, `.h5`) or NumPy (`.npz`), or of
        `save_params`. The content decides, not the ending. No code in the file runs: PyTorch reads it with
        `weights_only=True`.

    Returns:
      Arrays by name. In files of Keras, names are the paths of the HDF5 data sets. PyTorch's bfloat16 arrays become
      float32.

    Raises:
      ParameterFileError: the file does not exist, is damaged or of another kind, or its library is not installed.

    Example:
      >>> import fluid, numpy as np
      >>> np.savez("arrays.npz", w=np.ones(3))
      >>> fluid.io.read_state_dict("arrays.npz")
      {'w': array([1., 1., 1.])}
    """
    file = local_path(path, errors.ParameterFileError)
    if not file.exists():
        raise errors.ParameterFileError(f"no file at {str(file)!r}; expected weights of another library, or a mapping")
    kind = recognized(file) or ""
    if kind == "parameters":
        return {name: array for name, array in load_file(file).arrays.items() if not name.startswith("@")}
    if kind not in _READERS:
        raise errors.ParameterFileError(
            instead(file, "parameters")
            or f"{str(file)!r} holds no weights that fluid can read, or is damaged; expected a file of safetensors, "
            f"PyTorch, Keras (HDF5) or NumPy (.npz), or arrays by name"
        )
    return _READERS[kind](file)


def _read_safetensors(file: Any) -> dict[str, np.ndarray]:
    return safetensors.load(file)[0]


def _read_npz(file: Any) -> dict[str, np.ndarray]:
    with _archive(file) as archive:
        found = npy.entries(archive)
        for entry in found.values():
            npy.outline(archive, entry)
        arrays = {}
        for name, entry in found.items():
            with archive.open(entry) as stream:
                arrays[name] = npy.read_array(stream)
        return arrays


@contextlib.contextmanager
def _archive(file: Any) -> Iterator[zipfile.ZipFile]:
    """Open an archive of arrays; in the `with` block, errors of a damaged archive become ParameterFileErrors."""
    try:
        with zipfile.ZipFile(file) as archive:
            yield archive
    except npy.DAMAGES as error:
        raise errors.ParameterFileError(
            f"cannot read {str(file)!r}: {error or type(error).__name__}; expected arrays of numbers"
        ) from error


def _read_torch(file: Any) -> dict[str, np.ndarray]:
    try:
        import torch
    except ImportError as error:
        raise errors.ParameterFileError(
            f"{str(file)!r} needs PyTorch: pip install torch; or convert the file where PyTorch is installed, by "
            f"safetensors.torch.save_file(state_dict, '{file.with_suffix('.safetensors')}')"
        ) from error
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        raise errors.ParameterFileError(
            f"{str(file)!r} needs PyTorch 2.6 or newer, found {torch.__version__}: with older versions, a file of "
            f"weights can run code. Write pip install 'torch>=2.6', or convert the file by safetensors.torch.save_file"
        )
    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # PyTorch raises errors of many types, with long texts about unsafe files
        raise errors.ParameterFileError(
            f"PyTorch cannot read {str(file)!r} as weights alone ({type(error).__name__}); expected a file of "
            f"torch.save(model.state_dict(), path)"
        ) from error
    if not isinstance(found, Mapping) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        entries = list(found)[:8] if isinstance(found, Mapping) else type(found).__name__
        raise errors.ParameterFileError(
            f"{str(file)!r} holds {entries}, expected tensors by name; pass the entry that has the weights: "
            f'load_state_dict(trainer, torch.load({str(file)!r}, weights_only=True)["state_dict"], table)'
        )
    return {name: _on_host(value) for name, value in found.items()}


def _read_keras(file: Any) -> dict[str, np.ndarray]:
    try:
        import h5py
    except ImportError as error:
        raise errors.ParameterFileError(
            f"{str(file)!r} needs the library h5py: pip install 'fluid-jax[keras]'"
        ) from error
    arrays: dict[str, np.ndarray] = {}

    def read(name: str, entry: Any) -> None:
        if isinstance(entry, h5py.Dataset):
            arrays[name] = np.asarray(entry)

    try:
        content: Any = file
        if zipfile.is_zipfile(file):  # a .keras file is an archive with one HDF5 file
            with zipfile.ZipFile(file) as archive:
                (entry,) = [name for name in archive.namelist() if name.endswith(".weights.h5")]
                content = io.BytesIO(archive.read(entry))
        with h5py.File(content, "r") as opened:
            opened.visititems(read)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise errors.ParameterFileError(f"cannot read {str(file)!r}: {error}; expected weights of Keras") from error
    return arrays


_READERS: Mapping[str, Callable[[Any], dict[str, np.ndarray]]] = {
    "safetensors": _read_safetensors,
    "npz": _read_npz,
    "torch": _read_torch,
    "keras": _read_keras,
}


def _on_host(value: Any) -> np.ndarray:
    """Convert an array or a PyTorch tensor to a NumPy array; bfloat16, which NumPy lacks, becomes float32."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
    return np.asarray(value)


class _Row:
    """One entry of a NameTable: a pattern for names in a file, the parameters that it sets, and an order of axes."""

    def __init__(self, pattern: str, target: Any):
        names, axes = target if isinstance(target, tuple) and len(target) == 2 else (target, ())
        listed = [names] if isinstance(names, str) else names
        if not isinstance(listed, list) or not listed or not all(isinstance(n, str) for n in (pattern, *listed)):
            raise errors.ArgumentTypeError(f"the table has the row {pattern!r}: {target!r}; {_ROW}")
        numbers = isinstance(axes, tuple | list) and all(isinstance(axis, int) for axis in axes)
        if not numbers and axes != "transpose":
            raise errors.ArgumentTypeError(f"the table has the row {pattern!r}: {target!r}; {_ROW}")
        self._axes: str | Sequence[int] = axes
        self.pattern = pattern
        self.target = ", ".join(listed)
        self._rules = [RenameRule(pattern, name, "table") for name in listed]

    @property
    def conversion(self) -> str:
        order = self._axes if isinstance(self._axes, str) else f"axes {tuple(self._axes)}" if self._axes else ""
        split = f"split in {len(self._rules)}" if len(self._rules) > 1 else ""
        return ", ".join(filter(None, (order, split)))

    def targets(self, name: str) -> list[str] | None:
        found = [rule.apply(name) for rule in self._rules]
        return None if found[0] is None else [str(target) for target in found]

    def parts(self, array: np.ndarray) -> list[np.ndarray]:
        """Return the values of the parameters that one array of a weight file contains.

        The array is transposed and split as the name table says.
        """
        if isinstance(self._axes, str):
            array = array.T
        elif self._axes:
            array = array.transpose(self._axes)
        return np.split(array, len(self._rules), axis=-1) if len(self._rules) > 1 else [array]


class _Share(NamedTuple):
    """The new value of one parameter: an array of the file, or one part of an array that is split.

    Attributes:
      row: the row of the name table that matches the array.
      name: the name of the array in the file.
      target: the name of the parameter.
      array: the new value of the parameter.
    """

    row: _Row
    name: str
    target: str
    array: np.ndarray


def fit(
    given: PathLike | Mapping[str, Any], table: NameTable, wanted: Wanted, ignore: str | Sequence[str] = ()
) -> tuple[ArraySource, StateDictReport]:
    """Convert the weights of another library to the parameters of a program; see `fluid.io.load_state_dict`.

    Raises:
      ArgumentTypeError: a row of the table is invalid.
      ParameterFileError: the file does not exist, or is of another format.
      ParameterError: an array matches no row, a row matches no array, a parameter gets no array, or shapes differ.
    """
    if isinstance(given, Mapping):
        return _fitted({n: _on_host(v) for n, v in given.items()}, "the given weights", table, wanted, ignore)
    where, file = os.fspath(given), local_path(given, errors.ParameterFileError)
    if recognized(file) == "npz":  # refuse shapes that the program does not want before reading (decompressing) data
        with _archive(file) as archive:
            outlines = {name: npy.outline(archive, entry) for name, entry in npy.entries(archive).items()}
        _fitted(outlines, where, table, wanted, ignore)
    return _fitted(read_state_dict(given), where, table, wanted, ignore)


def _fitted(
    found: Mapping[str, np.ndarray], where: str, table: NameTable, wanted: Wanted, ignore: str | Sequence[str]
) -> tuple[ArraySource, StateDictReport]:
    rows = [_Row(pattern, target) for pattern, target in table.items()]
    patterns = [ignore] if isinstance(ignore, str) else list(ignore)
    ignored, kept = _matching(found, patterns), _matching(wanted, patterns)
    there = {name: array for name, array in found.items() if name not in ignored}
    here = {name: look for name, look in wanted.items() if name not in kept}
    shares, problems = _shares(rows, there)
    problems += _leftovers(rows, shares, there, wanted, here)
    taken = {share.target: share.name for share in shares if share.target in here}
    arrays = {s.target: _converted(s.array, *here[s.target]) for s in shares if s.target in here}
    problems += [text for n, array in arrays.items() if (text := _difference(n, taken[n], array, *here[n]))]
    if problems:
        _raise(where, problems)
    lines = tuple(_line(row, [s for s in shares if s.row is row and s.target in here], found, arrays) for row in rows)
    return ArraySource(arrays, where), StateDictReport(where, taken, tuple(ignored), tuple(kept), lines)


def _shares(rows: Sequence[_Row], there: Mapping[str, np.ndarray]) -> tuple[list[_Share], list[str]]:
    """Return the values that the rows of a name table assign to parameters, and error sentences for unusable arrays.

    A name table maps names of arrays in a file to names of parameters.
    """
    shares: list[_Share] = []
    problems: list[str] = []
    takers: dict[str, str] = {}
    for name, array in there.items():
        row = next((row for row in rows if row.targets(name)), None)
        if row is None:
            problems.append(f"no row takes {name} {_shown(array)}{_nearest(name, [row.pattern for row in rows])}")
            continue
        targets = row.targets(name) or []
        try:
            parts = row.parts(array)
        except ValueError as error:
            problems.append(f"{name} {_shown(array)} to {row.target}, {row.conversion}: {error}")
            parts = [array] * len(targets)
        for target, part in zip(targets, parts, strict=True):
            if target in takers:
                problems.append(f"{takers[target]} and {name} both go to {target}")
            takers[target] = name
            shares.append(_Share(row, name, target, part))
    return shares, problems


def _leftovers(
    rows: Sequence[_Row], shares: Sequence[_Share], there: Collection[str], wanted: Wanted, here: Wanted
) -> list[str]:
    """Return error sentences for table rows without an array, unknown parameters, and parameters that are not set."""
    used = {share.row.pattern for share in shares}
    names = {share.target: share.name for share in shares}
    unused = [row.pattern for row in rows if row.pattern not in used]
    unknown = [name for name in names if name not in wanted]
    missing = [name for name in here if name not in names]
    spare = [*unknown, *(name for name in there if name not in names.values())]
    return [
        *(f"the row {pattern!r} fits no name there{_nearest(pattern, there)}" for pattern in unused),
        *(f"{names[n]} goes to {n}, which the program lacks{_nearest(n, missing)}" for n in unknown),
        *(f"nothing sets {n} {shape_text(wanted[n][1], wanted[n][0])}{_nearest(n, spare)}" for n in missing),
    ]


def _matching(names: Collection[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(name == p or fnmatch.fnmatchcase(name, p) for p in patterns)]


def _converted(array: np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Convert floating-point numbers to the floating-point dtype of the program; return other arrays unchanged.

    An array of another shape is also returned unchanged.
    """
    floats = all(jnp.issubdtype(kind, jnp.floating) for kind in (array.dtype, dtype))
    return array.astype(dtype) if floats and array.shape == tuple(shape) else array


def _difference(name: str, origin: str, array: np.ndarray, shape: tuple[int, ...], dtype: str) -> str | None:
    """Compare an array from a file with the parameter `name` of the program, which has `shape` and `dtype`.

    Return an error message if shape or dtype differ; None if both agree.
    """
    if array.shape == tuple(shape) and str(array.dtype) == dtype:
        return None
    hint = f'; ({name!r}, "transpose") fits' if array.ndim > 1 and array.T.shape == tuple(shape) else ""
    return f"{origin} gives {name} {_shown(array)}, expected {shape_text(dtype, shape)}{hint}"


def _line(
    row: _Row, shares: Sequence[_Share], found: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray]
) -> tuple[str, ...]:
    """Return one line of the report on loaded arrays.

    The line has the pattern of names in the file, the names in the program, and the conversion. The number of arrays,
    with their dtype and shape, follows.
    """
    made = [arrays[share.target] for share in shares]
    looks = {_shown(array) for array in made}
    dtypes = {str(found[share.name].dtype) for share in shares} - {str(array.dtype) for array in made}
    conversion = ", ".join(filter(None, [row.conversion, *(f"from {dtype}" for dtype in sorted(dtypes))]))
    look = looks.pop() if len(looks) == 1 else f"{len(looks)} shapes"
    return row.pattern, f"-> {row.target}", conversion, counted(len(made), "array"), look


def _raise(where: str, problems: Sequence[str]) -> None:
    more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
    raise errors.ParameterError(
        f"{where} and the program do not fit, and nothing was changed:\n  "
        + "\n  ".join(problems[:_SHOWN])
        + more
        + '\nWrite a row for each name; ignore=["NAME", "head.*"] leaves names out, there and here'
    )


def _shown(array: np.ndarray) -> str:
    return shape_text(str(array.dtype), array.shape)


def _nearest(name: str, candidates: Collection[str]) -> str:
    hint = errors.nearest(name, candidates) if candidates else ""
    return f"  ({hint})" if hint.startswith("Did") else ""
