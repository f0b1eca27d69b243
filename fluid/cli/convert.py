"""`python -m fluid convert OLD NEW`: convert a model that PaddlePaddle Fluid saved to an exported model."""

import argparse
from typing import Any

from fluid import io
from fluid.formatting import printable


def add(commands: Any) -> None:
    """Declare the command and its arguments."""
    parser = commands.add_parser("convert", help="make an exported model of one that PaddlePaddle Fluid saved")
    parser.add_argument("old", help="the folder that its save_inference_model wrote")
    parser.add_argument("new", help="the file to write")
    parser.add_argument("--model-filename", help="of the program in the folder; __model__ by default")
    parser.add_argument("--params-filename", help="of the parameters in the folder, where one file holds all of them")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Convert the model, and print the names of its feeds and outputs."""
    model = io.load_inference_model(given.old, None, given.model_filename, given.params_filename)
    program = model.program
    io.save_inference_model(given.new, program, program.params, model.feed_target_names, model.fetch_targets)
    print(printable(f"{given.new}: {', '.join(model.feed_target_names)} -> {', '.join(model.fetch_targets)}"))
    return 0
