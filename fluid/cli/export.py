"""`python -m fluid export FILE.py:FUNCTION --params FILE --output FILE`: export a model that needs no Python code."""

import argparse
import pathlib
from collections.abc import Mapping
from typing import Any

from fluid import errors, io
from fluid.cli import common


def add(commands: Any) -> None:
    """Declare the command `fluid export` and its arguments."""
    parser = common.command(
        commands,
        "export",
        run,
        "write a model to one file that runs without its function",
        "fluid export digits.py:inference_program --params digits.params --output digits.fluid",
    )
    parser.add_argument(
        "program",
        nargs="+",
        metavar="[ENTRY=]FILE.py:FUNCTION",
        help="the program function, as in digits.py:conv or package.module:conv; several, each with the name of its "
        "entry point, make one model that shares parameters",
    )
    common.add_parameters(parser)
    parser.add_argument("--output", required=True, help="the file to write")
    parser.add_argument("--to", choices=("fluid", "onnx"), default="fluid", help="the format; onnx takes one program")
    parser.add_argument("--feed", nargs="+", help="names of what is fed; by default what the results depend on")
    parser.add_argument("--fetch", nargs="+", help="names of what is returned; by default the outputs")
    parser.add_argument("--platforms", nargs="+", help="where it shall run; by default cpu cuda tpu")
    parser.add_argument("--precision", help="bfloat16 to compute in it")


def run(given: argparse.Namespace) -> int:
    """Export the programs that the command-line arguments name."""
    named = [_split(program) for program in given.program]
    options = {"platforms": given.platforms, "precision": given.precision}
    options = {name: value for name, value in options.items() if value is not None}
    if len(named) == 1 and named[0][0] is None:
        programs: Any = common.find(named[0][1])
    else:
        programs = {_checked_entry(entry, where): common.find(where) for entry, where in named}
        if given.feed or given.fetch:
            raise errors.ArgumentError("--feed and --fetch are for one program; name what each returns in its function")
    if given.to == "onnx":
        return _write_onnx(given, programs, options)
    io.save_inference_model(
        given.output,
        programs,
        common.parameters(given),
        feed=given.feed,
        fetch=given.fetch,
        **options,
    )
    print(f"{given.output}: {pathlib.Path(given.output).stat().st_size} bytes")
    return 0


def _write_onnx(given: argparse.Namespace, program: Any, options: Mapping[str, Any]) -> int:
    if isinstance(program, Mapping) or options:
        raise errors.ArgumentError("--to onnx takes one program without --platforms and --precision")
    from fluid import export  # deferred import: other commands do not need `fluid.export`

    inputs = export.save_onnx(given.output, program, common.parameters(given), given.feed, given.fetch)
    shown = ", ".join(f"{name}[{', '.join(map(str, shape))}]" for name, shape in inputs.items())
    print(f"{given.output}: an ONNX model of {shown}, checked by ONNX Runtime")
    return 0


def _split(program: str) -> tuple[str | None, str]:
    entry, sign, where = program.rpartition("=")
    return (entry if sign else None), where


def _checked_entry(entry: str | None, where: str) -> str:
    if not entry:
        raise errors.ArgumentError(
            f"several programs are told apart by names, found {where!r} without one: encode={where} decode=..."
        )
    return entry
