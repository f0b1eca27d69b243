"""`SameLayers`: a function that is called before a loop and inside it, with the same parameters."""

from collections.abc import Callable
from typing import Any

from fluid import core


class SameLayers:
    """A function that calls layers, for use before a loop and inside it.

    Its layers have the same names, and so the same parameters, in both places: without this, the embedding of the first
    id would be another table than that of all others.

    Args:
      function: the user's.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._counters: dict[str, int] | None = None

    def __call__(self, *args: Any) -> Any:
        """Call the function; inside a loop, with the names that its layers had before."""
        frame = core.current_frame("layers.dynamic_decode")
        if self._counters is None or not frame.inside_loop:
            self._counters = dict(frame.naming.counters)
            return self._function(*args)
        # A frame of its own: the values that it names have the names of others in the loop.
        child = core.inner_frame(frame)
        child.naming.counters = dict(self._counters)
        with core.running(child):
            result = self._function(*args)
        core.leave(frame, child, "layers.dynamic_decode")
        frame.made.states.update(child.made.states)
        return result
