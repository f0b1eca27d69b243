"""Hints for absent names of Fluid: each error says what replaces the name."""

import importlib
import inspect
import re

import pytest

import fluid
from fluid import errors, layers
from fluid._util import known_names

OWNERS = {**known_names.names()["other_libraries"], **known_names.names()["fluid_2018"]}
NAMES = [(owner, name) for owner in OWNERS if owner.split(".")[0] == "fluid" for name in known_names.hints(owner)]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_absent_fluid_names_hint_at_existing_names(module, name):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute '{name}'; use ") as caught:
        getattr(importlib.import_module(module), name)
    advice = str(caught.value).partition("; use ")[2]
    for path in re.findall(r"\b(?:fluid|layers)\.[\w.]*\w", advice):
        value = fluid
        for part in path.removeprefix("fluid.").split("."):
            value = getattr(value, part)
        assert callable(value) or inspect.ismodule(value) or isinstance(value, str), path


def test_unknown_names_have_no_hint():
    with pytest.raises(AttributeError, match="module 'fluid.layers' has no attribute 'convolution'$"):
        layers.convolution  # noqa: B018
    with pytest.raises(AttributeError, match="module 'fluid' has no attribute 'Convolution'$"):
        fluid.Convolution  # noqa: B018


@pytest.mark.parametrize(
    ("ask", "advice"),
    [
        (lambda: layers.batchnorm, "Did you mean 'batch_norm'"),
        (lambda: layers.Dense, r"use layers\.dense"),
        (lambda: fluid.optimizer.AdaM, "Did you mean 'Adam'"),
        (lambda: fluid.optimizer.RMSprop, "use fluid.optimizer.RMSProp"),
        (lambda: fluid.Executor, "use fluid.static.Executor; or fluid.Session"),
        (lambda: fluid.profiler, "use fluid.handlers.Profiler"),
        (lambda: fluid.static.Exekutor, "Did you mean 'Executor'"),
        (lambda: fluid.metrics.AUC, "Did you mean 'Auc'"),
        (lambda: fluid.initializer.Xaviar, "Did you mean 'Xavier'"),
        (lambda: fluid.nets.simple_img_conv_pol, "Did you mean 'simple_img_conv_pool'"),
        (lambda: fluid.lr.cosine_deacy, "Did you mean 'cosine_decay'"),
        (lambda: fluid.regularizer.L2decay, "Did you mean 'L2Decay'"),
        (lambda: fluid.traner, "Did you mean 'trainer'"),
    ],
)
def test_names_of_other_libraries_and_misspelled_ones(ask, advice):
    with pytest.raises(errors.MissingNameError, match=f"no attribute .*{advice}"):
        ask()


@pytest.mark.parametrize("module", [fluid, layers, fluid.optimizer])
def test_hasattr_and_getattr_default_work_on_modules(module):
    assert not hasattr(module, "nothing_of_that_name") and getattr(module, "nothing_of_that_name", 1) == 1
    assert not hasattr(module, "__wrapped__")
