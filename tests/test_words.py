"""Words of the prose: docstrings, comments, pages and test names use the standard terms of the field."""

import ast
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A first line that begins with one of these words has no main verb, so readers must read it twice. Ruff's D401 checks
# that a verb is imperative.
BEGINNING = re.compile(r"(What|Whether|Which|Who|Whose|Where|How|That|Those|Such|So many)\b")
# Each pattern that must not occur, and the words to write instead.
WORDS = {
    r"that of|those of": "the noun itself",
    r"so many": "n, or the number",
    r"under way": "in flight",
    r"take[sn]? over": "donate",
    r"hand(s|ed)? (over|on)": "pass",
    r"g(ive|ives|ave|iven) back": "return",
    r"made of": "computed from",
    r"sick|spoilt|what is not a number": "non-finite",
    r"told|tells?": "notified; report",
    r"asked": "requested",
    r"by (itself|themselves)": "alone",
    r"in front of": "before",
    r"behind": "after",
    r"room": "capacity, size, limit",
    r"where (it|they) (lie|lies)": "the device, the sharding",
    r"settled": "cached, fixed",
    r"with the others": "multi-process",
    r"weighed": "weighted",
    r"of (one's|your) own": "custom",
    r"looking": "inspection",
    r"on demand": "lazy",
    r"how (it|they) (is|are) computed": "kernel",
    r"what there is|all that": "all, every",
}
FOUND = re.compile("|".join(rf"\b({word})\b" for word in WORDS))
# Docstring sentences "has no effect: ..." are not checked, because they repeat the text of a warning.
REASON = re.compile(r"has no effect: [^.]*\.", re.DOTALL)
COMMENT = re.compile(r"(?:^|\s)# .*")
CODE = re.compile(r"```.*?```|`[^`]*`|\"[^\"]*\"", re.DOTALL)


def without_code(text):
    """Remove code and quotations from a text, but keep the line ends, so that line numbers stay the same."""
    return CODE.sub(lambda match: "\n" * match.group().count("\n"), text)


def files(*patterns):
    """Return the files that match the patterns, except files in folders `mistakes` and `_build`."""
    found = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    return [path for path in found if not {"mistakes", "_build"} & set(path.parts)]


@functools.cache
def docstrings(patterns):
    """List (file and line, docstring) of modules, classes, functions; without doctests and reasons of `no_effect`."""
    found = []
    for path in files(*patterns):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                if text := ast.get_docstring(node):
                    lines = [line for line in text.splitlines() if not line.lstrip().startswith((">>>", "..."))]
                    found.append((f"{path.relative_to(ROOT)}:{node.body[0].lineno}", REASON.sub("", "\n".join(lines))))
    return found


def comments(patterns):
    """Yield (file and line, comment) for each comment."""
    for path in files(*patterns):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := COMMENT.search(line):
                yield f"{path.relative_to(ROOT)}:{number}", match.group()


def pages(patterns):
    """Yield (file and line, text) for each line of Markdown pages, without code."""
    for path in files(*patterns):
        for number, line in enumerate(without_code(path.read_text(encoding="utf-8")).splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line


def test_names(patterns):
    """Yield (file and line, words of the name) for each test function."""
    for path in files(*patterns):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.name.replace("_", " ")


test_names.__test__ = False  # pytest must not run this helper as a test
CODE_FILES = ("fluid/**/*.py", "tests/**/*.py", "examples/*.py", "benchmarks/**/*.py")
SOURCES = {
    "docstrings": (docstrings, CODE_FILES, 6000),
    "comments": (comments, CODE_FILES, 1800),
    "pages": (pages, ("*.md", "docs/**/*.md", "benchmarks/*.md"), 5000),
    "test names": (test_names, ("tests/**/*.py",), 3000),
}


@pytest.mark.parametrize("source", SOURCES)
def test_prose_uses_words_of_the_field(source):
    read, patterns, least = SOURCES[source]
    texts = list(read(patterns))
    assert len(texts) > least
    found = [(place, FOUND.search(without_code(text))) for place, text in texts]
    wrong = [f"{place}: {match.group()!r}" for place, match in found if match]
    assert not wrong, "\n".join(wrong)


def test_docstrings_begin_with_a_verb_or_noun():
    wrong = [f"{place}: {text[:80]}" for place, text in docstrings(CODE_FILES) if BEGINNING.match(text)]
    assert not wrong, "\n".join(wrong)


def test_names_have_at_most_nine_words():
    texts = test_names(("tests/**/*.py",))
    wrong = [
        f"{place}: {name}"
        for place, name in texts
        if len(re.sub(r"^test (row \d+( and \d+)* )?", "", name).split()) > 9
    ]
    assert not wrong, "\n".join(wrong)
