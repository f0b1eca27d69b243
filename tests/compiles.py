"""Counts what XLA really compiles, independent of fluid's own count."""

import contextlib

import jax


@contextlib.contextmanager
def counted():
    """Yield a list that grows by one entry with each backend compilation."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield seen
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
