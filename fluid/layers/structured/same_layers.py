"""`SameLayers`: a function whose layers share their parameters before a loop and inside it."""

from collections.abc import Callable
from typing import Any

from fluid import core


class SameLayers:
    """A function that calls layers, for use before a loop and inside it.

    Its layers have equal names, and so shared parameters, in both calls. With different names, the embedding of the
    first id would be another table than the embedding of all other ids.

    Args:
      function: the user's function.
    """

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        self._counters: dict[str, int] | None = None

    def __call__(self, *args: Any) -> Any:
        """Call the function; inside a loop, with the layer names of the call before the loop."""
        frame = core.current_frame("layers.dynamic_decode")
        if self._counters is None or not frame.inside_loop:
            self._counters = dict(frame.naming.counters)
            return self._function(*args)
        # Run in a new frame, because values in the loop already have these names.
        child = core.inner_frame(frame)
        child.naming.counters = dict(self._counters)
        with core.running(child):
            result = self._function(*args)
        core.leave(frame, child, "layers.dynamic_decode")
        frame.made.states.update(child.made.states)
        return result
