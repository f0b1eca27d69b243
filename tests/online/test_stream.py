"""Division of a stream of rows into minibatches and test rows, only by row number: no row is lost or used twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluid import errors
from fluid.online.minibatches import Split


@given(st.integers(1, 9), st.none() | st.integers(2, 9), st.integers(0, 40))
def test_adjacent_spans_hold_a_minibatch_each(batch_size, test_every, number):
    split = Split(batch_size, test_every)
    assert split.start(0) == 0 and split.span(number).stop == split.start(number + 1)
    trained = list(split.trained(number))
    assert len(trained) == batch_size and trained[-1] == split.span(number)[-1]
    assert sorted([*trained, *split.tested(number)]) == list(split.span(number))


@given(st.integers(1, 9), st.none() | st.integers(2, 9), st.sets(st.integers(0, 60)))
def test_skipped_rows_leave_the_split_of_other_rows(batch_size, test_every, skipped):
    """Compare with the split of a stream in which the skipped rows do not exist."""
    split, plain = Split(batch_size, test_every), Split(batch_size, test_every)
    split.skipped = sorted(skipped)
    kept = [position for position in range(1000) if position not in skipped]
    for number in range(9):
        assert list(split.trained(number)) == [kept[index] for index in plain.trained(number)]
        assert list(split.tested(number)) == [kept[index] for index in plain.tested(number)]
        assert split.span(number).stop == split.start(number + 1) == kept[plain.span(number)[-1]] + 1
    # Rows that are skipped from the start of a minibatch on change no earlier minibatch.
    later = Split(batch_size, test_every)
    later.skipped = sorted(position for position in skipped if position >= plain.start(3))
    assert [later.start(number) for number in range(4)] == [plain.start(number) for number in range(4)]


@given(st.integers(1, 9), st.integers(2, 9))
def test_the_last_row_of_each_group_is_tested(batch_size, test_every):
    split = Split(batch_size, test_every)
    tested = [position for number in range(30) for position in split.tested(number)]
    assert tested == list(range(test_every - 1, split.start(30), test_every))


@pytest.mark.parametrize(
    ("arguments", "why"), [((0, 5), "batch_size=0"), ((2, 1), "test_every=1"), ((2, "often"), "test_every='often'")]
)
def test_numbers_that_make_no_sense(arguments, why):
    with pytest.raises(errors.ArgumentError, match=why):
        Split(*arguments)
