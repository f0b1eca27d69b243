"""The file of an artifact: a zip archive without compression, in which every entry has its checksum."""

import hashlib
import io
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
from fluid.storage import instead, replaced, warn_of_ending, write_npy, zip_entry

_DIRECTORY_FILE = "model.fluid"

# What a damaged or foreign file makes zipfile, json and numpy raise.
_DAMAGE = (
    zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError, OSError, RuntimeError, struct.error, OverflowError,
)  # fmt: skip


def file_of(path: Any) -> pathlib.Path:
    """The file at a path; in a directory, `model.fluid`."""
    target = local_path(path, errors.ArtifactError)
    return target / _DIRECTORY_FILE if target.is_dir() else target


def write(path: Any, manifest: Mapping[str, Any], entries: Iterable[tuple[str, bytes]]) -> None:
    """Write an artifact: whoever reads the path meanwhile sees the old file or the new one, never a mixture.

    The same arguments make the same bytes.

    Args:
      path: of the file; in a directory that exists already, the file `model.fluid` is written.
      manifest: of JSON values.
      entries: names and contents, beside the manifest and the reader that every artifact holds.

    Raises:
      ArtifactError: the folder is not there or cannot be written.
    """
    sums = []
    warn_of_ending(file_of(path), "model.fluid")
    with replaced(file_of(path), errors.ArtifactError) as (_, file), zipfile.ZipFile(file, "w") as archive:
        for name, content in _all(manifest, entries):
            sums.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
            archive.writestr(zip_entry(name), content)
        archive.writestr(zip_entry(standalone.SUMS), "".join(sums))


def is_artifact(path: Any) -> bool:
    """Whether a file looks like an artifact; `read` finds out whether it is whole."""
    target = file_of(path)
    if not target.is_file() or not zipfile.is_zipfile(target):
        return False
    with zipfile.ZipFile(target) as archive:
        return standalone.SUMS in archive.namelist()


def read(path: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest and all entries of an artifact, with their checksums compared.

    Raises:
      ArtifactError: there is no such file, it is damaged, or something else.
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
    """An array as an entry."""
    file = io.BytesIO()
    write_npy(file, name, array)
    return file.getvalue()


def _all(manifest: Mapping[str, Any], entries: Iterable[tuple[str, bytes]]) -> Iterable[tuple[str, bytes]]:
    yield "manifest.json", json.dumps(manifest, indent=1).encode()
    yield "standalone.py", pathlib.Path(standalone.__file__).read_bytes()
    yield from entries
