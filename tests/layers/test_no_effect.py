"""Arguments that do nothing: each is declared with its reason, and who expects something of one is told."""

import ast
import inspect
import re
import textwrap
import warnings

import jax.numpy as jnp
import pytest
from layers.table import ROWS, Row, whole

import fluid
from fluid import errors, input, layers, nets
from fluid.layers import no_effect

IDS = {"x": whole(7, 4, 3)}
BUILDS = {row.name: row for row in reversed(ROWS)} | {
    "fluid.embedding": Row("fluid.embedding", lambda x, **k: fluid.embedding(x, [7, 3], **k), IDS),
}

# For each argument that a user may expect something of: a value that asks for it, and one that does not.
WISHES = {
    ("accuracy", "correct"): (jnp.zeros([1]), None),
    ("accuracy", "total"): (jnp.zeros([1]), None),
    ("assign", "output"): (jnp.zeros([4, 3]), None),
    ("auc", "topk"): (2, 1),
    ("embedding", "is_distributed"): (True, False),
    ("fluid.embedding", "is_distributed"): (True, False),
    ("increment", "in_place"): (True, False),
    ("ones_like", "out"): (jnp.zeros([4, 3]), None),
    ("sampling_id", "max"): (0.5, 1.0),
    ("sampling_id", "min"): (0.5, 0.0),
    ("sequence_conv", "padding"): (False, True),
    ("sums", "out"): (jnp.zeros([4, 3]), None),
    ("zeros_like", "out"): (jnp.zeros([4, 3]), None),
}


def functions():
    """Everything that a program function calls, by name."""
    found = {name: getattr(layers, name) for name in layers.__all__}
    found |= {name: value for name, value in vars(nets).items() if getattr(value, "__module__", "") == nets.__name__}
    found |= {f"fluid.{name}": getattr(input, name) for name in ("embedding", "one_hot")}
    found = {name: value for name, value in found.items() if not name.startswith("_") and not inspect.isclass(value)}
    elsewhere = ("fluid.layers.recurrent.", "fluid.layers.control.")
    return {name: value for name, value in found.items() if not value.__module__.startswith(elsewhere)}


FUNCTIONS = functions()
DECLARED = [(name, argument) for name, f in FUNCTIONS.items() for argument in getattr(f, "no_effect", {})]


def unused(function):
    """The parameters that the body of a function does not mention."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    body = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)).body
    mentioned = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return set(inspect.signature(function).parameters) - mentioned - {"self"}


def documented(function):
    """What the docstring says of each argument, on one line."""
    arguments = inspect.getdoc(function).partition("Args:\n")[2].partition("\n\n")[0]
    items = re.split(r"^  (\w+): ", arguments, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(items[::2], items[1::2], strict=True)}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_what_is_not_used_is_declared_and_documented(name):
    function = FUNCTIONS[name]
    declared = getattr(function, "no_effect", {})
    assert unused(function) == set(declared)
    found = {argument: text for argument, text in documented(function).items() if "no effect" in text}
    assert found == {
        argument: f"accepted for programs written for Fluid, but has no effect: {getattr(reason, 'why', reason)}."
        for argument, reason in declared.items()
    }


def test_each_wish_has_values_here():
    warned = {(n, a) for n, a in DECLARED if isinstance(FUNCTIONS[n].no_effect[a], no_effect.Warned)}
    assert warned == set(WISHES)


def warnings_of(name, **arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fluid.Program(BUILDS[name].program(**arguments))
    return caught


@pytest.fixture(autouse=True)
def nobody_was_told(monkeypatch):
    monkeypatch.setattr(no_effect, "_told", set())


@pytest.mark.parametrize(("name", "argument"), sorted(WISHES))
def test_who_asks_for_something_is_told_once(name, argument):
    asking, harmless = WISHES[name, argument]
    assert not warnings_of(name) and not warnings_of(name, **{argument: harmless})
    (warning,) = warnings_of(name, **{argument: asking})
    reason = FUNCTIONS[name].no_effect[argument]
    assert warning.category is errors.FluidWarning
    said = str(warning.message)
    assert said.startswith(f"{name.removeprefix('fluid.')}: {argument}= has no effect: {reason.why}; {reason.instead}")
    site = re.search(r"called at (.*):\d+ in", said)[1]
    assert site == warning.filename, "the message and the warning point at the user's line"
    assert not warnings_of(name, **{argument: asking})


@pytest.mark.parametrize(("name", "argument"), sorted(set(DECLARED) - set(WISHES)))
def test_what_nobody_can_see_is_silent(name, argument):
    assert not warnings_of(name, **{argument: object()})


def test_arguments_given_by_place_count_too():
    def program():
        return layers.sums([layers.data("x", [3])], jnp.zeros([3]))

    with pytest.warns(errors.FluidWarning, match="sums: out= has no effect: values never change; use what is returned"):
        fluid.Program(program)
