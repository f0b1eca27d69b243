"""Globs of names: the selected names, their order, and refused patterns."""

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluid import errors
from fluid._util.globs import pattern_of, select

KNOWN = ["head.w_0", "backbone/fc_0.w_0", "backbone/fc_0.b_0", "backbone/fc_1.w_0", "odd[0]"]
NAMES = st.lists(st.text("ab/._", min_size=1, max_size=6), unique=True, min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("patterns", "want"),
    [
        ("head.w_0", ["head.w_0"]),
        (["backbone/*"], KNOWN[1:4]),
        (["*.b_0", "head.*"], ["head.w_0", "backbone/fc_0.b_0"]),
        (["backbone/fc_[01].w_?"], ["backbone/fc_0.w_0", "backbone/fc_1.w_0"]),
        (["*.w_0", "head.w_0"], ["head.w_0", "backbone/fc_0.w_0", "backbone/fc_1.w_0"]),
        (["odd[0]"], ["odd[0]"]),
        ([], []),
    ],
)
def test_patterns_select_names_in_their_known_order(patterns, want):
    assert select(patterns, KNOWN, "here") == want


@given(NAMES, st.text("ab/._*?", min_size=1, max_size=6))
def test_random_patterns_match_as_fnmatch(names, pattern):
    want = [n for n in names if fnmatch.fnmatchcase(n, pattern)]
    if want:
        assert select(pattern, names, "here") == want
    else:
        with pytest.raises(errors.UnknownNameError):
            select(pattern, names, "here")


def test_two_globs_with_different_values_are_refused():
    rules = {"*.w_0": "rows", "head.*": "columns", "head.b_0": "whole", "backbone/*": "rows"}
    found = {name: pattern_of(name, rules, "shardings") for name in ("head.b_0", "backbone/a.w_0", "head.s", "tail")}
    assert found == {"head.b_0": "head.b_0", "backbone/a.w_0": "*.w_0", "head.s": "head.*", "tail": None}
    with pytest.raises(errors.ArgumentError, match=r"'\*.w_0' and 'head.\*' match 'head.w_0'.*={'head.w_0': ...}"):
        pattern_of("head.w_0", rules, "shardings")


@pytest.mark.parametrize(
    ("pattern", "error", "match"),
    [
        ("bakbone/*", errors.UnknownNameError, r"here: 'bakbone/\*' matches no name. Did you mean 'backbone/\*'"),
        ("hed.w_0", errors.UnknownNameError, "'hed.w_0' is not the name of anything here. Did you mean 'head.w_0'"),
        ("zzzz*", errors.UnknownNameError, "Known names: 'head.w_0'"),
        ([3], errors.ArgumentTypeError, "expected names and globs"),
    ],
)
def test_wrong_patterns_raise_named_errors(pattern, error, match):
    with pytest.raises(error, match=match):
        select(pattern, KNOWN, "here")
