"""`python -m fluid convert OLD NEW`: convert a PaddlePaddle model to an exported model, ONNX or StableHLO.

The command also converts an exported model to StableHLO.
"""

import argparse
import pathlib
import tempfile
from typing import Any

from fluid import errors, io
from fluid._util.text import printable
from fluid.checkpoint import replaced
from fluid.cli import common


def add(commands: Any) -> None:
    """Declare the command `fluid convert` and its arguments."""
    parser = common.command(
        commands,
        "convert",
        run,
        "make an exported model or ONNX of what PaddlePaddle Fluid saved, or StableHLO",
        "fluid convert saved_by_paddle net.fluid",
    )
    parser.add_argument("old", help="the folder that its save_inference_model wrote, or an exported model")
    parser.add_argument("new", help="the file to write")
    parser.add_argument(
        "--to", choices=("fluid", "stablehlo", "onnx"), default="fluid", help="stablehlo is for iree-compile"
    )
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=[],
        metavar="NAME=SIZE",
        help="of stablehlo, for each open size: batch=8 steps0=16",
    )
    parser.add_argument("--entry", help="the entry point of an exported model that has several")
    parser.add_argument("--model-filename", help="of the program in the folder; __model__ by default")
    parser.add_argument("--params-filename", help="of the parameters in the folder, where one file holds all of them")


def run(given: argparse.Namespace) -> int:
    """Convert the model; print the names of its feeds and outputs, or the size of the StableHLO."""
    from fluid import export  # deferred import: other commands do not need `fluid.export`

    if given.to == "stablehlo":
        return _write_stablehlo(given)
    if export.is_artifact(given.old):
        raise errors.ArgumentError(
            f"{given.old!r} is an exported model already; --to stablehlo is for other compilers, and ONNX is made of "
            f"the program function: python -m fluid export FILE.py:FUNCTION --to onnx --params FILE --output FILE"
        )
    _export(given, given.new)
    return 0


def _export(given: argparse.Namespace, path: Any) -> None:
    """Convert a model of PaddlePaddle Fluid to an exported model at `path`; print its feeds and outputs."""
    from fluid import export  # deferred import: other commands do not need `fluid.export`

    model = io.load_inference_model(given.old, None, given.model_filename, given.params_filename)
    program = model.program
    save = export.save_onnx if given.to == "onnx" else io.save_inference_model
    save(path, program, program.params, model.feed_target_names, model.fetch_targets)
    print(printable(f"{given.new}: {', '.join(model.feed_target_names)} -> {', '.join(model.fetch_targets)}"))


def _write_stablehlo(given: argparse.Namespace) -> int:
    from fluid import export  # deferred import: other commands do not need `fluid.export`

    sizes = dict(_size(text) for text in given.sizes)
    with tempfile.TemporaryDirectory() as folder:
        path = given.old
        if not export.is_artifact(path):
            path = str(pathlib.Path(folder) / "model.fluid")
            _export(given, path)
        content = export.load(path).stablehlo(sizes, given.entry)
    with replaced(pathlib.Path(given.new), errors.ArtifactError) as (_, file):
        file.write(content)
    print(f"{given.new}: {len(content)} bytes of StableHLO, with the parameters")
    return 0


def _size(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not number.isdigit():
        raise errors.ArgumentError(f"--sizes {text}: expected a name and a number: --sizes batch=8 steps0=16")
    return name, int(number)
