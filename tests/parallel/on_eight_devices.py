"""Tests that need eight devices; `test_eight_devices.py` runs this file in a process with eight devices."""

import jax
import numpy as np
import pytest
from compile_counts import counted
from test_pages import check

import fluid
from fluid import errors, layers, place

MESHES = {
    "data": {"parallel": True},
    "fsdp": {"parallel": "fsdp"},
    "4x2": {"parallel": fluid.Mesh(data=4, model=2), "shardings": {"fc_2.w_0": (), "fc_*.w_0": (None, "model")}},
    "2x2x2": {"parallel": fluid.Mesh(data=2, fsdp=2, model=2), "shardings": {"fc_1.w_0": ("fsdp", "model")}},
}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(61, 12)).astype("float32")
Y = X.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def eight():
    assert jax.device_count() == 8


def net(optimizer=None):
    """Build a net with batch normalisation, which mixes rows, and with dropout, which is random; return its loss."""
    x = layers.data("x", shape=[12])
    y = layers.data("y", shape=[1])
    hidden = layers.dropout(layers.batch_norm(layers.fc(x, 64, act="relu")), 0.3, name="dropped")
    loss = layers.mean(layers.square_error_cost(layers.fc(layers.fc(hidden, 128, act="tanh"), 1), y))
    (optimizer or fluid.optimizer.Momentum(0.05, 0.9)).minimize(loss)
    return loss


def trained(program, feeds, steps=20, **settings):
    """Train for `steps` steps; return the losses, the final arrays by name, and the Session."""
    session = fluid.Session(program, **settings)
    losses = [float(session.step(feeds[i % len(feeds)])[0]) for i in range(steps)]
    return losses, {n: np.asarray(v) for n, v in session.scope.items()}, session


def assert_equal(found, wanted, tolerance=1e-5):
    """Check that losses and arrays agree; rounding may differ, because devices add numbers in another order."""
    np.testing.assert_allclose(found[0], wanted[0], rtol=tolerance)
    for name, array in wanted[1].items():
        scale = np.abs(array).max() + 1e-2
        np.testing.assert_allclose(found[1][name] / scale, array / scale, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def one_device():
    return {rows: trained(net, [{"x": X[:rows], "y": Y[:rows]}]) for rows in (61, 56)}


@pytest.mark.parametrize("rows", [61, 56])
@pytest.mark.parametrize("mesh", MESHES)
def test_twenty_steps_match_a_single_device(mesh, rows, one_device):
    found = trained(net, [{"x": X[:rows], "y": Y[:rows]}], **MESHES[mesh])
    assert_equal(found, one_device[rows])
    before = {n: v.sharding for n, v in found[2].scope.arrays.items()}
    found[2].step({"x": X[:rows], "y": Y[:rows]})
    assert {n: v.sharding for n, v in found[2].scope.arrays.items()} == before


@pytest.mark.parametrize("mesh", MESHES)
def test_dropout_masks_are_bit_equal(mesh):
    def program():
        x = layers.data("x", shape=[12])
        return layers.dropout(x, 0.4), layers.fc(layers.dropout(layers.fc(x, 128, name="fc_1"), 0.5), 1, name="fc_2")

    feed = {"x": X}
    settings = MESHES[mesh] if mesh == "data" else {"parallel": MESHES[mesh]["parallel"]}
    masks = [fluid.Session(program, **s).run(feed=feed, mode="train")[0] for s in ({}, settings)]
    assert np.asarray(masks[0]).tobytes() == np.asarray(masks[1]).tobytes()
    assert 0.2 < np.mean(np.asarray(masks[0]) == 0) < 0.6


def test_checkpoints_fit_other_meshes(tmp_path):
    feed = {"x": X, "y": Y}
    session = fluid.Session(net, parallel="fsdp")
    for _ in range(3):
        session.step(feed)
    session.save(tmp_path / "state")
    session.save_params(tmp_path / "params")
    before = {n: np.asarray(v) for n, v in session.state().items()}
    after = [float(session.step(feed)[0]) for _ in range(3)]
    for settings in ({}, MESHES["4x2"]):
        other = fluid.Session(net, seed=1, **settings)
        where = {n: v.sharding for n, v in other.state().items()}
        other.load(tmp_path / "state")
        assert {n: v.sharding for n, v in other.state().items()} == where
        assert all(np.asarray(v).tobytes() == before[n].tobytes() for n, v in other.state().items())
        np.testing.assert_allclose([float(other.step(feed)[0]) for _ in range(3)], after, rtol=1e-5)
        other.load_params(tmp_path / "params")
        assert all(np.asarray(v).tobytes() == before[n].tobytes() for n, v in other.scope.items())


def test_wrong_meshes_and_shardings_are_refused():
    def refused(words, kind=errors.ArgumentError, **settings):
        with pytest.raises(kind, match=words):
            fluid.Session(net, **settings)

    mesh = fluid.Mesh(data=4, model=2)
    refused(r"Mesh\(data=3\) has 3 devices, and there are 8", parallel=fluid.Mesh(data=3))
    refused("'fcc_0.*' matches no name. Did you mean 'fc_0", errors.UnknownNameError, parallel=mesh,
            shardings={"fcc_0.*": ()})  # fmt: skip
    refused("Did you mean 'model'", parallel=mesh, shardings={"fc_0.w_0": (None, "modle")})
    refused("its dimension 0, of 12, cannot be divided over 'model', of 8", parallel=fluid.Mesh(model=8),
            shardings={"fc_0.w_0": ("model",)})  # fmt: skip
    refused("is for 2 dimensions, and fc_0.b_0 is", parallel=mesh, shardings={"fc_0.*": (None, "model")})
    refused(r"both 'fc_\*' and '\*.w_0' match 'fc_0.w_0'", parallel=mesh, shardings={"fc_*": (), "*.w_0": ("model",)})
    refused("uses an axis twice", parallel=mesh, shardings={"fc_0.w_0": ("model", "model")})
    refused("expected for each dimension", parallel=mesh, shardings={"fc_0.w_0": "model"})
    refused("each once", parallel=True, place=["cpu:1", "cpu:1"])
    refused("need parallel=", place=["cpu:0", "cpu:1"], parallel=False)


@pytest.mark.parametrize("see", [layers.Print, lambda x: layers.py_func(np.sinh, x, x)], ids=["Print", "py_func"])
def test_the_host_takes_no_part_in_a_step(see):
    session = fluid.Session(lambda: see(layers.data("x", shape=[12])), parallel=True)
    with pytest.raises(errors.ArgumentError, match="cannot take part in a step on several devices"):
        session.run(feed={"x": X})


def test_places_select_the_devices():
    session = fluid.Session(net, parallel=True, place=["cpu:3", "cpu:5"])
    assert sorted(d.id for d in session.engine.layout.mesh.devices.flat) == [3, 5]
    assert fluid.Session(net, parallel=True, place="cpu:2").engine.layout.mesh is None


@pytest.mark.parametrize("spelled", ["cpu:3,cpu:5", "CPU:3, CPU:5", ["cpu:3", "CPU:5"], (3, 5)], ids=str)
def test_several_places_train_in_parallel(spelled, one_device):
    spelled = [jax.devices()[i] for i in spelled] if isinstance(spelled, tuple) else spelled
    trained_there = trained(net, [{"x": X[:56], "y": Y[:56]}], place=spelled)
    assert trained_there[2].place == ["cpu:3", "cpu:5"]
    assert_equal(trained_there, one_device[56])


@pytest.mark.parametrize("spelled", [jax.devices()[-1], "CPU:7", "cpu:7", ["cpu:7"]], ids=str)
def test_spellings_of_a_place_are_equal(spelled):
    assert fluid.Session(net, place=spelled).place == "cpu:7"


def test_a_session_moves_to_several_devices(one_device):
    session = fluid.Session(net)
    session.place = "cpu:2,cpu:3"
    assert session.place == ["cpu:2", "cpu:3"]
    session.place = session.place
    feed = {"x": X[:56], "y": Y[:56]}
    losses = [float(session.step(feed)[0]) for _ in range(20)]
    np.testing.assert_allclose(losses, one_device[56][0], rtol=1e-5)
    with pytest.raises(errors.ArgumentError, match="divided among 2 devices"):
        session.place = "cpu:1"


def test_the_other_devices_are_remarked_on_once(caplog):
    place.remark_on_other_devices.cache_clear()
    for settings in ({"place": "cpu:0"}, {"parallel": False}, {"parallel": True}):
        fluid.Session(net, **settings)
    assert not caplog.messages
    for _ in range(2):
        fluid.Session(net)
    (message,) = caplog.messages
    assert message.startswith('one of 8 devices is used, "cpu:0"; parallel=True uses all, place="cpu:1" another one')
    assert fluid.Session(net, parallel="fsdp", place="cpu").engine.layout.mesh.shape == {"fsdp": 8}


def ragged(count, salt):
    """Return `count` rows, each with a sequence of 1 to 8 words and a label."""
    random = np.random.default_rng(salt)
    rows = []
    for _ in range(count):
        words = random.integers(0, 50, size=(random.integers(1, 9), 1))
        rows.append((words, [float(words.mean() / 50)]))
    return rows


def sequences():
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    y = layers.data("y", shape=[1])
    rows = layers.embedding(words, [50, 16], is_sparse=True)
    hidden = layers.dynamic_gru(layers.fc(rows, 48), size=16)
    guess = layers.fc(layers.sequence_pool(hidden, "average"), 1)
    return layers.mean(layers.square_error_cost(guess, y))


def repeated():
    x = layers.data("x", shape=[12])
    y = layers.data("y", shape=[1])
    hidden = layers.repeat(lambda h: h + layers.fc(h, 64, act="tanh"), 3, layers.fc(x, 64))
    return {"loss": layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y)), "guess": hidden}


def both(program, optimizer, reader, mesh, epochs=2, **settings):
    """Train on a single device and on a mesh; return `(losses, parameters, Trainer)` for each of the two."""
    found = []
    for parallel in ({}, mesh):
        trainer = fluid.Trainer(program, optimizer, **settings, **parallel)
        losses = []

        def keep(event, losses=losses):
            if isinstance(event, fluid.EndStepEvent):
                losses.append(event.metrics[0])

        trainer.train(reader, num_epochs=epochs, event_handler=keep, progress=False)
        found.append(([float(v) for v in losses], {n: np.asarray(v) for n, v in trainer.params.items()}, trainer))
    return found


FSDP = {"parallel": "fsdp"}


@pytest.mark.full
@pytest.mark.parametrize("mesh", [{"parallel": True}, {"parallel": fluid.Mesh(data=2, fsdp=4)}], ids=["data", "2x4"])
def test_sequences_and_sparse_tables(mesh):
    reader = fluid.reader.batch(lambda: ragged(61, 3), 16)
    one, eight = both(sequences, fluid.optimizer.Adagrad(0.1), reader, mesh)
    assert_equal(eight, one)
    results = [found[2].test(reader)[0] for found in (one, eight)]
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    "optimizer",
    [
        fluid.optimizer.Adam(0.01, accumulate_steps=2),
        fluid.optimizer.Momentum(0.01, 0.9, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.1)),
    ],
    ids=["accumulation", "global norm"],
)
def test_repeated_layers(optimizer):
    data = fluid.reader.arrays({"x": X, "y": Y}, batch_size=20)  # of 61 rows, the last minibatch has one
    one, eight = both(repeated, optimizer, data, FSDP)
    assert_equal(eight, one, 5e-5)
    test = [found[2].test(data) for found in (one, eight)]
    np.testing.assert_allclose(test[1].loss, test[0].loss, rtol=1e-5)
    np.testing.assert_allclose(test[1].guess, test[0].guess, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_half_precision_and_averages():
    average = fluid.optimizer.ExponentialMovingAverage(0.9)

    def program():
        loss = net_without_draws()
        fluid.optimizer.SGD(0.05).minimize(loss)
        average.update()
        return loss

    def net_without_draws():
        x = layers.data("x", shape=[12])
        y = layers.data("y", shape=[1])
        return layers.mean(layers.square_error_cost(layers.fc(layers.fc(x, 512, act="tanh"), 1), y))

    data = fluid.reader.arrays({"x": X, "y": Y}, batch_size=61)
    for precision, tolerance in ((None, 1e-5), ("bfloat16", 0.02)):
        one, eight = both(program, None, data, FSDP, epochs=5, precision=precision)
        assert_equal(eight, one, tolerance)
        averages = []
        for _, _, trainer in (one, eight):
            with average.apply(trainer):
                averages.append((trainer.test(data)[0], np.asarray(trainer.params["fc_0.w_0"])))
        np.testing.assert_allclose(averages[1][0], averages[0][0], rtol=tolerance)
        np.testing.assert_allclose(averages[1][1], averages[0][1], atol=tolerance)
        eight[2].train(data, num_epochs=1, progress=False)


@pytest.mark.full
def test_training_resumes_from_checkpoint_on_another_mesh(tmp_path):
    def data():
        return fluid.reader.arrays({"x": X, "y": Y}, batch_size=15, shuffle=True)

    whole = fluid.Trainer(repeated, fluid.optimizer.Adam(0.01))
    whole.train(data(), num_epochs=3, progress=False)
    for mesh in ({"parallel": True}, FSDP, {}):
        config = fluid.CheckpointConfig(str(tmp_path / "steps"), step_interval=2)
        trainer = fluid.Trainer(repeated, fluid.optimizer.Adam(0.01), checkpoint_config=config, **mesh)

        def stop(event, trainer=trainer):
            if isinstance(event, fluid.EndStepEvent) and event.step == 2:
                trainer.stop()

        trainer.train(data(), num_epochs=3, event_handler=stop if mesh else None, progress=False)
    assert int(trainer.session.scope.step) == int(whole.session.scope.step)
    for name, value in whole.params.items():
        np.testing.assert_allclose(trainer.params[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_inference_on_a_mesh():
    def program():
        return layers.fc(layers.fc(layers.data("x", shape=[12]), 512, act="tanh"), 3, act="softmax")

    one = fluid.Session(program)
    wanted = np.asarray(one.run(feed={"x": X})[0])
    inferencer = fluid.Inferencer(program, params=one.params(), parallel="fsdp")
    for rows in (1, 3, 61):
        np.testing.assert_allclose(inferencer.infer({"x": X[:rows]})[0], wanted[:rows], rtol=1e-5)
        on_device = inferencer.infer({"x": X[:rows]}, return_numpy=False)[0]
        np.testing.assert_allclose(np.asarray(on_device), wanted[:rows], rtol=1e-5)
    parts = [r[0] for r in inferencer.predict(fluid.reader.arrays({"x": X}, batch_size=16))]
    np.testing.assert_allclose(np.concatenate(parts), wanted, rtol=1e-5)


@pytest.mark.full
def test_nan_is_reported():
    def program():
        x = layers.data("x", shape=[12], allow_nan=True)
        return layers.mean(layers.log(layers.fc(x, 64, name="hidden") - 1e9))

    def report(**settings):
        trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), **settings)
        with pytest.raises(errors.FluidError) as raised:
            data = fluid.reader.arrays({"x": X}, batch_size=61)
            trainer.train(data, num_epochs=1, handlers=[fluid.handlers.TerminateOnNaN(report=True)], progress=False)
        return str(raised.value)

    assert report(**FSDP) == report()


@pytest.mark.full
@pytest.mark.parametrize("page", ["parallel.md", "mesh.md", "pipeline.md"])
def test_the_page_is_true(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    check(page, capsys, monkeypatch)


def test_compiled_steps_are_reused_with_and_without_remat():
    def program(call):
        def function():
            x, y = layers.data("x", shape=[12]), layers.data("y", shape=[1])
            hidden = call(lambda: layers.dropout(layers.fc(x, 64, act="tanh"), 0.3))
            return layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))

        return function

    found = []
    for call in (lambda part: part(), layers.remat):
        trainer = fluid.Trainer(program(call), fluid.optimizer.SGD(0.05), parallel="fsdp")
        with counted() as compiled:
            trainer.train(fluid.reader.arrays({"x": X, "y": Y}, 24, drop_last=True), num_epochs=2)
        assert len(compiled) == len(trainer.session.compilations) == 1
        found.append({name: np.asarray(value) for name, value in trainer.params.items()})
    for name, value in found[0].items():
        np.testing.assert_allclose(found[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def siamese():
    """Build a net that calls a shared function twice, and has a layer outside of it; return the loss."""
    encode = fluid.shared(lambda x: layers.fc(layers.fc(x, 64, act="tanh"), 16), name="encoder")
    x, y = layers.data("x", shape=[12]), layers.data("y", shape=[1])
    guess = layers.fc(layers.square(encode(x) - encode(-0.5 * x)), 1)
    loss = layers.mean(layers.square_error_cost(guess, y))
    fluid.optimizer.Momentum(0.005, 0.9).minimize(loss)
    return loss


def test_a_glob_shards_parameters_of_a_shared_function():
    settings = {"parallel": fluid.Mesh(data=4, model=2), "shardings": {"encoder/*.w_0": (None, "model")}}
    feeds = [{"x": X[:56], "y": Y[:56]}]
    found = trained(siamese, feeds, 5, **settings)
    assert_equal(found, trained(siamese, feeds, 5))
    divided = {n for n, v in found[2].scope.arrays.items() if not v.sharding.is_fully_replicated}
    assert divided == {"encoder/fc_0.w_0", "encoder/fc_1.w_0"}
    assert found[2].scope["encoder/fc_0.w_0"].addressable_shards[0].data.shape == (12, 32)
    with pytest.raises(errors.FluidError, match="encodr"):
        fluid.Session(siamese, **{**settings, "shardings": {"encodr/*": ()}})
