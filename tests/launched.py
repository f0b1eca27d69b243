"""Starts scripts as several processes, and takes apart what they say."""

import os
import pathlib
import re
import subprocess
import sys
import threading

SCRIPT = pathlib.Path(__file__).with_name("several.py")
LONGEST = 120


class Launched(subprocess.Popen):
    """`python -m fluid launch`, which may be disturbed while it runs."""

    def __init__(self, processes, *arguments, options=(), script=SCRIPT):
        # What a process that is killed writes half is no other test's business.
        environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
        command = [sys.executable, "-m", "fluid", "launch", "--output", "all", "--processes", str(processes), *options]
        command += [str(script), *map(str, arguments)]
        super().__init__(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        self.logged = []
        self._listening = threading.Thread(target=self.logged.extend, args=(self.stderr,))
        self._listening.start()

    def ended(self, after=None, then=None):
        """What it has said; after a line that begins with `after`, `then` is called.

        Returns:
          The lines of each process, what was logged, and the exit status.
        """
        said = {}
        watchdog = threading.Timer(LONGEST, self.kill)
        watchdog.start()
        with self:
            for line in self.stdout:
                _, number, text = re.fullmatch(r"(\[(\d+)\] )?(.*)\n?", line).groups()
                said.setdefault(int(number or 0), []).append(text)
                if after is not None and text.startswith(after):
                    after = None
                    then()
            self._listening.join()
        watchdog.cancel()
        return said, "".join(self.logged), self.returncode


def launched(processes, *arguments, options=()):
    """Run the script to its end; see `Launched.ended`."""
    return Launched(processes, *arguments, options=options).ended()


def steps(lines):
    """The checksum of the minibatch of each step, by its number."""
    return {int(number): digest for kind, number, digest in (li.split() for li in lines if li.startswith("step "))}


def pids(folder):
    """The processes of a launch that wrote to a folder."""
    return {int(path.stem): int(path.read_text()) for path in pathlib.Path(folder).glob("*.pid")}
