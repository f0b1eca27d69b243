"""Counts of XLA's compilations, independent of fluid's own count."""

import contextlib
import threading

import jax


@contextlib.contextmanager
def counted():
    """Yield a list that grows by one entry with each backend compilation that begins from now on."""
    for thread in threading.enumerate():
        if thread.name == "fluid-compilation":  # left over from an earlier test, which did not wait for it
            thread.join()
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
