"""Functions that run code in separate processes."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import forked

TESTS = pathlib.Path(__file__).resolve().parent.parent


def finished(code, folder, fresh=False, **environment):
    """Run code in a new process, which must succeed or end by SIGKILL; return the printed words and the exit status.

    If `fresh`, no module is imported before: for code that must run without some modules, or with another hash seed.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS, TESTS / "helpers", TESTS.parent))),
        **environment,
    }
    command = ["-c", textwrap.dedent(code)]
    if fresh:
        options = {"capture_output": True, "text": True, "check": False}
        done = subprocess.run([sys.executable, *command], cwd=folder, env=environment, **options)
    else:
        done = forked.run(*command, cwd=folder, env=environment)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr[-3000:]
    return done.stdout.split(), done.returncode


def python(code, folder, devices=1, fresh=False):
    """Run code in a new process with `devices` simulated CPU devices; return the list of the printed words."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    words, status = finished(code, folder, fresh, XLA_FLAGS=flags, JAX_PLATFORMS="cpu")
    assert status == 0
    return words
