"""Buckets, which choose padded shapes of minibatches: every row fits, shapes are few, only earlier feeds matter."""

import json

import hypothesis.strategies as st
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from fluid import errors
from fluid.core import FeedSpec, NestedSequenceBatch, SequenceBatch
from fluid.reader.buckets import Buckets, padded_time, padding_of
from fluid.reader.columns import read_feed
from fluid.reader.ragged import Ragged

WORDS = FeedSpec("words", (None, 1), "int64", 1)
TAGS = FeedSpec("tags", (None, 2), "float32", 1)
TEXT = FeedSpec("text", (None, 1), "int64", 2)
IMAGE = FeedSpec("image", (None, 3), "float32")
ONE, TWO, NESTED = {"words": WORDS}, {"words": WORDS, "tags": TAGS}, {"text": TEXT, "words": WORDS}
few = settings(max_examples=40, deadline=None)


def column(spec, lengths):
    """Return a Ragged of rows with these lengths; its values count from 1, so no value equals the padding."""
    lengths = np.array(lengths, np.int32)
    steps = np.arange(1, lengths.sum() * spec.shape[1] + 1).reshape(-1, spec.shape[1])
    return Ragged(steps.astype(spec.held), lengths)


def nested(spec, lengths):
    """Return a Ragged of rows of sequences; `lengths` holds the lengths of the sequences of each row."""
    flat = column(spec, [n for row in lengths for n in row])
    return Ragged(flat.steps, np.array([len(row) for row in lengths], np.int32), flat.lengths)


def minibatch(specs, lengths):
    """Return the rows for each feed, by name; `lengths[i]` holds the length of row i for each feed."""
    return {name: column(spec, [row[i] for row in lengths]) for i, (name, spec) in enumerate(specs.items())}


def shapes(buckets, minibatches):
    return [tuple(value.shape for value in buckets.pad(values).values()) for values in minibatches]


def lengths_of_two(longest=400):
    return st.lists(st.tuples(st.integers(0, longest), st.integers(0, longest)), min_size=1, max_size=4)


@few
@given(st.lists(lengths_of_two(), max_size=30), st.integers(1, 12))
def test_padding_keeps_all_values_and_lengths(fed, budget):
    buckets = Buckets(TWO, max_compilations=budget)
    for lengths in fed:
        for i, (name, value) in enumerate(buckets.pad(minibatch(TWO, lengths)).items()):
            want = SequenceBatch.from_rows(np.split(*_pieces(TWO[name], [row[i] for row in lengths])))
            assert value.lengths.tolist() == [row[i] for row in lengths]
            assert value.data.dtype == TWO[name].held and value.shape[1] >= want.shape[1]
            assert value.data[:, : want.shape[1]].tolist() == want.data.tolist()
            assert not value.data[:, want.shape[1] :].any()


def _pieces(spec, lengths):
    steps = column(spec, lengths).steps
    return steps, np.cumsum(lengths)[:-1]


@few
@given(st.lists(st.lists(st.lists(st.integers(0, 40), max_size=9), min_size=1, max_size=3), max_size=12))
def test_nested_rows_fit_in_both_levels(fed):
    buckets = Buckets({"text": TEXT})
    for lengths in fed:
        value = nested(TEXT, lengths)
        padded = buckets.pad({"text": value})["text"]
        steps = iter(np.split(value.steps, np.cumsum(value.inner_lengths)[:-1]))
        want = [[next(steps).tolist() for _ in row] for row in lengths]
        assert isinstance(padded, NestedSequenceBatch)
        assert [[sequence.tolist() for sequence in row] for row in padded.rows()] == want


@few
@given(
    st.lists(st.integers(1, 400), min_size=60, max_size=60),
    st.integers(3, 12),
    st.integers(0, 5),
    st.sampled_from([1, 2]),
)
def test_mixed_lengths_take_few_shapes_short_batches_included(longest, budget, seed, feeds):
    """Check that three epochs in different orders, each with a short last minibatch, keep the limit of shapes."""
    specs = dict([*TWO.items()][:feeds])
    buckets, seen = Buckets(specs, max_compilations=max(budget, 8)), set()
    for epoch in range(3):
        order = np.random.default_rng([seed, epoch]).permutation(longest)
        fed = [[(int(n), int(n))[:feeds]] * (8 if i < 59 else 3) for i, n in enumerate(order)]
        seen.update(shapes(buckets, [minibatch(specs, lengths) for lengths in fed]))
    assert len(seen) <= max(budget, 8)


@few
@given(st.lists(lengths_of_two(longest=1000), min_size=1, max_size=120), st.integers(1, 8))
def test_any_order_takes_few_shapes_more(fed, budget):
    """Check that padding makes at most `budget` shapes, plus one for each doubling of the padded length of a feed."""
    fed = [lengths[:1] * 4 for lengths in fed]
    seen = shapes(Buckets(TWO, max_compilations=budget), [minibatch(TWO, lengths) for lengths in fed])
    doublings = 2 * len({padded_time(n) for n in range(1001)})
    assert len(set(seen)) <= budget + doublings


def test_sorted_lengths_take_few_shapes_more():
    fed = [minibatch(ONE, [(n,)] * 4) for n in range(1, 401)]
    assert len(set(shapes(Buckets(ONE), fed))) <= 9
    assert len(set(shapes(Buckets(ONE), fed[::-1]))) <= 8


@few
@given(st.lists(lengths_of_two(), min_size=1, max_size=40), st.integers(0, 40), st.integers(2, 8))
def test_shapes_follow_the_feeds_and_survive_restarts(fed, at, budget):
    fed = [minibatch(TWO, lengths) for lengths in fed]
    first, second = (Buckets(TWO, max_compilations=budget) for _ in range(2))
    want = shapes(first, fed)
    assert shapes(second, fed[:at]) == want[:at]
    resumed = Buckets(TWO, max_compilations=budget)
    resumed.restore(json.loads(json.dumps(second.state())))
    assert resumed.state() == second.state()
    assert shapes(resumed, fed[at:]) == want[at:]
    assert resumed.state() == first.state() and padding_of([resumed]) == padding_of([first])


def test_data_of_little_variation_needs_a_single_shape():
    buckets = Buckets(ONE)
    rng = np.random.default_rng(0)
    fed = [minibatch(ONE, [(int(n),) for n in rng.integers(390, 401, 8)]) for _ in range(200)]
    assert set(shapes(buckets, fed)) == {((8, 416, 1),)}


def test_grouped_lengths_get_shapes_that_serve_them():
    """Check that buckets need fewer shapes and less padding than lengths that are rounded up to powers of two."""
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(3.7, 0.8, 400)), 1, 400).astype(int)
    buckets = Buckets(ONE)
    for _ in range(3):
        padding_of([buckets])
        seen = set(shapes(buckets, [minibatch(ONE, [(int(n),)] * 8) for n in rng.permutation(lengths)]))
    powers = np.array([padded_time(int(n)) for n in lengths])
    assert len(seen) < len(set(powers)) and padding_of([buckets]) < 1 - lengths.sum() / powers.sum()


def test_a_finer_shape_comes_after_saving_its_cost():
    """Check that minibatches get a smaller padded shape when the possible savings reach the cost of a compilation.

    The first minibatch has 60 steps, and the others have 8 steps: each could save 56 of the 64 padded steps.
    """
    # A compilation costs as much as ten minibatches of the largest shape.
    price = 10 * 8 * 64
    seen = shapes(Buckets(ONE, price=price), [minibatch(ONE, [(n,)] * 8) for n in [60, *[8] * 100]])
    # The shape of 8 steps comes with the 12th short minibatch, when the padding has cost as much as a compilation:
    # 11 * 56 / 64 < 10 <= 12 * 56 / 64.
    assert [size[0][1] for size in seen] == [64] * 12 + [8] * 89


@few
@given(st.lists(st.integers(1, 500), min_size=1, max_size=200), st.integers(1, 16))
def test_expensive_compilations_lead_to_few_shapes(longest, rows):
    seen = shapes(Buckets(ONE, price=1e9), [minibatch(ONE, [(n,)] * rows) for n in longest])
    sizes = list(dict.fromkeys(size[0][1] for size in seen))
    # Each new padded length is at least 1.5 times the previous one, so that later minibatches fit without a
    # compilation.
    assert all(b >= 1.5 * a for a, b in zip(sizes, sizes[1:], strict=False))
    assert max(sizes) <= 2.5 * max(4, *longest)


def test_expected_minibatches_fit_the_first_shape():
    """Check that minibatches announced by `Buckets.expect` share one padded length, 40, if a compilation is expensive.

    A compilation is expensive if it costs as much as 50 minibatches of 8 rows of 40 steps.
    """
    fed = [minibatch(ONE, [(n,)] * 8) for n in (5, 37, 20)]
    for price, together, want in [(16000, 50, [40, 40, 40]), (15999, 50, [5, 56, 56]), (16000, 51, [5, 56, 56])]:
        buckets = Buckets(ONE, price=price)
        buckets.expect(minibatch(ONE, [(37,)]), together)
        resumed = Buckets(ONE, price=price)
        resumed.restore(json.loads(json.dumps(buckets.state())))
        for each in (buckets, resumed):
            assert [size[0][1] for size in shapes(each, fed)] == want
    # A minibatch that is longer than the announced one still gets a padded shape for all its steps.
    buckets.expect(minibatch(ONE, [(3,)]), 1)
    assert shapes(buckets, [minibatch(ONE, [(100,)] * 8)])[0][0][1] >= 100


# The cases of the table in the docstring of `Buckets._grow`: the options, the steps and rows of each minibatch, and
# the resulting numbers of steps.
GROWN = {
    "rare batch size": ({}, [(16, 8), (16, 8), (5, 3)], [16, 16, 16]),
    "announced": ({"price": 100.0}, [(9, 1)], [20]),
    "first": ({}, [(9, 1)], [10]),
    "second": ({}, [(9, 1), (20, 1)], [10, 32]),
    "fourth": ({}, [(9, 1), (17, 1), (33, 1), (65, 1)], [10, 28, 56, 104]),
    "fifth": ({}, [(9, 1), (17, 1), (33, 1), (65, 1), (129, 1)], [10, 28, 56, 104, 288]),
}


@pytest.mark.parametrize("case", GROWN)
def test_new_shapes_follow_the_table(case):
    options, fed, wanted = GROWN[case]
    buckets = Buckets(ONE, **options)
    if case == "announced":
        buckets.expect(minibatch(ONE, [(20,)]), 1)
    found = shapes(buckets, [minibatch(ONE, [(steps,)] * rows) for steps, rows in fed])
    assert [size[0][1] for size in found] == wanted


def test_a_state_without_expected_minibatches_is_restored():
    state = Buckets(ONE).state()
    del state["coming"], state["together"]
    buckets = Buckets(ONE)
    buckets.restore(state)
    assert buckets.state() == Buckets(ONE).state()


def test_the_share_of_padding():
    buckets = Buckets(ONE, buckets=[8])
    assert padding_of([buckets]) is None
    buckets.pad(minibatch(ONE, [(8,), (2,)]))
    buckets.pad(minibatch(ONE, [(0,), (2,)]))
    assert padding_of([buckets]) == 1 - 12 / 32 and padding_of([buckets]) is None
    nested_ones = Buckets({"text": TEXT}, buckets=([2], [4]))
    nested_ones.pad({"text": nested(TEXT, [[1, 2], [3]])})
    assert padding_of([nested_ones]) == 1 - 6 / 16


def test_given_buckets():
    buckets = Buckets(TWO, {"words": [3, 10]})
    got = shapes(buckets, [minibatch(TWO, [(n, n)]) for n in (2, 3, 4, 10)])
    assert [words[1] for words, _ in got] == [3, 3, 10, 10]
    both = Buckets(NESTED, {"text": ([2, 5], [4, 9]), "words": [7]})
    padded = both.pad({"text": nested(TEXT, [[1, 5], [2]]), "words": column(WORDS, [3, 1])})
    assert padded["text"].shape == (2, 2, 9, 1) and padded["words"].shape == (2, 7, 1)
    inner = Buckets({"text": TEXT}, [6]).pad({"text": nested(TEXT, [[1, 5, 2]])})["text"]
    assert inner.shape == (1, 4, 6, 1)


def test_without_history_sizes_are_powers_of_two():
    buckets = Buckets(NESTED, max_compilations=None)
    for n in (300, 3, 9):
        padded = buckets.pad({"text": nested(TEXT, [[n] * n]), "words": column(WORDS, [n])})
        assert padded["text"].shape[1:3] == (padded_time(n),) * 2 and padded["words"].shape[1] == padded_time(n)


def test_padded_batches_are_repadded_and_arrays_kept():
    buckets = Buckets({**TWO, "image": IMAGE}, [6])
    batch = SequenceBatch.from_rows([[[1], [2]], [[3]]], "int32", time=9)
    device = SequenceBatch(jnp.ones((2, 9, 2)), jnp.array([2, 1]))
    image = np.zeros((2, 3), "float32")
    padded = buckets.pad({"words": batch, "tags": device, "image": image})
    assert padded["words"].shape == (2, 6, 1) and padded["tags"] is device and padded["image"] is image
    assert [row.tolist() for row in padded["words"].rows()] == [[[1], [2]], [[3]]]
    texts = NestedSequenceBatch.from_rows([[[[1]], [[2], [3]]], [[[4]]]], "int32", outer=7, inner=2)
    again = Buckets({"text": TEXT}, ([3], [5])).pad({"text": texts})["text"]
    assert again.shape == (2, 3, 5, 1) and again.inner_lengths.tolist() == [[1, 2, 0], [1, 0, 0]]
    exact = SequenceBatch.from_rows([[[1]]], "int32", time=6)
    assert buckets.pad({"words": exact})["words"] is exact


@pytest.mark.parametrize(
    "specs, values, words",
    [
        (
            ONE,
            {"words": column(WORDS, [1, 65, 3])},
            r"'words', sample 1, batch 7: found a row of 65 .*at most 64",
        ),
        (
            {"text": TEXT},
            {"text": nested(TEXT, [[1], [], [2, 70]])},
            r"'text', sample 2, batch 7: found a row of 70 steps",
        ),
    ],
)
def test_rows_longer_than_the_largest_bucket(specs, values, words):
    buckets = Buckets(specs, [16, 64])
    before = buckets.state()
    with pytest.raises(errors.FeedError, match=words + ".*the largest bucket.*row\\[:64\\]"):
        buckets.pad(values, "batch 7")
    assert buckets.state() == before


def test_rows_of_too_many_sequences():
    with pytest.raises(errors.FeedError, match="sample 1: found a row of 3 sequences, expected at most 2"):
        Buckets({"text": TEXT}, ([2], [9])).pad({"text": nested(TEXT, [[1, 1], [1, 1, 1]])})


@pytest.mark.parametrize(
    "specs, buckets, kind, words",
    [
        (ONE, [64, 16], errors.ArgumentError, r"found|increasing sizes from 1 on for 'words'"),
        (ONE, [], errors.ArgumentError, "increasing sizes"),
        (ONE, [0, 4], errors.ArgumentError, "increasing sizes"),
        (ONE, 64, errors.ArgumentError, r"buckets=\[16, 64, 400\]"),
        (ONE, "64", errors.ArgumentError, "buckets='64'"),
        (ONE, [1.5], errors.ArgumentError, "increasing sizes"),
        (ONE, {"words": [4, 4]}, errors.ArgumentError, r"'words': \[16, 64, 400\]"),
        (ONE, {"wards": [4]}, errors.UnknownNameError, "'wards'.*Did you mean 'words'"),
        ({**ONE, "image": IMAGE}, {"image": [4]}, errors.UnknownNameError, "lod_level=1 or 2"),
        (ONE, ([4], [8]), errors.ArgumentError, "increasing sizes"),
        ({"text": TEXT}, ([4],), errors.ArgumentError, r"a list for each level: \{'text': \(\[4, 8\], \[16, 64\]\)\}"),
    ],
)
def test_wrong_buckets(specs, buckets, kind, words):
    with pytest.raises(kind, match=words):
        Buckets(specs, buckets)


@pytest.mark.parametrize("count", [0, -1, True, 2.5, "8"])
def test_wrong_budgets(count):
    with pytest.raises(
        errors.ArgumentError, match=r"Buckets\(max_compilations=.*\): expected a whole number from 1 on"
    ):
        Buckets(ONE, max_compilations=count)


@pytest.mark.parametrize("state", [None, {}, {"shapes": 5}, [1]])
def test_restoring_a_wrong_state_is_refused(state):
    with pytest.raises(errors.ArgumentError, match=r"restore needs what buckets.state\(\) returned"):
        Buckets(ONE).restore(state)


def test_a_read_feed_is_padded_as_by_check_feed():
    value = read_feed(WORDS, [[1, 2], [3]])
    assert isinstance(value, Ragged) and value.shape == (2,)
    padded = Buckets(ONE, [3]).pad({"words": value})["words"]
    assert padded.data.tolist() == [[[1], [2], [0]], [[3], [0], [0]]]
