"""Pages under docs/ that teach by code: every block runs as shown, and prints the output in its comments."""

import inspect
import pathlib
import re
import sys

import fake_data_loaders
import pytest
from test_readme import blocks

import fluid

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
ROOT = DOCS.parent
# `make docs` writes the pages in these folders.
GENERATED = ["_build", "inside", "reference", "start"]
WRITTEN = sorted(path for path in DOCS.rglob("*.md") if path.relative_to(DOCS).parts[0] not in GENERATED)
# Other tests run these pages: `tests/parallel` on eight devices, `test_inspection_page.py` and `test_from_fluid.py`.
ELSEWHERE = ["parallel", "mesh", "pipeline", "inspection", "from-fluid", "from-fluid-models"]
PAGES = [
    path.relative_to(DOCS).as_posix()
    for path in WRITTEN
    if path.stem not in ELSEWHERE and "\n```python\n" in path.read_text(encoding="utf-8")
]
# Finds paths of documentation pages in a text, such as `docs/data.md`.
PAGE = re.compile(r"\bdocs/[\w./-]+\.md\b")
# A `print` whose output is in the comment after it: a number, a list, a truth value, or the head of a table.
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


@pytest.mark.full
@pytest.mark.sample(3)
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_the_page_runs(page, in_tmp, capsys, monkeypatch, own_compilation_cache):
    check(page, capsys, monkeypatch)


def check(page, capsys, monkeypatch):
    """Run the code blocks of a page, and check that they print the output in their comments."""
    text = (DOCS / page).read_text(encoding="utf-8")
    namespace = {"__name__": "__page__"}
    found = list(blocks(text))
    assert found
    for line, code in found:
        with monkeypatch.context() as patched:
            for name, module in fake_data_loaders.modules(IMPORTS.findall(code)).items():
                patched.setitem(sys.modules, name, module)
            exec(compile("\n" * line + code, str(DOCS / page), "exec"), namespace)
    printed = capsys.readouterr().out
    missing = [said for _, code in found for said in PRINTS.findall(code) if said not in printed]
    assert not missing


def said():
    """Map each error class to its messages in tests/MISTAKES.md, each message on one line."""
    text = (DOCS.parent / "tests" / "MISTAKES.md").read_text(encoding="utf-8")
    messages = {}
    for kind, message in re.findall(r"^(\w+):\n\n```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        messages[kind] = messages.get(kind, "") + " ".join(message.split()) + "\n"
    return messages


def test_errors_page_quotes_real_messages_of_every_class():
    lines = re.findall(r"^ *- (?:\*\*`(\w+)`\*\*|(`.*?`): )", (DOCS / "errors.md").read_text(), re.MULTILINE)
    messages, kind, quoted = said(), None, 0
    for name, message in lines:
        kind = name or kind
        for part in re.findall(r"`(.*?)`", message):
            assert part in messages[kind], f"{kind} never says {part!r}"
            quoted += 1
    assert quoted > 25
    known = {name for name, value in vars(fluid.errors).items() if inspect.isclass(value)}
    assert {name for name, _ in lines if name} == known - {"Any", "Iterable", "FluidError", "FluidWarning"}


@pytest.mark.parametrize("page", ["errors.md", "glossary.md", *(page for page in PAGES if "/" in page)])
def test_names_of_fluid_in_the_page_exist(page):
    owners = {"fluid": fluid, "layers": fluid.layers, "trainer": fluid.Trainer}
    for code in re.findall(r"`([^`\n]+)`", (DOCS / page).read_text(encoding="utf-8")):
        found = re.match(r"@?(fluid|layers|trainer)((?:\.\w+)+)", code)
        if found:
            value = owners[found[1]]
            for name in found[2].split(".")[1:]:
                value = getattr(value, name)
