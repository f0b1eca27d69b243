"""LoDTensor and its constructors: Fluid's spelling of sequences, as feeds and as results."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import fluid
from fluid import errors

few = settings(max_examples=60, deadline=None)
two_levels = st.lists(st.lists(st.integers(0, 5), max_size=4), min_size=1, max_size=4)


def test_lengths_offsets_and_data():
    tensor = fluid.create_lod_tensor(np.arange(12).reshape(6, 2), [[2, 1], [3, 1, 2]], fluid.CPUPlace())
    assert tensor.recursive_sequence_lengths() == [[2, 1], [3, 1, 2]]
    assert tensor.lod() == [[0, 2, 3], [0, 3, 4, 6]]
    assert tensor.shape() == [6, 2] and len(tensor) == 6 and tensor.has_valid_recursive_sequence_lengths()
    assert np.array(tensor).tolist() == np.arange(12).reshape(6, 2).tolist()
    assert np.asarray(tensor, "float32").dtype == np.float32 and np.array(tensor, copy=True).base is None


def test_tensor_can_be_filled_step_by_step():
    tensor = fluid.LoDTensor()
    assert not tensor.has_valid_recursive_sequence_lengths()
    tensor.set(np.zeros((5, 1)), fluid.CPUPlace())
    tensor.set_recursive_sequence_lengths([[2, 2]])
    assert not tensor.has_valid_recursive_sequence_lengths()
    tensor.set_lod([[0, 2, 5]])
    assert tensor.recursive_sequence_lengths() == [[2, 3]] and tensor.has_valid_recursive_sequence_lengths()
    lengths = tensor.recursive_sequence_lengths()
    lengths[0][0] = 9
    assert tensor.recursive_sequence_lengths() == [[2, 3]]


def test_nested_lists():
    words = fluid.create_lod_tensor([[1, 2], [3, 4, 5]], [[2, 3]], fluid.CPUPlace())
    assert np.array(words).tolist() == [[1], [2], [3], [4], [5]] and np.array(words).dtype == np.int64
    points = fluid.create_lod_tensor([[[1, 2]], [[3, 4], [5, 6]]], [[1, 2]], None)
    assert np.array(points).tolist() == [[1, 2], [3, 4], [5, 6]]
    text = fluid.create_lod_tensor([[[1, 2], [3]], [[4]]], [[2, 1], [2, 1, 1]], None)
    assert np.array(text).tolist() == [[1], [2], [3], [4]]
    again = fluid.create_lod_tensor(words, [[1, 4]], None)
    assert again.recursive_sequence_lengths() == [[1, 4]] and len(again) == 5


@few
@given(two_levels, st.booleans())
def test_to_a_batch_and_back(lengths, nested):
    steps = np.arange(sum(map(sum, lengths)) * 2, dtype="int32").reshape(-1, 2)
    inner = [n for row in lengths for n in row]
    levels = [list(map(len, lengths)), inner] if nested else [inner]
    tensor = fluid.LoDTensor(steps, levels)
    batch = tensor.batch()
    assert isinstance(batch, fluid.NestedSequenceBatch if nested else fluid.SequenceBatch)
    flat = batch.flat() if nested else batch
    assert [n for n in np.asarray(flat.lengths).tolist() if n] == [n for n in inner if n]
    again = fluid.LoDTensor.of(batch)
    assert again.recursive_sequence_lengths() == levels and np.array(again).tolist() == steps.tolist()


def test_random_numbers():
    tensor = fluid.create_random_int_lodtensor([[2, 3], [1, 4, 2, 5, 1]], [3], fluid.CPUPlace(), low=2, high=4, seed=1)
    assert tensor.shape() == [13, 3] and np.array(tensor).dtype == np.int64
    assert set(np.unique(tensor)) == {2, 3, 4}
    other = fluid.create_random_int_lodtensor([[2, 3], [1, 4, 2, 5, 1]], [3], fluid.CPUPlace(), low=2, high=4, seed=1)
    assert np.array_equal(tensor, other)


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda: fluid.create_lod_tensor(np.zeros((5, 1)), [[2, 2]], None), errors.ShapeError, "add up"),
        (lambda: fluid.create_lod_tensor(np.zeros((5, 1)), [[2, 2], [2, 3]], None), errors.ShapeError, "add up"),
        (lambda: fluid.create_lod_tensor(np.zeros((5, 1)), [], None), errors.ShapeError, r"found lengths \[\]"),
        (lambda: fluid.create_lod_tensor(np.zeros(()), [[1]], None), errors.ShapeError, "add up"),
        (
            lambda: fluid.create_lod_tensor([[1, 2], [3]], [[2, 2]], None),
            errors.ShapeError,
            r"have the lengths \[\[2, 1",
        ),
        (lambda: fluid.create_lod_tensor([1, 2], [[2]], None), errors.ShapeError, "found 1 where a row was expected"),
        (lambda: fluid.create_lod_tensor(np.zeros(3), [[[3]]], None), errors.ArgumentError, "one or two levels"),
        (lambda: fluid.create_lod_tensor(np.zeros(3), [[1], [1], [3]], None), errors.ArgumentError, "one or two"),
        (lambda: fluid.create_lod_tensor(np.zeros(3), [[-1, 4]], None), errors.ArgumentError, "one or two levels"),
        (lambda: fluid.create_lod_tensor(np.zeros(3), [3], None), errors.ArgumentError, r"recursive_seq_lens=\[3\]"),
        (lambda: fluid.create_random_int_lodtensor([[2]], [1], None, 3, 2), errors.ArgumentError, "low <= high"),
        (lambda: fluid.create_random_int_lodtensor([], [1], None, 0, 2), errors.ArgumentError, "lists of lengths"),
        (lambda: fluid.LoDTensor(np.zeros(3), [[2]]).batch(), errors.ShapeError, "add up"),
    ],
)
def test_wrong_arguments_raise_named_errors(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


def program():
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    first = fluid.layers.data("first", shape=[1], dtype="int64")
    table = fluid.ParamAttr(name="table", initializer=fluid.initializer.NumpyArray(np.eye(6, dtype="float32")))
    return [fluid.layers.embedding(ids, [6, 6], param_attr=table) for ids in (words, first)]


def test_feeding_them_to_sequences_and_to_dense_data():
    """Check that LoD tensors can be fed as sequences, and as dense data if each sequence has one step."""
    words = fluid.create_lod_tensor([[1, 2], [3, 4, 5]], [[2, 3]], fluid.CPUPlace())
    first = fluid.create_lod_tensor(np.array([[1], [3]]), [[1, 1]], fluid.CPUPlace())
    session = fluid.Session(program)
    rows, dense = session.run(feed={"words": words, "first": first})
    assert [row.argmax(-1).tolist() for row in rows.rows()] == [[1, 2], [3, 4, 5]]
    assert np.argmax(dense, -1).ravel().tolist() == [1, 3]


def test_results_of_infer():
    inferencer = fluid.Inferencer(program, params={"table": np.eye(6, dtype="float32")})
    feed = {"words": fluid.create_lod_tensor([[1, 2], [], [3, 4, 5]], [[2, 0, 3]], None), "first": [[1], [2], [3]]}
    results = inferencer.infer(feed, return_numpy=False)
    assert results[0].recursive_sequence_lengths() == [[2, 0, 3]]
    assert np.argmax(np.array(results[0]), -1).tolist() == [1, 2, 3, 4, 5]
    assert not isinstance(results[1], np.ndarray | fluid.LoDTensor)
    default = inferencer.infer(feed)
    assert isinstance(default[0], fluid.SequenceBatch) and type(default[0].data) is np.ndarray
    assert [len(row) for row in default[0].rows()] == [2, 0, 3]


def test_lod_tensor_overrides_a_sequence():
    session = fluid.Session(program)
    given = fluid.create_lod_tensor(np.ones((3, 6), "float32"), [[1, 2]], None)
    (got,) = session.run(feed={"embedding_0.tmp_0": given}, fetch=["embedding_0.tmp_0"])
    assert [row.sum() for row in got.rows()] == [6, 12]
