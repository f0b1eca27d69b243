"""The command line: `python -m fluid COMMAND`."""

import argparse
import os
import sys

from fluid import errors
from fluid._util.text import printable
from fluid.cli import convert, export, inspect, launch, online, plan, remote, serve, summary

_SIGPIPE = 128 + 13  # the exit status of a program that SIGPIPE ended
_COMMANDS = (convert, export, inspect, launch, online, plan, remote, serve, summary)


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
      arguments: the arguments without the program's name; None for the arguments of the process.

    Returns:
      The exit status: 0; 1 for a FluidError; or 141 if the reader of the output closed the pipe.
    """
    parser = argparse.ArgumentParser(prog="python -m fluid", description="What fluid does from the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in _COMMANDS:
        command.add(commands)
    given = parser.parse_args(arguments)
    try:
        status = int(given.run(given))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the output, such as `| head`, has closed the pipe
        # Without this, Python flushes the rest of the output at exit and reports a second BrokenPipeError.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGPIPE
    except errors.FluidError as error:
        print(printable(str(error), keep="\n"), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
