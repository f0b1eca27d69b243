"""`fluid test FILE.py:FUNCTION --params FILE --data FILE`: print the metrics of saved parameters on data files."""

import argparse
import json
from typing import Any

import numpy as np

import fluid
from fluid._util.text import text_table
from fluid.cli import common, data_files


def add(commands: Any) -> None:
    """Declare the command `fluid test` and its arguments."""
    parser = common.command(
        commands,
        "test",
        run,
        "the metrics of saved parameters, or of a checkpoint, on data files",
        "fluid test program.py:train_program --params net.params --data test.csv",
    )
    parser.add_argument("program", metavar="FILE.py:FUNCTION", help="the program function, which returns the metrics")
    common.add_parameters(parser)
    data_files.add_data(parser)
    parser.add_argument("--place", help="the device, as in cpu or gpu:1")
    parser.add_argument("--json", action="store_true", help="the metrics, as JSON")


def run(given: argparse.Namespace) -> int:
    """Compute the outputs of the program on the data files, and print those that are single numbers."""
    program = common.program(given.program)
    optimizer = (
        None if fluid.Program(program).minimizes else fluid.optimizer.SGD(0.0)
    )  # a Trainer requires an optimizer, although `fluid test` trains nothing
    source = common.parameters(given)
    start: dict[str, Any] = {"params": source} if given.params is None else {"param_path": source}
    trainer = fluid.Trainer(program, optimizer, place=given.place, **start)
    reader = data_files.minibatches(given.data, trainer.program.feeds, given.batch_size, dict(given.column))
    results = common.by_name(trainer.test(reader))
    metrics = {name: float(value) for name, value in results.items() if np.ndim(value) == 0}
    if given.json:
        print(json.dumps(metrics, indent=2))
    else:
        print(text_table([(name, f"{value:.6g}") for name, value in metrics.items()]))
    return 0
