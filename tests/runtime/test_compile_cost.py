"""The estimated cost of a compilation: it depends only on the program, and limits the shapes of small nets."""

import numpy as np
import pytest

import fluid
from fluid.runtime.compilation_cache import compilation_cost


def encoder(width, blocks):
    def program():
        words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
        hidden = fluid.layers.embedding(words, size=[100, width])
        for _ in range(blocks):
            hidden = hidden + fluid.layers.multi_head_attention(hidden, num_heads=2)
            hidden = fluid.layers.layer_norm(hidden, begin_norm_axis=-1)
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.sequence_pool(hidden, "average"), size=1))

    return fluid.Program(program)


def test_cost_grows_with_equations_and_falls_with_weights():
    small, again, deep, wide = encoder(8, 1), encoder(8, 1), encoder(8, 3), encoder(512, 1)
    assert compilation_cost(small, "cpu") == compilation_cost(again, "cpu")
    ratio = compilation_cost(deep, "cpu") / compilation_cost(small, "cpu")
    assert ratio == pytest.approx(deep.equations / small.equations)
    weights = sum(np.prod(s.shape) for n, s in wide.parameters.items() if n != "embedding_0.w_0")
    assert compilation_cost(wide, "cpu") == pytest.approx(0.008 * wide.equations * 5e10 / (6 * weights))


def test_compilation_cost_reduces_shapes_of_small_encoders():
    program = encoder(16, 2)
    session = fluid.Session(program)
    rng = np.random.default_rng(0)
    lengths = np.clip(np.exp(rng.normal(2.4, 0.7, (8, 1600))), 2, 40).astype(int)
    grouped = np.sort(lengths).reshape(8, 50, 32)

    def shapes(buckets):
        fed = [grouped[epoch, number] for epoch in range(8) for number in rng.permutation(50)]
        rows = [[np.zeros((n, 1), "int64") for n in batch] for batch in fed]
        found = [buckets.pad({"words": fluid.SequenceBatch.from_rows(batch, "int32")}) for batch in rows]
        return {values["words"].shape for values in found}

    assert len(shapes(session.engine.buckets(program))) <= 3
    assert len(shapes(fluid.reader.buckets.Buckets(program.feeds))) >= 5
