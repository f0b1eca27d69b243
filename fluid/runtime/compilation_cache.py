"""A disk cache of compiled programs, which several processes can share, and an estimate of the compilation time.

The class Entries replaces JAX's own disk cache, which does not protect its files against damage.

JAX's own cache compresses files with `zstandard` where it is installed (Python 3.14 has it), without a checksum. Of 200
files with one flipped bit, 35 ended the process, 10 gave wrong numbers without an error, and 118 stayed damaged. With
`zlib` all 200 stayed damaged. Of 100 processes that were killed while they wrote, 24 left a file that no later process
replaced. Figures: `python benchmarks/jax_cache.py`, jax and jaxlib 0.10.2, zstandard 0.25.0, November 2026.
`docs/compilation-cache.md` promises that the program of a damaged file is compiled and written anew. When that command
prints "whole" for every case, JAX's own cache keeps this promise, and the class Entries can be deleted.
"""

import contextlib
import errno
import hashlib
import logging
import math
import os
import pathlib
import shlex
import sys
import tempfile
import time

import jax
from jax._src import compilation_cache as inside
from jax.experimental.compilation_cache import compilation_cache

from fluid import errors
from fluid._util.paths import local_path
from fluid.core import Program

_SUFFIX = ".xla"
_UNFINISHED = ".tmp"
_DIGEST = 16
# Each time a process has written `max_bytes / _PARTS` bytes to the folder of the cache, it scans the folder and removes
# old files.
_PARTS = 8
# One hour, in seconds. No write takes this long, so an older unfinished file was left by a killed process.
_HOUR = 3600


class Entries:
    """A store of compiled programs on disk, by key, with the interface of JAX's compilation cache.

    Writes are atomic: a file is complete or absent. A file begins with a digest of the key and the value; a file with
    a wrong digest is removed. If the folder is not writable, nothing is stored. When the total size exceeds the limit,
    the least recently used files are removed.

    Args:
      max_bytes: limit of the total size. A process scans the folder whenever it has written an eighth of the limit,
        so the total may exceed the limit by an eighth. A program larger than an eighth of the limit is not stored.

    Example:
      >>> entries = Entries(pathlib.Path("."), max_bytes=1 << 20)
      >>> entries.put("jit_step-1f", b"machine code")
      >>> entries.get("jit_step-1f"), entries.get("jit_step-2e")
      (b'machine code', None)
    """

    def __init__(self, folder: pathlib.Path, max_bytes: int):
        self._path = folder  # JAX reads `_path` for its log messages
        self._max_bytes = max_bytes
        # Number of bytes written since this process last scanned the folder of the cache for old files. The initial
        # value is the size limit, so that the first write scans the folder.
        self._written = max_bytes
        self._refused = False

    def get(self, key: str) -> bytes | None:
        """Return the bytes stored under a key; None if nothing is stored under the key, or the file is damaged."""
        path = self._file(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, value = content[:_DIGEST], content[_DIGEST:]
        is_whole = digest == _digest(key, value)
        with contextlib.suppress(OSError):  # another process may have just removed the file
            if is_whole:
                os.utime(path)
            else:
                path.unlink()
        return value if is_whole else None

    def put(self, key: str, value: bytes) -> None:
        """Store the bytes of a compiled program under a key, and replace older bytes of this key."""
        content = _digest(key, value) + value
        if len(content) > self._max_bytes // _PARTS:
            return
        try:
            self._write(self._file(key), content)
            self._written += len(content)
            if self._written > self._max_bytes // _PARTS:
                self._written = 0
                self._remove_oldest()
        except OSError as error:
            if not self._refused:
                log.info("compiled programs are not kept in %s: %s", self._path, error)
            self._refused = True

    def _file(self, key: str) -> pathlib.Path:
        return self._path / f"{key}{_SUFFIX}"

    def _write(self, path: pathlib.Path, content: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=self._path, suffix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _remove_oldest(self) -> None:
        """Remove the least recently used files until the total size of the remaining files is within the limit.

        Also remove unfinished files of killed processes. Other processes may remove files at the same time.
        """
        found = []
        with os.scandir(self._path) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    status = file.stat()
                    if file.name.endswith(_SUFFIX):
                        found.append((status.st_mtime, status.st_size, file.path))
                    elif file.name.endswith(_UNFINISHED) and status.st_mtime < time.time() - _HOUR:
                        os.unlink(file.path)
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes:
                break
            total -= size
            with contextlib.suppress(OSError):
                os.unlink(path)


def _digest(key: str, value: bytes) -> bytes:
    """Return a checksum of a compiled program (`value`) and of its key in the cache.

    The checksum includes the key, so that no program runs under a wrong key.
    """
    return hashlib.blake2b(value, digest_size=_DIGEST, key=hashlib.blake2b(key.encode()).digest()).digest()


VARIABLE = "FLUID_COMPILATION_CACHE"
_OFF = "off"
MAX_BYTES = 1 << 30

log = logging.getLogger("fluid")


def set_compilation_cache(folder: str | os.PathLike[str] | None, max_bytes: int = MAX_BYTES) -> None:
    """Set the folder in which this process stores compiled programs, so that later processes need not compile them.

    Without this call, the first Session selects a folder inside the user's cache folder. It does so only if JAX has no
    cache folder yet. The environment variable `FLUID_COMPILATION_CACHE` names another folder, or is "off".

    The stored code is executed, so other users must not have write access to the folder.

    Args:
      folder: created if it does not exist; None stores nothing.
      max_bytes: limit for all files together. The least recently used files are removed first.

    Raises:
      ArgumentError: the folder cannot be created, other users can write to it, or the limit is not above 0.

    Example:
      >>> import fluid
      >>> fluid.set_compilation_cache("compiled", max_bytes=200_000_000)
      >>> fluid.set_compilation_cache(None)
    """
    if folder is None:
        jax.config.update("jax_enable_compilation_cache", False)
        _forget()
        return
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 1:
        raise errors.ArgumentError(
            f"set_compilation_cache(max_bytes={max_bytes!r}): expected a number of bytes above 0, such as "
            f"max_bytes=200_000_000; set_compilation_cache(None) keeps nothing"
        )
    try:
        path = _made(local_path(folder))
    except OSError as error:
        raise errors.ArgumentError(
            f"set_compilation_cache({os.fspath(folder)!r}): the folder cannot be made: {error.strerror}; expected one "
            f"in which files can be written, or None to keep nothing"
        ) from error
    _use(path, max_bytes)


def keep_compilations() -> None:
    """Enable the disk cache of compiled programs, unless the user has already configured or disabled it.

    Users configure it with `set_compilation_cache`, the variable `FLUID_COMPILATION_CACHE`, or JAX's own options.
    """
    config = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return
    wanted = os.environ.get(VARIABLE)
    if wanted == _OFF:
        return
    try:
        path = _made(local_path(wanted)) if wanted else _made(_own())
    except (OSError, RuntimeError, errors.ArgumentError) as error:  # RuntimeError if the user has no home directory
        is_expected = not wanted and not isinstance(error, errors.ArgumentError)
        log.log(logging.INFO if is_expected else logging.WARNING, "compiled programs are not kept: %s", error)
        return
    _use(path, MAX_BYTES)


def _own() -> pathlib.Path:
    """Return the default folder for compiled programs, inside the user's cache folder of this operating system."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = pathlib.Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "fluid" / "xla"


def _made(folder: pathlib.Path) -> pathlib.Path:
    """Return the absolute path of a folder. Create the folder if needed, with access for this user only."""
    path = folder.expanduser().absolute()
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.name == "posix" and path.stat().st_uid != os.getuid():
        raise PermissionError(errno.EACCES, "it belongs to another user", str(path))
    if os.name == "posix" and path.stat().st_mode & 0o022:
        raise errors.ArgumentError(
            f"other users can write to {str(path)!r}, and what lies there is run; expected a folder of this user "
            f"alone: remove what is in it, then chmod go-w {shlex.quote(str(path))}"
        )
    return path


def _use(folder: pathlib.Path, max_bytes: int) -> None:
    """Make JAX store compiled programs in a folder.

    Programs that compile fast are stored too, unless the environment sets JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS.
    """
    config = jax.config
    config.update("jax_enable_compilation_cache", True)
    config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    _forget(Entries(folder, max_bytes))


def _forget(entries: Entries | None = None) -> None:
    """Close the compilation cache that JAX has open. If `entries` is not None, make JAX use `entries`.

    JAX's own cache files are not safe: a process can read a half-written file, and a damaged file is never replaced.
    JAX has no public function to set another cache. If a later JAX lacks the private attribute `_cache`, JAX's own
    cache is used.
    """
    compilation_cache.reset_cache()
    if entries is not None and hasattr(inside, "_cache"):
        inside._cache = entries  # type: ignore[assignment]
        inside._cache_initialized = True


# Seconds of compilation per equation of a program's jaxpr: 0.004 to 0.012 on two CPU cores with jaxlib 0.10.2, for
# nets of 137 to 882 equations (means of word vectors, LSTM, GRU, attention).
_SECONDS_PER_EQUATION = 0.008
_FLOPS_PER_SECOND = {"cpu": 5e10}
_OF_OTHERS = 1e13
# Floating-point operations per weight: a multiplication and an addition, once in the forward pass and twice in the
# backward pass.
_FLOPS_PER_WEIGHT = 6
# Lower limit of the estimated floating-point operations per step. Look-ups, additions and pooling have few weights, so
# an estimate from the number of weights would be too low.
_LEAST_FLOPS = 1e5


def compilation_cost(program: Program, platform: str) -> float:
    """Estimate the compilation time of a program, in units of the time for one step of one sequence.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.fc(fluid.layers.embedding(words, size=[1000, 64]), size=256)
      >>> compilation_cost(fluid.Program(program), "cpu") < compilation_cost(fluid.Program(program), "gpu")
      True
    """
    kinds = {name.partition(".tmp_")[0]: kind for name, kind in program.kinds.items()}
    weights = sum(math.prod(s.shape) for s in program.parameters.values() if kinds.get(s.layer) != "embedding")
    flops = _SECONDS_PER_EQUATION * program.equations * _FLOPS_PER_SECOND.get(platform, _OF_OTHERS)
    return flops / max(_FLOPS_PER_WEIGHT * weights, _LEAST_FLOPS)
