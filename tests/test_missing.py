"""Names of Fluid that are not here say what takes their place."""

import importlib
import inspect
import re

import pytest

import fluid
from fluid import layers, missing

MODULES = {
    "fluid": missing.of_fluid,
    "fluid.clip": missing.of_clip,
    "fluid.io": missing.of_io,
    "fluid.layers": missing.of_layers,
    "fluid.metrics": missing.of_metrics,
}
NAMES = [(module, name) for module, found in MODULES.items() for name in found.instead]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_what_is_missing_says_what_to_use(module, name):
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute '{name}'; use ") as caught:
        getattr(importlib.import_module(module), name)
    advice = str(caught.value).partition("; use ")[2]
    for path in re.findall(r"\b(?:fluid|layers)\.[\w.]*\w", advice):
        value = fluid
        for part in path.removeprefix("fluid.").split("."):
            # The face for programs that are written down comes on import, so that `import fluid` does not load it.
            value = None if part == "static" else getattr(value, part)
        assert callable(value) or inspect.ismodule(value) or value is None or isinstance(value, str), path


def test_what_never_was_has_no_advice():
    with pytest.raises(AttributeError, match="module 'fluid.layers' has no attribute 'convolution'$"):
        layers.convolution  # noqa: B018
    with pytest.raises(AttributeError, match="module 'fluid' has no attribute 'Convolution'$"):
        fluid.Convolution  # noqa: B018
