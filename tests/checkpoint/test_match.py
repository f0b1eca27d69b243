"""Patterns that rename parameters of a file to parameters of a program: globs, numbers, refused patterns."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluid import errors
from fluid.checkpoint import renamed

NAMES = st.text("ab01./_", min_size=1, max_size=8)


def names(rename, *given):
    return list(renamed({name: i for i, name in enumerate(given)}, rename))


def test_exact_names_and_those_that_no_pattern_fits():
    assert names({"dense.kernel": "fc_0.w_0"}, "dense.kernel", "dense.kernel2", "other") == [
        "fc_0.w_0", "dense.kernel2", "other",
    ]  # fmt: skip
    assert names(None, "a", "b") == ["a", "b"]


def test_arrays_go_with_their_names():
    assert renamed({"a": 1, "b": 2}, {"a": "b", "b": "a"}) == {"b": 1, "a": 2}


@pytest.mark.parametrize(
    ("pattern", "target", "name", "want"),
    [
        ("encoder.*", "enc/*", "encoder.fc_0.w_0", "enc/fc_0.w_0"),
        ("*.layers.*.bias", "*/fc_*.b_0", "net.layers.7.bias", "net/fc_7.b_0"),
        ("w?", "v*", "w3", "v3"),
        ("[pq]_[!0-8]", "*_*", "q_9", "q_9"),
        ("layers.{n}.weight", "fc_{n}.w_0", "layers.12.weight", "fc_12.w_0"),
        ("block{i}.conv{j}.*", "conv2d_{j-1}.block_{i+10}.*", "block2.conv1.w", "conv2d_0.block_12.w"),
        ("{n}x{n}", "square_{n}", "3x3", "square_3"),
        ("a.b", "c", "a.b", "c"),
        ("*.running_mean", "mean", "bn.running_mean", "mean"),
    ],
)
def test_matched_names_are_renamed(pattern, target, name, want):
    assert names({pattern: target}, name) == [want]


@pytest.mark.parametrize(
    ("pattern", "name"), [("{n}x{n}", "3x4"), ("l{n}", "lx"), ("a.b", "axb"), ("[pq]", "r"), ("[!p]", "p")]
)
def test_patterns_without_a_match_are_refused(pattern, name):
    with pytest.raises(errors.ParameterError, match="fits no name"):
        names({pattern: "new"}, name)


@given(NAMES, NAMES.map(lambda text: text.replace("a", "*").replace("b", "?")))
def test_random_patterns_match_as_fnmatch(name, pattern):
    stars = "*" * (pattern.count("*") + pattern.count("?"))
    try:
        fits = names({pattern: f"new:{stars}"}, name)[0].startswith("new:")
    except errors.ParameterError:
        fits = False
    assert fits == fnmatch.fnmatchcase(name, pattern)


def test_the_first_pattern_that_fits_counts():
    assert names({"fc.kernel": "first", "fc.*": "rest.*"}, "fc.kernel", "fc.bias") == ["first", "rest.bias"]


@pytest.mark.parametrize(
    ("rename", "error", "match"),
    [
        ({"dense.kernal": "w"}, errors.ParameterError, "Did you mean 'dense.kernel'"),
        ({"dense.*": "w"}, errors.ParameterError, "'dense.kernel' and 'dense.bias' of the given parameters one name"),
        ({"dense.kernel": "dense.bias"}, errors.ParameterError, "one name, 'dense.bias'"),
        ({"dense.*": "*.*"}, errors.ArgumentError, "other signs"),
        ({"dense.*": "{n}"}, errors.ArgumentError, "other signs"),
        ({"l{n+1}": "{n}"}, errors.ArgumentError, "other signs"),
        ({"dense.kernel": 3}, errors.ArgumentTypeError, "expected strings"),
    ],
)
def test_wrong_renames_raise_named_errors(rename, error, match):
    with pytest.raises(error, match=match):
        names(rename, "dense.kernel", "dense.bias")
