"""Ahead-of-time compilation: a thread compiles a jitted step before the first call of the step."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax


class Ahead:
    """A jitted training step that is compiled in a thread for feeds of some shapes.

    An Ahead replaces the jitted step until the first call with these shapes. JAX caches the compiled step with the
    trace, so that the jitted function finds it. The caller traces in the caller's thread. The other thread only runs
    XLA, which does not hold Python's lock. If the compilation fails, the call compiles again and raises the error.

    Args:
      jitted: the jitted step.
      lowered: the step, traced and lowered by JAX for these shapes, but not compiled.
      feeds: arrays or `jax.ShapeDtypeStruct`, by name.
      take: called with the feeds of the first call with these shapes; it puts the jitted step back in place of the
        Ahead.
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
        # No daemon: at exit, Python must wait for a thread inside XLA, or it crashes.
        self._thread = threading.Thread(target=_compile, args=(lowered,), name="fluid-compilation")
        self._thread.start()

    def __call__(self, state: Any, constants: Any, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
        """Run the step; a call with feeds of the shapes that are being compiled first waits for the compilation."""
        if not overrides and _form(feeds) == self._form:
            try:
                self._take(feeds)
            finally:
                self._thread.join()
        return self._jitted(state, constants, feeds, overrides)


def _compile(lowered: jax.stages.Lowered) -> None:
    try:
        lowered.compile()
    except Exception:  # the call that needs the step compiles again, and raises the error in the caller's thread
        return


def _form(feeds: Mapping[str, Any]) -> Any:
    """Return the parts of feeds on which a compilation depends: structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(dict(feeds))
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
