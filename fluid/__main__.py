"""The command line: `python -m fluid COMMAND`."""

import argparse
import sys

from fluid import errors
from fluid.cli import convert, export, inspect, launch, online, plan, serve, summary

_COMMANDS = (convert, export, inspect, launch, online, plan, serve, summary)


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Args:
      arguments: those of the command line, without the program's name; None takes the real ones.

    Returns:
      The exit status: 0, or 1 when something is wrong with what it was given.
    """
    parser = argparse.ArgumentParser(prog="python -m fluid", description="What fluid does from the command line.")
    commands = parser.add_subparsers(dest="command", required=True)
    for command in _COMMANDS:
        command.add(commands)
    given = parser.parse_args(arguments)
    try:
        return int(given.run(given))
    except errors.FluidError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
