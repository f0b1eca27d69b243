"""Functions that run the code of a mistake, and return the message of fluid."""

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
FILE = "mistake.py"  # messages name this file when they name a line of a mistake


@dataclass(frozen=True)
class Answer:
    """The answer of fluid to a mistake: an error, a warning or a line of the log.

    Attributes:
      kind: the class of the exception or warning; Logged for a line of the log.
      text: the message with the notes of an exception, without parts that differ from run to run.
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
    """Run the code of a mistake in `folder` and in a new namespace; return the answer of fluid, or None.

    An exception has priority over warnings, and warnings have priority over lines of the log.

    Raises:
      Exception: the code raised another exception than a FluidError, or another warning than a FluidWarning.
    """
    path = folder / FILE
    path.write_text(mistake.code, encoding="utf-8")
    namespace = {name: getattr(common, name) for name in common.__all__} | {"__name__": "mistake"}
    silence = contextlib.redirect_stdout(io.StringIO())  # the code of a mistake may print
    with contextlib.chdir(folder), silence, _log() as logged, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("error")
        warnings.simplefilter("always", errors.FluidWarning)
        try:
            exec(compile(mistake.code, str(path), "exec"), namespace)
        except errors.FluidError as error:
            # JAX adds a note that begins with "-----", which does not belong to the message of fluid.
            notes = [note for note in getattr(error, "__notes__", []) if not note.startswith("-----")]
            return Answer(type(error), _steady("\n".join([str(error), *notes]), folder))
    if warned:
        return Answer(errors.FluidWarning, _steady("\n".join(str(w.message) for w in warned), folder))
    if logged.texts:
        return Answer(Logged, _steady("\n".join(logged.texts), folder))
    return None


@contextlib.contextmanager
def _log() -> Iterator[_Kept]:
    """Record the log of fluid in the block; forget earlier warnings of arguments without effect, which come once."""
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
    """Replace the parts of a message that differ between runs: folders, processes and addresses in memory."""
    for place in {str(folder), str(folder.resolve())}:
        text = text.replace(f"{place}/", "").replace(place, "FOLDER")
    text = text.replace(f"{HERE}/", "")
    text = re.sub(r"process \d+ on \S+?\)", "process 123 on host)", text)
    return re.sub(r"0x[0-9a-f]+", "0x...", text)
