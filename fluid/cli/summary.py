"""`python -m fluid summary PROGRAM`: show the layers of a program, their parameters and their costs."""

import argparse
import json
from typing import Any

import fluid
from fluid.cli import common


def add(commands: Any) -> None:
    """Declare the command `fluid summary` and its arguments."""
    parser = common.command(
        commands,
        "summary",
        run,
        "the layers of a program, their parameters, and what they cost",
        "fluid summary net.py:train_program --batch-size 64",
    )
    parser.add_argument("program", help="where it is: FILE.py:NAME or MODULE:NAME, of a program function or a Trainer")
    parser.add_argument("--batch-size", type=int, default=1, help="examples that FLOPs and bytes are counted for")
    parser.add_argument("--time", type=int, default=16, help="steps of each sequence that they are counted for")
    parser.add_argument("--layers", nargs="+", metavar="GLOB", help='rows to show, as in "generator/*"')
    parser.add_argument("--json", action="store_true", help="all numbers, as JSON")


def run(given: argparse.Namespace) -> int:
    """Print the summary of a program."""
    found = fluid.summary(common.find(given.program), given.batch_size, given.time, given.layers)
    print(json.dumps(found.to_dict(), indent=2) if given.json else found)
    return 0
