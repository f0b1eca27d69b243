"""Fixtures of the capability tests: functions that need four devices run in a process with four simulated devices."""

import json
import os
import pathlib

import forked
import pytest

SCRIPT = pathlib.Path(__file__).with_name("four_devices.py")


@pytest.fixture(scope="session")
def on_four_devices():
    """Run all functions of `four_devices.py` in one process; return a function that checks one result."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4"
    paths = os.pathsep.join(map(str, [SCRIPT.parents[2], SCRIPT.parents[1], SCRIPT.parents[1] / "helpers"]))
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    done = forked.run(SCRIPT, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    failures = json.loads(done.stdout.splitlines()[-1])

    def check(name):
        assert not failures[name], failures[name]

    return check
