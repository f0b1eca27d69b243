"""Every block of the pages under docs/ that teach by code runs as printed, and prints what its comments say."""

import pathlib
import re
import sys

import other_libraries
import pytest
from test_readme import blocks

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
ROOT = DOCS.parent
# `make docs` writes the pages in these folders.
GENERATED = ["_build", "inside", "reference", "start"]
WRITTEN = sorted(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in GENERATED)
# Pages that other tests run: on eight devices in `tests/parallel`, `test_inspection_page.py`, `test_from_fluid.py`.
ELSEWHERE = ["parallel", "mesh", "pipeline", "inspection", "from-fluid", "from-fluid-models"]
PAGES = [
    path.relative_to(DOCS).as_posix()
    for path in WRITTEN
    if path.stem not in ELSEWHERE and "\n```python\n" in path.read_text(encoding="utf-8")
]
# The path of a page in a text, such as `docs/data.md`.
PAGE = re.compile(r"\bdocs/[\w./-]+\.md\b")
# What a line prints, where the comment behind it gives that: a number, a list, a truth value, or the head of a table.
PRINTS = re.compile(r"^ *print\(.*\)  # ([\[(\d].*|epoch,.*|True|False)$", re.MULTILINE)

IMPORTS = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)


def test_pages_are_found():
    assert len(PAGES) > 50


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(DOCS).as_posix())
def test_a_page_has_at_most_120_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 120


def test_pages_that_other_files_name_exist():
    globs = ["*.md", "benchmarks/*.md", "examples/*.py", "fluid/**/*.py"]
    files = [path for glob in globs for path in ROOT.glob(glob)]
    texts = {path: path.read_text(encoding="utf-8") for path in files if path.name != "CHANGELOG.md"}
    missing = [
        f"{path}: {page}" for path, text in texts.items() for page in PAGE.findall(text) if not (ROOT / page).is_file()
    ]
    assert not missing


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
