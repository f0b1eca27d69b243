"""Numbers and shapes as text."""

from collections.abc import Sequence

_PREFIXES = ("", "k", "M", "G", "T", "P")


def scaled(count: float, unit: str = "") -> str:
    """Return a number as text, with three digits and an SI prefix.

    Example:
      >>> scaled(96, "B"), scaled(41_300, "FLOPs"), scaled(1_250_000)
      ('96 B', '41.3 kFLOPs', '1.25 M')
    """
    steps = 0
    while count >= 999.5 and steps < len(_PREFIXES) - 1:
        count /= 1000
        steps += 1
    shown = f"{count:.3g}" if count < 999.5 else f"{count:.0f}"
    return f"{shown} {_PREFIXES[steps]}{unit}".rstrip()


def counted(count: int, noun: str) -> str:
    """Return a number and a noun as text; the noun gets an "s" unless the number is 1.

    Example:
      >>> counted(1, "program"), counted(12_345, "parameter")
      ('1 program', '12,345 parameters')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shape_text(dtype: str, shape: Sequence[int | str | None]) -> str:
    """Return dtype and shape of a value as text; None stands for the batch.

    Example:
      >>> shape_text("float32", (None, "time", 8))
      'float32[batch, time, 8]'
    """
    return f"{dtype}[{', '.join('batch' if d is None else str(d) for d in shape)}]"
