"""The folder of checkpoints: write, read, set aside and delete checkpoints.

    DIR/
      40/               a whole checkpoint, after 40 training steps
        arrays/         parameters, states, optimizer state, counters, in Orbax's format
        meta.json       their shapes and dtypes, and the position of training
        fluid.seal      checksums of all files of the checkpoint
      50.writing-7a1c/  a save in progress; removed later if its process was killed
      30.damaged/       set aside because a checksum was wrong
      60.undone/        set aside because training went back to an earlier step
      fluid.lock        held by the trainer that writes here

A checkpoint is written under another name, flushed to the disk, sealed with its checksums, and then renamed. A reader
therefore finds a whole checkpoint or none.
"""

import contextlib
import errno
import json
import math
import os
import pathlib
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util.paths import local_path
from fluid.checkpoint import integrity
from fluid.checkpoint.atomic import sync
from fluid.checkpoint.integrity import check_structure, natural

try:
    import fcntl
except ImportError:  # Windows lacks fcntl, so two trainers in one folder are not detected
    fcntl = None  # type: ignore[assignment]

META = "meta.json"
ARRAYS = "arrays"
LOCK = "fluid.lock"
STEP = re.compile(r"0|[1-9][0-9]{0,17}")
_LEFTOVER = re.compile(rf"({STEP.pattern})\.(writing(-[0-9a-f]+)?|deleting)")
ASIDE = re.compile(rf"({STEP.pattern})\.(damaged|undone)(-[0-9]+)?")

_OF_TRAINER = {
    **dict.fromkeys(("call", "epoch", "step"), natural),
    "batch": (None, {"samples": natural, "digest": str}),
    "reader": (None, dict),
    "finished": list,
    "finished_epochs": (None, [(None, natural)]),
    "handlers": list,
}
_META = {
    "step": natural,
    "arrays": {"*": {"shape": [natural], "dtype": str}},
    "position": (None, {"epoch": str, "step": str, "states": list}, _OF_TRAINER),
    "score": (None, {"output": (str, natural), "mode": str, "value": (None, float, int)}),
    "optimizers": (None, [str]),
    "sites": (None, {"*": str}),
    "paths": (None, {"*": str}),
    "versions": (None, {"*": str}),
    "table": (None, dict),
}


class Folder:
    """A folder of checkpoints, one for each step number.

    Attributes:
      path: the folder on this machine; for an object store, a folder for temporary copies.
      name: the path, or the address in an object store, for messages.
      is_local: True if the files stay at `path`; False for an object store.

    Raises:
      CheckpointError: the path is not a folder, or cannot be written.

    Example:
      >>> import tempfile
      >>> folder = Folder(tempfile.mkdtemp())
      >>> with folder.locked():
      ...     folder.write(40, {"w": np.ones(3)}, {"note": "forty"})
      >>> folder.steps(), folder.flaw(40), folder.meta(40)["note"], folder.arrays(40)["w"].tolist()
      ([40], None, 'forty', [1.0, 1.0, 1.0])
    """

    is_local = True

    def __init__(self, path: Any, read_only: bool = False):
        self.path = pathlib.Path(os.path.abspath(local_path(path, errors.CheckpointError)))
        self.name = str(self.path)
        try:
            if not read_only:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                with (self.path / LOCK).open("a"):
                    pass
        except OSError as error:
            raise errors.CheckpointError(
                f"no checkpoints can be kept in {str(self.path)!r}: {error.strerror}; expected a folder that can be "
                f"written: fluid.CheckpointConfig('checkpoints')"
            ) from error
        self._identity = self._stat()
        self._lock: int | None = None
        # Folders of failed saves. A thread that still writes may create such a folder again, see `discard`.
        self._failed: list[pathlib.Path] = []

    def acquire(self) -> None:
        """Lock the folder against other trainers; do nothing if this object already holds the lock.

        Raises:
          CheckpointError: another trainer holds the lock, or the folder no longer exists.
        """
        if self._lock is not None:
            return
        self.check_there()
        lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(lock, 0)
            os.write(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        except BlockingIOError:
            owner = os.read(lock, 200).decode("utf-8", "replace").strip()
            os.close(lock)
            raise errors.CheckpointError(
                f"another trainer ({owner or 'unknown'}) is at work in {str(self.path)!r}; wait until it has ended, or "
                f"give this one a folder of its own: fluid.CheckpointConfig('other')"
            ) from None
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def release(self) -> None:
        """Release the lock of the checkpoint folder; do nothing if this object does not hold the lock."""
        if self._lock is not None:
            with contextlib.suppress(OSError):  # if a folder cannot be removed now, `sweep` removes it later
                _remove_while_written(self._failed)
            self._failed.clear()
            os.close(self._lock)
            self._lock = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the checkpoint folder inside a `with` block, so that no other trainer writes there."""
        held = self._lock is not None
        self.acquire()
        try:
            yield
        finally:
            if not held:
                self.release()

    def check_there(self) -> None:
        """Check that the checkpoint folder still exists, and was not replaced since this object opened it.

        Raises:
          CheckpointError: the folder was unmounted, deleted or replaced.
        """
        if self._stat() != self._identity:
            raise errors.CheckpointError(
                f"the checkpoint folder {str(self.path)!r} has gone or been replaced, so nothing can be saved; "
                f"expected it to stay while training goes on. Bring it back, and make a new Trainer to continue"
            )

    def steps(self) -> list[int]:
        """Return the step numbers of all checkpoints, whole or damaged, ascending; leave out other folders."""
        names = (entry.name for entry in os.scandir(self.path) if entry.is_dir(follow_symlinks=False))
        return sorted(int(n) for n in names if STEP.fullmatch(n) and self._is_ours(self.path / n))

    def aside(self) -> list[str]:
        """Return the names of the checkpoints that were set aside: renamed, because they were damaged or undone."""
        return sorted(n for n in os.listdir(self.path) if ASIDE.fullmatch(n))

    def size(self, step: int) -> int:
        """Return the total size of the files of a checkpoint, in bytes."""
        return sum(path.stat().st_size for path in (self.path / str(step)).rglob("*") if path.is_file())

    def flaw(self, step: int, share: int = 0, of: int = 1) -> str | None:
        """Return the flaw of a checkpoint, such as a wrong checksum, as text; None if there is no flaw."""
        path = self.path / str(step)
        found = integrity.flaw(path, share, of)
        return self._nonsense(step) if found is None and META in integrity.files_in(path)[share::of] else found

    def meta(self, step: int) -> dict[str, Any]:
        """Return the JSON that `write` stored in a checkpoint; its key "arrays" has shapes and dtypes of arrays."""
        with (self.path / str(step) / META).open(encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        return found

    def arrays(self, step: int, places: Mapping[str, jax.sharding.Sharding] | None = None) -> dict[str, Any]:
        """Return the arrays of a checkpoint by name, on the host.

        Args:
          places: shardings by name, for arrays that are placed on devices instead of the host. These arrays must have
            elements. A process reads only the shards of its own devices.
        """
        import orbax.checkpoint as ocp

        places = places or {}
        listed = {n: (tuple(a["shape"]), jnp.dtype(a["dtype"])) for n, a in self.meta(step)["arrays"].items()}
        full = {n: listed[n] for n in listed if math.prod(listed[n][0])}
        wanted = {n: jax.ShapeDtypeStruct(s, d, sharding=places.get(n)) for n, (s, d) in full.items()}
        with ocp.Checkpointer(ocp.StandardCheckpointHandler(), **_by_itself()) as reader:
            found = reader.restore(self.path / str(step) / ARRAYS, args=ocp.args.StandardRestore(wanted))
        here = {n: value if n in places else np.asarray(value) for n, value in found.items()}
        return {n: here[n] if n in here else np.zeros(s, d) for n, (s, d) in listed.items()}

    def write(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Write a checkpoint. If this fails, the checkpoint is removed, and all other checkpoints stay unchanged."""
        import orbax.checkpoint as ocp

        temporary = self.begin(step)
        try:
            with ocp.Checkpointer(ocp.StandardCheckpointHandler(), **_by_itself()) as writer:
                writer.save(temporary / ARRAYS, args=ocp.args.StandardSave(with_elements(arrays)))
            self.finish(temporary, step, arrays, meta)
        except BaseException:
            self.discard(temporary)
            raise

    def begin(self, step: int) -> pathlib.Path:
        """Create an empty folder with a new name, in which a checkpoint is written."""
        with contextlib.suppress(OSError):
            _remove_while_written(self._failed)
        temporary = self.path / f"{step}.writing-{secrets.token_hex(4)}"
        temporary.mkdir(mode=0o700)
        return temporary

    def discard(self, temporary: pathlib.Path) -> None:
        """Remove the files of a checkpoint that could not be written completely.

        A write fails as soon as one file fails. Threads of TensorStore, with which Orbax writes, still write the other
        files then, and create the folder again if it was removed. The folder is therefore removed again before the next
        save, and on `release`.
        """
        self._failed.append(temporary)
        # Ignore an error of this removal: `write` raises the exception for which it discards the checkpoint.
        with contextlib.suppress(OSError):
            _remove_while_written(self._failed)

    def finish(
        self,
        temporary: pathlib.Path,
        step: int,
        arrays: Mapping[str, Any],
        meta: Mapping[str, Any],
        sealed: Mapping[str, str] | None = None,
    ) -> None:
        """Complete a checkpoint: write its meta.json and its seal (checksums of all files), and rename its folder."""
        listing = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in arrays.items()}
        text = json.dumps({**meta, "step": step, "arrays": listing}, indent=1)
        (temporary / META).write_text(text, encoding="utf-8")
        integrity.seal(temporary, sealed)
        os.rename(temporary, self.path / str(step))
        sync(self.path)

    def delete(self, step: int) -> None:
        """Remove a checkpoint. Its folder is renamed first, so that a killed process leaves no partial checkpoint."""
        doomed = self.path / f"{step}.deleting"
        remove(doomed)
        os.rename(self.path / str(step), doomed)
        remove(doomed)

    def sweep(self) -> None:
        """Remove the remains of saves and deletions of killed processes.

        Processes of a killed run may still write to these folders; the next call removes the files that they add.
        """
        _remove_while_written(self.path / name for name in os.listdir(self.path) if _LEFTOVER.fullmatch(name))

    def set_aside(self, step: int, why: str) -> str:
        """Rename a checkpoint, for example from `30` to `30.damaged`, to keep it unused; return the new name."""
        names = (f"{step}.{why}{f'-{i}' if i else ''}" for i in range(1_000_000))
        name = next(n for n in names if not (self.path / n).exists())
        os.rename(self.path / str(step), self.path / name)
        return name

    def newest_whole(self) -> tuple[int | None, dict[int, str]]:
        """Return the step of the newest undamaged checkpoint, or None; and the flaws of newer checkpoints, by step."""
        return newest_whole(self.steps(), self.flaw)

    def _nonsense(self, step: int) -> str | None:
        """Return an error in the content of a meta.json, such as a wrong type, as text; None if there is no error."""
        try:
            meta = self.meta(step)
            check_structure(meta, _META, META)
            if meta["step"] != step:
                return f"{META} is that of step {meta['step']}"
            for array in meta["arrays"].values():
                jnp.dtype(array["dtype"])
        # A FluidError means that the object store cannot be reached. The checkpoint may be undamaged: raise the error.
        except errors.FluidError:
            raise
        except (OSError, *integrity.NONSENSE) as error:
            return f"{META} makes no sense: {type(error).__name__}: {error}"
        return None

    def _is_ours(self, path: pathlib.Path) -> bool:
        return any((path / name).exists() for name in (integrity.NAME, META, ARRAYS))

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def newest_whole(steps: Sequence[int], flaw: Callable[[int], str | None]) -> tuple[int | None, dict[int, str]]:
    """Return the step of the newest undamaged checkpoint, or None; and the flaws of newer checkpoints, by step.

    Example:
      >>> newest_whole([2, 4, 6], {2: None, 4: None, 6: "meta.json is missing"}.get)
      (4, {6: 'meta.json is missing'})
    """
    flaws: dict[int, str] = {}
    for step in reversed(steps):
        problem = flaw(step)
        if problem is None:
            return step, flaws
        flaws[step] = problem
    return None, flaws


def _by_itself() -> dict[str, Any]:
    """Return the options with which Orbax works in this process alone, without waiting for the other processes."""
    if jax.process_count() == 1:
        return {}
    import orbax.checkpoint as ocp

    here = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process_{here}"
    )
    return {"multiprocessing_options": options}


def with_elements(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays that have elements; Orbax refuses empty arrays, which are created again from their shapes."""
    return {n: a for n, a in arrays.items() if a.size}


def remove(path: pathlib.Path) -> None:
    """Remove a folder with all its contents; do nothing if the folder does not exist."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


def _remove_while_written(paths: Iterable[pathlib.Path]) -> None:
    """Remove folders while other threads or processes may write to them; files that are added meanwhile stay."""
    for path in paths:
        try:
            remove(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
