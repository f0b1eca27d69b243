"""Every block of the pages under docs/ that teach by code runs as printed, and prints what its comments say."""

import inspect
import pathlib
import re
import sys

import other_libraries
import pytest
from test_readme import blocks

import fluid

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
PAGES = [
    "coming-from/flax.md",
    "coming-from/hugging-face.md",
    "coming-from/keras.md",
    "coming-from/lightning.md",
    "coming-from/paddlepaddle.md",
    "compilation.md",
    "data.md",
    "debugging.md",
    "deploy.md",
    "distributed.md",
    "errors.md",
    "handlers.md",
    "modules.md",
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
    "weights.md",
]
# `parallel.md` needs several devices, see `tests/parallel`.
# Blocks `py` are of other libraries, beside which `tests/peers` runs the pages of `coming-from/`.
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


def said():
    """Return the messages of tests/MISTAKES.md, joined to one line, by the class of the error."""
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
