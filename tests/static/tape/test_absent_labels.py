"""Recorded programs that run without labels: a result that does not depend on the label does not need it."""

import numpy as np
import pytest

import fluid
import fluid.static as static

ROWS = [[1, 2, 3], [4]]


def test_a_tagger_runs_and_saves_without_labels(tmp_path):
    layers = static.layers
    main, startup = static.Program(), static.Program()
    with static.scope_guard(static.Scope()), static.program_guard(main, startup):
        words = layers.data("w", shape=[1], dtype="int64", lod_level=1)
        tags = layers.data("tags", shape=[1], dtype="int64", lod_level=1)
        emission = layers.fc(layers.embedding(words, size=[10, 4]), size=5)
        transitions = fluid.ParamAttr(name="transitions")
        loss = layers.mean(layers.linear_chain_crf(emission, tags, param_attr=transitions))
        path = layers.crf_decoding(emission, param_attr=transitions)
        tested = main.clone(for_test=True)
        static.optimizer.SGD(0.1).minimize(loss)
        exe = static.Executor(static.CPUPlace())
        exe.run(startup)
        for fetch in ([emission], [path], [path, emission]):
            with_tags = exe.run(tested, {"w": ROWS, "tags": ROWS}, fetch, return_numpy=False)
            without = exe.run(tested, {"w": ROWS}, fetch, return_numpy=False)
            for a, b in zip(without, with_tags, strict=True):
                np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-6)
            names = static.io.save_inference_model(str(tmp_path / "m"), ["w"], fetch, exe, main)
            found = fluid.Inferencer(param_path=str(tmp_path / "m")).infer({"w": ROWS}, return_numpy=False)
            assert list(found.names) == names
            np.testing.assert_allclose(np.array(found[0]), np.array(with_tags[0]), rtol=1e-5, atol=1e-6)
        with pytest.raises(fluid.errors.FeedError, match="needs the feed 'tags'"):
            exe.run(tested, {"w": ROWS}, [loss])
