"""Launches of a script as several processes: start and disturb the processes, and parse their output."""

import os
import pathlib
import threading

import forked

SCRIPT = pathlib.Path(__file__).with_name("process_training.py")
LONGEST = 120


class Launched(forked.Process):
    """A running `python -m fluid launch` of a script; a test may kill some of the launched processes.

    Args:
      processes: the number of processes.
      folder: the output folder of the script, which is also its first argument.
      *arguments: further arguments of the script.
      script: the path of the script; `process_training.py` by default.
    """

    def __init__(self, processes, folder, *arguments, script=SCRIPT):
        self.folder = folder
        for earlier in folder.glob("*.said"):
            earlier.unlink()
        # A killed process may leave half-written files in the compilation cache, so the processes use no cache.
        environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
        # An optimized compilation would take more time than it saves in a few steps.
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
        command = ["-m", "fluid", "launch", "--processes", processes, script, folder, *arguments]
        super().__init__(*command, env=environment)
        self.logged = []
        self._listening = threading.Thread(target=self.logged.extend, args=(self.stderr,))
        self._listening.start()

    def ended(self, after=None, then=None):
        """Wait until all processes end; call `then()` once after a printed line contains `after`.

        Returns:
          The lines of each process by process index, the text of standard error, and the exit status.
        """
        watchdog = threading.Timer(LONGEST, self.kill)
        watchdog.start()
        with self:
            for line in self.stdout:
                if after is not None and after in line:
                    after = None
                    then()
            self._listening.join()
        watchdog.cancel()
        said = {int(path.stem): path.read_text().splitlines() for path in self.folder.glob("*.said")}
        return said, "".join(self.logged), self.returncode


def launched(processes, folder, *arguments, **options):
    """Launch a script, wait until it ends, and return the result of `Launched.ended`."""
    return Launched(processes, folder, *arguments, **options).ended()


def steps(lines):
    """Return the checksum of the minibatch of each step by step number, from the lines of a process."""
    return {int(number): digest for kind, number, digest in (li.split() for li in lines if li.startswith("step "))}


def pids(folder):
    """Return the process ids of a launch, by process index, from the files in a folder."""
    return {int(path.stem): int(path.read_text()) for path in pathlib.Path(folder).glob("*.pid")}
