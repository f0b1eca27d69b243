"""Calls that messages of fluid recommend: each exists, and takes the keywords in the message."""

import ast
import inspect
import pathlib
import re

import pytest

import fluid

ROOT = pathlib.Path(fluid.__file__).resolve().parent
# Finds a call or an attribute in an error message, such as `trainer.train(`. For each possible first name, such as
# `trainer`, the fixture `objects` has an object.
_CALL = re.compile(r"(?<![\w./])(fluid|layers|trainer|session|inferencer)((?:\.[A-Za-z_]\w*)+)(\(?)")
_KEYWORD = re.compile(r"(?:^|[(,]\s*)([a-z_]\w*)=(?!=)")


def _program():
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))


@pytest.fixture(scope="module")
def objects():
    trainer = fluid.Trainer(_program, fluid.optimizer.SGD(0.1))
    return {
        "fluid": fluid,
        "layers": fluid.layers,
        "trainer": trainer,
        "session": trainer.session,
        "inferencer": fluid.Inferencer(_program, params=trainer.params),
    }


def _texts(path):
    """Yield `(line, text)` for the strings of a module except docstrings; the values of an f-string become `_`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(v) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for v in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            pieces = (v.value if isinstance(v, ast.Constant) else "_" for v in node.values)
            yield node.lineno, "".join(map(str, pieces))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and not {id(node)} & (docs | parts):
            yield node.lineno, node.value


def _inside(text, start):
    """Return the arguments of a call in `text`, without text in inner brackets; `start` follows its parenthesis."""
    depth, kept = 1, []
    for sign in text[start:]:
        depth += (sign in "([{") - (sign in ")]}")
        if depth == 0:
            break
        if depth == 1:
            kept.append(sign)
    return "(" + "".join(kept)


def _complaints(text, objects):
    for found in _CALL.finditer(text):
        root, path, call = found.groups()
        if found.group() == text:  # a string such as "fluid.trainer" names a logger or a module
            continue
        value = objects[root]
        try:
            for name in path[1:].split("."):
                if name == "_":
                    break
                value = getattr(value, name)
        except AttributeError:
            yield f"{root}{path} does not exist"
            continue
        if not call or not callable(value) or "_" in path.split("."):
            continue
        taken = inspect.signature(value).parameters
        if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
            continue
        for keyword in _KEYWORD.findall(_inside(text, found.end())):
            if keyword not in taken:
                yield f"{root}{path} takes no {keyword}="


def _as_in(path, objects):
    """Return a dict from names in error messages, such as `layers`, to objects, for the messages of one file.

    Users of `fluid.static` write `import fluid.static as fluid`, so in its messages, `fluid` means `fluid.static`.
    """
    static = {"fluid": fluid.static, "layers": fluid.static.layers}
    return {**objects, **static} if path.is_relative_to(ROOT / "static") else objects


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_calls_recommended_by_messages_exist(path, objects):
    found = []
    for line, text in _texts(path):
        complaints = set(_complaints(text, objects)) & set(_complaints(text, _as_in(path, objects)))
        found += [f"{path}:{line}: {said}" for said in sorted(complaints)]
    assert not found, "\n".join(found)


def test_a_wrong_recommendation_is_found(objects):
    wrong = "write trainer.fit(reader), session.load(path, fast=True) or fluid.layers.dens(x, size=f(a=1))"
    assert [*_complaints(wrong, objects)] == [
        "trainer.fit does not exist",
        "session.load takes no fast=",
        "fluid.layers.dens does not exist",
    ]
