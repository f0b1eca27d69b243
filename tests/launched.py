"""Starts scripts as several processes, and takes apart what they say."""

import os
import pathlib
import subprocess
import sys
import threading

SCRIPT = pathlib.Path(__file__).with_name("several.py")
LONGEST = 120


class Launched(subprocess.Popen):
    """`python -m fluid launch` of a script, which may be disturbed while it runs.

    Args:
      processes: how many.
      folder: what the script is given first, and where it writes.
      *arguments: of the script, after that.
      script: its path; `several.py` by default.
    """

    def __init__(self, processes, folder, *arguments, script=SCRIPT):
        self.folder = folder
        for earlier in folder.glob("*.said"):
            earlier.unlink()
        # What a process that is killed writes half is no other test's business.
        environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
        environment["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # each process compiles a few steps, and takes few of them
        command = [sys.executable, "-m", "fluid", "launch", "--processes", str(processes)]
        command += [str(script), str(folder), *arguments]
        super().__init__(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.logged = []
        self._listening = threading.Thread(target=self.logged.extend, args=(self.stderr,))
        self._listening.start()

    def ended(self, after=None, then=None):
        """What it has said; after process 0 has shown a line with `after` in it, `then` is called.

        Returns:
          The lines of each process, what was logged, and the exit status.
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
    """Run a script to its end; see `Launched.ended`."""
    return Launched(processes, folder, *arguments, **options).ended()


def steps(lines):
    """The checksum of the minibatch of each step, by its number."""
    return {int(number): digest for kind, number, digest in (li.split() for li in lines if li.startswith("step "))}


def pids(folder):
    """The processes of a launch that wrote to a folder."""
    return {int(path.stem): int(path.read_text()) for path in pathlib.Path(folder).glob("*.pid")}
