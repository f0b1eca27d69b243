"""Docstrings of public names: each has a description and an example, and every example runs as shown."""

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
from public_names import MODULES, public_names

import fluid

# Classes that users do not construct: they occur in an except clause or in an event handler.
WITHOUT_EXAMPLE = (Exception,)


def every_module():
    """List fluid and all its modules."""
    found = pkgutil.walk_packages(fluid.__path__, "fluid.")
    return [fluid, *(importlib.import_module(info.name) for info in found if not info.name.endswith("__main__"))]


def every_doctest():
    """Yield a test parameter for each docstring that holds an example."""
    for module in every_module():
        for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
            if test.examples:
                yield pytest.param(test, id=test.name)


def every_public_object():
    """Yield a test parameter for each public function, class and module."""
    seen = set()
    for module in MODULES:
        for name, value in public_names(module).items():
            if (inspect.isroutine(value) or inspect.isclass(value)) and id(value) not in seen:
                seen.add(id(value))
                yield pytest.param(value, id=f"{module}.{name}")


@pytest.mark.sample(3)
@pytest.mark.parametrize("test", list(every_doctest()))
def test_examples_are_true(test, in_tmp, own_compilation_cache):
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    said = []
    outcome = doctest.DocTestRunner(optionflags=options).run(test, out=said.append)
    assert outcome.failed == 0, "".join(said)


@pytest.mark.parametrize("thing", list(every_public_object()))
def test_public_names_are_documented(thing):
    assert (inspect.getdoc(thing) or "").strip(), "no docstring"
    own = vars(thing).get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert own and not own.startswith(f"{thing.__name__}("), "the docstring is inherited or made by a decorator"


@pytest.mark.parametrize("thing", list(every_public_object()))
def test_public_names_have_an_example(thing):
    if inspect.isclass(thing) and issubclass(thing, WITHOUT_EXAMPLE):
        return
    finder = doctest.DocTestFinder()
    tests = finder.find(thing, thing.__name__, module=inspect.getmodule(thing) or False)
    assert any(test.examples for test in tests), "add an Example with >>> to the docstring"


def test_families_in_the_help_list_existing_layers():
    families = re.findall(r"^  .+: (.+)", fluid.layers.__doc__, re.MULTILINE)
    named = [name for family in families for name in family.split(", ")]
    assert len(families) > 20 and set(named) <= set(fluid.layers.__all__)


@pytest.mark.parametrize("module", every_module(), ids=lambda m: m.__name__)
def test_modules_are_documented(module):
    assert module.__doc__
