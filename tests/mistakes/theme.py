"""What a mistake is: some lines of a user's, the kind of answer that they must get, and what it must say."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field


class Logged(Warning):
    """Stands for a line that fluid writes to its log, where going on is what the user may have meant."""


@dataclass(frozen=True)
class Mistake:
    """A mistake of a user's.

    Attributes:
      title: what is wrong.
      name: of the function that holds it.
      code: the lines, as they are shown and run.
      answer: the exception that they raise, a FluidError; or FluidWarning; or Logged.
      says: what the message must hold: what was found, and what to write instead.
    """

    title: str
    name: str
    code: str
    answer: type[Exception]
    says: tuple[str, ...]


@dataclass
class Theme:
    """Mistakes that have to do with the same thing.

    Attributes:
      title: the heading under which they are shown.
      mistakes: in the order in which they are shown.
    """

    title: str
    mistakes: list[Mistake] = field(default_factory=list)

    def mistake(self, title: str, answer: type[Exception], *says: str) -> Callable[[Callable[[], None]], None]:
        """Decorate a function whose body is a mistake."""

        def take(function: Callable[[], None]) -> None:
            self.mistakes.append(Mistake(title, function.__name__, _body(function), answer, says))

        return take


def _body(function: Callable[[], None]) -> str:
    """The lines of a function below its `def`."""
    lines = inspect.getsource(function).splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return textwrap.dedent("".join(lines[start + 1 :])).strip("\n") + "\n"
