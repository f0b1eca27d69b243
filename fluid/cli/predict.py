"""`fluid predict MODEL --data FILE --output FILE`: write the results of a model for the rows of data files."""

import argparse
import os
import sys
from typing import Any

import fluid
from fluid import errors
from fluid.cli import common, data_files
from fluid.runtime.fetch import check_fetch
from fluid.runtime.prediction import constant, needed_feeds


def add(commands: Any) -> None:
    """Declare the command `fluid predict` and its arguments."""
    parser = common.command(
        commands,
        "predict",
        run,
        "write the results of a model for the rows of data files, as CSV or Parquet",
        "fluid predict net.fluid --data new.csv --output predictions.csv\n"
        "fluid predict program.py:inference_program --checkpoint checkpoints --data new.parquet | head",
    )
    parser.add_argument("model", metavar="MODEL", help="an exported model; or FILE.py:FUNCTION, with its parameters")
    common.add_parameters(parser, required=False)
    data_files.add_data(parser)
    parser.add_argument("--output", metavar="FILE", help="in .csv or .parquet; by default CSV, to the standard output")
    parser.add_argument("--fetch", nargs="+", help="names of what is written; by default the outputs")
    parser.add_argument("--place", help="the device, as in cpu or gpu:1")


def run(given: argparse.Namespace) -> int:
    """Compute the results of the model for all rows, and write them in the order of the rows."""
    inferencer = _inferencer(given)
    session, program = inferencer.session, inferencer.program
    names = None if given.fetch is None else check_fetch(program, given.fetch)
    needed = needed_feeds(session, program, names, constant(session, program, None))
    feeds = {name: program.feeds[name] for name in needed}
    reader = data_files.minibatches(given.data, feeds, given.batch_size, dict(given.column))
    results = inferencer.predict(reader, fetch=names)
    count = data_files.write(given.output, map(common.by_name, results))
    if given.output is not None:
        print(f"{given.output}: {count} rows", file=sys.stderr)
    return 0


def _inferencer(given: argparse.Namespace) -> fluid.Inferencer:
    source: Any = common.parameters(given)
    if ":" not in given.model or os.path.exists(given.model):
        if source is not None:
            raise errors.ArgumentError(
                f"{given.model} is an exported model, which has its parameters; leave out --params and --checkpoint, "
                f"or name a program function: program.py:inference_program"
            )
        return fluid.Inferencer(param_path=common.existing("exported model", given.model), place=given.place)
    if source is None:
        raise errors.ArgumentError(
            f"fluid predict {given.model} needs parameters: --params net.params, or --checkpoint checkpoints"
        )
    start = {"params": source} if given.params is None else {"param_path": source}
    return fluid.Inferencer(common.program(given.model), place=given.place, **start)
