"""`python -m fluid online FILE.py:FUNCTION FOLDER`: train on rows that arrive over HTTP."""

import argparse
import contextlib
import logging
import pathlib
import sys
from typing import Any

from fluid.cli import common
from fluid.cli.serve import read_token
from fluid.core import Program
from fluid.online import OnlineTrainer
from fluid.optimizer import Adam
from fluid.serving import Settings
from fluid.serving.server import freeze_garbage

# The arguments of OnlineTrainer that are also command-line arguments, each with its default and its help text.
_NUMBERS = {
    "batch_size": (32, "rows of a minibatch"),
    "test_every": (10, "of so many rows the last one is tested on and never trained on; 0 for none"),
    "test_window": (1000, "the newest rows that the moving test goes over"),
    "checkpoint_every": (100, "steps from one checkpoint to the next"),
    "publish_every": (None, "steps from one published version to the next"),
    "max_rows": (100_000, "rows that may wait to be trained on"),
    "max_bytes": (1 << 30, "bytes that they may have"),
    "max_steps": (1024, "steps of a sequence"),
    "seed": (0, "of initial values and of random layers"),
}
# The settings of the server that are also command-line arguments, each with its help text.
_LIMITS = {
    "max_body": "bytes of a request",
    "max_connections": "open connections",
    "drain": "seconds for the last answers after SIGTERM",
}


def add(commands: Any) -> None:
    """Declare the command `fluid online` and its arguments."""
    parser = common.command(
        commands,
        "online",
        run,
        "train on rows that arrive over HTTP",
        "fluid online net.py:train_program journal --publish-to models/net",
    )
    parser.add_argument("program", metavar="FILE.py:FUNCTION", help="the program function, as in net.py:train_program")
    parser.add_argument("folder", help="where the journal and the checkpoints are kept")
    parser.add_argument("--optimizer", metavar="FILE.py:NAME", help="an optimizer, or a function that returns one")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="of Adam, where no optimizer is given")
    parser.add_argument("--publish-to", metavar="FOLDER", help="where versions of the model are written to")
    parser.add_argument("--fetch", nargs="+", help="names of what a published model returns")
    parser.add_argument("--platforms", nargs="+", help="where it shall run; by default cpu cuda tpu")
    parser.add_argument("--host", default="127.0.0.1", help="the address; by default for this machine only")
    parser.add_argument("--port", type=int, default=8001, help="8001 by default; 0 for any that is free")
    parser.add_argument("--token-file", type=pathlib.Path, help="a file with the token that clients send")
    parser.add_argument("--allow-anonymous", action="store_true", help="listen on any address without a token")
    parser.add_argument("--skip-rows", metavar="N[,N...]", type=_rows, help="numbers of bad rows to leave out")
    parser.add_argument("--place", help="the device, as in cpu or gpu:1")
    for name, (default, what) in _NUMBERS.items():
        said = what if default is None else f"{what}; {default} by default"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=said)
    for name, what in _LIMITS.items():
        default = getattr(Settings, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"{what}; {default} by default"
        )


def run(given: argparse.Namespace) -> int:
    """Train on rows that clients send, until SIGTERM or Ctrl-C; then write a checkpoint and return the exit status."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("fluid").setLevel(logging.INFO)
    options = {name: getattr(given, name) for name in _NUMBERS} | {"test_every": given.test_every or None}
    export = {"platforms": given.platforms} if given.platforms else None
    program = common.program(given.program)
    online = OnlineTrainer(
        program,
        _optimizer(given, program),
        given.folder,
        publish_to=given.publish_to,
        fetch=given.fetch,
        export=export,
        place=given.place,
        **options,
    )
    with contextlib.closing(online):
        if given.skip_rows:
            online.skip(given.skip_rows)
        online.start()
        settings = Settings(**{name: getattr(given, name) for name in _LIMITS})
        server = online.host(given.host, given.port, read_token(given.token_file), given.allow_anonymous, settings)
        print(server.url, flush=True)
        freeze_garbage()  # without this call, garbage collection delays health checks by 300 ms under load
        server.run()
        status = online.stop()
    print(f"ended after {status['steps']} steps, {status['saved']} of them saved", file=sys.stderr)
    return 0 if status["state"] == "stopped" else 1


def _rows(text: str) -> list[int]:
    return [int(row) for row in text.split(",")]


def _optimizer(given: argparse.Namespace, program: Any) -> Any:
    if given.optimizer is not None:
        return common.find(given.optimizer)
    return None if Program(program).minimizes else Adam(given.learning_rate)
