"""The archive of an exported model: a zip file without compression, with a checksum of each entry."""

import hashlib
import io
import itertools
import json
import pathlib
import struct
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid._util import npy
from fluid._util.paths import local_path
from fluid.checkpoint import NONSENSE, instead, replaced, warn_of_ending, write_npy, zip_entry
from fluid.export import standalone

_DIRECTORY_FILE = "model.fluid"

# The exceptions that zipfile, json and numpy raise when they read a damaged file, or a file of another kind.
_DAMAGE = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, struct.error, *NONSENSE)


def file_of(path: Any) -> pathlib.Path:
    """Return the path of the file of an exported model: `path`, or `path/model.fluid` if `path` is a directory."""
    target = local_path(path, errors.ArtifactError)
    return target / _DIRECTORY_FILE if target.is_dir() else target


def write(path: Any, manifest: Mapping[str, Any], entries: Iterable[tuple[str, bytes]]) -> None:
    """Write an exported model atomically: a concurrent reader sees the old file or the complete new file.

    Equal arguments produce equal bytes.

    Args:
      entries: names and contents of the other files in the archive. `standalone.py`, which runs the model without
        fluid, is added.

    Raises:
      ArtifactError: the folder is missing or cannot be written.
    """
    first = [
        ("manifest.json", json.dumps(manifest, indent=1).encode()),
        ("standalone.py", pathlib.Path(standalone.__file__).read_bytes()),
    ]
    sums = []
    warn_of_ending(file_of(path), "model.fluid")
    with replaced(file_of(path), errors.ArtifactError) as (_, file), zipfile.ZipFile(file, "w") as archive:
        for name, content in itertools.chain(first, entries):
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
            archive.writestr(zip_entry(name), content)
        archive.writestr(zip_entry(standalone.SUMS), "".join(sums))


def is_artifact(path: Any) -> bool:
    """Return True if the file at `path` looks like an exported model; `read` also checks that it is undamaged."""
    target = file_of(path)
    if not target.is_file():
        return False
    try:
        with zipfile.ZipFile(target) as archive:
            return standalone.SUMS in archive.namelist()
    except npy.DAMAGES:
        return False


def read(path: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Check all checksums of an exported model, and return its manifest and the contents of its entries by name.

    Raises:
      ArtifactError: the file is missing, damaged, or not an exported model.
    """
    target = file_of(path)
    if not target.is_file():
        raise errors.ArtifactError(
            instead(local_path(path), "exported")
            or f"no exported model at {str(target)!r}; write one with trainer.save_inference_model({str(path)!r})"
        )
    try:
        return standalone.read(target)
    except _DAMAGE as error:
        if found := instead(target, "exported"):
            raise errors.ArtifactError(found) from error
        raise errors.ArtifactError(
            f"{str(target)!r} is no exported model, or is damaged: {error}; expected a file that "
            f"trainer.save_inference_model wrote"
        ) from error


def array_bytes(name: str, array: np.ndarray) -> bytes:
    """Return an array as bytes in the `.npy` format, the content of an archive entry."""
    file = io.BytesIO()
    write_npy(file, name, array)
    return file.getvalue()
