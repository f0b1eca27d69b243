"""The command line: `fluid COMMAND`, or `python -m fluid COMMAND`."""

import argparse
import os
import shlex
import sys

from fluid import errors
from fluid._util.text import printable
from fluid.cli import (
    common,
    completion,
    convert,
    doctor,
    export,
    inspect,
    launch,
    new,
    online,
    plan,
    predict,
    remote,
    serve,
    summary,
    test,
    train,
)

# By convention, the exit status of a program that a signal ended is 128 plus the number of the signal.
_SIGINT = 128 + 2
_SIGPIPE = 128 + 13
_COMMANDS = (
    new,
    train,
    test,
    predict,
    export,
    serve,
    online,
    launch,
    plan,
    inspect,
    summary,
    convert,
    remote,
    doctor,
    completion,
)


def main(arguments: list[str] | None = None) -> int:
    """Run a command of the `fluid` command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        try:
            given = parser().parse_args(arguments)
            return int(given.run(given))
        finally:
            # Flush the output in `finally`, because `--help` ends with SystemExit and not with `return`.
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output, such as `| head`, has closed the pipe
        # Redirect stdout to the null device. Otherwise Python flushes buffered output at exit, and reports a second
        # BrokenPipeError.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _SIGPIPE
    except KeyboardInterrupt:
        return _SIGINT
    except errors.FluidError as error:
        print(printable(str(error), keep="\n"), file=sys.stderr)
        if isinstance(error, common.MistypedError) and (corrected := error.correct(arguments)) != arguments:
            print(printable(f"Corrected: fluid {shlex.join(corrected)}"), file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command line, with a subparser for each command."""
    found = argparse.ArgumentParser(
        prog="fluid", description="What fluid does from the command line. fluid COMMAND --help shows an example."
    )
    commands = found.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return found


if __name__ == "__main__":
    sys.exit(main())
