"""Seeds: each run in test mode draws new random numbers, and every call with a seed repeats its answer."""

import json
import pathlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import warnings
import zipfile

import jax
import numpy as np
import pytest

import fluid
from fluid import errors, export, layers
from fluid.export import standalone
from fluid.runtime.seeds import root_of

X = {"x": np.arange(8, dtype="float32").reshape(4, 2)}
TWO = {"x": X["x"][:2]}
SEEDS = [0, 7, 2**31, 2**32 + 7, 2**64 - 1]


def noisy():
    x = layers.data("x", shape=[2])
    noise = jax.random.normal(layers.random_key(), x.shape)
    return {"y": layers.fc(x, size=2, name="out") + noise}


def trained():
    return {"loss": layers.mean(layers.square(noisy()["y"]))}


def plain():
    return {"y": layers.fc(layers.data("x", shape=[2]), size=2, name="out")}


def with_dropout():
    return {"y": layers.dropout(plain()["y"], 0.5)}


PARAMS = fluid.Session(noisy).params()


def bits(results):
    return [np.asarray(value).tobytes() for value in results]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("sampling") / "noisy.fluid"
    fluid.io.save_inference_model(path, noisy, PARAMS, platforms=["cpu"])
    return path


@pytest.fixture(scope="module")
def expected():
    """Return the answers of an Inferencer to the feed TWO, which has two rows, in a dict by seed."""
    inferencer = fluid.Inferencer(noisy, params=PARAMS)
    return {seed: inferencer.infer(TWO, seed=seed)["y"] for seed in SEEDS}


def test_each_call_of_an_inferencer_draws_other_numbers():
    inferencer = fluid.Inferencer(noisy, params=PARAMS)
    answers = [bits(inferencer.infer(X))[0] for _ in range(5)]
    answers += [bits(inferencer.infer({"x": X["x"][:3]}))[0] for _ in range(2)]  # `infer` pads three rows to four
    answers += [bits(inferencer.infer(X, return_numpy=False))[0], bits(inferencer.infer(X, fetch="y"))[0]]
    answers += [bits(inferencer.infer({"x": X["x"].tolist()}))[0]]
    assert len(set(answers)) == len(answers)


def test_inferencers_differ_unless_their_seeds_are_equal():
    first, second = (fluid.Inferencer(noisy, params=PARAMS) for _ in range(2))
    assert first.seeds.first != second.seeds.first
    assert bits(first.infer(X)) != bits(second.infer(X))
    one, same = (fluid.Inferencer(noisy, params=PARAMS, seed=7) for _ in range(2))
    assert [bits(one.infer(X)) for _ in range(3)] == [bits(same.infer(X)) for _ in range(3)]
    again = fluid.Inferencer(noisy, params=PARAMS, seed=first.seeds.first)
    fresh = fluid.Inferencer(noisy, params=PARAMS, seed=first.seeds.first)
    assert bits(again.infer(X)) == bits(fresh.infer(X))


def test_a_seed_repeats_the_answer_after_other_calls():
    inferencer = fluid.Inferencer(noisy, params=PARAMS)
    rows = {"x": X["x"][:3]}
    first = bits(inferencer.infer(rows, seed=7))
    for _ in range(3):
        inferencer.infer(X)
    assert bits(inferencer.infer(rows, seed=7)) == first != bits(inferencer.infer(rows, seed=8))
    assert bits(inferencer.infer(rows, seed=np.int64(7))) == first


def test_a_seed_does_not_move_the_sequence():
    one, other = (fluid.Inferencer(noisy, params=PARAMS, seed=7) for _ in range(2))
    one.infer(X, seed=3)
    list(one.predict(fluid.reader.arrays(X, batch_size=2), seed=3))
    assert bits(one.infer(X)) == bits(other.infer(X))


def test_all_64_bits_of_a_seed_count(expected):
    assert len({value.tobytes() for value in expected.values()}) == len(SEEDS)
    for generator in ("threefry2x32", "rbg"):
        with jax.default_prng_impl(generator):
            assert root_of(7).tolist() == jax.random.key_data(jax.random.key(7)).tolist()


def test_seeds_neither_recompile_nor_reach_deterministic_programs(monkeypatch):
    inferencer = fluid.Inferencer(noisy, params=PARAMS)
    inferencer.infer(X)
    step = next(iter(inferencer.session.engine.steps.values()))
    for seed in (None, 7, None):
        inferencer.infer(X, seed=seed)
    assert len(inferencer.session.compilations) == 1
    assert step._form.run._cache_size() == 1

    def refuse(*_):
        raise AssertionError("a seed was drawn")

    for program in (plain, with_dropout):
        inferencer = fluid.Inferencer(program, params=PARAMS)
        monkeypatch.setattr(inferencer.session.engine, "draw", refuse)
        monkeypatch.setattr(inferencer.seeds, "next", refuse)
        assert bits(inferencer.infer(X)) == bits(inferencer.infer(X)) == bits(inferencer.infer(X))


def test_threads_never_get_the_same_numbers():
    inferencer = fluid.Inferencer(noisy, params=PARAMS)
    inferencer.infer(X)
    answers = []

    def work():
        answers.extend(bits(inferencer.infer(X))[0] for _ in range(50))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 200


def test_predict_draws_per_minibatch_and_repeats_seeded_passes():
    same_rows = fluid.reader.arrays({"x": np.ones((6, 2), "float32")}, batch_size=2)
    inferencer = fluid.Inferencer(noisy, params=PARAMS)
    first, second = ([bits(r)[0] for r in inferencer.predict(same_rows)] for _ in range(2))
    assert len({*first, *second}) == 6
    seeded = [bits(r)[0] for r in inferencer.predict(same_rows, seed=5)]
    assert seeded == [bits(r)[0] for r in inferencer.predict(same_rows, seed=5)] and len(set(seeded)) == 3
    one_by_one = fluid.Inferencer(noisy, params=PARAMS, seed=5)
    assert seeded == [bits(one_by_one.infer({"x": np.ones((2, 2), "float32")}))[0] for _ in range(3)]


def test_a_session_seed_determines_test_mode_draws(expected):
    session, same, other = (fluid.Session(noisy, seed=seed) for seed in (1, 1, 2))
    for each in (session, same, other):
        each.load_params(PARAMS)
    answers = [bits(session.run(feed=X)) for _ in range(3)]
    assert len({answer[0] for answer in answers}) == 3
    assert answers == [bits(same.run(feed=X)) for _ in range(3)]
    assert answers[0] != bits(other.run(feed=X))
    for seed in SEEDS:
        assert bits(session.run(feed=TWO, seed=seed)) == bits([expected[seed]])
    assert len(session.compilations) == 2  # one compilation is for feeds of four rows, and one for feeds of two rows


def test_values_of_a_feed_share_a_draw():
    def program():
        noise = jax.random.normal(layers.random_key(), layers.data("x", shape=[2]).shape)
        return {"noise": noise, "twice": 2 * noise}

    session = fluid.Session(program)
    session.feed(X)
    first = np.asarray(session.value("noise"))
    assert np.array_equal(np.asarray(session.value("twice")), 2 * first)
    session.feed(X)
    assert not np.array_equal(np.asarray(session.value("noise")), first)
    session.feed(X, seed=3)
    assert bits([session.value("noise")]) == bits(session.run(feed=X, fetch="noise", seed=3))


def test_test_mode_runs_do_not_change_training():
    data = fluid.reader.arrays(X, batch_size=2)
    quiet, asked = (fluid.Trainer(trained, fluid.optimizer.SGD(0.1), seed=3) for _ in range(2))

    def ask_it(event):
        if isinstance(event, fluid.EndStepEvent):
            asked.run(X)
            list(asked.predict(data))

    quiet.train(data, num_epochs=2)
    asked.train(data, num_epochs=2, event_handler=ask_it)
    assert all(np.array_equal(quiet.params[name], asked.params[name]) for name in quiet.params)
    assert bits(asked.test(data)) == bits(asked.test(data)) == bits(quiet.test(data))


def test_trainer_run_and_predict_accept_a_seed(expected):
    trainer = fluid.Trainer(trained, fluid.optimizer.SGD(0.1))
    trainer.session.load_params(PARAMS)
    data = fluid.reader.arrays(TWO, batch_size=2)
    name = next(iter(trainer.programs.values())).aliases.get("out", "out")
    assert bits(trainer.run(TWO)) != bits(trainer.run(TWO))
    assert bits(trainer.run(TWO, seed=7)) == bits(trainer.run(TWO, seed=7)) != bits(trainer.run(TWO, seed=8))
    passes = [bits(next(trainer.predict(data, fetch=["loss", name]))) for _ in range(2)]
    assert passes[0][0] != passes[1][0] and passes[0][1] == passes[1][1]
    assert bits(next(trainer.predict(data, seed=7))) == bits(next(trainer.predict(data, seed=7)))


def test_an_exported_model_draws_as_its_program_does(exported, expected):
    loaded = fluid.Inferencer(param_path=export.load(exported), seed=3)
    of_function = fluid.Inferencer(noisy, params=PARAMS, seed=3)
    run = standalone.load(exported, seed=3)
    for _ in range(3):
        first = loaded.infer(TWO)["y"]
        np.testing.assert_allclose(first, of_function.infer(TWO)["y"], rtol=1e-5)
        np.testing.assert_allclose(first, run(TWO)[0], rtol=1e-5)
    for seed in SEEDS:
        np.testing.assert_allclose(loaded.infer(TWO, seed=seed)["y"], expected[seed], rtol=1e-5)
        np.testing.assert_allclose(run(TWO, seed=seed)[0], expected[seed], rtol=1e-5)
    unseeded = standalone.load(exported)
    assert bits(unseeded(TWO)) != bits(unseeded(TWO)) != bits(standalone.load(exported)(TWO))
    for seed in (True, -1, 0.5, 2**64):
        with pytest.raises(ValueError, match="whole number from 0"):
            run(TWO, seed=seed)


def test_deterministic_exported_models_warn_about_a_seed(tmp_path):
    fluid.io.save_inference_model(tmp_path / "plain.fluid", plain, PARAMS, platforms=["cpu"])
    with pytest.warns(UserWarning, match="draws no random numbers"):
        run = standalone.load(tmp_path / "plain.fluid", seed=3)
    with pytest.warns(UserWarning, match="draws no random numbers"):
        run(TWO, seed=7)
    with pytest.warns(errors.FluidWarning, match="draws no random numbers"):
        fluid.Inferencer(param_path=tmp_path / "plain.fluid", seed=3)


def test_files_have_the_format_of_before(exported):
    with zipfile.ZipFile(exported) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["version"] == 1 and manifest["key"]["shape"] == [2]


def test_an_unused_seed_warns_once():
    inferencer = fluid.Inferencer(with_dropout, params=PARAMS)
    with pytest.warns(errors.FluidWarning, match=r"infer\(seed=7\): the program with_dropout draws no") as seen:
        for _ in range(3):
            inferencer.infer(X, seed=7)
    assert len(seen) == 1 and seen[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fluid.Inferencer(noisy, params=PARAMS, seed=7).infer(X, seed=7)


@pytest.mark.parametrize("seed", [True, -1, 1.5, 2**64, "7", np.float32(1)])
def test_a_seed_is_a_whole_number(seed):
    inferencer = fluid.Inferencer(noisy, params=PARAMS)
    session = fluid.Session(noisy)
    data = fluid.reader.arrays(X, batch_size=2)
    calls = {
        "infer": lambda: inferencer.infer(X, seed=seed),
        "predict": lambda: inferencer.predict(data, seed=seed),
        "Inferencer": lambda: fluid.Inferencer(noisy, params=PARAMS, seed=seed),
        "session.run": lambda: session.run(feed=X, seed=seed),
        "session.feed": lambda: session.feed(X, seed=seed),
    }
    for call, ask in calls.items():
        with pytest.raises(errors.ArgumentError) as caught:
            ask()
        assert str(caught.value) == f"{call}(seed={seed!r}): expected a whole number from 0 to 2**64 - 1, as in seed=7"


def test_members_of_a_population_draw_independently():
    population = fluid.Population(trained, fluid.optimizer.SGD(0.1), size=3)
    one = fluid.Inferencer(noisy, params=population.each, seed=7)
    same = fluid.Inferencer(noisy, params=population.each, seed=7)
    first = one.infer(X)["y"]
    assert first.shape == (4, 3, 2) and bits([first]) == bits(same.infer(X)) != bits(one.infer(X))
    alone = [fluid.Inferencer(plain, params=population[i]).infer(X)["y"] for i in range(3)]
    noise = [first[:, i] - alone[i] for i in range(3)]
    assert all(not np.allclose(noise[a], noise[b], atol=0.1) for a, b in ((0, 1), (0, 2), (1, 2)))
    mean = fluid.Inferencer(noisy, params=population)
    assert bits(mean.infer(X, seed=7)) == bits(mean.infer(X, seed=7)) != bits(mean.infer(X))
    assert bits(population.run(X, seed=7)) == bits(population.run(X, seed=7)) != bits(population.run(X))


@pytest.fixture(scope="module")
def server(exported):
    models = {"noisy": exported, "inferencer": fluid.Inferencer(noisy, params=PARAMS, seed=3)}
    models["dropped"] = fluid.Inferencer(with_dropout, params=PARAMS)
    with fluid.serve(models, port=0, max_batch=4) as running:
        yield running


def test_a_server_draws_per_request_and_accepts_seeds(server, expected):
    remote = fluid.Inferencer(url=f"{server.url}/v2/models/noisy")
    assert bits(remote.infer(TWO)) != bits(remote.infer(TWO))
    for seed in SEEDS:
        np.testing.assert_allclose(remote.infer(TWO, seed=seed)["y"], expected[seed], rtol=1e-5)
    three = remote.infer({"x": X["x"][:3]}, seed=7)["y"]
    local = fluid.Inferencer(noisy, params=PARAMS)
    np.testing.assert_allclose(three, local.infer({"x": X["x"][:3]}, seed=7)["y"], rtol=1e-5)
    sequence = fluid.Inferencer(url=f"{server.url}/v2/models/noisy", seed=3)
    served = fluid.Inferencer(url=f"{server.url}/v2/models/inferencer")
    alone = fluid.Inferencer(noisy, params=PARAMS, seed=3)
    for _ in range(2):
        wanted = alone.infer(TWO)["y"]
        np.testing.assert_allclose(sequence.infer(TWO)["y"], wanted, rtol=1e-5)
        np.testing.assert_allclose(served.infer(TWO)["y"], wanted, rtol=1e-5)


def test_concurrent_requests_keep_their_seeds(server):
    local = fluid.Inferencer(noisy, params=PARAMS)
    wanted = {seed: local.infer(TWO, seed=seed)["y"] for seed in range(12)}
    found = {}

    def work(seeds):
        remote = fluid.Inferencer(url=f"{server.url}/v2/models/noisy")
        found.update({seed: remote.infer(TWO, seed=seed)["y"] for seed in seeds})

    threads = [threading.Thread(target=work, args=(range(start, 12, 4),)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed, values in wanted.items():
        np.testing.assert_allclose(found[seed], values, rtol=1e-5)


def test_dropout_models_are_batched_and_warn_about_seeds(server):
    versions = {version.model: version for version in server.app.models}
    assert versions["dropped"].runner.together and not versions["noisy"].runner.together
    assert versions["noisy"].runner.signature.to_json()["parameters"]["random"]
    remote = fluid.Inferencer(url=f"{server.url}/v2/models/dropped")
    with pytest.warns(errors.FluidWarning, match="draws no random numbers"):
        remote.infer(TWO, seed=7)
    with pytest.raises(errors.ArgumentError, match="whole number"):
        remote.infer(TWO, seed=-1)


@pytest.mark.parametrize("seed", [7, True, -1, 0.5, 2**64, "7"])
def test_the_parameter_of_a_request_is_checked(server, seed, caplog):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0, 1]}
    body = json.dumps({"inputs": [tensor], "parameters": {"seed": seed}}).encode()
    if seed == 7 and seed is not True:
        for _ in range(2):
            with urllib.request.urlopen(f"{server.url}/v2/models/dropped/infer", body) as answer:
                assert answer.status == 200
        assert sum("same with any" in line for line in caplog.messages) == 1
        return
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server.url}/v2/models/noisy/infer", body)
    said = caught.value.read().decode()
    assert caught.value.code == 400 and "2**64 - 1" in said and "parameters" in said


PROCESS = """
import sys
import fluid
print(fluid.Inferencer(param_path=sys.argv[1]).infer({"x": [[0.0, 1.0]]})["y"].tolist())
"""


@pytest.mark.sample(3)
def test_two_processes_draw_different_numbers(exported):
    def start():
        command = [sys.executable, "-c", PROCESS, str(exported)]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=pathlib.Path.cwd()).stdout

    assert start() != start()
