"""Names of Fluid that are not here say what takes their place."""

import inspect
import re

import pytest

import fluid
from fluid import errors, layers
from fluid.layers import missing


@pytest.mark.parametrize("name", sorted(missing._INSTEAD))
def test_what_is_missing_says_what_to_use(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; use ") as caught:
        getattr(layers, name)
    for path in re.findall(r"\b(?:fluid|layers)\.[\w.]+", str(caught.value).partition("; use ")[2]):
        value = fluid
        for part in path.removeprefix("fluid.").split("."):
            value = getattr(value, part)
        assert callable(value) or inspect.ismodule(value)


def test_what_never_was_has_no_advice():
    with pytest.raises(AttributeError, match="no attribute 'convolution'$"):
        layers.convolution  # noqa: B018


@pytest.mark.parametrize(
    ("ask", "advice"),
    [
        (lambda: layers.batchnorm, "Did you mean 'batch_norm'"),
        (lambda: layers.Dense, r"use layers\.fc"),
        (lambda: fluid.optimizer.AdaM, "Did you mean 'Adam'"),
        (lambda: fluid.optimizer.RMSprop, "use fluid.optimizer.RMSProp"),
        (lambda: fluid.Executor, "use fluid.Session"),
        (lambda: fluid.traner, "Did you mean 'trainer'"),
    ],
)
def test_names_of_other_libraries_and_misspelled_ones(ask, advice):
    with pytest.raises(errors.MissingNameError, match=f"no attribute .*{advice}"):
        ask()


@pytest.mark.parametrize("module", [fluid, layers, fluid.optimizer])
def test_modules_can_still_be_asked_for_what_they_have(module):
    assert not hasattr(module, "nothing_of_that_name") and getattr(module, "nothing_of_that_name", 1) == 1
    assert not hasattr(module, "__wrapped__")
