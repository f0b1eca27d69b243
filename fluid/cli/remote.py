"""`python -m fluid remote FILE.py:make_trainer`: host a Trainer that clients control over HTTP."""

import argparse
import logging
import pathlib
import sys
from typing import Any

from fluid import errors
from fluid.cli import common
from fluid.cli.serve import read_token
from fluid.online.hosted import HostedTrainer
from fluid.serving import Settings
from fluid.trainer import Trainer


def add(commands: Any) -> None:
    """Declare the command `fluid remote` and its arguments."""
    parser = common.command(
        commands,
        "remote",
        run,
        "host a Trainer that fluid.RemoteTrainer drives over HTTP",
        "fluid remote net.py:make_trainer --port 8002",
    )
    parser.add_argument(
        "make_trainer", metavar="FILE.py:FUNCTION", help="returns trainer, reader; or trainer, reader, test_reader"
    )
    parser.add_argument("--folder", default=".", help="for the parameters that clients save; by default this one")
    parser.add_argument("--host", default="127.0.0.1", help="the address; by default for this machine only")
    parser.add_argument("--port", type=int, default=8002, help="8002 by default; 0 for any that is free")
    parser.add_argument("--token-file", type=pathlib.Path, help="a file with the token that clients send")
    parser.add_argument("--allow-anonymous", action="store_true", help="listen on any address without a token")


def run(given: argparse.Namespace) -> int:
    """Serve clients until SIGTERM or Ctrl-C; then end the training after the current step."""
    logging.basicConfig(stream=sys.stderr, format="%(message)s")
    logging.getLogger("fluid").setLevel(logging.INFO)
    hosted = HostedTrainer(*made(given.make_trainer), given.folder)
    token = read_token(given.token_file)
    server = hosted.host(given.host, given.port, token, given.allow_anonymous, Settings())
    print(server.url, flush=True)
    server.run()
    status = hosted.stop()
    print(f"ended after {status['steps']} steps", file=sys.stderr)
    return 1 if status["state"] == "failed" else 0


def made(where: str) -> tuple[Trainer, Any, Any]:
    """Call the user's function, and return its results: a Trainer, a training reader, a test reader or None.

    Raises:
      ArgumentError: the function does not exist, or returns something else.
    """
    function = common.find(where)
    if not callable(function):
        raise errors.ArgumentError(f"found {where!r}, expected a function: net.py:make_trainer")
    found = function()
    if not isinstance(found, tuple) or len(found) not in (2, 3) or not isinstance(found[0], Trainer):
        raise errors.ArgumentError(
            f"{where} returned a {type(found).__name__}, expected a Trainer and what it reads: return trainer, reader; "
            f"or return trainer, reader, test_reader"
        )
    trainer, reader, *rest = found
    return trainer, reader, rest[0] if rest else None
