"""Classes for mistakes and themes: a mistake is code with the message that fluid must answer."""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field


class Logged(Warning):
    """The kind of an answer that is only a line of the log, because the user may have meant the code as it is."""


@dataclass(frozen=True)
class Mistake:
    """A typical mistake of a user.

    Attributes:
      title: the heading of the mistake on the page: a short description.
      name: the name of the function whose body is the code.
      code: the lines of code that the page shows and the test runs.
      answer: the expected class: the FluidError that the code raises, or FluidWarning, or Logged.
      says: words that the message must contain: the found value, and what to write instead.
    """

    title: str
    name: str
    code: str
    answer: type[Exception]
    says: tuple[str, ...]


@dataclass
class Theme:
    """A group of mistakes about one subject.

    Attributes:
      title: the heading of the group on the page.
      mistakes: the mistakes in the order of the page.
    """

    title: str
    mistakes: list[Mistake] = field(default_factory=list)

    def mistake(self, title: str, answer: type[Exception], *says: str) -> Callable[[Callable[[], None]], None]:
        """Return a decorator that adds the body of a function to this theme, as a mistake that must get `answer`."""

        def take(function: Callable[[], None]) -> None:
            self.mistakes.append(Mistake(title, function.__name__, _body(function), answer, says))

        return take


def _body(function: Callable[[], None]) -> str:
    """Return the source of the body of a function, without indentation."""
    lines = inspect.getsource(function).splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("def "))
    return textwrap.dedent("".join(lines[start + 1 :])).strip("\n") + "\n"
