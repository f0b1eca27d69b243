"""Every block of the pages under docs/ that teach by code runs as printed, and prints what its comments say."""

import pathlib
import re
import sys

import other_libraries
import pytest
from test_readme import blocks

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGES = [
    "compilation.md",
    "data.md",
    "debugging.md",
    "deploy.md",
    "distributed.md",
    "generation.md",
    "handlers.md",
    "not-there-yet.md",
    "online.md",
    "own-layers.md",
    "own-loops.md",
    "planning.md",
    "population.md",
    "precision.md",
    "programs.md",
    "rates.md",
    "resume.md",
    "sampling.md",
    "serving.md",
    "sharing.md",
    "speed.md",
    "static.md",
    "transfer.md",
    "validation.md",
]
# `parallel.md` needs several devices, see `tests/parallel`.
# What a line prints, where the comment behind it gives that: a number, a list, a truth value, or the head of a table.
PRINTS = re.compile(r"^ *print\(.*\)  # ([\[(\d].*|epoch,.*|True|False)$", re.MULTILINE)

IMPORTS = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page, in_tmp, capsys, monkeypatch, own_compilation_cache):
    check(page, capsys, monkeypatch)


def check(page, capsys, monkeypatch):
    """Run the blocks of a page, and compare what they print with what their comments say."""
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace = {"__name__": "__page__"}
    found = list(blocks(text))
    assert found
    for line, code in found:
        with monkeypatch.context() as patched:
            for name, module in other_libraries.modules(IMPORTS.findall(code)).items():
                patched.setitem(sys.modules, name, module)
            exec(compile("\n" * line + code, str(DOCS / page), "exec"), namespace)
    printed = capsys.readouterr().out
    missing = [said for _, code in found for said in PRINTS.findall(code) if said not in printed]
    assert not missing
