"""The file of an exported model: a zip archive without compression, with a checksum of each entry."""

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
from fluid.artifact import standalone
from fluid.paths import local_path
from fluid.storage import NONSENSE, instead, replaced, warn_of_ending, write_npy, zip_entry

_DIRECTORY_FILE = "model.fluid"

# The errors of zipfile, json and numpy for a damaged or foreign file.
_DAMAGE = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, struct.error, *NONSENSE)


def file_of(path: Any) -> pathlib.Path:
    """Return the file at a path; in a directory, `model.fluid`."""
    target = local_path(path, errors.ArtifactError)
    return target / _DIRECTORY_FILE if target.is_dir() else target


def write(path: Any, manifest: Mapping[str, Any], entries: Iterable[tuple[str, bytes]]) -> None:
    """Write a file: a reader of the path sees the old file or the new one, never a mixture.

    The same arguments make the same bytes.

    Args:
      path: of the file; in a directory that exists already, the file `model.fluid` is written.
      manifest: of JSON values.
      entries: names and contents, beside the manifest and the standalone reader.

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
    """Return whether a file looks like an exported model; `read` checks that the file is whole."""
    target = file_of(path)
    if not target.is_file() or not zipfile.is_zipfile(target):
        return False
    with zipfile.ZipFile(target) as archive:
        return standalone.SUMS in archive.namelist()


def read(path: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and all entries of a file, after comparing their checksums.

    Raises:
      ArtifactError: the file is missing, damaged, or no exported model.
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
    """Return the content of the entry of an array."""
    file = io.BytesIO()
    write_npy(file, name, array)
    return file.getvalue()
