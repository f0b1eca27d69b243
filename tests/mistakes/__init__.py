"""Typical mistakes of users, by theme: what `tests/test_mistakes.py` makes, and `tests/MISTAKES.md` shows."""

from mistakes import (
    absent,
    checkpoints,
    data,
    feeds,
    handlers,
    inference,
    layers,
    losses,
    names,
    online,
    optimizers,
    order,
    parameters,
    programs,
    rank,
    readers,
    sequences,
    sharing,
    tracing,
    training,
)

__all__ = ["THEMES"]

THEMES = [
    programs.THEME,
    losses.THEME,
    tracing.THEME,
    layers.THEME,
    rank.THEME,
    sequences.THEME,
    data.THEME,
    readers.THEME,
    order.THEME,
    training.THEME,
    handlers.THEME,
    optimizers.THEME,
    checkpoints.THEME,
    parameters.THEME,
    inference.THEME,
    absent.THEME,
    feeds.THEME,
    online.THEME,
    sharing.THEME,
    names.THEME,
]
