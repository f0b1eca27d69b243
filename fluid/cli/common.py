"""Helpers for commands: declare a command, find the object that an import string names, correct mistyped arguments."""

import argparse
import functools
import importlib
import importlib.util
import inspect
import os
import pathlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any

import fluid
from fluid import errors
from fluid._util.paths import is_address
from fluid.checkpoint import newest_checkpoint
from fluid.runtime.results import Results


class MistypedError(errors.ArgumentError):
    """An error for a mistyped argument of a command; `correct` changes the arguments to the correct ones."""

    def __init__(self, message: str, correct: Callable[[list[str]], list[str]]):
        super().__init__(message)
        self.correct = correct


def mistyped(message: str, wrong: str, known: Iterable[str], prefix: str = "") -> errors.ArgumentError:
    """Return the error for a mistyped name, which suggests the nearest known name, or lists all known names.

    Example:
      >>> error = mistyped("there is no optimizer 'Adm'.", "Adm", ["Adam", "SGD"])
      >>> print(error)
      there is no optimizer 'Adm'. Did you mean 'Adam'?
      >>> error.correct(["train", "--optimizer=Adm"])
      ['train', '--optimizer=Adam']
    """
    names = list(known)
    if not names:
        return errors.ArgumentError(message)
    advice = errors.nearest(wrong, names)
    close = re.fullmatch("Did you mean '(.*)'\\?", advice)
    if close is None:
        return errors.ArgumentError(f"{message} {advice}")
    # The pattern finds a mistyped name if it is an entire command line argument, or the entire text on one side of "=".
    pattern = re.compile(rf"(?<![^=]){re.escape(prefix + wrong)}(?![^=])")
    right = prefix + close[1]
    return MistypedError(f"{message} {advice}", lambda given: [pattern.sub(lambda _: right, text) for text in given])


def command(commands: Any, name: str, run: Callable[..., int], summary: str, example: str) -> argparse.ArgumentParser:
    """Declare a command for argparse, and return its parser, to which the caller adds the arguments."""
    lines = "".join(f"\n  {line}" for line in example.splitlines())
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"example:{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def add_parameters(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Declare the arguments `--params` and `--checkpoint`, which exclude each other."""
    group = parser.add_mutually_exclusive_group(required=required)
    group.add_argument("--params", metavar="FILE", help="a file of trainer.save_params, or one in .safetensors")
    group.add_argument("--checkpoint", metavar="DIR", help="a folder of checkpoints, whose newest whole one is read")


def parameters(given: argparse.Namespace) -> Any:
    """Return the parameters that the arguments of a command name.

    Raises:
      ArgumentError: the file in `--params` does not exist.
      CheckpointError: the folder has no undamaged checkpoint.
    """
    if given.checkpoint is not None:
        return newest_checkpoint(given.checkpoint).arrays
    return None if given.params is None else existing("file of parameters", given.params)


def by_name(results: Results) -> dict[str, Any]:
    """Convert results to a dict by name; a result without a name is called by its index, such as `output_0`.

    Example:
      >>> by_name(Results([0.5], ["loss"])), by_name(Results([0.5, 1], None))
      ({'loss': 0.5}, {'output_0': 0.5, 'output_1': 1})
    """
    names = results.names or [f"output_{index}" for index in range(len(results))]
    return dict(zip(names, results, strict=True))


def optimizer(text: str, learning_rate: float | None, arguments: Mapping[str, Any]) -> Any:
    """Create the optimizer that an argument of a command names.

    Raises:
      ArgumentError: there is no such optimizer, or it has no such argument.

    Example:
      >>> optimizer("Momentum", 0.1, {"momentum": 0.8}).momentum
      0.8
    """
    if ":" in text:
        if learning_rate is not None or arguments:
            raise errors.ArgumentError(f"{text} has its own learning rate and arguments; leave out lr and optimizer.*")
        return find(text)
    known = [name for name in fluid.optimizer.__all__ if name[:1].isupper()]
    if text not in known:
        raise mistyped(f"there is no fluid.optimizer.{text}.", text, known)
    factory = getattr(fluid.optimizer, text)
    names = [name for name in inspect.signature(factory).parameters if name != "learning_rate"]
    for name in arguments:
        if name == "learning_rate":
            raise errors.ArgumentError(
                "the learning rate has a setting of its own, found optimizer.learning_rate: lr=1e-3"
            )
        if name not in names:
            raise mistyped(f"fluid.optimizer.{text} has no argument {name!r}.", name, names, "optimizer.")
    return factory(learning_rate=1e-3 if learning_rate is None else learning_rate, **arguments)


def find(where: str) -> Any:
    """Return the object that an import string names.

    Raises:
      ArgumentError: the file, the module or the name does not exist. Exceptions of the module itself propagate.
    """
    source, _, name = where.rpartition(":")
    if not source or not name:
        raise errors.ArgumentError(f"found {where!r}, expected a file and a function of it: net.py:train_program")
    module = _from_file(name, pathlib.Path(source)) if source.endswith(".py") else _from_package(name, source)
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError as error:
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise mistyped(f"there is no {name!r} in {source!r}.", name, known, f"{source}:") from error


def program(where: str) -> Callable[[], Any]:
    """Return the program function that an import string such as `FILE.py:NAME` names.

    Raises:
      ArgumentError: there is no object of this name, or it is not a function.
    """
    found = find(where)
    if not callable(found):
        raise errors.ArgumentError(f"found {where!r}, expected a program function: net.py:train_program")
    return found


def existing(what: str, path: str) -> str:
    """Check that a file exists, and return its path unchanged.

    Raises:
      ArgumentError: the path does not exist; the message suggests another file in its folder.
    """
    if is_address(path) or os.path.exists(path):
        return path
    raise mistyped(f"there is no {what} {path!r}.", path, _beside(path))


def _from_package(name: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise  # the module exists, but one of its own imports fails
        raise errors.ArgumentError(
            f"there is no {name!r} in {source!r}: there is no such module; a file is named with its ending, as in "
            f"net.py:{name}"
        ) from error


def _from_file(name: str, path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        message = f"there is no {name!r} in {str(path)!r}: there is no such file."
        raise mistyped(message, f"{path}:{name}", [f"{file}:{name}" for file in _beside(str(path), ".py")])
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # `dataclasses` searches sys.modules for the module of a class
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module


def _beside(path: str, ending: str = "") -> list[str]:
    """Return the paths of the files with the ending `ending` in the folder of the missing file `path`."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder or os.curdir):
        return []
    return sorted(os.path.join(folder, name) for name in os.listdir(folder or os.curdir) if name.endswith(ending))
