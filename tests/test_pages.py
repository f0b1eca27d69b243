"""Every block of the pages under docs/ that teach by code runs as printed, and prints what its comments say."""

import pathlib
import re

import pytest
from test_readme import blocks

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGES = ["deploy.md", "own-layers.md", "precision.md", "rates.md", "serving.md"]
# What a line prints, where the comment behind it gives that: a number, a list, or the head of a table.
PRINTS = re.compile(r"^ *print\(.*\)  # ([\[(\d].*|epoch,.*)$", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page, in_tmp, capsys):
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace = {"__name__": "__page__"}
    found = list(blocks(text))
    assert found
    for line, code in found:
        exec(compile("\n" * line + code, str(DOCS / page), "exec"), namespace)
    printed = capsys.readouterr().out
    missing = [said for _, code in found for said in PRINTS.findall(code) if said not in printed]
    assert not missing
