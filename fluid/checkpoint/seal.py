"""Seals: checksums of all files of a folder, which detect a damaged checkpoint.

Orbax checks its indices but not the bytes of arrays, and reads most flipped bits as wrong numbers. The seal is a text
file: inside the folder, `sha256sum -c fluid.seal` checks all that `flaw` checks, except for added files.
"""

import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Mapping

from fluid import errors
from fluid.checkpoint.atomic import sync

VERSION = 1
NAME = "fluid.seal"
# Exceptions when reading JSON of another structure: other types, other members, or too deep nesting.
NONSENSE = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
_FIRST = re.compile(r"# fluid checkpoint ([0-9]{1,9})")


def seal(folder: pathlib.Path, known: Mapping[str, str] | None = None) -> None:
    """Flush all files of a folder to the disk, and write their checksums into the seal.

    Args:
      folder: the folder to seal.
      known: checksums by name, from `checksums`, of files that another process has written and checked.

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
    """Flush files to the disk; return their checksums by name.

    Args:
      folder: the folder of the files.
      names: the files in the folder, for example from `files_below`.
    """
    found = {}
    for name in names:
        found[name] = _digest(folder / name)
        sync(folder / name)
    return found


def files_below(folder: pathlib.Path, below: str) -> list[str]:
    """Return the names of the files in a subfolder, relative to `folder`.

    Args:
      folder: the whole folder.
      below: the subfolder, for example "arrays/ocdbt.process_1"; if it does not exist, the list is empty.
    """
    return [f"{below}/{name}" for name in files_in(folder / below)]


def flaw(folder: pathlib.Path, share: int = 0, of: int = 1) -> str | None:
    """Return the flaw of a sealed folder, or None for a whole folder.

    Args:
      folder: the folder.
      share: the index of this process, from 0, among the processes that check together; each reads some of the files.
      of: the number of these processes.

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
    """Check that a seal has a format that this version of fluid knows.

    Args:
      folder: the folder of the seal, for the message.
      first: the first line of the seal.

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
    """Return the names of the files at any depth of a folder, without the seal; links are listed, but not followed."""
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
