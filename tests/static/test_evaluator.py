"""Evaluators of Fluid, which compute on the device: results equal the metrics on the host."""

import numpy as np
import pytest
from static.both_styles import fresh

import fluid.static as fluid
from fluid import SequenceBatch, errors, metrics
from fluid.static import layers

TAGS = [([[0, 1, 4, 2]], [[0, 1, 4, 0]]), ([[2, 3], [0]], [[2, 3], [4]]), ([[4, 0]], [[2, 0]])]
# For each image: the detections as [label, score, box], the labels of the objects, and the boxes of the objects.
IMAGES = [
    ([[[1, 0.9, 0, 0, 4, 4], [1, 0.6, 5, 5, 9, 9]]], [[1, 1]], [[[0, 0, 4, 4], [20, 20, 24, 24]]]),
    ([[[1, 0.8, 1, 1, 3, 3], [2, 0.7, 0, 0, 2, 2]]], [[1, 2]], [[[1, 1, 3, 3], [0, 0, 2, 2]]]),
]


def sequence(name, size, dtype="int64"):
    return layers.data(name, shape=[size], dtype=dtype, lod_level=1)


def rows(tags):
    return [np.reshape(row, (-1, 1)).astype("int64") for row in tags]


def started(startup):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    return exe


@pytest.mark.parametrize("for_test", [False, True])
def test_chunks_are_counted_over_minibatches(for_test):
    with fresh() as (main, startup):
        chunks = fluid.evaluator.ChunkEvaluator(sequence("found", 1), sequence("right", 1), "IOB", 2)
        counts = next(call for call in main.ops if call.type == "chunk_eval").outputs[3:]
        program = main.clone(for_test=for_test)
        exe = started(startup)
        for _ in range(2):
            host = metrics.ChunkEvaluator()
            chunks.reset(exe)
            for found, right in TAGS:
                feed = {"found": rows(found), "right": rows(right)}
                host.update(*exe.run(program, feed, [*chunks.metrics, *counts])[3:])
            np.testing.assert_allclose(np.ravel(chunks.eval(exe)), host.eval(), rtol=1e-6)


def test_edit_distances_are_counted_over_minibatches():
    with fresh() as (main, startup):
        distance = fluid.evaluator.EditDistance(sequence("found", 1), sequence("right", 1), ignored_tokens=[4])
        with pytest.raises(errors.ProgramError, match="run the startup program first"):
            distance.eval(None)
        exe = started(startup)
        with pytest.raises(errors.ProgramError, match="nothing was measured"):
            distance.eval(exe)
        for found, right in TAGS:
            exe.run(main.clone(for_test=True), {"found": rows(found), "right": rows(right)}, distance.metrics)
        # Without the ignored tag 4, the found tags are [0 1 2], [2 3], [0] and [0].
        # The right tags are [0 1 0], [2 3], [] and [2 0].
        np.testing.assert_allclose(np.ravel(distance.eval(exe)), [(1 / 3 + 0 + 1 + 1 / 2) / 4, 3 / 4], rtol=1e-6)


def test_accuracy_is_weighted_by_rows():
    with fresh() as (main, startup):
        scores, label = layers.data("scores", shape=[3]), layers.data("label", shape=[1], dtype="int64")
        accuracy = fluid.evaluator.Accuracy(input=scores, label=label, k=2)
        exe = started(startup)
        random = np.random.default_rng(0)
        right = []
        for size in (3, 8):
            feed = {"scores": random.random((size, 3), "float32"), "label": random.integers(0, 3, (size, 1))}
            exe.run(main, feed, accuracy.metrics)
            right += (np.argsort(-feed["scores"])[:, :2] == feed["label"]).any(1).tolist()
        np.testing.assert_allclose(accuracy.eval(exe), [np.mean(right)], rtol=1e-6)


def test_precision_of_detections_equals_the_metric():
    with fresh() as (main, startup):
        found = layers.data("found", shape=[6], lod_level=1)
        evaluator = fluid.evaluator.DetectionMAP(
            found, sequence("label", 1), sequence("box", 4, "float32"), class_num=3, ap_version="11point"
        )
        exe = started(startup)
        host = metrics.DetectionMAP(class_num=3, ap_version="11point")
        for _ in range(2):
            evaluator.reset(exe)
            host.reset()
            for detections, labels, boxes in IMAGES:
                given = [np.float32(detections[0]), np.int64(labels[0])[:, None], np.float32(boxes[0])]
                feed = dict(zip(("found", "label", "box"), ([value] for value in given), strict=True))
                host.update(*(SequenceBatch.from_rows([value]) for value in given))
                batch = metrics.DetectionMAP(class_num=3, ap_version="11point")
                batch.update(*([value] for value in given))
                results = exe.run(main.clone(for_test=True), feed, list(evaluator.get_map_var()))
                np.testing.assert_allclose(np.ravel(results), [batch.eval(), host.eval()], rtol=1e-6)
        exe.run(main, feed, [found], return_numpy=False)
        with pytest.raises(Exception, match="fetch get_map_var"):
            exe.run(main, feed, list(evaluator.get_map_var()))
        with pytest.raises(errors.ArgumentTypeError, match="lod_level=1"):
            fluid.evaluator.DetectionMAP(found, layers.data("one", shape=[1]), found)


def test_a_parallel_block_sees_the_whole_batch():
    with fresh() as (main, _):
        pd = layers.ParallelDo(layers.get_places(device_count=3))
        with pd.do():
            pd.write_output(layers.mean(pd.read_input(layers.data("x", shape=[1]))))
        (found,) = fluid.Executor(fluid.CPUPlace()).run(main, {"x": np.float32([[1], [2], [6]])}, [pd()])
    assert found == 3.0 and len(layers.get_places(3, "CPU")) == 3
