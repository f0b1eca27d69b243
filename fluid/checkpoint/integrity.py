"""Integrity: the seal of a folder, which detects damaged files, and structure checks of JSON.

A seal is a text file with the checksums of all files of a checkpoint. Orbax checks its indices but not the bytes of
arrays, and reads most flipped bits as wrong numbers. Inside the folder, `sha256sum -c fluid.seal` checks all files that
the seal lists. This module also finds files that were added later. A checksum proves that a file is intact, but not
that fluid wrote the file. So this module also checks the structure of JSON.
"""

import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from fluid import errors
from fluid.checkpoint.atomic import sync

VERSION = 1
NAME = "fluid.seal"
# Exceptions that are raised when code reads JSON with an unexpected structure: other types or members, or too deep
# nesting.
NONSENSE = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
_FIRST = re.compile(r"# fluid checkpoint ([0-9]{1,9})")


def seal(folder: pathlib.Path, known: Mapping[str, str] | None = None) -> None:
    """Flush all files of a folder to the disk, and write their checksums into the seal (the file `fluid.seal`).

    Raises:
      CheckpointError: a file of another process is not visible here.

    Example:
      >>> import tempfile
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "a.txt").write_text("one")
      >>> seal(folder)
      >>> flaw(folder) is None
      True
      >>> _ = (folder / "a.txt").write_text("two")
      >>> flaw(folder)
      'a.txt is not what was written'
    """
    known = known or {}
    found = files_in(folder)
    if missing := sorted(known.keys() - set(found)):
        raise errors.CheckpointError(
            f"another process has written {missing[0]}, which is not to be seen in {str(folder)!r}; expected a folder "
            f"that all processes share, such as one on a network file system"
        )
    digests = dict(known)
    digests.update(checksums(folder, [name for name in found if name not in known]))
    lines = [f"# fluid checkpoint {VERSION}", *(f"{digests[name]}  {name}" for name in found)]
    text = "\n".join(lines) + "\n"
    (folder / NAME).write_text(f"{text}# {_digest_of(text)}\n", encoding="utf-8")
    sync(folder / NAME)
    for parent, _, _ in os.walk(folder):
        sync(pathlib.Path(parent))


def checksums(folder: pathlib.Path, names: Iterable[str]) -> dict[str, str]:
    """Flush files to the disk; return their checksums by name."""
    found = {}
    for name in names:
        found[name] = _digest(folder / name)
        sync(folder / name)
    return found


def files_below(folder: pathlib.Path, below: str) -> list[str]:
    """Return the names of the files in a subfolder, relative to `folder`."""
    return [f"{below}/{name}" for name in files_in(folder / below)]


def flaw(folder: pathlib.Path, share: int = 0, of: int = 1) -> str | None:
    """Check the files of a folder by the checksums in its seal (the file `fluid.seal`).

    Return a description of the first flaw; None for an undamaged folder.

    Raises:
      CheckpointError: a newer version of fluid wrote the folder, in an unknown format.
    """
    try:
        text = (folder / NAME).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"{NAME} cannot be read: {getattr(error, 'strerror', None) or error}"
    body, _, last = text.removesuffix("\n").rpartition("\n")
    if last != f"# {_digest_of(body + chr(10))}":
        return f"{NAME} is not what was written"
    first, *lines = body.split("\n")
    check_version(folder, first)
    sealed = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    found = files_in(folder)
    if missing := sorted(sealed.keys() - set(found)):
        return f"{missing[0]} is missing"
    if extra := sorted(set(found) - sealed.keys()):
        return f"{extra[0]} does not belong here"
    for name in found[share::of]:
        try:
            digest = _digest(folder / name)
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if digest != sealed[name]:
            return f"{name} is not what was written"
    return None


def check_version(folder: pathlib.Path, first: str) -> None:
    """Check that this version of fluid knows the format of a seal, the text file with the checksums of a folder.

    Raises:
      CheckpointError: the format is unknown.
    """
    match = _FIRST.fullmatch(first)
    if match is None or int(match[1]) > VERSION:
        raise errors.CheckpointError(
            f"{str(folder)!r} was written in another format: found {first!r}, expected '# fluid checkpoint {VERSION}'; "
            f"read it with the version of fluid that wrote it, or a newer one"
        )


def files_in(folder: pathlib.Path) -> list[str]:
    """Return the names of all files below a folder except the seal (its file of checksums); links are not followed."""
    found = []
    for parent, folders, files in os.walk(folder):
        here = pathlib.Path(parent)
        links = [f for f in folders if (here / f).is_symlink()]
        found += [(here / name).relative_to(folder).as_posix() for name in (*files, *links)]
    return sorted(name for name in found if name != NAME)


def _digest(path: pathlib.Path) -> str:
    if path.is_symlink() or not path.is_file():
        return "no plain file"
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


Kind = Any
"""A description of the expected structure of JSON.

A type describes a value of this type, and None describes null. `[kind]` describes a list whose members fit `kind`.
`{"*": kind}` describes a dict whose values all fit `kind`. `{"name": kind}` describes a dict whose value under "name"
fits `kind`; an absent value counts as null. A tuple of kinds describes a value that fits one of them. A function
describes the values for which it returns True."""


def natural(value: Any) -> bool:
    """Return whether a value is an integer from 0 to 2**63 - 1."""
    return type(value) is int and 0 <= value < 1 << 63


def check_structure(value: Any, kind: Kind, where: str) -> None:
    """Check that JSON has the expected structure.

    Raises:
      ValueError: the structure differs.

    Example:
      >>> check_structure({"shape": [2, 3]}, {"shape": [natural], "note": (None, str)}, "arrays.w")
      >>> check_structure({"shape": [2, -3]}, {"shape": [natural]}, "arrays.w")
      Traceback (most recent call last):
      ValueError: arrays.w.shape.1 is -3
    """
    if isinstance(kind, tuple):
        if not any(_fits(value, one, where) for one in kind[:-1]):
            check_structure(value, kind[-1], where)
    elif isinstance(kind, list) and isinstance(value, list):
        for number, member in enumerate(value):
            check_structure(member, kind[0], f"{where}.{number}")
    elif isinstance(kind, dict) and isinstance(value, dict):
        for name in value if "*" in kind else kind:
            check_structure(value.get(name), kind.get("*", kind.get(name)), f"{where}.{name}")
    elif isinstance(kind, type):
        if not isinstance(value, kind) or (type(value) is bool and kind is not bool and kind is not object):
            raise ValueError(f"{where} is {_short(value)}")
    elif not (callable(kind) and kind(value)) and not (kind is None and value is None):
        raise ValueError(f"{where} is {_short(value)}")


def _fits(value: Any, kind: Kind, where: str) -> bool:
    try:
        check_structure(value, kind, where)
    except ValueError:
        return False
    return True


def _short(value: Any) -> str:
    return repr(value)[:60]
