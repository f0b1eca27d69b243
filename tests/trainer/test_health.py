"""The class Health: it finds and names non-finite arrays on the host and on the device, for every dtype."""

import jax.numpy as jnp
import numpy as np
import pytest

from fluid.runtime.finite import Health

DTYPES = ["float32", "float16", "bfloat16", "complex64"]


def placed(array, device):
    return jnp.asarray(array) if device else np.asarray(array)


@pytest.mark.parametrize("device", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_single_nonfinite_element_is_found_at_any_index(bad, dtype, device):
    clean = {"w": placed(jnp.ones([2, 3], dtype), device), "count": placed(jnp.arange(3), device)}
    assert Health().complaint(clean) is None
    for place in np.ndindex(2, 3):
        spoilt = {**clean, "w": placed(jnp.ones([2, 3], dtype).at[place].set(bad), device)}
        assert Health().complaint(spoilt) == "w is not finite"


@pytest.mark.parametrize("device", [True, False])
def test_integer_and_empty_arrays_are_finite(device):
    arrays = {"i": jnp.arange(3), "b": jnp.array([True]), "k": jnp.zeros([2], "uint32"), "e": jnp.zeros([0, 2])}
    assert Health().complaint({name: placed(array, device) for name, array in arrays.items()}) is None
    assert Health().complaint({}) is None


@pytest.mark.parametrize(
    "count, said",
    [
        (1, "w0 is not finite"),
        (2, "w0 and w1 are not finite"),
        (3, "w0, w1 and w2 are not finite"),
        (5, "w0, w1, w2, w3 and w4 are not finite"),
        (6, "w0, w1, w2, w3, w4 and 1 more are not finite"),
        (8, "w0, w1, w2, w3, w4 and 3 more are not finite"),
    ],
)
def test_message_names_five_arrays_and_counts_the_rest(count, said):
    arrays = {f"w{i}": (np if i % 2 else jnp).full(2, np.nan if i < count else 1) for i in reversed(range(9))}
    assert Health().complaint(arrays) == said


def test_arrays_nonfinite_at_start_are_exempt():
    start = {"mask": np.array([0.0, -np.inf]), "w": jnp.ones(2), "best": jnp.inf * jnp.ones([])}
    health = Health.at_start(start)
    assert health.exempt == {"mask", "best"} and health.complaint(start) is None
    assert health.complaint({**start, "mask": np.array([np.nan]), "w": jnp.array([np.nan])}) == "w is not finite"
