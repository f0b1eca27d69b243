"""The page tests/MISTAKES.md: the code of each mistake, and the message of fluid."""

import pathlib
import tempfile
from collections.abc import Mapping

from mistakes import THEMES
from mistakes.making import HERE, Answer, answer_to
from mistakes.theme import Logged, Mistake

PAGE = HERE.parent / "MISTAKES.md"

_HEAD = """# Mistakes and what fluid says to them

{count} typical mistakes of users, each with its code and the message that it gets: an error, a `FluidWarning`, or a
line of the log where going on may be what was meant. `tests/test_mistakes.py` makes every one of them and compares what
is said with this page, so none of them is silent. `make mistakes` writes the page anew.

The code of each mistake is run as the file `mistake.py`, behind these lines of `tests/mistakes/common.py`:

```python
{common}
```
"""


def answers() -> dict[Mistake, Answer | None]:
    """Make each mistake in a new empty folder, and return the answers of fluid by mistake."""
    found = {}
    for theme in THEMES:
        for mistake in theme.mistakes:
            with tempfile.TemporaryDirectory() as folder:
                found[mistake] = answer_to(mistake, pathlib.Path(folder))
    return found


def written(found: Mapping[Mistake, Answer | None]) -> str:
    """Return the text of the page for the answers `found`; omit mistakes without an answer."""
    common = (HERE / "common.py").read_text(encoding="utf-8")
    common = common[common.index("import jax") : common.index("\n__all__")].strip()
    parts = [_HEAD.format(count=len(found), common=common)]
    for theme in THEMES:
        parts.append(f"\n## {theme.title}\n")
        parts += [entry(mistake, answer) for mistake in theme.mistakes if (answer := found[mistake]) is not None]
    return "".join(parts)


def entry(mistake: Mistake, answer: Answer) -> str:
    """Return the entry of the page for one mistake: title, code, and the message of fluid."""
    said = "logged" if answer.kind is Logged else answer.kind.__name__
    return f"\n### {mistake.title}\n\n```python\n{mistake.code}```\n\n{said}:\n\n```text\n{answer.text}\n```\n"
