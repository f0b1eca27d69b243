"""`fluid train FILE.py:FUNCTION --data FILE`: train a program on data files, and save checkpoints and parameters."""

import argparse
import json
import pathlib
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import fluid
from fluid import errors
from fluid._util.text import text_table
from fluid.cli import common, data_files


class Setting(NamedTuple):
    """A setting of `fluid train`: an argument of the command, which is also a key of `--set` and of the TOML file.

    Attributes:
      kind: the type of the value.
      default: the value if the user does not set it.
      summary: the text for `--help`.
      metavar: the placeholder for the value in `--help`.
    """

    kind: Callable[[Any], Any]
    default: Any
    summary: str
    metavar: str | None = None


SETTINGS = {
    "optimizer": Setting(str, None, "of fluid.optimizer, or FILE.py:NAME of one; Adam by default", "NAME"),
    "lr": Setting(float, None, "the learning rate; 1e-3 by default"),
    "data": Setting(str, None, "a data file, or a quoted pattern of files", "FILE"),
    "test_data": Setting(str, None, "data for a test after each epoch", "FILE"),
    "epochs": Setting(int, 1, "passes over the data; 1 by default"),
    "batch_size": Setting(int, 64, "rows of a minibatch; 64 by default"),
    "checkpoint": Setting(str, None, "the folder for checkpoints, from which the same command continues", "DIR"),
    "output": Setting(str, None, "the file for the parameters after the training", "FILE"),
    "seed": Setting(int, 0, "of initial values, random layers and the order of rows; 0 by default"),
    "precision": Setting(str, None, "bfloat16 or float16, to compute in it", "DTYPE"),
    "place": Setting(str, None, "the device, as in cpu or gpu:1", "DEVICE"),
}
# `_OPEN`: prefixes of settings of `fluid train`. After the dot follows the name of an optimizer argument, or of a feed.
_OPEN = ("optimizer.", "column.")


def add(commands: Any) -> None:
    """Declare the command `fluid train` and its arguments."""
    parser = common.command(
        commands,
        "train",
        run,
        "train a program on data files, and save checkpoints and parameters",
        "fluid train program.py:train_program --data train.csv --epochs 10 --output net.params\n"
        "fluid train --config run.toml --set optimizer.beta1=0.8",
    )
    parser.add_argument("program", nargs="?", metavar="FILE.py:FUNCTION", help="the program function, its loss first")
    parser.add_argument("--config", metavar="FILE", help="a TOML file of these settings; paths begin where you are")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting, as in the TOML file; optimizer.NAME=VALUE is an argument of the optimizer. The command line "
        "comes before --set, and --set before the TOML file",
    )
    data_files.add_column(parser)
    for name, setting in SETTINGS.items():
        kind: Any = setting.kind
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=kind, metavar=setting.metavar, help=setting.summary)
    parser.add_argument("--json", action="store_true", help="the history, as JSON")


def run(given: argparse.Namespace) -> int:
    """Train the program on the data files, and print the history of the epochs."""
    values = settings(given)
    for name, example in (("program", "program.py:train_program"), ("data", "--data train.csv")):
        if values.get(name) is None:
            raise errors.ArgumentError(f"fluid train needs {name}, found none: fluid train {example} ...")
    trainer = _trainer(values)
    renamed = _below("column.", values)

    def reader(name: str, shuffle: bool) -> Any:
        if values[name] is None:
            return None
        feeds = trainer.program.feeds
        return data_files.minibatches(values[name], feeds, values["batch_size"], renamed, shuffle, values["seed"])

    tested = reader("test_data", shuffle=False)
    history = trainer.train(reader("data", shuffle=True), values["epochs"], test_reader=tested)
    if values["output"] is not None:
        trainer.save_params(values["output"])
    if given.json:
        print(json.dumps({name: list(map(_number, column)) for name, column in history.items()}, indent=2))
    else:
        rows = [tuple(map(_shown, row)) for row in zip(*history.values(), strict=True)]
        print(text_table([tuple(history), *rows], right=range(len(history))))
    return 0


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """Return all settings by name: from the command line, else `--set`, else the TOML file, else the defaults.

    Raises:
      ArgumentError: a key is unknown, a value has another type, or the file cannot be read.
    """
    found = {name: setting.default for name, setting in SETTINGS.items()}
    found |= {} if given.config is None else _checked(_flat(_toml(given.config)), f"{given.config}: ")
    found |= _checked(dict(map(_assignment, given.set)), "--set: ")
    line = {name: getattr(given, name) for name in (*SETTINGS, "program")}
    found |= {name: value for name, value in line.items() if value is not None}
    return found | {f"column.{feed}": column for feed, column in given.column}


def _trainer(values: Mapping[str, Any]) -> fluid.Trainer:
    program = common.program(values["program"])
    arguments = _below("optimizer.", values)
    optimizer = None
    if values["optimizer"] is not None or not fluid.Program(program).minimizes:
        optimizer = common.optimizer(values["optimizer"] or "Adam", values["lr"], arguments)
    elif values["lr"] is not None or arguments:
        raise errors.ArgumentError(
            f"{values['program']} calls minimize itself, so that its optimizer is its own; leave out lr and optimizer.*"
        )
    folder = values["checkpoint"]
    return fluid.Trainer(
        program,
        optimizer,
        place=values["place"],
        seed=values["seed"],
        precision=values["precision"],
        checkpoint_config=None if folder is None else fluid.CheckpointConfig(folder),
    )


def _toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(pathlib.Path(common.existing("file", path)).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise errors.ArgumentError(
            f"--config {path}: {error}; expected a TOML file with lines like epochs = 10"
        ) from error


def _flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten nested TOML tables to one dict, whose keys have dots: `{"a": {"b": 1}}` becomes `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        inner = {f"{key}.{name}": v for name, v in value.items()} if isinstance(value, Mapping) else {key: value}
        flat |= inner
    return flat


def _assignment(text: str) -> tuple[str, Any]:
    """Split an argument `KEY=VALUE` into key and value; the value is parsed as TOML, or else taken as text."""
    key, sign, value = text.partition("=")
    if not (key and sign):
        raise errors.ArgumentError(f"--set {text}: expected a key and a value, as in --set epochs=10")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _checked(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check the names and types of the settings that a user gives to `fluid train`, and return the settings."""
    known = [*SETTINGS, "program"]
    checked = {}
    for written, value in values.items():
        key = "optimizer" if written == "optimizer.name" else written
        if key not in known and not key.startswith(_OPEN):
            raise common.mistyped(f"{where}there is no setting {key!r}.", key, known)
        checked[key] = value if key.startswith(_OPEN) else _typed(key, value, where)
    return checked


def _typed(key: str, value: Any, where: str) -> Any:
    kind = SETTINGS[key].kind if key in SETTINGS else str
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    if type(value) is not kind:
        expected = {str: "text", int: "a whole number", float: "a number"}[kind]  # type: ignore[index]
        raise errors.ArgumentError(f"{where}{key} = {value!r}: expected {expected}")
    return value


def _below(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}


def _number(value: Any) -> int | float | None:
    return None if value != value else np.asarray(value).item()


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
