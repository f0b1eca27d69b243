"""`python -m fluid launch --processes 4 train.py`: run a script as several processes of this machine."""

import argparse
import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import IO, Any

from fluid import errors
from fluid._util.paths import local_path
from fluid.cli import common
from fluid.distributed.__main__ import LAUNCHER
from fluid.distributed.cluster import COORDINATOR, DEVICES, PROCESS, PROCESSES

# Interval, in seconds, at which the launcher checks if processes have ended.
_INTERVAL = 0.05
_TOLD_TO_END = (128 + signal.SIGTERM, 128 + signal.SIGINT)


def add(commands: Any) -> None:
    """Declare the command `fluid launch` and its arguments."""
    parser = common.command(
        commands,
        "launch",
        run,
        "run a script as several processes of this machine, which train together: Trainer(parallel=True)",
        "fluid launch --processes 2 train.py",
    )
    parser.add_argument("--processes", type=int, default=2, help="how many; 2 by default")
    parser.add_argument(
        "--devices-per-process",
        type=int,
        default=1,
        metavar="N",
        help="GPUs, or parts of the CPU, of each; 1 by default",
    )
    parser.add_argument(
        "--output",
        choices=("first", "all"),
        default="first",
        help="whose standard output is shown; error output is that of all. What comes from other processes than the "
        "first begins with its number, as in [2]",
    )
    parser.add_argument("--logs", metavar="DIR", help="write all output of process 2 to DIR/2.log")
    parser.add_argument(
        "--grace", type=float, default=5, help="seconds that the others have to end when one has failed; 5 by default"
    )
    parser.add_argument("-m", "--module", action="store_true", help="run a module, as python -m does")
    parser.add_argument("script", help="a file, or with -m the name of a module")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(given: argparse.Namespace) -> int:
    """Run the script in several processes; return the exit status of the first process that failed, or 0."""
    if given.processes < 1 or given.devices_per_process < 1:
        raise errors.ArgumentError("launch: --processes and --devices-per-process are numbers from 1 on")
    if not given.module and not pathlib.Path(given.script).is_file():
        raise errors.ArgumentError(f"launch: there is no script {given.script!r}")
    command = [sys.executable, "-m", "fluid.distributed", *(["-m"] if given.module else []), given.script]
    with Processes([*command, *given.arguments], given.processes, given.devices_per_process) as processes:
        processes.show(given.output == "all", None if given.logs is None else local_path(given.logs))
        with _forwarded(processes.signal):
            return processes.wait(given.grace)


class Processes:
    """The processes that one `fluid launch` starts; all of them end when the launcher ends.

    Each process leads its own operating-system session. So Ctrl-C on the terminal reaches a process only once, through
    the launcher, and the launcher can kill a process together with all its children.
    """

    def __init__(self, command: Sequence[str], count: int, devices: int):
        self._told = 0
        self._shown: list[threading.Thread] = []
        self._files: list[IO[bytes]] = []
        read_end, self._write_end = os.pipe()
        coordinator = f"127.0.0.1:{_free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            for index in range(count):
                own = range(index * devices, (index + 1) * devices)
                environment = {
                    **os.environ,
                    COORDINATOR: coordinator,
                    PROCESSES: str(count),
                    PROCESS: str(index),
                    DEVICES: ",".join(map(str, own)),
                    LAUNCHER: str(read_end),
                    **_of_fluid(index, count),
                }
                piped = subprocess.PIPE if index else None
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL if index else None,
                        stdout=piped,
                        stderr=piped,
                        env=environment,
                        pass_fds=[read_end],
                        start_new_session=True,
                    )
                )
        except BaseException:
            self._kill()
            raise
        finally:
            os.close(read_end)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: Any) -> None:
        self._kill()
        for thread in self._shown:
            thread.join()
        for file in self._files:
            file.close()
        os.close(self._write_end)

    def show(self, everything: bool, folder: pathlib.Path | None) -> None:
        """Show the output of all processes; lines of all processes except process 0 begin with their process number."""
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        for index, process in enumerate(self._processes[1:], start=1):
            file = None if folder is None else (folder / f"{index}.log").open("wb", buffering=0)
            self._files += [] if file is None else [file]
            prefix = f"[{index}] ".encode()
            assert process.stdout is not None and process.stderr is not None
            self._follow(process.stdout, file or (sys.stdout.buffer if everything else None), b"" if file else prefix)
            self._follow(process.stderr, file or sys.stderr.buffer, b"" if file else prefix)

    def signal(self, number: int) -> None:
        """Forward a signal to all processes, which then agree on a last step; a second signal kills them."""
        self._told += 1
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(number)
        if self._told > 1:
            self._kill()

    def wait(self, grace: float) -> int:
        """Wait until all processes have ended; return the exit status of the first process that failed, or 0.

        Args:
          grace: seconds after the failure of one process until the other processes are killed.
        """
        failed: int | None = None
        deadline = float("inf")
        while True:
            running = any(process.poll() is None for process in self._processes)
            if failed is None and (failed := self._first_failed()) is not None:
                if self._status(failed) not in _TOLD_TO_END:
                    how = _ending(self._processes[failed].returncode)
                    _say(f"process {failed} {how}{'; the others are ended' if running else ''}")
                    deadline = time.monotonic() + grace
            if not running:
                return 0 if failed is None else self._status(failed)
            if time.monotonic() > deadline:
                self._kill()
            time.sleep(_INTERVAL)

    def _first_failed(self) -> int | None:
        return next((i for i, process in enumerate(self._processes) if process.poll() not in (None, 0)), None)

    def _status(self, index: int) -> int:
        code = self._processes[index].returncode
        return 128 - code if code < 0 else code

    def _kill(self) -> None:
        """Kill all processes at once, together with their children."""
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _follow(self, source: IO[bytes], target: IO[bytes] | None, prefix: bytes) -> None:
        thread = threading.Thread(target=_copy, args=(source, target, prefix), daemon=True)
        thread.start()
        self._shown.append(thread)


def _of_fluid(index: int, count: int) -> dict[str, str]:
    """Return the environment variables from which PaddlePaddle Fluid programs read their index and addresses.

    There is one address for each process, but no process listens there. The programs only count the addresses, and
    search for their own address.
    """
    addresses = [f"127.0.0.1:{6170 + number}" for number in range(count)]
    return {
        "PADDLE_TRAINER_ID": str(index),
        "PADDLE_TRAINERS_NUM": str(count),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(addresses),
        "PADDLE_CURRENT_ENDPOINT": addresses[index],
    }


def _copy(source: IO[bytes], target: IO[bytes] | None, prefix: bytes) -> None:
    """Copy a stream with `prefix` before each line. Each line is written at once, so that lines do not mix."""
    with source:
        for line in source:
            if target is not None:
                target.write(prefix + line if line.endswith(b"\n") else prefix + line + b"\n")
                target.flush()


@contextlib.contextmanager
def _forwarded(tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` with the signal number for each Ctrl-C and SIGTERM that arrives inside a `with` block."""

    def receive(number: int, frame: FrameType | None) -> None:
        tell(number)

    before = {number: signal.signal(number, receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has failed with exit status {code}"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _say(text: str) -> None:
    print(f"fluid: {text}", file=sys.stderr, flush=True)
