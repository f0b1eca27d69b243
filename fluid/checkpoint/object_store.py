"""The folder of checkpoints in an object store, for example S3, at an address of fsspec.

    s3://bucket/run/
      40/               a whole checkpoint: the files of a checkpoint on disk; the seal (all checksums) is uploaded last
      50/               without a seal: a transfer or deletion in progress; removed later if its process was killed
      30.damaged/       set aside because a checksum was wrong
      fluid.lock        the name of the trainer that writes here

An object store can neither rename nor lock. A folder is therefore a checkpoint only if its seal exists. A checkpoint is
written and sealed in a temporary folder of this machine first, and then uploaded. It is downloaded to be checked or
read. Orbax itself writes only to disks and to gs://. Of two trainers, the one that started last may write: the other
trainer then finds another name than its own in `fluid.lock`, and saves no further checkpoints.
"""

import contextlib
import json
import os
import pathlib
import secrets
import shutil
import socket
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid._util.paths import PathLike, is_address
from fluid.checkpoint import integrity
from fluid.checkpoint.folder import ASIDE, LOCK, META, STEP, Folder, remove
from fluid.checkpoint.recognize import recognized


def folder_of(path: PathLike, read_only: bool = False) -> Folder:
    """Return the folder of checkpoints at a path or an address; arguments and errors as for `Folder`."""
    if is_address(path):
        return RemoteFolder(os.fspath(path), read_only)
    if recognized(pathlib.Path(path)) == "online":
        raise errors.CheckpointError(
            f"{str(path)!r} is the folder of a fluid.OnlineTrainer, which keeps its checkpoints in "
            f"{str(pathlib.Path(path) / 'checkpoints')!r}; expected a folder for a Trainer alone: "
            f"fluid.CheckpointConfig('checkpoints')"
        )
    return Folder(path, read_only)


class RemoteFolder(Folder):
    """A folder of checkpoints in an object store, one for each step number.

    Args:
      address: for example "s3://bucket/run". The library of the store finds credentials in their usual files and
        environment variables.

    Raises:
      CheckpointError: the store cannot be reached, or its library is not installed.

    Example:
      >>> folder = RemoteFolder("memory://run")
      >>> with folder.locked():
      ...     folder.write(40, {"w": np.ones(3)}, {"note": "forty"})
      >>> folder.steps(), folder.flaw(40), folder.meta(40)["note"], folder.arrays(40)["w"].tolist()
      ([40], None, 'forty', [1.0, 1.0, 1.0])
    """

    is_local = False

    def __init__(self, address: str, read_only: bool = False):
        self._system, self._root = _system(address)
        staging = tempfile.mkdtemp(prefix="fluid-checkpoints-")
        weakref.finalize(self, shutil.rmtree, staging, ignore_errors=True)
        super().__init__(staging, read_only)
        self.name = address
        self._me = f"process {os.getpid()} on {socket.gethostname()}, {secrets.token_hex(8)}"
        self._successor: str | None = None
        self._metas: dict[int, dict[str, Any]] = {}
        self._listing()

    def acquire(self) -> None:
        """Register this trainer in the object store as the only trainer that may write to this folder from now on."""
        if self._lock is None:
            with self._at_work():
                self._system.pipe_file(f"{self._root}/{LOCK}", self._me.encode())
            self._successor = None
            super().acquire()

    def release(self) -> None:
        """Remove the file that names this trainer as the writer of the folder, if the object store can be reached."""
        if self._lock is not None:
            # A registration file that stays in the store does no harm: it only names the last trainer that wrote there.
            with contextlib.suppress(Exception):
                if self._owner() == self._me:
                    self._system.rm_file(f"{self._root}/{LOCK}")
        super().release()

    def check_there(self) -> None:
        """Check that no earlier read of the object store has found another trainer that writes to this folder.

        Raises:
          CheckpointError: another trainer writes here.
        """
        if self._successor is not None:
            raise errors.CheckpointError(
                f"another trainer ({self._successor}) has begun to write to {self.name!r}, so this one saves nothing "
                f"more; give each an address of its own: fluid.CheckpointConfig({self.name + '-2'!r})"
            )

    def steps(self) -> list[int]:
        """Return the step numbers of all checkpoints with a seal (a file with their checksums), ascending."""
        return sorted(int(n) for n, files in self._listing().items() if STEP.fullmatch(n) and integrity.NAME in files)

    def aside(self) -> list[str]:
        """Return the names of the checkpoints that were set aside: renamed, because they were damaged or undone."""
        return sorted(name for name in self._listing() if ASIDE.fullmatch(name))

    def size(self, step: int) -> int:
        """Return the total size of the files of a checkpoint, in bytes."""
        return sum(self._listing().get(str(step), {}).values())

    def flaw(self, step: int, share: int = 0, of: int = 1) -> str | None:
        """Download a checkpoint, and return its flaw, such as a wrong checksum; None if there is no flaw."""
        remove(self.path / str(step))
        self._download(step)
        return super().flaw(step, share, of)

    def meta(self, step: int) -> dict[str, Any]:
        """Return the JSON that `write` stored in a checkpoint; see `Folder.meta`."""
        if (self.path / str(step) / META).exists():
            return super().meta(step)
        if step not in self._metas:
            with self._at_work():
                self._metas[step] = json.loads(self._system.cat_file(f"{self._root}/{step}/{META}"))
        return self._metas[step]

    def arrays(self, step: int, places: Mapping[str, jax.sharding.Sharding] | None = None) -> dict[str, Any]:
        """Return the arrays of a checkpoint by name, on the host; see `Folder.arrays`."""
        self._download(step)
        try:
            return super().arrays(step, places)
        finally:
            remove(self.path / str(step))

    def write(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write and upload a checkpoint. If this fails, the uploaded files are removed, now or by the next trainer."""
        here = self.path / str(step)
        try:
            remove(here)
            super().write(step, arrays, meta)
            self._upload(step, here)
            self._metas[step] = super().meta(step)
        except BaseException:
            with contextlib.suppress(Exception):
                self._check_owner()
                self._remove(str(step))
            raise
        finally:
            remove(here)

    def delete(self, step: int) -> None:
        """Remove a checkpoint from the object store: first its seal (the file of checksums), then the other files.

        Without the seal, no process uses the other files.
        """
        self._check_owner()
        self._metas.pop(step, None)
        self._remove(str(step))

    def sweep(self) -> None:
        """Remove the remains of uploads and deletions of killed processes."""
        self._check_owner()
        for name, files in self._listing().items():
            if STEP.fullmatch(name) and integrity.NAME not in files:
                self._remove(name)

    def set_aside(self, step: int, why: str) -> str:
        """Move a checkpoint, for example from `30` to `30.damaged`, by a copy and a deletion; return the new name."""
        self._check_owner()
        self._metas.pop(step, None)
        listing = self._listing()
        names = (f"{step}.{why}{f'-{i}' if i else ''}" for i in range(1_000_000))
        name = next(n for n in names if n not in listing)
        with self._at_work():
            for file in listing[str(step)]:
                self._system.cp_file(f"{self._root}/{step}/{file}", f"{self._root}/{name}/{file}")
        self._remove(str(step))
        return name

    def _upload(self, step: int, here: pathlib.Path) -> None:
        self._check_owner()
        self._remove(str(step))
        names = integrity.files_in(here)
        with self._at_work():
            self._system.put([str(here / n) for n in names], [f"{self._root}/{step}/{n}" for n in names])
        self._check_owner()
        with self._at_work():
            self._system.put_file(str(here / integrity.NAME), f"{self._root}/{step}/{integrity.NAME}")

    def _download(self, step: int) -> None:
        """Download a checkpoint, unless it is downloaded already; remove the checkpoint that was downloaded before."""
        here = self.path / str(step)
        if (here / integrity.NAME).exists():
            return
        # Names in an object store are arbitrary; a name that points outside the folder was not uploaded by this class.
        names = [n for n in self._listing().get(str(step), ()) if not {"", ".", ".."} & set(n.split("/"))]
        for other in self.path.iterdir():
            remove(other)
        with self._at_work():
            self._system.get([f"{self._root}/{step}/{n}" for n in names], [str(here / n) for n in names])

    def _remove(self, name: str) -> None:
        """Remove the folder of a checkpoint, complete or not; its seal (the file with checksums) is removed first."""
        files = self._listing().get(name, {})
        with self._at_work():
            if integrity.NAME in files:
                self._system.rm_file(f"{self._root}/{name}/{integrity.NAME}")
            if others := [f"{self._root}/{name}/{file}" for file in files if file != integrity.NAME]:
                self._system.rm(others)

    def _listing(self) -> dict[str, dict[str, int]]:
        """Return the size in bytes of each file in the checkpoint store.

        The result is a dict by folder name. Its values are dicts from file name to size.
        """
        with self._at_work():
            self._system.invalidate_cache()
            found = self._system.find(self._root, detail=True)
        listing: dict[str, dict[str, int]] = {}
        for path, info in found.items():
            folder, _, file = path.removeprefix(self._root).strip("/").partition("/")
            if file:
                listing.setdefault(folder, {})[file] = info["size"]
        return listing

    def _owner(self) -> str | None:
        """Return the name of the trainer that may write checkpoints to the object store now; None if there is none."""
        try:
            self._system.invalidate_cache()
            found: bytes = self._system.cat_file(f"{self._root}/{LOCK}")
        except FileNotFoundError:
            return None
        return found.decode("utf-8", "replace")

    def _check_owner(self) -> None:
        with self._at_work():
            owner = self._owner()
        if owner != self._me:
            self._successor = owner or "which has ended"
            self.check_there()

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """Convert each exception of the object store's library to a CheckpointError with the name of the store."""
        try:
            yield
        except Exception as error:
            raise errors.CheckpointError(
                f"the checkpoints in {self.name!r} cannot be read or written: {type(error).__name__}: {error}; "
                f"expected a bucket that is there, and credentials where the tools of the store look for them"
            ) from error


def _system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the path inside the file system."""
    if address.startswith("file://"):
        raise errors.CheckpointError(
            f"{address!r} is a folder of this machine, expected its path: {address.removeprefix('file://')!r}"
        )
    try:
        import fsspec

        system, root = fsspec.core.url_to_fs(address)
    except ImportError as error:
        raise errors.CheckpointError(
            f"{address!r} needs a library that is not installed ({error}): pip install 'fluid-jax[files]' has fsspec, "
            f"and what s3:// needs"
        ) from error
    except ValueError as error:
        raise errors.CheckpointError(
            f"{address!r} is no address that fsspec knows: {error}; expected one such as 's3://bucket/checkpoints', or "
            f"the path of a folder"
        ) from error
    return system, root.rstrip("/")
