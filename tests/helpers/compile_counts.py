"""A count of XLA compilations that JAX reports, for tests that do not trust the count of fluid."""

import contextlib
import threading

import jax


@contextlib.contextmanager
def counted():
    """Yield a list that gets one entry, the duration, for each XLA compilation inside the `with` block."""
    for thread in threading.enumerate():
        # An earlier test may have left a compilation thread running; its compilations must not be counted here.
        if thread.name == "fluid-compilation":
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
