"""Ahead: a jitted step that is compiled in a thread, before the first call that needs it."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax


class Ahead:
    """A jitted training step that is being compiled for feeds of some shapes; stands in its place until it has these.

    JAX keeps what was compiled with what was traced, so that the jitted function finds it when it is called. What it is
    compiled for is traced by the caller, in the caller's thread; XLA alone works in the other one, and needs no lock of
    Python meanwhile. A compilation that fails there is made again by the call, which raises its error.

    Args:
      jitted: the step.
      lowered: the same, traced for these shapes.
      feeds: arrays, or `jax.ShapeDtypeStruct` in their places.
      take: called with the feeds of the first call that has these shapes, which no longer goes through this object.
    """

    def __init__(
        self,
        jitted: Any,
        lowered: jax.stages.Lowered,
        feeds: Mapping[str, Any],
        take: Callable[[Mapping[str, Any]], None],
    ):
        self.trace = jitted.trace
        self._jitted = jitted
        self._form = _form(feeds)
        self._take = take
        # Not a daemon: Python waits at its end for a thread that is inside of XLA, which would crash otherwise.
        self._thread = threading.Thread(target=_compile, args=(lowered,), name="fluid-compilation")
        self._thread.start()

    def __call__(self, carry: Any, kept: Any, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
        """Run the step, once it is compiled."""
        if not overrides and _form(feeds) == self._form:
            try:
                self._take(feeds)
            finally:
                self._thread.join()
        return self._jitted(carry, kept, feeds, overrides)


def _compile(lowered: jax.stages.Lowered) -> None:
    try:
        lowered.compile()
    except Exception:  # the call that needs it meets the same error, and raises it where it belongs
        return


def _form(feeds: Mapping[str, Any]) -> Any:
    """What of feeds a compilation depends on."""
    leaves, structure = jax.tree.flatten(dict(feeds))
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
