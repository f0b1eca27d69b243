"""Run an exported model of fluid with jax and numpy, without fluid. Every exported model contains this file.

unzip -p digits.fluid standalone.py > standalone.py
python standalone.py digits.fluid                         # prints the feeds and outputs of each entry point
import standalone
predict = standalone.load("digits.fluid")                 # or load("model.fluid", "encode")
scores, = predict({"image": images})                      # a list; each new shape is compiled once
image, = predict({"label": [[3]]}, seed=7)                # a model that samples; without seed, each call differs
step = standalone.load("digits.step")                     # of trainer.save_training_step; each call changes step.arrays

Sequences are lists of rows of any length, or tuples of padded data and lengths; in results, always tuples.
"""

import dataclasses
import functools
import hashlib
import io
import itertools
import json
import os
import secrets
import sys
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

FORMAT, STEP, VERSION, SUMS = "fluid-artifact", "fluid-training-step", 1, "SHA256SUMS"


def read(path: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the manifest and all entries of a model; raise ValueError if a checksum is wrong."""
    # All reads use one open file, because another process may replace the file at `path` meanwhile.
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        stored = all(i.compress_type == zipfile.ZIP_STORED and i.file_size == i.compress_size for i in infos)
        if not stored or sum(i.file_size for i in infos) > os.fstat(file.fileno()).st_size:
            raise ValueError("its entries are not stored as they were written")
        entries = {info.filename: archive.read(info) for info in infos}
    sums = dict(line.split("  ", 1)[::-1] for line in entries.pop(SUMS).decode().splitlines())
    if len(entries) + 1 != len(infos) or sums.keys() != entries.keys():
        raise ValueError("it does not hold the entries that it should")
    for name, content in entries.items():
        if hashlib.sha256(content).hexdigest() != sums[name]:
            raise ValueError(f"the entry {name!r} is not what was written")
    return json.loads(entries["manifest.json"]), entries


def check_version(manifest: dict[str, Any]) -> None:
    """Raise a ValueError if an exported model, described by its manifest, has another format or a newer version."""
    if manifest["format"] not in (FORMAT, STEP) or manifest["version"] > VERSION:
        found = f"{manifest['format']} version {manifest['version']}"
        raise ValueError(f"its format is {found}, newer than {FORMAT} version {VERSION}, which this program reads")


def array_of(described: dict[str, Any], entries: dict[str, bytes]) -> jax.Array:
    """Read an array that the manifest describes. Arrays of dtypes that NumPy lacks are stored as integers."""
    array = np.lib.format.read_array(io.BytesIO(entries[described["file"]]), allow_pickle=False)
    dtype = jax.numpy.dtype(described["dtype"])
    return jax.numpy.asarray(array if array.dtype == dtype else array.view(dtype))


def fed(feed: dict[str, Any], value: Any) -> Any:
    """Convert a feed to the argument of the exported function: an array, or a list of padded data and lengths."""
    step, dtype = feed["dims"][1 + feed["lod_level"] :], feed["held"]
    if feed["lod_level"] == 0:
        return np.asarray(value, dtype)
    if feed["lod_level"] == 1 and not isinstance(value, tuple):
        lengths = [len(row) for row in value]
        data = np.zeros((len(lengths), max(4, 1 << (max(lengths) - 1).bit_length()), *step), dtype)
        for padded, row in zip(data, value, strict=True):
            padded[: len(row)] = np.asarray(row, dtype).reshape(len(row), *step)
        value = data, lengths
    return [np.asarray(value[0], dtype), *(np.asarray(lengths, np.int32) for lengths in value[1:])]


def checked(seed: Any) -> int:
    """Check a seed and return it as an int; raise ValueError unless it is a whole number from 0 to 2**64 - 1."""
    if isinstance(seed, bool) or not hasattr(seed, "__index__") or not 0 <= seed.__index__() < 2**64:
        raise ValueError(f"seed={seed!r}: expected a whole number from 0 to 2**64 - 1, as in seed=7")
    return int(seed.__index__())


def seed_of(first: int, run: int) -> int:
    """Return the seed of call number `run` in the sequence of calls that has the seed `first`."""
    return int.from_bytes(hashlib.blake2b(f"{first}/{run}".encode(), digest_size=8).digest(), "little")


def key_of(seed: int, like: jax.Array) -> jax.Array:
    """Return the data of the random key for a seed; the key has the size and generator of the key data `like`."""
    words = np.tile(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32), like.size // 2)
    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(jax.numpy.asarray(words)), 0))


def callable_of(known: dict[str, Any], blob: bytes, platforms: list[str], arrays: Any, key: Any) -> Callable[..., Any]:
    """Return an exported function that JAX can call, without `jax.export.deserialize`, which needs flatbuffers.

    The function exports a program that returns zeros of the right shapes, and replaces its code by the stored code.
    """
    scope = jax.export.SymbolicScope(known["constraints"])

    def abstract(leaf: str) -> jax.ShapeDtypeStruct:
        dtype, dims = leaf[:-1].split("[")
        return jax.ShapeDtypeStruct(jax.export.symbolic_shape(dims, scope=scope), jax.numpy.dtype(dtype))

    feeds, results = jax.tree.map(abstract, (known["feeds"], known["results"]))
    zeros = jax.jit(lambda *_: jax.tree.map(lambda result: jax.numpy.zeros(result.shape, result.dtype), results))
    code: dict[str, Any] = {"mlir_module_serialized": blob[slice(*known["module"])]}
    code |= {"module_kept_var_idx": tuple(known["kept"]), "calling_convention_version": known["convention"]}
    exported = jax.export.export(zeros, platforms=platforms)(arrays, feeds, key)
    return jax.jit(dataclasses.replace(exported, **code).call)


def load(path: Any, entry: str | None = None, seed: int | None = None) -> Callable[..., list[Any]]:
    """Read one entry point, by default the first, and return a function that maps feeds by name to results.

    A model that samples draws new random numbers in each call: `seed` repeats the sequence of calls, and `seed=` of the
    returned function a single call. Each call of a training step updates the attribute `arrays` of the function.
    """
    first, calls = secrets.randbits(64) if seed is None else checked(seed), itertools.count()
    manifest, entries = read(path)
    check_version(manifest)
    known = manifest["entries"][entry or next(iter(manifest["entries"]))]
    if "module" not in known["functions"][0]:
        raise ValueError("an earlier fluid wrote this file; use the standalone.py inside it, or fluid.Inferencer")
    arrays = {name: array_of(manifest["arrays"][name], entries) for name in known["arrays"]}
    like = array_of(manifest["key"], entries) if known["random"] else None
    if seed is not None and like is None:
        warnings.warn("load(seed=...): this model draws no random numbers, so that a seed does nothing", stacklevel=2)
    blobs = [(f, entries[f["file"]]) for f in known["functions"]]
    ready = functools.cache(lambda i: callable_of(*blobs[i], manifest["platforms"], arrays, like))

    def run(feeds: dict[str, Any], seed: int | None = None) -> list[Any]:
        if seed is not None and like is None:
            warnings.warn("seed=...: this model draws no random numbers, so that a seed does nothing", stacklevel=2)
        key = None if like is None else key_of(seed_of(first, next(calls)) if seed is None else checked(seed), like)
        values = {feed["name"]: fed(feed, feeds[feed["name"]]) for feed in known["feeds"]}
        shapes = [np.shape(values[f["name"]][0] if f["lod_level"] else values[f["name"]]) for f in known["feeds"]]
        every = [d for f, shape in zip(known["feeds"], shapes, strict=True) for d in zip(f["dims"], shape, strict=True)]
        sizes = {dim: size for dim, size in every if isinstance(dim, str)}
        for i, (function, _) in enumerate(blobs):
            if function["sizes"].items() <= sizes.items():
                found = ready(i)(arrays, values, key)
                changed, results = found if manifest["format"] == STEP else ({}, found)
                arrays.update(changed)
                return [tuple(r) if isinstance(r, list) else r for r in jax.tree.map(np.asarray, results)]
        raise ValueError(f"found the sizes {sizes}, exported for {[f['sizes'] for f, _ in blobs]}")

    run.arrays = arrays  # type: ignore[attr-defined]
    return run


if __name__ == "__main__":
    for _name, _entry in read(sys.argv[1])[0]["entries"].items():
        for _kind in [_kind for _kind in ("feeds", "outputs", "table") if _kind in _entry]:
            print(_name, _kind, *(_entry[_kind].items() if _kind == "table" else _entry[_kind]), sep="\n  ")
