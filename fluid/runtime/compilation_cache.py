"""The folder of compiled programs: set by the user, by the environment, or the user's cache folder."""

import errno
import logging
import os
import pathlib
import shlex
import sys

import jax
from jax._src import compilation_cache as inside
from jax.experimental.compilation_cache import compilation_cache

from fluid import errors
from fluid.paths import local_path
from fluid.runtime.disk_cache import Entries

VARIABLE = "FLUID_COMPILATION_CACHE"
_OFF = "off"
MAX_BYTES = 1 << 30

log = logging.getLogger("fluid")


def set_compilation_cache(folder: str | os.PathLike[str] | None, max_bytes: int = MAX_BYTES) -> None:
    """Set the folder in which this process stores compiled programs, so that later processes need not compile them.

    Without this call, the user's cache folder is used from the first Session on. Exceptions are a folder that JAX was
    given before, and the environment variable `FLUID_COMPILATION_CACHE`, which is "off" or a folder.

    Files from the folder are executed, so no other user may be able to write to the folder.

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
    """Enable the cache of compiled programs, unless the user has decided: in fluid, by the environment, or in JAX."""
    config = jax.config
    if config.jax_compilation_cache_dir or not config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return
    wanted = os.environ.get(VARIABLE)
    if wanted == _OFF:
        return
    try:
        path = _made(local_path(wanted)) if wanted else _made(_own())
    except (OSError, RuntimeError, errors.ArgumentError) as error:  # RuntimeError: the user has no home directory
        is_expected = not wanted and not isinstance(error, errors.ArgumentError)
        log.log(logging.INFO if is_expected else logging.WARNING, "compiled programs are not kept: %s", error)
        return
    _use(path, MAX_BYTES)


def _own() -> pathlib.Path:
    """Return the default folder in the user's cache folder of this platform."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or pathlib.Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = pathlib.Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "fluid" / "xla"


def _made(folder: pathlib.Path) -> pathlib.Path:
    """Return a folder as an absolute path, and create it for this user alone if it does not exist.

    Raises:
      OSError: the folder cannot be created, or belongs to another user, whose programs would be run.
      ArgumentError: other users can write to the folder.
    """
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
    """Make JAX store compiled programs in a folder, including fast compilations unless JAX has another setting."""
    config = jax.config
    config.update("jax_enable_compilation_cache", True)
    config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    _forget(Entries(folder, max_bytes))


def _forget(entries: Entries | None = None) -> None:
    """Make JAX drop its open cache, and use `entries`.

    JAX's own files are not safe: a process can read a half-written file, and a damaged file stays for ever. JAX has no
    public way to replace them. If JAX's internal names change, its own files are used in the folder.
    """
    compilation_cache.reset_cache()
    if entries is not None and hasattr(inside, "_cache"):
        inside._cache = entries  # type: ignore[assignment]
        inside._cache_initialized = True
