"""Listing: find the files that paths, addresses and patterns name, and open a file."""

import contextlib
import glob
import hashlib
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from fluid import errors

Path = str | os.PathLike[str]
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".xz": "xz"}
# The suffix that libraries append when they split a file: `train.tfrecord-00000-of-00010`.
_PART = re.compile(r"-\d+-of-\d+$")
# `_VERSIONS` are the keys under which file systems of fsspec report a checksum or version of a file, the best key
# first. If a file has none of these keys, its date is used, which is found under one of the keys `_DATES`.
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "generation")
_DATES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


@dataclass(frozen=True, eq=False)
class File:
    """A file in a file system of fsspec.

    Attributes:
      system: the file system.
      path: the path of the file in the file system.
      name: the name for messages, with the protocol.
      stamp: a text that changes with the file: its size, and a hash of its version or date.
    """

    system: Any
    path: str
    name: str
    stamp: str

    @property
    def compression(self) -> str | None:
        """The compression that the file name indicates, as fsspec calls it, such as "gzip"; None if uncompressed."""
        if self.path.endswith(".tgz"):
            return "gzip"
        return _COMPRESSIONS.get(posixpath.splitext(self.path)[1])

    @property
    def extension(self) -> str:
        """The extension that indicates the format, without a compression extension, for example ".csv"."""
        path = _PART.sub("", self.path)
        stem, extension = posixpath.splitext(path)
        return posixpath.splitext(_PART.sub("", stem))[1] if extension in _COMPRESSIONS else extension

    @contextlib.contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file for reading, decompressed, inside a `with` block."""
        if self.compression == "zstd":
            library("zstandard", f"{self.name!r} is compressed by Zstandard")
        with self.system.open(self.path, "rb", compression=self.compression) as stream:
            yield stream


def library(name: str, why: str) -> Any:
    """Import an optional library.

    Raises:
      ReaderError: the library is not installed.
    """
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise errors.ReaderError(
            f"{why}, and {name} is not installed ({error}): pip install 'fluid-jax[files]'"
        ) from error


def listed(paths: Path | Sequence[Path], storage_options: Mapping[str, Any] | None) -> list[File]:
    """List the files that paths, addresses and patterns name.

    Raises:
      ArgumentError: there is no path, or no file at a path.
      ArgumentTypeError: a path has another type.
      ReaderError: fsspec, or the library of the file system, is not installed.
    """
    many = [paths] if isinstance(paths, str | os.PathLike) else paths
    if isinstance(many, Mapping) or not hasattr(many, "__iter__"):
        raise _no_path(paths)
    found: dict[str, File] = {}
    for path in many:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise _no_path(path)
        for file in _matching(os.fspath(path), dict(storage_options or {})):
            found.setdefault(file.name, file)
    if not found:
        raise errors.ArgumentError("reader.files was given no path, expected at least one: reader.files('train-*.csv')")
    return list(found.values())


def stamps(files: Sequence[File]) -> dict[str, str]:
    """Return for each file its stamp, a text that changes if the file changes.

    The stamps are a dict by path, relative to the folder that all files share. The result does not change if this
    folder is moved.

    Example:
      >>> stamps([File(None, "/data/a/1.csv", "", "9"), File(None, "/data/b/1.csv", "", "8")])
      {'a/1.csv': '9', 'b/1.csv': '8'}
    """
    folder = posixpath.commonpath([posixpath.dirname("/" + file.path) for file in files])
    found = {posixpath.relpath("/" + file.path, folder): file.stamp for file in files}
    # Files in two object stores may have equal paths. Then return the stamps of the files by address, because addresses
    # differ. A stamp is a text that changes if the file changes.
    return found if len(found) == len(files) else {file.name: file.stamp for file in files}


def _matching(path: str, options: dict[str, Any]) -> list[File]:
    system, inner = _system(path, options)
    system.invalidate_cache()  # list the files again, because a cached list may be outdated
    try:
        # If a file with this name exists, its name is no pattern, although a name may contain brackets.
        if system.isfile(inner):
            infos = {inner: system.info(inner)}
        elif glob.has_magic(inner):
            infos = {name: info for name, info in system.glob(inner, detail=True).items() if info["type"] == "file"}
        else:
            infos = {}
        is_folder = not infos and system.isdir(inner)
    except (OSError, ValueError) as error:
        raise errors.ReaderError(
            f"reader.files cannot look at {path!r}: {type(error).__name__}: {error}. Credentials and the like are "
            f"given to fsspec: reader.files({path!r}, storage_options={{...}})"
        ) from error
    if is_folder:
        raise errors.ArgumentError(
            f"reader.files found that {path!r} is a folder, expected files: reader.files({posixpath.join(path, '*')!r})"
        )
    if not infos:
        raise errors.ArgumentError(
            f"reader.files found no file that matches {path!r}, expected at least one; patterns are those of a shell, "
            f"and ** stands for folders of any depth: reader.files('data/**/train-*.parquet')"
        )
    is_local = "file" in (system.protocol if isinstance(system.protocol, tuple) else (system.protocol,))
    shown = {name: name if is_local else system.unstrip_protocol(name) for name in sorted(infos)}
    # The listing of a web server lacks file sizes, so the size of each file is requested separately.
    return [File(system, n, shown[n], _stamp(infos[n] if infos[n].get("size") else system.info(n))) for n in shown]


def _system(path: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return the file system of an address, and the path inside the file system."""
    fsspec = library("fsspec", "reader.files finds and opens files by fsspec")
    try:
        system, inner = fsspec.core.url_to_fs(path, **options)
    except ImportError as error:
        raise errors.ReaderError(
            f"{path!r} needs a library that is not installed: {error}. For s3:// it comes with pip install "
            f"'fluid-jax[files]'"
        ) from error
    except (TypeError, ValueError) as error:
        raise errors.ArgumentError(
            f"reader.files({path!r}, storage_options={sorted(options)}): {error}; expected a path or an address of "
            f"fsspec, such as 's3://bucket/train-*.parquet', and the options of its file system"
        ) from error
    return system, inner


def _stamp(info: Mapping[str, Any]) -> str:
    known = next((info[key] for key in (*_VERSIONS, *_DATES) if info.get(key)), None)
    # The date of a local file is cut to whole seconds, because a copied file may lose the fraction.
    if isinstance(known, float):
        known = int(known)
    digest = hashlib.blake2b(str(known).encode(), digest_size=4).hexdigest()
    return f"{info.get('size')}-{digest}"


def _no_path(found: Any) -> errors.ArgumentTypeError:
    return errors.ArgumentTypeError(
        f"reader.files needs a path, a pattern, or a list of them, found {type(found).__name__} {found!r}: "
        f"reader.files('s3://bucket/train-*.parquet')"
    )
