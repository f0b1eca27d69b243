"""`python -m fluid plan PROGRAM`: estimate memory and work of a training on several devices, which need not exist."""

import argparse
import json
import math
import re
from typing import Any

import jax

import fluid
from fluid import errors
from fluid.cli import common

_UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(|k|M|G|T|Ki|Mi|Gi|Ti)B?")


def add(commands: Any) -> None:
    """Declare the command `fluid plan` and its arguments."""
    parser = common.command(
        commands,
        "plan",
        run,
        "what training would take on a mesh of devices that need not be there",
        "fluid plan net.py:train_program --optimizer Adam --batch 256 --mesh data=8 --memory 80GB",
    )
    parser.add_argument("program", help="where it is: FILE.py:NAME or MODULE:NAME, of a program function")
    parser.add_argument("--optimizer", help="of fluid.optimizer, as in Adam, or FILE.py:NAME of one")
    parser.add_argument("--batch", type=int, required=True, help="rows of the global minibatch")
    parser.add_argument("--mesh", action="append", required=True, help="as in data=64,model=4; may be given repeatedly")
    parser.add_argument("--memory", type=size_of, help="of each device, as in 80GB: what does not fit is said")
    parser.add_argument("--time", type=int, default=128, help="steps of each sequence")
    parser.add_argument("--sharding", action="append", default=[], help='as in "*/fc_*.w_0=none,model"; repeatedly')
    parser.add_argument("--precision", choices=("bfloat16", "float16"), help="what is computed in")
    parser.add_argument("--json", action="store_true", help="all numbers, as JSON")


def run(given: argparse.Namespace) -> int:
    """Compute and print the memory and communication of a program on each device mesh in the command-line arguments."""
    meshes = [mesh_of(text) for text in given.mesh]
    count = max(math.prod(mesh.axes.values()) for mesh in meshes)
    # JAX accepts these options only before it computes anything, so they are set before the user's file runs.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)
    found = fluid.plan(
        common.find(given.program),
        # Memory and communication do not depend on the learning rate, so the optimizer gets None, the default rate.
        None if given.optimizer is None else common.optimizer(given.optimizer, None, {}),
        given.batch,
        meshes,
        memory=given.memory,
        time=given.time,
        shardings=dict(map(sharding_of, given.sharding)) or None,
        precision=given.precision,
    )
    print(json.dumps(found.to_dict(), indent=2) if given.json else found)
    return 0


def mesh_of(text: str) -> fluid.Mesh:
    """Convert a mesh in the notation of the command line to a Mesh.

    Raises:
      ArgumentError: the text is not a mesh.

    Example:
      >>> mesh_of("data=64,model=4")
      Mesh(data=64, model=4)
    """
    sizes = [part.strip().partition("=") for part in text.split(",")]
    if not all(name.isidentifier() and size.isdigit() for name, _, size in sizes):
        raise errors.ArgumentError(f"--mesh {text}: expected the sizes of its axes, as in --mesh data=64,model=4")
    return fluid.Mesh(**{name: int(size) for name, _, size in sizes})


def sharding_of(text: str) -> tuple[str, tuple[str | None, ...]]:
    """Split a sharding in the notation of the command line into a glob and the mesh axis of each dimension.

    Raises:
      ArgumentError: the text is not a sharding.

    Example:
      >>> sharding_of("*/fc_*.w_0=none,model")
      ('*/fc_*.w_0', (None, 'model'))
    """
    glob, _, axes = text.rpartition("=")
    if not glob:
        raise errors.ArgumentError(
            f"--sharding {text}: expected a glob, and for each dimension an axis or none: "
            f'--sharding "fc_*.w_0=none,model"'
        )
    return glob, tuple(None if axis.strip() == "none" else axis.strip() for axis in axes.split(","))


def size_of(text: str) -> int:
    """Convert a text with a size and an optional unit to a number of bytes.

    Example:
      >>> size_of("80GB"), size_of("16 GiB"), size_of("1024")
      (80000000000, 17179869184, 1024)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected bytes, as in 80GB or 16GiB")
    return int(float(found[1]) * _UNITS[found[2]])
