"""Absent feeds: only feeds that the fetched values depend on are needed, in programs of every kind."""

import jax
import numpy as np
import pytest

import fluid
from fluid import errors, layers

SGD = fluid.optimizer.SGD(0.1)
ROWS = [[1, 2, 3], [4]]


def ids(name, level=1):
    return layers.data(name, shape=[1], dtype="int64", lod_level=level)


def crf():
    return fluid.ParamAttr(name="transitions")


def tagger():
    words = ids("w")
    emission = layers.fc(layers.embedding(words, size=[10, 4]), size=5, name="emission")
    cost = layers.Print(layers.linear_chain_crf(emission, ids("label"), param_attr=crf()), message="of the cost")
    # This layer comes after the loss. The loss needs the label, but decoding does not.
    layers.crf_decoding(emission, param_attr=crf(), name="decoded")
    return {"loss": layers.mean(cost), "twice": 2.0 * emission, "emission": emission}


def tagger_of_classes():
    label = ids("label")
    prediction = layers.fc(layers.embedding(ids("w"), size=[10, 4]), size=5, act="softmax", name="emission")
    return layers.mean(layers.sequence_pool(layers.cross_entropy(prediction, label), "sum"))


def language_model():
    words, following = ids("w"), ids("label")
    hidden, _ = layers.dynamic_lstm(layers.fc(layers.embedding(words, size=[10, 4]), size=16), size=16)
    logits = layers.fc(hidden, size=10, name="emission")
    return layers.mean(layers.sequence_pool(layers.softmax_with_cross_entropy(logits, following), "sum"))


def nested():
    words, label = ids("w", 2), ids("label", 2)
    logits = layers.fc(layers.embedding(words, size=[10, 4]).flat(), size=10, name="emission")
    cost = layers.softmax_with_cross_entropy(logits, label.flat())
    layers.fc(words.nest(logits), size=2, name="after")
    return layers.mean(layers.sequence_pool(cost, "sum"))


def translator():
    label, source, target = ids("label"), ids("source"), ids("target")
    encoded = layers.sequence_pool(layers.embedding(source, size=[10, 4]), "average")
    encoded = layers.fc(encoded, size=4, name="encoded")
    steps = layers.sequence_expand(encoded, target)
    logits = layers.fc([layers.embedding(target, size=[10, 4]), steps], size=10, name="logits")
    loss = layers.mean(layers.sequence_pool(layers.softmax_with_cross_entropy(logits, label), "sum"))
    return {"loss": loss, "logits": logits + 0.0}


def smoothed():
    label = layers.data("label", shape=[1], dtype="int64")
    soft = layers.label_smooth(layers.one_hot(label, 3), epsilon=0.1, name="soft")
    logits = layers.fc(layers.data("x", shape=[2]), size=3, name="logits")
    mixed = layers.fc([logits, soft], size=3, name="mixed")
    return layers.mean(layers.softmax_with_cross_entropy(mixed, soft, soft_label=True))


def flat(value):
    return np.concatenate([np.asarray(leaf, "float64").ravel() for leaf in jax.tree.leaves(value)])


def same(found, wanted):
    assert found.keys() == wanted.keys()
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(flat(a), flat(b), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("program", "fetch"),
    [
        (tagger, "emission"),
        (tagger, "decoded"),
        (tagger, ["decoded", "twice", "emission.w_0"]),
        (tagger_of_classes, "emission"),
        (language_model, ["emission", "w"]),
    ],
)
def test_fetching_the_emission_needs_no_label_sequences(program, fetch):
    trainer = fluid.Trainer(program, SGD)
    found = trainer.run({"w": ROWS}, fetch=fetch)
    same(found, trainer.run({"w": ROWS, "label": ROWS}, fetch=fetch))
    session = fluid.Session(program)
    session.feed({"w": ROWS})
    session.value(fetch)
    (predicted,) = trainer.predict([[(row,) for row in ROWS]], fetch=fetch, feed_order=["w"])
    same(predicted, found)
    inferencer = fluid.Inferencer(program, params=trainer.params)
    same(inferencer.infer({"w": ROWS}, fetch=fetch), found)
    (predicted,) = inferencer.predict([[(row,) for row in ROWS]], fetch=fetch, feed_order=["w"])
    same(predicted, found)


@pytest.mark.parametrize("fetch", ["emission", "after", ["after", "emission"]])
def test_nested_sequences(fetch):
    trainer = fluid.Trainer(nested, SGD)
    rows = [[[1, 2], [3]], [[4, 5, 6]], [[7]]]
    same(trainer.run({"w": rows}, fetch=fetch), trainer.run({"w": rows, "label": rows}, fetch=fetch))


def test_a_translator_encodes_the_source_without_a_target():
    trainer = fluid.Trainer(translator, SGD)
    source, target = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [4]], [[1, 2], [3, 4, 5]]
    every = {"source": source, "target": target, "label": target}
    same(trainer.run({"source": source}, fetch="encoded"), trainer.run(every, fetch="encoded"))
    given = {"source": source, "target": target}
    for fetch in ("logits", ["logits", "encoded"]):  # "logits" is an output without an explicit name
        same(trainer.run(given, fetch=fetch), trainer.run(every, fetch=fetch))
    with pytest.raises(errors.FeedError, match="needs the feed 'target'"):
        trainer.run({"source": source}, fetch="logits")


def test_dense_data_of_open_length_needs_no_label():
    def program():
        label = layers.data("label", shape=[None, None, 1], append_batch_size=False)
        x = layers.data("x", shape=[None, None, 3], append_batch_size=False)
        loss = layers.mean(layers.square_error_cost(layers.fc(x, size=1, num_flatten_dims=2, name="guess"), label))
        return {"loss": loss, "twice": 2.0 * layers.relu(x)}

    session = fluid.Session(program)
    x = np.ones((2, 5, 3), "float32")
    assert session.run(feed={"x": x}, fetch="twice", mode="test")[0].shape == (2, 5, 3)
    assert session.run(feed={"x": x}, fetch="guess", mode="test")[0].shape == (2, 5, 1)


def test_a_label_used_by_the_net_is_required():
    trainer = fluid.Trainer(smoothed, SGD)
    x = np.ones((2, 2), "float32")
    assert trainer.run({"x": x}, fetch="logits")[0].shape == (2, 3)
    for fetch in ("mixed", "soft", "logits@GRAD"):
        with pytest.raises(errors.FeedError, match=r"needs the feed 'label'.*declared at .*label.*array of int64"):
            trainer.run({"x": x}, fetch=fetch)


@pytest.mark.parametrize("fetch", ["loss", "emission@GRAD", "emission.w_0@GRAD"])
def test_fetching_a_gradient_requires_the_label(fetch):
    with pytest.raises(errors.FeedError, match="needs the feed 'label', which nobody gave"):
        fluid.Trainer(tagger, SGD).run({"w": ROWS}, fetch=fetch)


def test_only_computed_values_print_and_call_python(capfd):
    def program():
        label = layers.Print(layers.data("label", shape=[1]), message="the label")
        hidden = layers.fc(layers.Print(layers.data("x", shape=[2]), message="the input"), size=2, name="hidden")
        cost = layers.Print(layers.square_error_cost(layers.fc(hidden, size=1), label), message="the cost")
        layers.py_func(lambda value: print("called with the cost"), cost, out=None)
        layers.scale(hidden, 2.0, name="behind")
        layers.Print(hidden, message="after all")
        return layers.mean(cost)

    trainer = fluid.Trainer(program, SGD)
    x = np.ones((2, 2), "float32")
    for fetch in ("hidden", "behind"):
        np.asarray(trainer.run({"x": x}, fetch=fetch)[0])
        jax.effects_barrier()
        out = capfd.readouterr().out
        assert "the input" in out
        assert not any(word in out for word in ("the label", "the cost", "called with", "after all"))
    np.asarray(trainer.run({"x": x, "label": x[:, :1]}, fetch="hidden")[0])
    jax.effects_barrier()
    out = capfd.readouterr().out
    assert all(word in out for word in ("the input", "the label", "the cost", "called with", "after all"))


def test_overrides_take_the_place_of_feeds():
    trainer = fluid.Trainer(tagger, SGD)
    (emission,) = trainer.run({"w": ROWS}, fetch="emission.tmp_1")
    wanted = trainer.run({"w": ROWS}, fetch=["decoded", "twice"])
    same(trainer.run({"emission.tmp_1": emission}, fetch=["decoded", "twice"]), wanted)
    with pytest.raises(errors.FeedError, match="needs the feed 'w'"):
        trainer.run({"emission.w_0": np.zeros((4, 5), "float32")}, fetch="decoded")


def test_the_function_may_catch_errors_and_open_blocks():
    ended = []

    def program():
        x, label = layers.data("x", shape=[2]), layers.data("label", shape=[1])
        twice = layers.stack([x, x], axis=0)
        try:
            with fluid.name_scope("net"):
                steps = layers.StaticRNN()
                with steps.step():
                    now = steps.step_input(twice)
                    before = steps.memory(shape=[-1, 2], batch_ref=now)
                    after = layers.fc([now, before], size=2)
                    steps.update_memory(before, after)
                    steps.step_output(after)
                guess = layers.fc(steps()[1], size=1, name="guess")
        except Exception:
            raise AssertionError("the end of the function is no error of it") from None
        finally:
            ended.append(True)
        chosen = layers.cond(layers.reduce_sum(label) > 0.0, lambda: layers.scale(guess, 2.0), lambda: guess)
        return layers.mean(layers.square_error_cost(chosen, label))

    trainer = fluid.Trainer(program, SGD)
    ended.clear()
    x = np.ones((3, 2), "float32")
    (guess,) = trainer.run({"x": x}, fetch="net/guess")
    assert ended
    wanted = trainer.run({"x": x, "label": x[:, :1]}, fetch="net/guess")[0]
    np.testing.assert_allclose(guess, wanted, rtol=1e-6)


def test_mode_dependent_outputs_need_no_label():
    def program():
        x, label = layers.data("x", shape=[2]), layers.data("label", shape=[1])
        logits = layers.fc(x, size=1, name="logits")
        shown = logits if layers.is_training() else layers.sigmoid(logits, name="shown")
        return {"loss": layers.mean(layers.square_error_cost(logits, label)), "answer": shown}

    trainer = fluid.Trainer(program, SGD)
    x = np.ones((3, 2), "float32")
    answer, logits = trainer.run({"x": x}, fetch=["answer", "logits"])
    np.testing.assert_allclose(answer, 1 / (1 + np.exp(-np.asarray(logits))), rtol=1e-5)


def test_an_error_without_feeds_names_the_absent_feeds():
    def program():
        words = ids("w")
        emission = layers.fc(layers.embedding(words, size=[10, 4]), size=5, name="emission")
        tags = layers.data("tags", shape=[2, 1], dtype="int64")
        if layers.is_training() or emission.shape[1] == tags.shape[1]:
            loss = layers.mean(layers.cast(tags, "float32")) + layers.mean(layers.reduce_sum(emission.data, dim=1))
        else:
            raise errors.ShapeError("tags do not fit")
        layers.scale(emission, 2.0, name="behind")
        return loss

    trainer = fluid.Trainer(program, SGD)
    assert trainer.run({"w": ROWS}, fetch="emission")[0].shape[:2] == (2, 4)
    with pytest.raises(errors.ShapeError, match="tags do not fit") as caught:
        trainer.run({"w": ROWS}, fetch="behind")
    assert "not given: 'tags'" in "".join(caught.value.__notes__)


def test_all_feeds_run_the_whole_program():
    session = fluid.Session(tagger)
    given = {"w": ROWS, "label": ROWS}
    assert session.run(feed=given, fetch="loss", mode="test")[0].shape == ()
    assert len(session.run(feed=given, mode="test")) == 3
