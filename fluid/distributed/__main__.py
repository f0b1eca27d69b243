"""The command `python -m fluid.distributed train.py`: join the other processes of a training, then run a script.

`python -m fluid launch` runs this command in each of its processes. On a cluster, use
`srun python -m fluid.distributed train.py` for a script that does not call `fluid.distributed.initialize()` itself.
"""

import os
import pathlib
import runpy
import signal
import sys
import threading

from fluid import errors
from fluid.distributed.rendezvous import fail, initialize

LAUNCHER = "FLUID_LAUNCHER"
# Exit statuses after SIGTERM and Ctrl-C. They are not reported as a failure, because all processes have agreed to end.
_TOLD_TO_END = (128 + signal.SIGTERM, 128 + signal.SIGINT)


def main(arguments: list[str]) -> None:
    """Run a script, or a module with `-m`, as one of several processes."""
    if not arguments or arguments == ["-m"]:
        sys.exit("usage: python -m fluid.distributed (train.py | -m module) [arguments]")
    _end_with_launcher()
    try:
        group = initialize()
    except errors.FluidError as error:
        sys.exit(f"fluid: {error}")
    try:
        _run(arguments)
    except SystemExit as error:
        if group.size > 1 and error.code not in (None, 0, *_TOLD_TO_END):
            status = error.code if isinstance(error.code, int) else 1
            if status != error.code:
                print(error.code, file=sys.stderr)
            fail(group, f"it has ended with exit status {status}", status)
        raise


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path[0] = str(pathlib.Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _end_with_launcher() -> None:
    if LAUNCHER in os.environ:
        pipe = int(os.environ.pop(LAUNCHER))
        threading.Thread(target=_wait_for_end, args=(pipe,), name="fluid-launcher", daemon=True).start()


def _wait_for_end(pipe: int) -> None:
    os.read(pipe, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
