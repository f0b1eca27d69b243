"""`python -m fluid inspect PATH`: list the contents of a checkpoint folder, parameter file or model; compare files."""

import argparse
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fluid import errors, io
from fluid._util.paths import is_address
from fluid._util.text import printable, scaled, text_table
from fluid.checkpoint import check_match, load_file
from fluid.checkpoint.folder import Folder
from fluid.checkpoint.object_store import folder_of
from fluid.cli import common


def add(commands: Any) -> None:
    """Declare the command `fluid inspect` and its arguments."""
    parser = common.command(
        commands,
        "inspect",
        run,
        "what is in a folder of checkpoints, a file of parameters, or an exported model",
        "fluid inspect checkpoints --step 200",
    )
    parser.add_argument("path", help="the folder, on a disk or in an object store, or the file")
    parser.add_argument("other", nargs="?", help="another file of parameters, to show how they differ")
    parser.add_argument("--step", type=int, help="whose arrays to list; by default those of the newest whole step")
    parser.add_argument("--json", action="store_true", help="the same, as JSON")


def run(given: argparse.Namespace) -> int:
    """Print the contents of a folder or a file; return 1 when a checkpoint is damaged, or two files differ."""
    path = pathlib.Path(given.path)
    if given.other is not None:
        found = _compared(path, pathlib.Path(given.other))
    elif is_address(given.path) or path.is_dir():
        found = _folder(folder_of(given.path, read_only=True), given.step)
    else:
        found = _file(path)
    print(json.dumps(found.values, indent=2) if given.json else found.text)
    return found.status


class _Contents(NamedTuple):
    """The description of a file or a folder that `fluid inspect` prints.

    Attributes:
      values: the description as a dict for JSON.
      text: the description as text with tables.
      status: the exit status of the command.
    """

    values: dict[str, Any]
    text: str
    status: int = 0


def _folder(folder: Folder, step: int | None) -> _Contents:
    steps = folder.steps()
    problems = {number: _flaw(folder, number) for number in steps}
    whole = [number for number in steps if problems[number] is None]
    aside = folder.aside()
    if not steps and not aside:
        raise errors.CheckpointError(f"there are no checkpoints in {folder.name!r}")
    chosen = step if step is not None else max(whole, default=None)
    if chosen is not None and chosen not in whole:
        raise errors.CheckpointError(f"step {chosen} is not among the whole ones: {', '.join(map(str, whole))}")
    arrays = {} if chosen is None else _arrays(folder.meta(chosen)["arrays"])
    described = [_checkpoint(folder, number, problems[number]) for number in steps]
    rows: list[tuple[str, ...]] = [("step", "epoch", "minibatch", "size", "score", "health")]
    rows += [_row(checkpoint) for checkpoint in described]
    rows += [(name, "", "", "", "", "set aside") for name in aside]
    text = text_table(rows) + ("" if chosen is None else f"\n\narrays of step {chosen}:\n{_listing(arrays)}")
    values = {"checkpoints": described, "aside": list(aside), "step": chosen, "arrays": arrays}
    return _Contents(values, text, 0 if len(whole) == len(steps) else 1)


def _file(path: pathlib.Path) -> _Contents:
    from fluid import export  # deferred import: other commands do not need `fluid.export`

    if export.is_artifact(path):
        return _exported(export.load(path))
    loaded, kind = io.load_arrays(path)
    arrays = _arrays({n: {"shape": a.shape, "dtype": str(a.dtype)} for n, a in loaded.items()})
    return _Contents({"kind": kind, "arrays": arrays}, f"{printable(f'{kind} in {path}')}:\n{_listing(arrays)}")


def _compared(there: pathlib.Path, here: pathlib.Path) -> _Contents:
    """Describe the differences between the numbers in two parameter files."""
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
    different = {
        name: float(np.abs(found.arrays[name].astype("float64") - array.astype("float64")).max())
        for name, array in known.arrays.items()
        if found.arrays[name].tobytes() != array.tobytes()
    }
    text = f"{len(wanted)} arrays have equal names, shapes and dtypes, and {len(different)} of them other numbers"
    if different:
        rows = [(name, f"{off:.6g}", known.sites.get(name, "")) for name, off in different.items()]
        text += f"\n{text_table([('name', 'largest difference', 'created at'), *rows])}"
    return _Contents({"arrays": len(wanted), "largest_difference": different}, text, 1 if different else 0)


def _exported(found: Any) -> _Contents:
    lines = [f"exported model in {found.path}, for {printable(', '.join(found.platforms))}; checksums are right"]
    entries = {}
    for name, entry in found.entries.items():
        feeds = [{"name": f.name, "dtype": f.dtype, "shape": f"[{', '.join(map(str, f.dims))}]"} for f in entry.feeds]
        results = [
            {"name": o.name or o.value or "", "dtype": o.dtype, "shape": str(o.array).removeprefix(o.dtype)}
            for o in entry.outputs
        ]
        entries[name] = {"feeds": feeds, "results": results}
        count = len(entry.functions)
        lines.append(f"\nentry point {printable(name)}, {count} function{'s' if count > 1 else ''}:")
        rows: list[tuple[str, ...]] = [("", "name", "dtype", "shape")]
        rows += [("feed", *feed.values()) for feed in feeds]
        rows += [("result", *result.values()) for result in results]
        lines.append(text_table(rows))
        if entry.note:
            lines.append(printable(entry.note))
    arrays = _arrays({n: {"shape": a.shape, "dtype": str(a.dtype)} for n, a in found.arrays.items()})
    lines.append(f"\n{_listing(arrays)}")
    return _Contents({"platforms": list(found.platforms), "entries": entries, "arrays": arrays}, "\n".join(lines))


def _flaw(folder: Folder, step: int) -> str | None:
    try:
        return folder.flaw(step)
    except errors.CheckpointError as error:  # the checkpoint has the format of a newer version of fluid
        return str(error)


def _checkpoint(folder: Folder, step: int, problem: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"step": step, "epoch": None, "minibatch": None, "bytes": folder.size(step), "score": None}
    if problem is None:
        meta = folder.meta(step)
        position = meta.get("position") or {"epoch": None, "step": None}
        found |= {"epoch": position["epoch"], "minibatch": position["step"], "score": meta.get("score")}
    return found | {"health": problem or "whole"}


def _row(checkpoint: Mapping[str, Any]) -> tuple[str, ...]:
    score = checkpoint["score"]
    shown = f"{score['output']} {score['value']:.6g}" if score and score.get("value") is not None else ""
    epoch, minibatch = ("" if checkpoint[name] is None else str(checkpoint[name]) for name in ("epoch", "minibatch"))
    return str(checkpoint["step"]), epoch, minibatch, scaled(checkpoint["bytes"], "B"), shown, checkpoint["health"]


def _arrays(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return dtype, shape and number of bytes of each array, as a dict by name that can be written as JSON."""
    return {
        name: {
            "dtype": array["dtype"],
            "shape": list(array["shape"]),
            "bytes": math.prod(array["shape"]) * jnp.dtype(array["dtype"]).itemsize,
        }
        for name, array in arrays.items()
    }


def _listing(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = [("name", "dtype", "shape", "size")]
    rows += [(name, a["dtype"], str(a["shape"]), scaled(a["bytes"], "B")) for name, a in arrays.items()]
    total = sum(array["bytes"] for array in arrays.values())
    return f"{text_table(rows)}\n{len(arrays)} arrays, {scaled(total, 'B')}"
