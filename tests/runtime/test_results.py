"""Results of a run: a sequence of values, which is also a mapping if the values have names."""

import copy
import pickle

import numpy as np
import pytest

import fluid
from fluid import errors

NAMED = fluid.Results([np.float32(0.5), np.arange(3)], ["loss", "values"])


def test_results_unpack_and_index_like_a_tuple():
    loss, rest = NAMED
    assert loss == 0.5 and rest.tolist() == [0, 1, 2]
    assert NAMED[0] is loss and NAMED[-1] is rest and len(NAMED[:1]) == 1 and len(NAMED) == 2


def test_named_results_read_like_a_dict():
    assert NAMED["loss"] == NAMED.loss == NAMED.get("loss") == 0.5
    assert "loss" in NAMED and "accuracy" not in NAMED and NAMED.get("accuracy", 7) == 7
    assert list(dict(NAMED)) == NAMED.keys() == ["loss", "values"]
    assert [name for name, _ in NAMED.items()] == NAMED.keys()
    assert (lambda **found: found["loss"])(**NAMED) == 0.5


def test_methods_precede_values_of_equal_name():
    assert NAMED["values"].tolist() == [0, 1, 2]
    assert NAMED.values()[1] is NAMED["values"]


def test_a_single_result_converts_to_float():
    assert float(fluid.Results([np.float32(0.25)])) == 0.25
    with pytest.raises(errors.ArgumentTypeError, match=r"say which one: float\(results\['loss'\]\)"):
        float(NAMED)


def test_results_without_names_suggest_a_dict():
    plain = fluid.Results([1.0])
    assert "loss" not in plain
    for ask in (lambda: plain["loss"], lambda: dict(plain), lambda: plain.items()):
        with pytest.raises(errors.UnknownNameError, match=r'return \{"loss": loss\}|Return a dict'):
            ask()
    with pytest.raises(AttributeError, match="'los'.*Did you mean 'loss'"):
        _ = NAMED.los


def test_membership_of_a_value_is_identity():
    assert NAMED[1] in NAMED and np.arange(3) not in NAMED


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda r: pickle.loads(pickle.dumps(r))])
def test_results_are_copied(again):
    copied = again(NAMED)
    assert copied.keys() == NAMED.keys() and copied.loss == 0.5


def test_results_have_a_notebook_representation():
    shown = fluid.Results([np.float32(0.25), np.zeros((2, 3), "float32")], ["loss", "a<b"])._repr_html_()
    assert "<table>" in shown and "loss" in shown and "0.25" in shown and "a&lt;b" in shown and "float32[2, 3]" in shown
    assert ">0<" in fluid.Results([np.float32(0.25)])._repr_html_()
