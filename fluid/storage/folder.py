"""The folder of checkpoints: what is in it, and how steps are written, read, set aside and deleted.

    DIR/
      40/               a whole checkpoint, after 40 training steps
        arrays/         parameters, states, slots, counters, as Orbax writes them
        meta.json       their shapes and dtypes, and the position of training
        fluid.seal      checksums of all of these
      50.writing-7a1c/  a save that is not complete; removed later if its process was killed
      30.damaged/       set aside because its checksums were wrong
      60.undone/        set aside because training went back to a step before it
      fluid.lock        held by the trainer that writes here

A step is written under another name, synced, sealed and then renamed, so that a reader finds all of it or nothing.
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
from fluid.paths import local_path
from fluid.storage import seal
from fluid.storage.atomic import sync
from fluid.storage.structure import check_structure, natural

try:
    import fcntl
except ImportError:  # Windows: two trainers in one folder are not noticed there
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
    "versions": (None, {"*": str}),
}


class Folder:
    """Checkpoints by step.

    Args:
      path: of the folder; made when it is not there.
      read_only: whether to change nothing; the folder must be there then.

    Attributes:
      path: of the folder on this machine.
      name: the path, or the address of a store, for messages.
      is_local: whether what is written to the path stays there.

    Raises:
      CheckpointError: it is no folder, or cannot be written.

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
        self._failed: list[pathlib.Path] = []  # saves of which something may come back; see `discard`

    def acquire(self) -> None:
        """Lock the folder against other trainers; nothing happens when this one holds the lock already.

        Raises:
          CheckpointError: another trainer holds the lock, or the folder is gone.
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
        """Give the lock back."""
        if self._lock is not None:
            with contextlib.suppress(OSError):  # what cannot be removed now is left to `sweep`
                _remove_while_written(self._failed)
            self._failed.clear()
            os.close(self._lock)
            self._lock = None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for a block."""
        held = self._lock is not None
        self.acquire()
        try:
            yield
        finally:
            if not held:
                self.release()

    def check_there(self) -> None:
        """Check that the folder is still there, and the same: not unmounted, deleted or replaced.

        Raises:
          CheckpointError: it is not.
        """
        if self._stat() != self._identity:
            raise errors.CheckpointError(
                f"the checkpoint folder {str(self.path)!r} has gone or been replaced, so nothing can be saved; "
                f"expected it to stay while training goes on. Bring it back, and make a new Trainer to continue"
            )

    def steps(self) -> list[int]:
        """The steps in the folder, ascending, whole or damaged; folders of other programs are left out."""
        names = (entry.name for entry in os.scandir(self.path) if entry.is_dir(follow_symlinks=False))
        return sorted(int(n) for n in names if STEP.fullmatch(n) and self._is_ours(self.path / n))

    def aside(self) -> list[str]:
        """The names of the steps that were set aside."""
        return sorted(n for n in os.listdir(self.path) if ASIDE.fullmatch(n))

    def size(self, step: int) -> int:
        """How many bytes the files of a step have."""
        return sum(path.stat().st_size for path in (self.path / str(step)).rglob("*") if path.is_file())

    def flaw(self, step: int, share: int = 0, of: int = 1) -> str | None:
        """Return the flaw of a step or of its meta.json, as `seal.flaw` does; None for a good step."""
        path = self.path / str(step)
        found = seal.flaw(path, share, of)
        return self._nonsense(step) if found is None and META in seal.files_in(path)[share::of] else found

    def meta(self, step: int) -> dict[str, Any]:
        """The JSON that `write` was given, with the shapes and dtypes of the arrays under `arrays`."""
        with (self.path / str(step) / META).open(encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        return found

    def arrays(self, step: int, places: Mapping[str, jax.sharding.Sharding] | None = None) -> dict[str, Any]:
        """The arrays of a step by name, on the host.

        Args:
          step: which one.
          places: by name, where arrays with elements shall lie instead that are divided among devices. Of these a
            process reads what its own devices hold.
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
        """Add a step. If that fails, nothing of it stays, and the other steps are as they were.

        Args:
          step: its number.
          arrays: by name, on the host.
          meta: what to keep beside the arrays, as JSON.
        """
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
        """Make an empty folder for a step to be written, of a name that none had before."""
        with contextlib.suppress(OSError):
            _remove_while_written(self._failed)
        temporary = self.path / f"{step}.writing-{secrets.token_hex(4)}"
        temporary.mkdir(mode=0o700)
        return temporary

    def discard(self, temporary: pathlib.Path) -> None:
        """Remove what was written of a step that failed.

        A write fails as soon as one file does, while threads of TensorStore go on with the others, and make the folder
        again if it is gone. So it is removed once more before the next save, and when the lock is given back.

        Args:
          temporary: from `begin`.
        """
        self._failed.append(temporary)
        with contextlib.suppress(OSError):  # the failure itself is what the caller shall hear of
            _remove_while_written(self._failed)

    def finish(
        self,
        temporary: pathlib.Path,
        step: int,
        arrays: Mapping[str, Any],
        meta: Mapping[str, Any],
        sealed: Mapping[str, str] | None = None,
    ) -> None:
        """Make a step of what was written: say what is in it, seal it, and give it its name.

        Args:
          temporary: from `begin`, with the arrays in it.
          step: its number.
          arrays: by name, with shapes and dtypes.
          meta: as for `write`.
          sealed: checksums that are known, as for `seal.seal`.
        """
        listing = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in arrays.items()}
        text = json.dumps({**meta, "step": step, "arrays": listing}, indent=1)
        (temporary / META).write_text(text, encoding="utf-8")
        seal.seal(temporary, sealed)
        os.rename(temporary, self.path / str(step))
        sync(self.path)

    def delete(self, step: int) -> None:
        """Remove a step. It is renamed first, so that what a killed process leaves is no step any more."""
        doomed = self.path / f"{step}.deleting"
        remove(doomed)
        os.rename(self.path / str(step), doomed)
        remove(doomed)

    def sweep(self) -> None:
        """Remove what killed processes have left of saves and deletions.

        Some of several processes may still be ending and write to it meanwhile; what they add goes the next time.
        """
        _remove_while_written(self.path / name for name in os.listdir(self.path) if _LEFTOVER.fullmatch(name))

    def set_aside(self, step: int, why: str) -> str:
        """Rename a step to `STEP.why`, so that it is neither used nor lost; returns the new name."""
        names = (f"{step}.{why}{f'-{i}' if i else ''}" for i in range(1_000_000))
        name = next(n for n in names if not (self.path / n).exists())
        os.rename(self.path / str(step), self.path / name)
        return name

    def newest_whole(self) -> tuple[int | None, dict[int, str]]:
        """The newest step without a flaw, or None; and what is wrong with each newer one."""
        return newest_whole(self.steps(), self.flaw)

    def _nonsense(self, step: int) -> str | None:
        """Return the flaw of a meta.json whose checksum is right; None for a good one."""
        try:
            meta = self.meta(step)
            check_structure(meta, _META, META)
            if meta["step"] != step:
                return f"{META} is that of step {meta['step']}"
            for array in meta["arrays"].values():
                jnp.dtype(array["dtype"])
        except errors.FluidError:  # the store cannot be reached now
            raise
        except (OSError, *seal.NONSENSE) as error:
            return f"{META} makes no sense: {type(error).__name__}: {error}"
        return None

    def _is_ours(self, path: pathlib.Path) -> bool:
        return any((path / name).exists() for name in (seal.NAME, META, ARRAYS))

    def _stat(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return found.st_dev, found.st_ino


def newest_whole(steps: Sequence[int], flaw: Callable[[int], str | None]) -> tuple[int | None, dict[int, str]]:
    """The newest of some steps without a flaw, or None; and what is wrong with each newer one.

    Args:
      steps: ascending.
      flaw: says what is wrong with a step.

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
    """What tells Orbax that of several processes this one reads or writes, and waits for no other."""
    if jax.process_count() == 1:
        return {}
    import orbax.checkpoint as ocp

    here = jax.process_index()
    options = ocp.options.MultiprocessingOptions(
        primary_host=here, active_processes={here}, barrier_sync_key_prefix=f"process_{here}"
    )
    return {"multiprocessing_options": options}


def with_elements(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays that Orbax takes; it refuses those without elements, which are made again by their shapes."""
    return {n: a for n, a in arrays.items() if a.size}


def remove(path: pathlib.Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)


def _remove_while_written(paths: Iterable[pathlib.Path]) -> None:
    """Remove folders to which others may write meanwhile; what they add stays."""
    for path in paths:
        try:
            remove(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
