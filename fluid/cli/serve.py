"""`python -m fluid serve MODEL`: serve models over HTTP with the Open Inference Protocol."""

import argparse
import logging
import os
import pathlib
import sys
from typing import Any

import jax

from fluid import errors
from fluid.cli import common
from fluid.serving import Server, Settings

_TOKEN = "FLUID_SERVE_TOKEN"
# The variable is not called FLUID_SERVE_PORT, because Kubernetes sets this name to tcp://... for a service fluid-serve.
_PORT = "FLUID_SERVE_PORT_NUMBER"
# The settings of the server that are also command-line arguments, each with its help text.
_NUMBERS = {
    "max_batch": "rows that run together, and that a request may have",
    "max_delay_ms": "milliseconds that a request waits for others",
    "max_queue": "requests that may wait for a model",
    "timeout": "seconds from a request to its answer",
    "max_body": "bytes of a request",
    "max_connections": "open connections",
    "drain": "seconds for the last answers after SIGTERM",
}


def add(commands: Any) -> None:
    """Declare the command `fluid serve` and its arguments."""
    parser = common.command(
        commands,
        "serve",
        run,
        "serve exported models over HTTP, by the Open Inference Protocol",
        "fluid serve digits.fluid --port 8000",
    )
    parser.add_argument(
        "model", nargs="+", metavar="[NAME=]PATH", help="a file of save_inference_model, or a folder of its versions"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on; by default for this machine only"
    )
    parser.add_argument(
        "--port", type=int, help=f"or set {_PORT}, which health checks of containers read; 8000 by default; 0 for any"
    )
    parser.add_argument(
        "--token-file", type=pathlib.Path, help=f"a file with the token that clients send; or set {_TOKEN}"
    )
    parser.add_argument("--allow-anonymous", action="store_true", help="listen on any address without a token")
    parser.add_argument("--reload-every", type=float, metavar="SECONDS", help="look for new versions in folders")
    parser.add_argument("--place", help="the device, as in cpu or gpu:1")
    for name, what in _NUMBERS.items():
        default = getattr(Settings, name)
        parser.add_argument(
            f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"{what}; {default} by default"
        )
    for name, what in (("batch_sizes", "rows"), ("buckets", "steps"), ("outer_buckets", "sequences")):
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=int,
            nargs="+",
            help=f"numbers of {what} that are compiled, and padded to",
        )


def run(given: argparse.Namespace) -> int:
    """Serve models until SIGTERM or Ctrl-C; return the exit status."""
    # Each served model has its own thread. Without asynchronous dispatch, this thread itself computes. With
    # asynchronous dispatch, a JAX thread computes, and each batch costs two more thread wake-ups.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    lists = ("batch_sizes", "buckets", "outer_buckets")
    settings = {name: value for name in (*_NUMBERS, *lists) if (value := getattr(given, name)) is not None}
    server = Server(
        _named(given.model),
        given.host,
        _default_port() if given.port is None else given.port,
        token=read_token(given.token_file),
        allow_anonymous=given.allow_anonymous,
        place=given.place,
        reload_every=given.reload_every,
        settings=Settings(**settings),
    )
    print(server.url, flush=True)
    server.run()
    return 0 if server.app.failure is None else 1


def _default_port() -> int:
    """Return the port in the environment variable FLUID_SERVE_PORT_NUMBER, or 8000 if it is not set."""
    text = os.environ.get(_PORT) or "8000"
    if not (text.isascii() and text.isdigit()):
        raise errors.ArgumentError(f"found {_PORT}={text[:60]!r}, expected a number: {_PORT}=8000")
    return int(text)


def _named(models: list[str]) -> dict[str, str]:
    named: dict[str, str] = {}
    for model in models:
        name, _, path = model.rpartition("=")
        name = name or pathlib.Path(path).stem
        if name in named:
            raise errors.ArgumentError(f"two models are called {name!r}: give them names, as in new={path}")
        named[name] = path
    return named


def read_token(file: pathlib.Path | None) -> str | None:
    """Return the token that clients must send, from a file, else from FLUID_SERVE_TOKEN; None if there is none.

    Raises:
      ArgumentError: the file cannot be read.
    """
    if file is None:
        return os.environ.get(_TOKEN) or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise errors.ArgumentError(f"--token-file: {error}") from error
