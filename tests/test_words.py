"""Docstrings begin with what they do, in words of the field; ruff's D401 checks the mood of the verb."""

import ast
import pathlib
import re

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "fluid"

# A first line that begins so is a clause without a verb of its own, which is read twice.
BEGINNINGS = re.compile(r"(What|Whether|Which|Who|Whose|Where|How|That|Those|Such|So many)\b")
# In place of these words, the words behind them.
WORDS = {
    r"that of|those of": "the noun itself",
    r"so many": "n, or the number",
    r"under way": "in flight",
    r"take[sn]? over": "donate",
    r"hand(s|ed)? over|hand(s|ed)? on": "pass",
    r"made of what|what (a|an|the|it|is|was|others?)\b": "a noun",
    r"sick|spoilt": "non-finite",
    r"(is|are) told": "is notified",
    r"asked of": "requested",
    r"by itself": "alone",
    r"in front of": "before",
}
FOUND = re.compile("|".join(rf"\b({word})\b" for word in WORDS))


def first_lines():
    """Yield (place, first line) of each docstring of fluid."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if text := ast.get_docstring(node):
                    yield f"{path.relative_to(PACKAGE.parent)}:{node.body[0].lineno}", text.splitlines()[0]


LINES = list(first_lines())


def test_docstrings_are_found():
    assert len(LINES) > 4000


@pytest.mark.parametrize("pattern", [BEGINNINGS.match, FOUND.search], ids=["beginnings", "words"])
def test_first_lines_say_it_in_words_of_the_field(pattern):
    wrong = [f"{place}: {line}" for place, line in LINES if pattern(line)]
    assert not wrong, "\n".join(wrong[:50])
