"""Files of named arrays: one file holds arrays and JSON only.

The file is a zip archive of `.npy` entries, one for each name, and a `manifest.json` with shapes and dtypes. `np.load`
reads the file too; a dtype that NumPy lacks, for example bfloat16, appears there as raw integers. A path that ends in
".safetensors" selects the safetensors format instead, which other frameworks read and write. The functions for one
entry, `write_npy` and `read_npy`, also serve exported models.
"""

import json
import math
import pathlib
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util import npy
from fluid._util.paths import PathLike, local_path
from fluid.checkpoint import safetensors
from fluid.checkpoint.atomic import replaced
from fluid.checkpoint.integrity import NONSENSE
from fluid.checkpoint.recognize import instead
from fluid.core import warn


def write_npy(file: BinaryIO, name: str, array: np.ndarray) -> None:
    """Write an array in the `.npy` format.

    Raises:
      ArgumentTypeError: the array does not hold numbers.
    """
    np.lib.format.write_array(file, _storable(name, array), allow_pickle=False)


def size_limit(shape: Sequence[int], dtype: str) -> int:
    """Return the maximum size in bytes of an `.npy` entry for an array with this shape and dtype, including the header.

    A forged file could make the reader allocate any amount of memory. So the reader checks the size of an entry before
    it reads the entry.
    """
    return math.prod(shape) * jnp.dtype(dtype).itemsize + npy.HEADER_LIMIT


def read_npy(file: BinaryIO, name: str, shape: Sequence[int], dtype: str, size: int) -> np.ndarray:
    """Read an array that `write_npy` wrote; allocate memory only after all checks of the header.

    Args:
      size: the size of the file, in bytes.

    Raises:
      ValueError: the header has another shape or dtype, or the file is damaged.
    """
    wanted = jnp.dtype(dtype)
    stored, by_columns, found = npy.read_header(file)
    if found != tuple(shape) or stored != _stored(wanted):
        raise ValueError(f"the entry {name!r} is {stored}{list(found)}, declared as {dtype}{list(shape)}")
    count = math.prod(found)
    if size < count * stored.itemsize:
        raise ValueError(f"the entry {name!r} has {size} bytes, and {dtype}{list(shape)} takes more")
    array = np.empty(count, stored)
    if array.nbytes and file.readinto(array.data.cast("B")) != array.nbytes:  # type: ignore[attr-defined]
        raise ValueError(f"the entry {name!r} ends early")
    if file.read(1):
        raise ValueError(f"the entry {name!r} goes on behind its last number")
    array = array.reshape(found[::-1]).T if by_columns else array.reshape(found)
    return array if stored == wanted else array.view(wanted)


def _stored(dtype: np.dtype) -> np.dtype:
    return dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biufc":
        return array
    if array.dtype.kind == "V" and not array.dtype.hasobject:  # NumPy reports bfloat16 and similar dtypes as kind "V"
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))
    raise errors.ArgumentTypeError(
        f"{name!r} has dtype {array.dtype}, and only arrays of numbers can be saved; convert it: x.astype(float)"
    )


_EPOCH, _UNIX, _MODE = (1980, 1, 1, 0, 0, 0), 3, 0o644 << 16


def zip_entry(name: str) -> zipfile.ZipInfo:
    """Return the header of a file in a zip archive, with a fixed date and operating system.

    Equal contents therefore produce equal archives.

    Example:
      >>> zip_entry("manifest.json").date_time
      (1980, 1, 1, 0, 0, 0)
    """
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr = _UNIX, _MODE
    return info


FORMAT = "fluid-arrays"
VERSION = 1
_MANIFEST = "manifest.json"
PARAMS_FILE, PERSISTABLES_FILE = "params.fluid", "persistables.fluid"
_ENDINGS = {
    **dict.fromkeys((".h5", ".hdf5", ".keras"), "Keras"),
    **dict.fromkeys((".pt", ".pth"), "PyTorch"),
    **dict.fromkeys((".pkl", ".pickle"), "pickle"),
    **dict.fromkeys((".pdparams", ".pdmodel"), "PaddlePaddle"),
    **dict.fromkeys((".pb", ".tflite"), "TensorFlow"),
    ".npy": "NumPy",
    ".onnx": "ONNX",
}
_DAMAGES = (*npy.DAMAGES, *NONSENSE)


class Loaded(NamedTuple):
    """The contents of a file of arrays.

    Attributes:
      arrays: the arrays, by name.
      kind: the kind of the arrays, for example "parameters" or "session".
      sites: by array name, the line of code that created the array; only for arrays whose line the file records.
      table: the JSON of the `fluid.reader.Table` of the program; None if it has no Table.
      paths: by array name, the user's functions that created the array, see `fluid.core.creation_paths`.
    """

    arrays: dict[str, np.ndarray]
    kind: str
    sites: dict[str, str]
    table: dict[str, Any] | None = None
    paths: Mapping[str, str] = {}


def save_arrays(
    path: PathLike,
    arrays: Mapping[str, Any],
    kind: str = "parameters",
    sites: Mapping[str, str] = {},
    table: Mapping[str, Any] | None = None,
    paths: Mapping[str, str] = {},
) -> None:
    """Write arrays to one file, atomically: a concurrent reader gets the whole old file or the whole new file.

    Equal arguments produce equal bytes.

    Args:
      path: the file. In an existing directory, the file `params.fluid` is written. A name that ends in ".safetensors"
        selects the safetensors format.
      arrays: the arrays, by name.
      kind: the kind of the arrays, for example "parameters": recorded in the file and returned by `load_arrays`.
      sites: by array name, the line of code that created the array, recorded in the file. Names that `arrays` lacks
        are ignored.
      table: the JSON of the `fluid.reader.Table` of the program, recorded in the file; or None.
      paths: by array name, the user's functions that created the array, recorded in the file as `sites` are.

    Raises:
      ParameterFileError: the folder does not exist or cannot be written.

    Example:
      >>> import tempfile, os
      >>> path = os.path.join(tempfile.mkdtemp(), "digits.params")
      >>> save_arrays(path, {"w": np.ones(3, "float32")})
      >>> load_arrays(path)[0]["w"].tolist()
      [1.0, 1.0, 1.0]
    """
    target = _file(path, writes=True)
    warn_of_ending(target, "model.params, or model.safetensors for other libraries")
    host = {name: np.asarray(value) for name, value in arrays.items()}
    known = {name: site for name, site in sites.items() if name in host}
    calls = {name: path for name, path in paths.items() if name in host}
    if safetensors.is_safetensors(target):
        notes = {"kind": kind}
        notes |= {"sites": json.dumps(known)} if known else {}
        notes |= {"paths": json.dumps(calls)} if calls else {}
        notes |= {"table": json.dumps(table)} if table is not None else {}
        safetensors.save(target, host, notes)
        return
    listing = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in host.items()}
    manifest = {"format": FORMAT, "version": VERSION, "kind": kind, "arrays": listing, "sites": known}
    manifest |= {"paths": calls} if calls else {}
    manifest |= {"table": table} if table is not None else {}
    with replaced(target) as (_, file), zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zip_entry(_MANIFEST), json.dumps(manifest, indent=1))
        for name, array in host.items():
            with archive.open(zip_entry(f"{name}.npy"), "w", force_zip64=True) as entry:
                write_npy(entry, name, array)  # type: ignore[arg-type]


def warn_of_ending(path: pathlib.Path, instead: str) -> None:
    """Warn if the name of a parameter file has the ending of another library, such as ".pt" of PyTorch.

    This is no error, because an error would lose the parameters of a finished training.
    """
    if path.suffix.lower() in _ENDINGS:
        warn(
            f"{str(path)!r} is a file in fluid's own format, and {_ENDINGS[path.suffix.lower()]} cannot read it in "
            f"spite of its ending; name it {instead}"
        )


def load_arrays(path: PathLike) -> tuple[dict[str, np.ndarray], str]:
    """Read a file that `save_arrays` wrote.

    Args:
      path: the file, or a directory that holds `params.fluid`. A file that ends in ".safetensors" may come from any
        library.

    Returns:
      The arrays by name, and the kind of the arrays, for example "parameters".

    Raises:
      ParameterFileError: the file does not exist, is damaged, or has another format.

    Example:
      >>> load_arrays("nowhere")
      Traceback (most recent call last):
      fluid.errors.ParameterFileError: no parameter file at 'nowhere'; write one with trainer.save_params('nowhere')
    """
    found = load_file(path)
    return found.arrays, found.kind


def load_file(path: PathLike) -> Loaded:
    """Read a file that `save_arrays` wrote: the arrays, and all other values that the file records.

    Raises:
      ParameterFileError: the file does not exist, is damaged, or has another format.
    """
    target = _file(path)
    if not target.is_file():
        found = instead(pathlib.Path(path), "parameters")
        raise errors.ParameterFileError(
            found or f"no parameter file at {str(target)!r}; write one with trainer.save_params({str(path)!r})"
        )
    if safetensors.is_safetensors(target):
        arrays, notes = safetensors.load(target)
        table = _json_of_others(notes.get("table"))
        sites, paths = (_sites_of_others(notes.get(key)) for key in ("sites", "paths"))
        return Loaded(arrays, notes.get("kind", "parameters"), sites, table or None, paths)
    try:
        with zipfile.ZipFile(target) as archive:
            if len(set(archive.namelist())) < len(archive.namelist()):
                raise ValueError("two of its entries have one name")
            # Refuse a compressed manifest, because it could expand to any size in memory.
            if archive.getinfo(_MANIFEST).compress_type != zipfile.ZIP_STORED:
                raise ValueError("its manifest is compressed")
            manifest = json.loads(archive.read(_MANIFEST))
            if manifest["format"] != FORMAT or manifest["version"] > VERSION:
                raise ValueError(f"format {manifest['format']!r}, version {manifest['version']}")
            arrays = {name: _read(archive, name, entry) for name, entry in manifest["arrays"].items()}
            table = manifest.get("table")
            if not isinstance(table, dict | None):
                raise ValueError(f"its table is a {type(table).__name__}")
            sites, paths = (_sites(manifest.get(key, {})) for key in ("sites", "paths"))
            return Loaded(arrays, str(manifest["kind"]), sites, table, paths)
    except _DAMAGES as error:
        if found := instead(target, "parameters"):
            raise errors.ParameterFileError(found) from error
        raise errors.ParameterFileError(
            f"{str(target)!r} is no parameter file of fluid, or is damaged: {error}; "
            f"expected a file that trainer.save_params wrote (format {FORMAT}, version {VERSION}); parameters of other "
            f"libraries are read from files that end in .safetensors"
        ) from error


def _sites(listing: Mapping[str, str]) -> dict[str, str]:
    return {str(name): str(site) for name, site in listing.items()}


def _sites_of_others(text: str | None) -> dict[str, str]:
    """Parse JSON from a .safetensors file: by array name, the line of code that created the array.

    The result is empty if `text` is no JSON object, because other libraries also write such files.
    """
    return _sites(_json_of_others(text))


def _json_of_others(text: str | None) -> dict[str, Any]:
    """Parse a JSON object from the metadata of a .safetensors file; return an empty dict if `text` is another text."""
    try:
        found = json.loads(text or "{}")
    except NONSENSE:
        return {}
    return found if isinstance(found, dict) else {}


def file_in(folder: pathlib.Path, wanted: str = PARAMS_FILE) -> pathlib.Path:
    """Return the path of the file `wanted` in a folder, or of another parameter file if only that file exists.

    `trainer.save_params(folder)` writes `params.fluid`, and `save_persistables` writes `persistables.fluid`.
    """
    return next(
        (folder / name for name in (wanted, PARAMS_FILE, PERSISTABLES_FILE) if (folder / name).is_file()),
        folder / wanted,
    )


def _file(path: PathLike, writes: bool = False) -> pathlib.Path:
    target = local_path(path, errors.ParameterFileError)
    if not target.is_dir():
        return target
    return target / PARAMS_FILE if writes else file_in(target)


def _read(archive: zipfile.ZipFile, name: str, entry: Mapping[str, Any]) -> np.ndarray:
    shape, dtype = [int(d) for d in entry["shape"]], str(entry["dtype"])
    info = archive.getinfo(f"{name}.npy")
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > size_limit(shape, dtype):
        raise ValueError(f"the entry {name!r} is larger than its declared shape {shape}")
    if info.file_size > archive.start_dir:
        raise ValueError(f"the entry {name!r} is larger than the file")
    with archive.open(info) as raw:
        return read_npy(raw, name, shape, dtype, info.file_size)  # type: ignore[arg-type]
