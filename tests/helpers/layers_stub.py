"""A script that writes `fluid/layers/__init__.pyi`: run `make stubs` after a layer was added or removed.

The file lists the functions with the decorator `@layer`; a module with `__all__` exports the names in it instead.
With `--check`, as in `make check`, the script does not write the file but compares it.
"""

import importlib
import pathlib
import pkgutil
import subprocess
import sys
import textwrap

from fluid import layers
from fluid.layers import base

STUB = pathlib.Path(layers.__file__).with_suffix(".pyi")
RUFF = [sys.executable, "-m", "ruff"]


def exported():
    """Map each module of `fluid.layers` to the names that it exports."""
    found = {}
    for module in pkgutil.walk_packages(layers.__path__, "fluid.layers."):
        names = getattr(importlib.import_module(module.name), "__all__", [])
        found[module.name] = sorted(names or (n for n, where in base.REGISTERED.items() if where == module.name))
    return {module: names for module, names in sorted(found.items()) if names}


def stub():
    """Return the text of `fluid/layers/__init__.pyi`, formatted by ruff."""
    modules = exported()
    imports = [
        f"from {module.removeprefix('fluid.layers')} import {', '.join(names)}" for module, names in modules.items()
    ]
    names = ", ".join(f'"{name}"' for name in sorted(sum(modules.values(), [])))
    lines = [
        '"""The names of `fluid.layers` and their modules, written by `make stubs`; each loads at its first use."""',
        *imports,
        "# fmt: off",
        "__all__ = [",
        *textwrap.wrap(names, 120, initial_indent="    ", subsequent_indent="    "),
        "]",
    ]
    text = "\n".join(lines) + "\n"
    for command in (["check", "--select", "I", "--fix", "-q"], ["format", "-q"]):
        options = [*command, "--stdin-filename", str(STUB), "-"]
        text = subprocess.run([*RUFF, *options], input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    text = stub()
    if sys.argv[1:] != ["--check"]:
        STUB.write_text(text)
    elif STUB.read_text() != text:
        sys.exit(f"{STUB} does not list what `@layer` registers; write it anew: make stubs")
