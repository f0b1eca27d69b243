"""Platforms: whether layers may compute in a form that is made for a CPU."""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

import jax

from fluid import core

_platforms: ContextVar[tuple[str, ...]] = ContextVar("fluid_traced_for_platforms", default=("cpu",))


def on_cpu(alone: bool = False) -> bool:
    """Return whether layers may compute in a form that is made for a CPU.

    A trace for a drawing or a summary, whose equations users read, has the plain form of each layer. A trace without
    "cpu" among its platforms has the plain form too.

    Args:
      alone: True for a form that is slow on other devices: it is not chosen for an exported model that also runs there.
    """
    frame = core.present_frame()
    here = jax.default_backend() == "cpu" and not (frame is not None and frame.plain)
    platforms = _platforms.get()
    return here and "cpu" in platforms and not (alone and len(platforms) > 1)


@contextlib.contextmanager
def traced_for(platforms: Sequence[str]) -> Iterator[None]:
    """Choose forms of layers for the given platforms, such as "cpu" and "cuda", within a `with` block."""
    token = _platforms.set(tuple(platforms))
    try:
        yield
    finally:
        _platforms.reset(token)
