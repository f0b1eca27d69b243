"""Runs of the test files `*on_eight_devices.py`, in a separate process with eight devices."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Eight devices on a few cores wait long for each other, and XLA ends a process that waits for more than 40 s.
FLAGS = (
    "--xla_force_host_platform_device_count=8 --xla_cpu_collective_timeout_seconds=600 "
    "--xla_cpu_collective_call_terminate_timeout_seconds=600"
)


def run(mark, folder):
    """Run the tests with a pytest mark expression in a process with eight devices; show the output on failure."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"
    paths = os.pathsep.join(map(str, [ROOT, HERE, ROOT / "tests", ROOT / "tests" / "helpers"]))
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-x", "-m", mark]
    done = subprocess.run(
        [*command, f"--basetemp={folder}", *map(str, sorted(HERE.glob("*on_eight_devices.py")))],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_on_eight_devices(tmp_path):
    run("not full and not soak", tmp_path / "inner")


@pytest.mark.full
def test_all_on_eight_devices(tmp_path):
    run("full", tmp_path / "inner")


@pytest.mark.soak
def test_slow_files_pass_on_eight_devices(tmp_path):
    run("soak", tmp_path / "inner")
