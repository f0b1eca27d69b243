"""Python processes that start in milliseconds: a server that has imported JAX and fluid forks each of them.

`run("-m", "fluid", "--help")` and `Process("-c", code)` are for this Python what `subprocess.run` and
`subprocess.Popen` are for any program. Process ids, signals and exit statuses belong to the operating system, and
the interpreter ends as always: it waits for threads, calls the functions of `atexit` and flushes the output.

A forked process differs in what Python does before the first line of the code: modules are already imported, and the
server sets the hash seed. So tests of the import, of hash seeds, of what an environment lacks, and of the start
of the command line use `subprocess`. Variables that Python and JAX read at their start (PYTHON..., JAX_...) hold:
processes with other values get a server of their own. No server starts a thread or a device before it forks.
"""

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing.connection
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import types
import weakref
from subprocess import PIPE, STDOUT

# What processes of tests import first. Loading these modules takes most of the start of a process.
# Orbax is not among these modules, because its import adds a handler to the root logger.
PRELOADED = "numpy jax jax.export optax fluid.layers fluid.trainer fluid.online fluid.serving fluid.__main__".split()
INTEGER = 4  # bytes of a process id or an exit status in a message

_servers = {}
_starting = threading.Lock()


class Process:
    """A forked Python process, with the interface of `subprocess.Popen`; its pipes are text.

    Args:
      *command: what follows `python` on a command line: `"-c", code`, `"-m", module`, or a script; then its arguments.
      cwd: the working folder; by default the current one.
      env: all environment variables; by default the same as in the test.
      stdout, stderr: PIPE, a file or its number, or None for the output of the test; STDOUT joins both.
      start_new_session: True makes the process the leader of a session and of a process group.
    """

    def __init__(self, *command, cwd=None, env=None, stdout=PIPE, stderr=PIPE, start_new_session=False):
        self.args = [sys.executable, *map(str, command)]
        self.returncode = None
        self._lock = threading.Lock()
        environment = dict(os.environ if env is None else env)
        request = [self.args[1:], os.path.abspath(cwd or "."), environment, start_new_session]
        self._connection, served = socket.socketpair()
        weakref.finalize(self, self._connection.close)
        with contextlib.ExitStack() as passed, open(os.devnull) as nothing, served:
            self.stdout, out = _opened(stdout, 1, passed)
            self.stderr, error = (None, out) if stderr == STDOUT else _opened(stderr, 2, passed)
            descriptors = [served.fileno(), nothing.fileno(), out, error]
            socket.send_fds(_server(environment), [b"+"], descriptors)
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid = self._received()

    def poll(self):
        """Return the exit status, negative after a signal, or None while the process runs."""
        with self._lock:
            if self.returncode is None and multiprocessing.connection.wait([self._connection], 0):
                self.returncode = self._received()
                self._connection.shutdown(socket.SHUT_WR)  # until here, no other process gets the same process id
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None and not multiprocessing.connection.wait([self._connection], timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.poll()

    def communicate(self, timeout=None):
        """Read both pipes to their ends and wait for the process; return the two texts."""
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe]
        texts = {}
        readers = [threading.Thread(target=lambda p=pipe: texts.update({p: p.read()}), daemon=True) for pipe in pipes]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired(self.args, timeout)
        for pipe in pipes:
            pipe.close()
        self.wait(timeout)
        return texts.get(self.stdout), texts.get(self.stderr)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pipe in (self.stdout, self.stderr):
            if pipe:
                pipe.close()
        self.wait()

    def _received(self):
        message = self._connection.recv(INTEGER, socket.MSG_WAITALL)
        assert message, f"the server of processes has ended before {self.args}"
        return int.from_bytes(message, "big", signed=True)


def run(*command, check=False, **options):
    """Run a Python process to its end; return its exit status and its texts as `subprocess.run` does."""
    with Process(*command, **options) as process:
        done = subprocess.CompletedProcess(process.args, None, *process.communicate())
    done.returncode = process.returncode
    if check:
        done.check_returncode()
    return done


def _opened(target, standard, passed):
    """Return the test's end of a new pipe or None, and the descriptor that the process writes to."""
    if target == PIPE:
        reading, writing = os.pipe()
        passed.callback(os.close, writing)
        return open(reading), writing
    return None, standard if target is None else getattr(target, "fileno", lambda: target)()


def _server(environment):
    """Return the socket of the server for the variables that are read at the start; start it at its first use."""
    fixed = {name: value for name, value in environment.items() if name.startswith(("JAX_", "PYTHON"))}
    fixed.pop("PYTHONPATH", None)
    key = tuple(sorted(fixed.items()))
    with _starting:
        if key not in _servers:
            control, served = socket.socketpair()
            variables = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
            command = [sys.executable, __file__, str(served.fileno()), os.pathsep.join(sys.path)]
            options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
            with served:
                server = subprocess.Popen(command, env=variables, pass_fds=[served.fileno()], **options)
            atexit.register(server.wait)
            atexit.register(control.close)  # this ends the server, also where a test process ends without `atexit`
            _servers[key] = control
        return _servers[key]


# What follows runs in the server and in the processes that it forks.


def _forked(control):
    """Fork a process for each request; return, in the process only, its command, folder and variables."""
    gc.collect()
    gc.freeze()  # a process that ends need not traverse the imported modules, which takes a quarter of a second
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets the waiting processes when they end
    while descriptors := socket.recv_fds(control, 1, 4)[1]:
        if not os.fork():
            control.close()
            return _waited_for(socket.socket(fileno=descriptors[0]), descriptors[1:])
        for descriptor in descriptors:
            os.close(descriptor)
    os._exit(0)


def _waited_for(connection, standard):
    """Fork the process and return in it; stay here until it has ended, and until the test has its exit status."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection.makefile() as lines:
        command, folder, environment, start_new_session = json.loads(lines.readline())
    pid = os.fork()
    if not pid:
        connection.close()
        for place, descriptor in enumerate(standard):
            os.dup2(descriptor, place)
        for descriptor in standard:
            os.close(descriptor)
        if start_new_session:
            os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return command, folder, environment
    try:
        for descriptor in standard:
            os.close(descriptor)
        connection.sendall(pid.to_bytes(INTEGER, "big", signed=True))
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        connection.sendall(status.to_bytes(INTEGER, "big", signed=True))
        connection.recv(1)
        os.waitpid(pid, 0)
    finally:
        os._exit(0)


def _main(command, site):
    """Return the code of a command and its module `__main__`; set `sys.argv` and `sys.path` as Python does."""
    main = types.ModuleType("__main__")
    first, sys.argv = command[0], command
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [os.getcwd() if first == "-m" else "", *map(os.path.abspath, paths), *site]
    if first == "-c":
        code, sys.argv = compile(command[1], "<string>", "exec"), ["-c", *command[2:]]
    elif first == "-m":
        spec = importlib.util.find_spec(command[1])
        if spec.submodule_search_locations:
            spec = importlib.util.find_spec(f"{command[1]}.__main__")
        code, sys.argv = spec.loader.get_code(spec.name), [spec.origin, *command[2:]]
        main.__spec__, main.__package__, main.__file__ = spec, spec.parent, spec.origin
    else:
        sys.path[0], main.__file__ = os.path.dirname(os.path.realpath(first)), os.path.abspath(first)
        code = compile(pathlib.Path(first).read_bytes(), first, "exec")
    sys.modules["__main__"] = main
    return code, main


if __name__ == "__main__":
    _site = sys.path[1:]
    sys.path[:] = sys.argv[2].split(os.pathsep)
    for _name in PRELOADED:
        importlib.import_module(_name)
    _command, _folder, _environment = _forked(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(_folder)
    os.environ.clear()
    os.environ.update(_environment)
    sys.modules["numpy"].random.seed()  # as in any new process
    _code, _module = _main(_command, _site)
    exec(_code, _module.__dict__)  # at the top, so that Python itself ends the process
