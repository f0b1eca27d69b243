"""The page docs/inspection.md: its code runs, and the output equals the output on the page."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "inspection.md"
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```", re.DOTALL | re.MULTILINE)


NUMBER = re.compile(r"(\d[\d.]*) ([kMG]?(?:B|FLOPs)?)(?=\s|,|$)")


def check_alike(said, shown):
    """Compare two texts; numbers may differ by a fifth, because counts of operations depend on the version of JAX."""
    for one, other in zip(said.splitlines(), shown.splitlines(), strict=True):
        assert NUMBER.sub("#", one).split() == NUMBER.sub("#", other).split()
        values = [float(value) for value, _ in NUMBER.findall(one)]
        assert values == pytest.approx([float(value) for value, _ in NUMBER.findall(other)], rel=0.2)


def test_code_of_the_page_prints_the_shown_output(in_tmp, capsys):
    text = PAGE.read_text(encoding="utf-8")
    namespace = {"__name__": "__page__"}
    shown = []
    for found in BLOCK.finditer(text):
        kind, content = found.groups()
        if kind == "text":
            check_alike(capsys.readouterr().out, content)
            shown.append(content)
        else:
            # Add empty lines before the code, so that all printed line numbers are line numbers of docs/inspection.md.
            exec(compile("\n" * text.count("\n", 0, found.start(2)) + content, str(PAGE), "exec"), namespace)
    assert len(shown) == 3
    assert (in_tmp / "train_program.svg").is_file() and (in_tmp / "train_program.dot").is_file()
