"""Names of Fluid that are not here say what takes their place."""

import re

import pytest

import fluid
from fluid import layers
from fluid.layers import missing


@pytest.mark.parametrize("name", sorted(missing._INSTEAD))
def test_what_is_missing_says_what_to_use(name):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; use ") as caught:
        getattr(layers, name)
    for path in re.findall(r"\b(?:fluid|layers)\.[\w.]+", str(caught.value).partition("; use ")[2]):
        value = fluid
        for part in path.removeprefix("fluid.").split("."):
            value = getattr(value, part)
        assert callable(value)


def test_what_never_was_has_no_advice():
    with pytest.raises(AttributeError, match="no attribute 'convolution'$"):
        layers.convolution  # noqa: B018
