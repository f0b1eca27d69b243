"""`python -m fluid inspect PATH`: what is in a folder of checkpoints, or in a file of parameters."""

import argparse
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp

from fluid import errors, io
from fluid.trainer.checkpoint.folder import Folder


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("inspect", help="what is in a folder of checkpoints, or in a file of parameters")
    parser.add_argument("path", type=pathlib.Path, help="the folder, or the file")
    parser.add_argument("--step", type=int, help="whose arrays to list; by default those of the newest whole step")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Say what is in a folder or in a file; returns 1 when something in it is damaged."""
    return _inspect_folder(given.path, given.step) if given.path.is_dir() else _inspect_file(given.path)


def _inspect_folder(path: pathlib.Path, step: int | None) -> int:
    folder = Folder(path, read_only=True)
    steps = folder.steps()
    problems = {number: _flaw(folder, number) for number in steps}
    whole = [number for number in steps if problems[number] is None]
    aside = folder.aside()
    if not steps and not aside:
        raise errors.CheckpointError(f"there are no checkpoints in {str(folder.path)!r}")
    rows: list[tuple[str, ...]] = [("step", "epoch", "minibatch", "size", "score", "health")]
    rows += [_row(folder, number, problems[number]) for number in steps]
    rows += [(name, "", "", "", "", "set aside") for name in aside]
    print(_table(rows))
    chosen = step if step is not None else max(whole, default=None)
    if chosen is not None and chosen not in whole:
        raise errors.CheckpointError(f"step {chosen} is not among the whole ones: {', '.join(map(str, whole))}")
    if chosen is not None:
        print(f"\narrays of step {chosen}:\n{_listing(folder.meta(chosen)['arrays'])}")
    return 0 if len(whole) == len(steps) else 1


def _inspect_file(path: pathlib.Path) -> int:
    arrays, kind = io.load_arrays(path)
    print(f"{kind} in {path}:\n{_listing({n: {'shape': a.shape, 'dtype': str(a.dtype)} for n, a in arrays.items()})}")
    return 0


def _flaw(folder: Folder, step: int) -> str | None:
    try:
        return folder.flaw(step)
    except errors.CheckpointError as error:  # of a newer version
        return str(error)


def _row(folder: Folder, step: int, problem: str | None) -> tuple[str, ...]:
    size = sum(p.stat().st_size for p in (folder.path / str(step)).rglob("*") if p.is_file())
    if problem is not None:
        return str(step), "", "", _bytes(size), "", problem
    meta = folder.meta(step)
    position = meta["position"]
    score = meta["score"]
    shown = f"{score['output']} {score['value']:.6g}" if score and score["value"] is not None else ""
    return str(step), str(position["epoch"]), str(position["step"]), _bytes(size), shown, "whole"


def _listing(arrays: Mapping[str, Mapping[str, Any]]) -> str:
    rows: list[tuple[str, ...]] = [("name", "dtype", "shape", "size")]
    total = 0
    for name, array in arrays.items():
        size = math.prod(array["shape"]) * jnp.dtype(array["dtype"]).itemsize
        total += size
        rows.append((name, array["dtype"], str(list(array["shape"])), _bytes(size)))
    return f"{_table(rows)}\n{len(arrays)} arrays, {_bytes(total)}"


def _table(rows: Iterable[tuple[str, ...]]) -> str:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
