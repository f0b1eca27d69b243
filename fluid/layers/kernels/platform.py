"""The platform for which layers choose their forms."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import jax

from fluid import core

_elsewhere: ContextVar[bool] = ContextVar("fluid_traced_for_other_platforms", default=False)


def on_cpu(alone: bool = False) -> bool:
    """Return whether layers may compute in a form that is made for a CPU.

    A trace whose equations are looked at, for a drawing or a summary, shows the plain form of each layer.

    Args:
      alone: True for a form that is slow on other devices: it is not chosen for an exported model that also runs there.
    """
    frame = core.present_frame()
    here = jax.default_backend() == "cpu" and not (frame is not None and frame.plain)
    return here and not (alone and _elsewhere.get())


@contextlib.contextmanager
def traced_for(platforms: Sequence[str]) -> Iterator[None]:
    """Trace for these platforms, such as "cpu" and "cuda", within a `with` block."""
    token = _elsewhere.set(any(platform != "cpu" for platform in platforms))
    try:
        yield
    finally:
        _elsewhere.reset(token)
