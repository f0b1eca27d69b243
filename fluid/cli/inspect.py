"""`python -m fluid inspect PATH`: list checkpoints, a file of parameters or an exported model, or compare two files."""

import argparse
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import errors, io
from fluid._util.paths import is_address
from fluid._util.text import printable, scaled, text_table
from fluid.checkpoint import check_match, load_file
from fluid.checkpoint.folder import Folder
from fluid.checkpoint.remote import folder_of


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser(
        "inspect", help="what is in a folder of checkpoints, a file of parameters, or an exported model"
    )
    parser.add_argument("path", help="the folder, on a disk or in an object store, or the file")
    parser.add_argument("other", nargs="?", help="another file of parameters, to show how they differ")
    parser.add_argument("--step", type=int, help="whose arrays to list; by default those of the newest whole step")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Print the contents of a folder or a file; return 1 when a checkpoint is damaged, or two files differ."""
    path = pathlib.Path(given.path)
    if given.other is not None:
        return _compare(path, pathlib.Path(given.other))
    if is_address(given.path) or path.is_dir():
        return _inspect_folder(folder_of(given.path, read_only=True), given.step)
    return _inspect_file(path)


def _inspect_folder(folder: Folder, step: int | None) -> int:
    steps = folder.steps()
    problems = {number: _flaw(folder, number) for number in steps}
    whole = [number for number in steps if problems[number] is None]
    aside = folder.aside()
    if not steps and not aside:
        raise errors.CheckpointError(f"there are no checkpoints in {folder.name!r}")
    rows: list[tuple[str, ...]] = [("step", "epoch", "minibatch", "size", "score", "health")]
    rows += [_row(folder, number, problems[number]) for number in steps]
    rows += [(name, "", "", "", "", "set aside") for name in aside]
    print(text_table(rows))
    chosen = step if step is not None else max(whole, default=None)
    if chosen is not None and chosen not in whole:
        raise errors.CheckpointError(f"step {chosen} is not among the whole ones: {', '.join(map(str, whole))}")
    if chosen is not None:
        print(f"\narrays of step {chosen}:\n{_listing(folder.meta(chosen)['arrays'])}")
    return 0 if len(whole) == len(steps) else 1


def _inspect_file(path: pathlib.Path) -> int:
    from fluid import export  # imported on use: other commands do not need it

    if export.is_artifact(path):
        return _inspect_artifact(export.load(path))
    arrays, kind = io.load_arrays(path)
    listing = _listing({n: {"shape": a.shape, "dtype": str(a.dtype)} for n, a in arrays.items()})
    print(f"{printable(f'{kind} in {path}')}:\n{listing}")
    return 0


def _compare(there: pathlib.Path, here: pathlib.Path) -> int:
    """Print how the numbers in two files of parameters differ; return 1 if they do.

    Raises:
      ParameterError: names, shapes or dtypes differ; the message has the lines that created the arrays.
    """
    found, known = load_file(there), load_file(here)
    wanted = {name: (array.shape, str(array.dtype)) for name, array in known.arrays.items()}
    advice = 'load_params takes arrays with other names by rename={"old/*": "new/*"}'
    check_match(
        found.arrays,
        wanted,
        repr(str(there)),
        advice=advice,
        sites=known.sites,
        sites_there=found.sites,
        owner=repr(str(here)),
    )
    rows: list[tuple[str, ...]] = [("name", "largest difference", "created at")]
    for name, array in known.arrays.items():
        if found.arrays[name].tobytes() != array.tobytes():
            off = np.abs(found.arrays[name].astype("float64") - array.astype("float64")).max()
            rows.append((name, f"{off:.6g}", known.sites.get(name, "")))
    print(f"{len(wanted)} arrays have equal names, shapes and dtypes, and {len(rows) - 1} of them other numbers")
    if len(rows) == 1:
        return 0
    print(text_table(rows))
    return 1


def _inspect_artifact(found: Any) -> int:
    print(f"exported model in {found.path}, for {printable(', '.join(found.platforms))}; checksums are right")
    for name, entry in found.entries.items():
        count = len(entry.functions)
        print(f"\nentry point {printable(name)}, {count} function{'s' if count > 1 else ''}:")
        rows: list[tuple[str, ...]] = [("", "name", "dtype", "shape")]
        rows += [("feed", feed.name, feed.dtype, f"[{', '.join(map(str, feed.dims))}]") for feed in entry.feeds]
        rows += [
            ("result", o.name or o.value or "", o.dtype, str(o.array).removeprefix(o.dtype)) for o in entry.outputs
        ]
        print(text_table(rows))
        if entry.note:
            print(printable(entry.note))
    print(f"\n{_listing({n: {'shape': a.shape, 'dtype': str(a.dtype)} for n, a in found.arrays.items()})}")
    return 0


def _flaw(folder: Folder, step: int) -> str | None:
    try:
        return folder.flaw(step)
    except errors.CheckpointError as error:  # a newer version of fluid wrote the checkpoint, in an unknown format
        return str(error)


def _row(folder: Folder, step: int, problem: str | None) -> tuple[str, ...]:
    size = folder.size(step)
    if problem is not None:
        return str(step), "", "", scaled(size, "B"), "", problem
    meta = folder.meta(step)
    position = meta.get("position") or {"epoch": "", "step": ""}
    score = meta.get("score")
    shown = f"{score['output']} {score['value']:.6g}" if score and score.get("value") is not None else ""
    return str(step), str(position["epoch"]), str(position["step"]), scaled(size, "B"), shown, "whole"


def _listing(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = [("name", "dtype", "shape", "size")]
    total = 0
    for name, array in arrays.items():
        size = math.prod(array["shape"]) * jnp.dtype(array["dtype"]).itemsize
        total += size
        rows.append((name, array["dtype"], str(list(array["shape"])), scaled(size, "B")))
    return f"{text_table(rows)}\n{len(arrays)} arrays, {scaled(total, 'B')}"
