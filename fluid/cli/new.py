"""`fluid new DIR`: create a project with a program, a reader, a script, a test, a notebook and generated data."""

import argparse
import importlib.resources
import pathlib
import shlex
from typing import Any

from fluid import errors
from fluid.cli import common

# Ending that is added to the names of template files, so that tools do not treat them as code of fluid.
_SUFFIX = ".txt"


def add(commands: Any) -> None:
    """Declare the command `fluid new` and its arguments."""
    parser = common.command(
        commands,
        "new",
        run,
        "start a project: program, reader, training script, test, notebook, settings and generated data",
        "fluid new flowers",
    )
    parser.add_argument("folder", metavar="DIR", help="the folder of the project, which is created")


def run(given: argparse.Namespace) -> int:
    """Write the files of a new project, and print their paths and the next commands."""
    folder = pathlib.Path(given.folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise errors.ArgumentError(
            f"{given.folder!r} exists already, expected a new or an empty folder: fluid new {given.folder}-2"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for source in sorted(template(), key=lambda file: file.name):
            (folder / source.name.removesuffix(_SUFFIX)).write_bytes(source.read_bytes())
    except OSError as error:
        raise errors.ArgumentError(f"cannot write {error.filename!r}: {error.strerror}") from error
    for path in sorted(folder.iterdir()):
        print(path)
    print(f"\nNext: cd {shlex.quote(given.folder)}; fluid train --config run.toml; python -m pytest")
    return 0


def template() -> list[Any]:
    """Return the template files for new projects, which are package data of fluid."""
    return [file for file in importlib.resources.files("fluid.cli").joinpath("template").iterdir() if file.is_file()]
