"""`fluid doctor`: print versions, devices, caches, optional dependencies (extras), and how to install missing ones."""

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shutil
from typing import Any

import jax

import fluid
from fluid._util.text import scaled, text_table
from fluid.cli import common
from fluid.runtime.compilation_cache import keep_compilations

_DISTRIBUTION = "fluid-jax"
# The optional dependencies (extras) of the distribution fluid-jax, each with its purpose.
EXTRAS = {
    "demo": "handwritten digits for the first example",
    "examples": "examples and notebooks, figures",
    "export": "exported models: fluid export",
    "files": "data files in CSV, Parquet and other formats, object stores",
    "iree": "exported models without Python",
    "keras": "weights of Keras: fluid.io.load_state_dict",
    "mlflow": "logs to MLflow",
    "original": "model files of PaddlePaddle",
    "safetensors": "parameters in .safetensors",
    "serve": "servers: fluid serve, online, remote",
    "table": "tables of raw rows: fluid.reader.frame",
    "tensorboard": "logs to TensorBoard",
    "wandb": "logs to Weights & Biases",
}


def add(commands: Any) -> None:
    """Declare the command `fluid doctor` and its arguments."""
    parser = common.command(
        commands,
        "doctor",
        run,
        "versions, devices, caches and extras of this installation: what is missing for what",
        "fluid doctor --json",
    )
    parser.add_argument("--json", action="store_true", help="the same, as JSON")


def run(given: argparse.Namespace) -> int:
    """Print the report about this installation: versions, devices, caches, and missing extras."""
    found = report()
    if given.json:
        print(json.dumps(found, indent=2))
        return 0
    print(text_table(found["versions"].items()))
    devices = [(d["name"], d["kind"], scaled(d["memory"], "B") if d["memory"] else "") for d in found["devices"]]
    print(f"\n{text_table([('device', 'kind', 'memory'), *devices])}")
    cache = found["compilation_cache"]
    print(
        f"\ncompiled programs: {cache['folder'] or 'not kept'}, {cache['files']} files, {scaled(cache['bytes'], 'B')}"
    )
    print(f"\n{text_table([('extra', 'for', 'missing'), *map(_row, found['extras'])])}")
    print("".join(f"\n{line}" for line in found["advice"]), end="\n" if found["advice"] else "")
    return 0


def report() -> dict[str, Any]:
    """Return versions, devices, the cache of compiled programs, extras and advice, as a dict for JSON."""
    extras = [{"name": name, "for": use, "missing": _missing(name)} for name, use in EXTRAS.items()]
    return {
        "versions": _versions(),
        "devices": [_device(device) for device in jax.devices()],
        "compilation_cache": _cache(),
        "extras": extras,
        "advice": list(_advice(extras)),
    }


def _versions() -> dict[str, str]:
    names = [_name(line) for line in _requirements() if "extra ==" not in line] or ["jax", "jaxlib", "numpy"]
    versions = {name: _version(name) or "missing" for name in names}
    return {"fluid": fluid.__version__, "python": platform.python_version(), **versions}


def _device(device: jax.Device) -> dict[str, Any]:
    memory = (device.memory_stats() or {}).get("bytes_limit")
    return {"name": f"{device.platform}:{device.id}", "kind": device.device_kind, "memory": memory}


def _cache() -> dict[str, Any]:
    keep_compilations()
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    files = [file.stat().st_size for file in pathlib.Path(folder).glob("*")] if folder else []
    return {"folder": folder, "files": len(files), "bytes": sum(files)}


def _missing(extra: str) -> list[str] | None:
    """Return the packages of an extra that are not installed; None if fluid itself is not an installed package."""
    lines = _requirements()
    if not lines:
        return None
    of_extra = [line for line in lines if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    here = [line for line in of_extra if not (os.name == "nt" and "sys_platform != 'win32'" in line)]
    return [name for name in map(_name, here) if _version(name) is None]


def _requirements() -> list[str]:
    """Return the requirements in fluid's package metadata; empty if fluid runs from sources without installation."""
    try:
        return importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _name(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0]


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _advice(extras: list[dict[str, Any]]) -> Any:
    if missing := [extra["name"] for extra in extras if extra["missing"]]:
        yield f"To add what is missing: pip install '{_DISTRIBUTION}[{','.join(missing)}]'"
    if any(extra["missing"] is None for extra in extras):
        yield f"fluid is not installed here, so that its extras are unknown: pip install {_DISTRIBUTION}"
    if shutil.which("nvidia-smi") and jax.default_backend() == "cpu":
        yield "There is an NVIDIA driver, and JAX does not use its GPU: pip install 'jax[cuda13]'"


def _row(extra: dict[str, Any]) -> tuple[str, str, str]:
    missing = "unknown" if extra["missing"] is None else ", ".join(extra["missing"])
    return extra["name"], extra["for"], missing
