"""The processes that tests fork instead of starting Python anew: they start and end as Python starts and ends them."""

import os
import signal
import subprocess
import sys
import threading

import forked
import pytest

TOLD = "import os, sys; print(sys.argv, os.getcwd(), sys.path[0], __name__, os.environ.get('MARK'), flush=True)\n"


@pytest.mark.parametrize(
    "ending", ["sys.exit(3)", "1 / 0", "raise KeyboardInterrupt", "os.kill(os.getpid(), 15)", "x = __import__('json')"]
)
def test_start_and_end_as_in_python(ending, tmp_path):
    path = tmp_path / "told.py"
    path.write_text(TOLD + ending)
    options = {"cwd": tmp_path, "env": {**os.environ, "MARK": "mine"}}
    for command in (["-c", TOLD + ending, "a"], ["-m", "told", "a"], [str(path), "a"], ["told.py"]):
        found = forked.run(*command, **options)
        wanted = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, **options)
        assert (found.returncode, found.stdout) == (wanted.returncode, wanted.stdout)
        assert found.stderr.splitlines()[-1:] == wanted.stderr.splitlines()[-1:]


def test_signals_timeouts_and_sessions(tmp_path):
    waits = "import signal; print(1, flush=True); signal.pause()"
    with forked.Process("-c", waits, start_new_session=True) as process:
        assert process.stdout.readline() == "1\n" and process.poll() is None
        assert os.getpgid(process.pid) == os.getsid(process.pid) == process.pid
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.communicate() == ("", "") and process.returncode == -signal.SIGTERM
        process.kill()  # too late, which is no error
    with pytest.raises(ProcessLookupError):
        while True:  # no zombie is left
            os.kill(process.pid, 0)
    with pytest.raises(subprocess.CalledProcessError):
        forked.run("-c", "raise SystemExit(2)", check=True)


def test_functions_at_exit_and_threads_end_as_in_python():
    code = (
        "import atexit, threading; atexit.register(print, 'end'); go = threading.Event()\n"
        "threading.Thread(target=lambda: (go.wait(), print('thread'))).start(); go.set()"
    )
    assert forked.run("-c", code).stdout == "thread\nend\n"


def test_variables_that_are_read_at_the_start_hold():
    """Check devices by XLA_FLAGS, a setting of JAX, and the numbers that NumPy draws without a seed."""
    code = "import jax, numpy; print(jax.device_count(), jax.config.jax_enable_x64, numpy.random.rand())"
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    one = forked.run("-c", code, env=environment).stdout.split()
    two = forked.run("-c", code, env={**environment, "JAX_ENABLE_X64": "1"}).stdout.split()
    three = forked.run("-c", code, env=environment).stdout.split()
    assert one[:2] == three[:2] == ["3", "False"] and two[:2] == ["3", "True"] and one != three


def test_several_threads_start_processes_and_no_file_stays_open():
    before = len(os.listdir("/proc/self/fd"))
    found = []
    threads = [
        threading.Thread(target=lambda i=i: found.append((i, forked.run("-c", f"raise SystemExit({i})").returncode)))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [(i, i) for i in range(4)]
    assert len(os.listdir("/proc/self/fd")) == before
