"""Arguments without effect: each is documented with a reason, and warns users who request an effect."""

import ast
import inspect
import pydoc
import re
import textwrap
import warnings

import numpy as np
import pytest
from layers.layer_table import ROWS, Halving, Row, declare, real, whole

import fluid
from fluid import errors, layers, nets
from fluid.compat import input
from fluid.layers import no_effect


def stepped(method):
    """Return a function that builds a DynamicRNN, and passes keyword arguments to its method `method`."""

    def build(x, **arguments):
        rnn = layers.DynamicRNN()
        with rnn.block():
            now = rnn.step_input(x, **(arguments if method == "step_input" else {}))
            before = rnn.memory(shape=[2], **(arguments if method == "memory" else {}))
            rnn.update_memory(before, before + now)
            rnn.output(before)
        return rnn()

    return build


SEQUENCE = {"x": fluid.SequenceBatch(real(2, 3, 2), np.array([3, 1]))}
BUILDS = {row.name: row for row in reversed(ROWS)} | {
    "fluid.embedding": Row("fluid.embedding", lambda x, **k: fluid.embedding(x, [7, 3], **k), {"x": whole(7, 4, 3)}),
    "data": Row("data", lambda x, **k: x + layers.data("other", [3], **k), {"x": real(4, 3)}),
    "DynamicRNN.step_input": Row("DynamicRNN", stepped("step_input"), SEQUENCE),
    "DynamicRNN.memory": Row("DynamicRNN", stepped("memory"), SEQUENCE),
    "lstm": Row("lstm", lambda x, max_len=4: layers.lstm(x, *[np.zeros((1, 3, 2), "float32")] * 2, max_len, 2, 1)[0],
        {"x": real(4, 3, 2)}),
    "dynamic_decode": Row("dynamic_decode", lambda x, **k: layers.dynamic_decode(Halving(), x, 2, **k)[0],
        {"x": real(4, 3)}),
}  # fmt: skip

# Each argument from which a user may expect an effect has a value that requests it, and a value that does not.
WISHES = {
    ("auc", "topk"): (2, 1),
    ("batch_norm", "fuse_with_relu"): (True, False),
    ("DynamicRNN.step_input", "level"): (1, 0),
    ("dynamic_lstm", "dtype"): ("float16", "float32"),
    ("dynamic_lstmp", "dtype"): ("bfloat16", "float32"),
    ("embedding", "is_distributed"): (True, False),
    ("fluid.embedding", "is_distributed"): (True, False),
    ("sampling_id", "max"): (0.5, 1.0),
    ("sampling_id", "min"): (0.5, 0.0),
    ("sequence_conv", "padding"): (False, True),
}


def functions():
    """Return, by name, the public functions that a program function may call."""
    found = {name: getattr(layers, name) for name in layers.__all__}
    found |= {name: value for name, value in vars(nets).items() if getattr(value, "__module__", "") == nets.__name__}
    found |= {f"fluid.{name}": getattr(input, name) for name in ("embedding", "one_hot")}
    for kind in (layers.DynamicRNN, layers.StaticRNN):
        found |= {f"{kind.__name__}.{name}": getattr(kind, name) for name in ("step_input", "memory")}
    return {name: value for name, value in found.items() if not name.startswith("_") and not inspect.isclass(value)}


FUNCTIONS = functions()
DECLARED = [(name, argument) for name, f in FUNCTIONS.items() for argument in getattr(f, "no_effect", {})]


def unused(function):
    """Return the parameters that the code of a function never uses, so that they cannot have an effect."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    body = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)).body
    mentioned = {node.id for statement in body for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return set(inspect.signature(function).parameters) - mentioned - {"self"}


def documented(function):
    """Return the docstring entry of each argument, on a single line."""
    arguments = inspect.getdoc(function).partition("Args:\n")[2].partition("\n\n")[0]
    items = re.split(r"^  (\w+): ", arguments, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(items[::2], items[1::2], strict=True)}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_unused_arguments_are_declared_and_documented(name):
    function = FUNCTIONS[name]
    declared = getattr(function, "no_effect", {})
    assert unused(function) == {*declared, *getattr(function, "assigns", {})}
    found = {argument: text for argument, text in documented(function).items() if "no effect" in text}
    assert found == {
        argument: f"accepted for programs written for Fluid, but has no effect: {getattr(reason, 'why', reason)}."
        for argument, reason in declared.items()
    }


def test_help_hides_accepted_arguments_without_effect():
    signature = inspect.signature(layers.softmax)
    assert [*signature.shown.parameters] == ["input", "name", "axis"] and "*, name" in str(signature)
    assert pydoc.plain(pydoc.render_doc(layers.softmax)).count("use_cudnn") == 1, "described, but not in the signature"
    assert signature.bind("x", True, "probabilities").arguments["name"] == "probabilities"
    assert "max_len" in str(inspect.signature(layers.lstm)), "an argument without a default is needed"


def test_each_wish_has_values_here():
    warned = {(n, a) for n, a in DECLARED if isinstance(FUNCTIONS[n].no_effect[a], no_effect.Warned)}
    assert warned == set(WISHES)


def discover(name, arguments, dtype=None, precision="float32"):
    """Build a program that calls the layer `name` with `arguments`; the layer may warn of arguments without effect."""

    def program():
        row = BUILDS[name]
        return row.build(*(declare(n, value, dtype) for n, value in row.feed.items()), **arguments)

    fluid.Program(program, precision=precision)


def warnings_of(name, **arguments):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        discover(name, arguments)
    return caught


@pytest.fixture(autouse=True)
def nobody_was_told(monkeypatch):
    monkeypatch.setattr(no_effect, "_told", set())


@pytest.mark.parametrize(("name", "argument"), sorted(WISHES))
def test_arguments_without_effect_warn_once(name, argument):
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
def test_invisible_arguments_do_not_warn(name, argument):
    assert not warnings_of(name, **{argument: object()})


def test_the_dtype_of_the_parameters_does_not_warn():
    """Check that `dtype=` may name the actual dtype: bfloat16 for bfloat16 inputs, float32 in mixed precision."""
    discover("dynamic_lstm", {"dtype": "bfloat16"}, dtype="bfloat16")
    discover("dynamic_lstm", {"dtype": "float32"}, precision="bfloat16")


def test_arguments_given_by_place_count_too():
    def program():
        return layers.sampling_id(layers.data("x", [3]), 0.5)

    with pytest.warns(errors.FluidWarning, match="sampling_id: min= has no effect: each class is drawn with its"):
        fluid.Program(program)
