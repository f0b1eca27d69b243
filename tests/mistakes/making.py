"""Makes mistakes, and keeps what fluid says to them."""

import contextlib
import io
import logging
import pathlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from fluid import errors
from fluid.layers import no_effect
from mistakes import common
from mistakes.theme import Logged, Mistake

HERE = pathlib.Path(__file__).resolve().parent
FILE = "mistake.py"  # what the lines of a mistake are run as, so that messages can name them


@dataclass(frozen=True)
class Answer:
    """What fluid said to a mistake.

    Attributes:
      kind: the class of the exception or warning; Logged for a line of the log.
      text: the message, with the notes of an exception, and with nothing in it that differs from run to run.
    """

    kind: type[Exception]
    text: str


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def answer_to(mistake: Mistake, folder: pathlib.Path) -> Answer | None:
    """Run the lines of a mistake in an empty folder, in a namespace of their own; None when nothing is said.

    An exception counts before warnings, and those before the log.

    Raises:
      Exception: anything that is neither a FluidError nor a FluidWarning.
    """
    path = folder / FILE
    path.write_text(mistake.code, encoding="utf-8")
    namespace = {name: getattr(common, name) for name in common.__all__} | {"__name__": "mistake"}
    silence = contextlib.redirect_stdout(io.StringIO())  # what the mistakes themselves print
    with contextlib.chdir(folder), silence, _log() as logged, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("error")
        warnings.simplefilter("always", errors.FluidWarning)
        try:
            exec(compile(mistake.code, str(path), "exec"), namespace)
        except errors.FluidError as error:
            notes = [note for note in getattr(error, "__notes__", []) if not note.startswith("-----")]  # those of JAX
            return Answer(type(error), _steady("\n".join([str(error), *notes]), folder))
    if warned:
        return Answer(errors.FluidWarning, _steady("\n".join(str(w.message) for w in warned), folder))
    if logged.texts:
        return Answer(Logged, _steady("\n".join(logged.texts), folder))
    return None


@contextlib.contextmanager
def _log() -> Iterator[_Kept]:
    """Keep what fluid logs meanwhile, and nothing of what it has warned of once in this process."""
    kept = _Kept()
    logger = logging.getLogger("fluid")
    propagated = logger.propagate
    logger.addHandler(kept)
    logger.propagate = False
    no_effect._told.clear()
    try:
        yield kept
    finally:
        logger.removeHandler(kept)
        logger.propagate = propagated


def _steady(text: str, folder: pathlib.Path) -> str:
    """A message without what differs from one machine or run to another: folders, addresses, versions of Python."""
    for place in {str(folder), str(folder.resolve())}:
        text = text.replace(f"{place}/", "").replace(place, "FOLDER")
    text = text.replace(f"{HERE}/", "")
    text = re.sub(r"process \d+ on \S+?\)", "process 123 on host)", text)
    return re.sub(r"0x[0-9a-f]+", "0x...", text)
