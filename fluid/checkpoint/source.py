"""Sources of parameters: a file, arrays by name, or a folder of checkpoints."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fluid import errors
from fluid._util.paths import PathLike, is_address, local_path
from fluid.checkpoint.arrays import load_file
from fluid.checkpoint.recognize import instead
from fluid.checkpoint.remote import folder_of
from fluid.checkpoint.rename import Rename, renamed

# The argument of `source_of`: the path of a file of parameters, or arrays by name.
Parameters = PathLike | Mapping[str, Any]


class Source(NamedTuple):
    """Arrays that can be loaded into a program.

    Attributes:
      arrays: by name.
      where: the origin of the arrays, for messages.
      sites: the line that created each array, if known: `{"fc_0.w_0": "net.py:12 in head"}`.
      table: the JSON of the `fluid.reader.Table` that the parameters were trained with, or None.
    """

    arrays: dict[str, np.ndarray]
    where: str
    sites: Mapping[str, str] = {}
    table: Mapping[str, Any] | None = None

    def check_table(self, table: Mapping[str, Any] | None) -> None:
        """Check that the parameters were trained with the table of a program, if both have a table.

        Args:
          table: the JSON of the `fluid.reader.Table` of the program, or None.

        Raises:
          ParameterError: the tables encode rows in different ways.
        """
        if table is None or self.table is None or table == self.table:
            return
        part = next((key for key in table if table[key] != self.table.get(key)), "version")
        raise errors.ParameterError(
            f"{self.where}: its parameters were trained with another table of raw rows, whose {part} differ: found "
            f"{_brief(table.get(part))}, expected {_brief(self.table.get(part))}. Make the program with the table "
            f"that was saved: table = fluid.io.load_table(path)"
        )

    def renamed(self, rename: Rename) -> "Source":
        """Return the arrays under other names, see `fluid.checkpoint.renamed`."""
        names = renamed({name: name for name in self.arrays}, rename, self.where)
        arrays = {new: self.arrays[old] for new, old in names.items()}
        sites = {new: self.sites[old] for new, old in names.items() if old in self.sites}
        return Source(arrays, self.where, sites, self.table)


def source_of(given: Parameters) -> Source:
    """Return the arrays of a file, or of a mapping, as a Source.

    Args:
      given: a path or a mapping.

    Raises:
      ParameterFileError: the file does not exist, or has another format.

    Example:
      >>> source_of({"w": [1.0, 2.0]}).arrays["w"].shape
      (2,)
    """
    if isinstance(given, Mapping):
        return Source({name: np.asarray(value) for name, value in given.items()}, "the given parameters")
    if not isinstance(given, str | os.PathLike):
        raise errors.ArgumentTypeError(f"found {type(given).__name__}, expected {_arrays_of(given)}")
    found = load_file(given)
    # In a file of Session.save, names of optimizer state and counters begin with "@".
    arrays = {name: array for name, array in found.arrays.items() if not name.startswith("@")}
    return Source(arrays, os.fspath(given), found.sites, found.table)


def _arrays_of(given: Any) -> str:
    """Return the text for an error message that says what to pass instead of `given`, for example of a Trainer."""
    session = getattr(given, "session", None)
    if hasattr(given, "params") and session is not None:
        return "its parameters, which are arrays by name: trainer.params"
    if session is not None or hasattr(given, "load_params"):
        return f"its parameters, which are arrays by name: {'inferencer.' if session else ''}session.params()"
    return 'a file of trainer.save_params, or arrays by name: {"fc_0.w_0": array, "fc_0.b_0": array}'


def newest_checkpoint(path: PathLike) -> Source:
    """Return the parameters and states of the newest whole checkpoint in a folder. The folder is not changed.

    Args:
      path: the folder, or its address in an object store.

    Raises:
      CheckpointError: the folder does not exist, or holds no whole checkpoint.

    Example:
      >>> newest_checkpoint("nowhere")
      Traceback (most recent call last):
      fluid.errors.CheckpointError: there is no folder 'nowhere'; expected the checkpoint_dir of a Trainer
    """
    if not is_address(path):
        if found := instead(local_path(path), "checkpoints"):
            raise errors.CheckpointError(found)
        if not os.path.isdir(path):
            raise errors.CheckpointError(f"there is no folder {str(path)!r}; expected the checkpoint_dir of a Trainer")
    folder = folder_of(path, read_only=True)
    step, flaws = folder.newest_whole()
    if step is None:
        listed = [*(f"{n}: {problem}" for n, problem in flaws.items()), *(f"{n}: set aside" for n in folder.aside())]
        raise errors.CheckpointError(
            f"no checkpoint in {str(path)!r} is whole: {'; '.join(listed) or 'it holds none'}; expected the "
            f"checkpoint_dir of a Trainer"
        )
    try:
        read = folder.arrays(step)
    except errors.FluidError:
        raise
    except Exception as error:
        raise errors.CheckpointError(
            f"checkpoint {step} in {str(path)!r} is whole, but Orbax cannot read it: {error}"
        ) from error
    arrays = {name: array for name, array in read.items() if not name.startswith("@")}
    meta = folder.meta(step)
    return Source(arrays, f"checkpoint {step} in {str(path)!r}", meta.get("sites") or {}, meta.get("table"))


def _brief(value: Any) -> str:
    """Return the repr of a part of a table, shortened for messages."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
