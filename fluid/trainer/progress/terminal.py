"""The progress of a training on a terminal: one line for each epoch."""

from typing import Any

from fluid.trainer.progress.status import Status, duration


class Terminal:
    """Shows a bar for each epoch, with the means over its steps so far and what was announced."""

    def __init__(self) -> None:
        self._bar: Any = None

    def begin_epoch(self, status: Status) -> None:
        """Open the bar of an epoch."""
        from tqdm.std import tqdm

        # Redrawn when it is told to, and no oftener.
        timing = {"mininterval": 0, "miniters": 1}
        start = {"total": status.total, "initial": status.step, "desc": _label(status)}
        self._bar = tqdm(**start, **timing, unit="step", dynamic_ncols=True, leave=True)

    def update(self, status: Status) -> None:
        """Redraw."""
        if self._bar is None:
            return
        compiling = "" if status.compiling is None else f", compiling {duration(status.compiling)}"
        note = f" ({status.note})" if status.note else ""
        shown = ", ".join(f"{name} {value:.4g}" for name, value in status.values.items())
        self._bar.set_description_str(_label(status) + compiling, refresh=False)
        self._bar.set_postfix_str(shown + note, refresh=False)
        if status.step > self._bar.n:
            self._bar.update(status.step - self._bar.n)
        else:
            self._bar.refresh()

    def end_epoch(self, status: Status) -> None:
        """Close the bar, with the values of the whole epoch."""
        self.update(status)
        self.close()

    def end(self, status: Status, how: str, good: bool) -> None:
        """Close the bar, which an error may have left open."""
        self.close()

    def close(self) -> None:
        """Close the bar, if one is open."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _label(status: Status) -> str:
    return f"epoch {status.epoch + 1}/{status.num_epochs}"
