"""A stand-in for JAX's coordination service: each thread of one process plays a process of a distributed group."""

import collections
import threading

import jax

from fluid.distributed import Group


class Service:
    """A stand-in for the coordination service of JAX: threads share its keys and barriers, as processes would."""

    def __init__(self, size):
        self.values = {}
        self.lock = threading.Lock()
        self.barriers = collections.defaultdict(lambda: threading.Barrier(size))
        self.deleted = []

    def key_value_set(self, key, value):
        with self.lock:
            if key in self.values:
                raise jax.errors.JaxRuntimeError("ALREADY_EXISTS")
            self.values[key] = value

    def key_value_try_get(self, key):
        if key not in self.values:
            raise jax.errors.JaxRuntimeError("NOT_FOUND")
        return self.values[key]

    def key_value_dir_get(self, folder):
        with self.lock:
            return [(key, value) for key, value in self.values.items() if key.startswith(folder)]

    def key_value_delete(self, folder):
        with self.lock:
            self.deleted.append(folder)
            self.values = {key: value for key, value in self.values.items() if not key.startswith(folder)}

    def wait_at_barrier(self, name, timeout_in_ms):
        with self.lock:
            barrier = self.barriers[name]
        try:
            barrier.wait(timeout_in_ms / 1000)
        except threading.BrokenBarrierError:
            raise jax.errors.JaxRuntimeError(
                "DEADLINE_EXCEEDED: Barrier timed out. Id: fluid::0.\nSome timed out task names:\n1\n\nRPC: /Barrier"
            ) from None


def together(size, work, timeout=20):
    """Simulate `size` processes by threads: each thread runs `work(group)`, with the index of one process.

    Returns:
      A list of the results or exceptions of `work` by process index, and the Service that all groups share.
    """
    service = Service(size)
    found = [None] * size

    def run(index):
        try:
            found[index] = work(Group(index, size, service, timeout))
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found, service
