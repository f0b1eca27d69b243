"""Benchmarks: fluid and the hand-written form of each model compute equal numbers."""

import importlib
import importlib.util
import math
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import fluid

BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.parametrize(
    ("name", "setup"),
    [
        pytest.param("MLP", "training", marks=pytest.mark.full),
        pytest.param("LENET", "training", marks=pytest.mark.full),
        pytest.param("LENET_NHWC", "training", marks=pytest.mark.full),
        pytest.param("DIGITS", "training", marks=pytest.mark.full),
        pytest.param("RESNET", "resnet32", marks=pytest.mark.full),
        pytest.param("RESNET_NHWC", "resnet32", marks=pytest.mark.full),
        pytest.param("GROUPED", "training", marks=pytest.mark.full),
        pytest.param("TABLE", "bigemb", marks=pytest.mark.full),
    ],
)
def test_peers_learn_the_same(name, setup, monkeypatch):
    """Check that fluid and the hand-written step have equal losses in five steps from equal initial values.

    The test uses double precision, because deep nets amplify the rounding of their first layers beyond every useful
    tolerance. Each stage of ResNet-32 has one block instead of five, because more blocks take long to compile.
    """
    monkeypatch.setattr(importlib.import_module("models"), "RESNET_BLOCKS", [(16, 1), (32, 2), (64, 2)])
    data = fluid.layers.data
    monkeypatch.setattr(fluid.layers, "data", lambda dtype="float64", **rest: data(dtype=dtype, **rest))
    with jax.enable_x64(True):
        by_fluid, by_hand = losses_of(name, setup)
    # fluid's Adam and Adagrad add epsilon in another place than optax, so the steps differ in the fifth digit.
    np.testing.assert_allclose(by_fluid, by_hand, rtol=1e-9 if setup == "resnet32" else 2e-3)
    assert by_fluid[-1] < 0.95 * by_fluid[0]


@pytest.mark.full
def test_fused_steps_of_both_peers_learn_equally():
    """Check that many steps per call of fluid, and a hand-written scan, have equal losses.

    The data is a single batch, because each peer shuffles the rows differently.
    """
    models, training = importlib.import_module("models"), importlib.import_module("training")
    setup = training.ADAM._replace(read_every=1)
    x, labels = models.MLP.data(setup.batch)
    trainer, by_fluid = training.fused_peer(models.MLP, x, labels, setup)
    by_hand = training.scan_peer(models.MLP, x, labels, dict(trainer.params), setup)
    np.testing.assert_allclose(by_fluid(5), by_hand(5), rtol=2e-3)


def losses_of(name, setup):
    """Return two lists: the losses of five steps in fluid, and the losses of five hand-written steps."""
    models, training = importlib.import_module("models"), importlib.import_module("training")
    rules = training.ADAM if setup == "training" else importlib.import_module(setup).SETUP
    model = models.lookups(1000) if name == "TABLE" else getattr(models, name)
    x, labels = model.data(16 if setup == "resnet32" else 64)
    x = x if x.dtype.kind == "i" else x.astype("float64")
    trainer = fluid.Trainer(model.train_program, optimizer=rules.by_fluid)
    optimizer, step = training.make_step(model, rules.by_hand)
    arrays = model.arrays_by_hand(dict(trainer.params))
    parameters, states = training.split(arrays, set(fluid.Program(model.train_program).parameters))
    state = (parameters, states, optimizer.init(parameters))
    images = model.images_by_hand(x)
    by_hand, by_fluid = [], []
    for _ in range(5):
        state, loss = step(state, images, labels)
        by_hand.append(float(loss))

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            by_fluid.append(float(event.metrics[0]))

    trainer.train(lambda: [{"x": x, "label": labels}] * 5, num_epochs=1, event_handler=on_event)
    return by_fluid, by_hand


def test_both_read_ragged_sentences_alike():
    """Check equal losses and gradients: fluid pads a batch to its longest row, the hand-written code to `LONGEST`."""
    ragged = importlib.import_module("lstm_ragged")
    rows = ragged.data(8)
    padded = ragged.padded(rows, ragged.LONGEST)
    with fluid.Session(ragged.program) as session:
        parameters = {name: np.array(session.scope[name]) for name in ragged.NAMES}
        feed = {"words": fluid.SequenceBatch.from_rows([r[:, None] for r, _ in rows]), "label": padded[2][:, None]}
        names = [f"{name}@GRAD" for name in ragged.NAMES]
        (loss,), slopes = session.run("program", feed), session.run("program", feed, fetch=names)
    by_hand, wanted = jax.value_and_grad(ragged.loss_of)(parameters, *padded)
    np.testing.assert_allclose(loss, by_hand, rtol=1e-5)
    for name, slope in zip(ragged.NAMES, slopes, strict=True):
        np.testing.assert_allclose(slope, wanted[name], rtol=1e-3, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_both_train_an_lstm_alike():
    lstm = importlib.import_module("lstm")
    trainer, by_fluid = lstm.fluid_peer()
    by_hand = lstm.hand_peer(dict(trainer.params))
    np.testing.assert_allclose([by_fluid(), by_fluid()], [by_hand(), by_hand()], rtol=1e-3)


# The installed libraries of benchmarks/libraries.py; Flax is always installed for the tests.
INSTALLED = [name for name in ("flax", "keras", "torch") if importlib.util.find_spec(name)]


@pytest.fixture
def library(request, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    libraries = importlib.import_module("libraries")
    return next(each for each in libraries.installed() if each.package == request.param)


@pytest.mark.soak
@pytest.mark.parametrize("library", INSTALLED, indirect=True)
def test_libraries_learn_as_many_numbers_as_fluid(library, monkeypatch):
    """Check that each net has as many trainable parameters in another library as in fluid.

    Each stage of ResNet-32 has one block instead of five. PyTorch's LSTM has a second bias for each gate.
    """
    models, lstm = importlib.import_module("models"), importlib.import_module("lstm")
    monkeypatch.setattr(models, "RESNET_BLOCKS", [(16, 1), (32, 2), (64, 2)])
    programs = {
        "mlp": models.MLP.train_program,
        "lenet": models.LENET.train_program,
        "resnet32": models.RESNET.train_program,
        "lstm": lstm.program,
    }
    for net, program in programs.items():
        wanted = sum(math.prod(spec.shape) for spec in fluid.Program(program).parameters.values())
        wanted += 4 * lstm.WIDTH if (library.package, net) == ("torch", "lstm") else 0
        assert library.module().size_of(library.model(net)) == wanted, net


@pytest.mark.full
def test_flax_computes_the_loss_of_the_lstm():
    """Check that the LSTM of Flax and the hand-written LSTM have equal losses for equal parameters.

    The test reorders the gates, because Flax has another order.
    """
    from flax import nnx

    by_nnx, lstm = importlib.import_module("by_nnx"), importlib.import_module("lstm")
    model = by_nnx.Lstm(lstm.WORDS, lstm.WIDTH, nnx.Rngs(0))
    cell = model.lstm.cell
    words, lengths, labels = (column[:8] for column in lstm.data()[1])

    def by_hand(kernel):
        into, forget, candidate, out = np.split(np.asarray(kernel), 4, axis=-1)
        return np.concatenate([candidate, into, forget, out], axis=-1)

    parameters = {
        "embedding_0.w_0": np.asarray(model.table.embedding),
        "fc_0.w_0": by_hand(cell.dense_i.kernel),
        "lstm_0.w_0": by_hand(cell.dense_h.kernel),
        "lstm_0.b_0": by_hand(cell.dense_h.bias),
        "fc_1.w_0": np.asarray(model.last.kernel),
        "fc_1.b_0": np.asarray(model.last.bias),
    }
    logits = nnx.jit(lambda model, *inputs: model(*inputs))(model, words, lengths)
    log_likelihoods = jax.nn.log_softmax(logits)[np.arange(8), labels]
    np.testing.assert_allclose(-log_likelihoods.mean(), lstm.loss_of(parameters, words, lengths, labels), rtol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("library", INSTALLED, indirect=True)
def test_libraries_learn_labels_of_sentences_by_heart(library):
    """Check that the first loss is the loss of a random guess between two classes, and that the loss falls."""
    lstm, training = importlib.import_module("lstm"), importlib.import_module("training")
    words, lengths, labels = (column[:16] for column in lstm.data()[1])
    setup = training.ADAM._replace(batch=16, read_every=1)
    losses = library.trained("lstm", (words, lengths), labels, setup)(8)
    np.testing.assert_allclose(losses[0], math.log(2), atol=0.1)
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.full
@pytest.mark.parametrize("library", INSTALLED, indirect=True)
def test_libraries_answer_with_probabilities(library):
    models = importlib.import_module("models")
    answer = library.module().answering(library.model("lenet"))
    images = library.images(models.LENET.data(3)[0])
    found = answer(images)
    assert isinstance(found, np.ndarray)
    assert found.shape == (3, 10)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    # A row has the same result in another batch, because inference uses the moving statistics.
    np.testing.assert_allclose(answer(images[:1]), found[:1], rtol=1e-4)


@pytest.mark.parametrize(("net", "model"), [("digits", "DIGITS"), ("lenet", "LENET")])
def test_both_start_with_the_same_shapes(net, model):
    twice = getattr(importlib.import_module("models"), model)
    program = fluid.Program(twice.train_program)
    made = importlib.import_module("by_hand").NETS[net].init()
    for arrays, specs in zip(made, (program.parameters, program.states), strict=True):
        wanted = twice.arrays_by_hand({n: np.zeros(s.shape) for n, s in specs.items()})
        assert {name: value.shape for name, value in arrays.items()} == {n: v.shape for n, v in wanted.items()}


def test_the_process_by_hand_does_not_load_fluid():
    code = "import sys, first_step, by_hand; print('fluid' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_process_memory_is_positive_and_below_its_peak():
    bigemb = importlib.import_module("bigemb")
    if not bigemb.STATUS.exists():
        pytest.skip("only Linux says")
    assert 0 < bigemb.memory("VmRSS") <= bigemb.memory("VmHWM")


def test_interleaved_peers_alternate_and_fill_the_table():
    timing = importlib.import_module("timing")
    turns = []
    numbers = timing.interleave(
        {"fluid": lambda: turns.append("f") or 2.0, "hand": lambda: turns.append("h") or 4.0}, 3
    )
    assert "".join(turns) == "fh" + "fh" + "hf" + "fh"
    text = timing.table([timing.Row("x", "steps/s", numbers, higher_is_better=True)])
    assert "| 2 | 4 | 0.500 |" in text


def row(better, *ratios):
    """Return a benchmark result: `ratios` are fluid's numbers, divided by the numbers of the hand-written code."""
    numbers = {"fluid": list(ratios), "hand": [1.0] * len(ratios)}
    return importlib.import_module("timing").Row("steps", "1/s", numbers, higher_is_better=better)


@pytest.mark.parametrize(
    ("better", "ratios", "wrong"),
    [
        (True, (0.95, 1.0, 1.05), False),
        (True, (0.75, 0.8, 0.82), False),  # 0.82 is within 10 % of the committed lower quartile 0.9
        (True, (0.70, 0.75, 0.8), True),
        (True, (2.0, 2.0, 2.0), False),
        (False, (2.0, 2.0, 2.0), True),
        (False, (0.5, 0.5, 0.5), False),
    ],
)
def test_ratio_worse_than_the_committed_ratio_is_found(better, ratios, wrong):
    check, timing = importlib.import_module("check"), importlib.import_module("timing")
    known = check.committed(timing.table([row(better, 0.9, 1.0, 1.1)]))
    assert known == {"steps": (0.9, 1.1)}
    assert (check.verdict(row(better, *ratios), known, 0.1) is not None) == wrong


def test_a_row_that_is_not_committed_is_named():
    check = importlib.import_module("check")
    assert "no such row" in check.verdict(row(True, 1.0), {}, 0.1)


def test_every_committed_row_can_be_checked():
    check = importlib.import_module("check")
    known = check.committed(check.FIGURES.read_text(encoding="utf-8"))
    assert "training, MLP 64-200-200-10" in known
    assert all(low <= high for low, high in known.values())


@pytest.fixture
def on_gpu_path(monkeypatch, on_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "gpu"))


@pytest.mark.soak
def test_peers_for_a_gpu_learn_the_same(on_gpu_path):
    """Check that fluid and the hand-written JAX have equal losses for the GPT and ResNet-50.

    The precision is float32, because the hand-written ResNet-50 always normalises in float32.
    """
    gpt, resnet50 = importlib.import_module("gpt"), importlib.import_module("resnet50")
    text = gpt.texts(gpt.SMALL)
    trainer, by_fluid = gpt.steps_by_fluid(gpt.SMALL, None, text)
    by_hand = gpt.steps_by_hand(gpt.SMALL, "float32", dict(trainer.params), text)
    np.testing.assert_allclose(by_fluid(3), by_hand(3), rtol=1e-4)
    size = resnet50.SMALL._replace(pixels=64, batch=4, stages=(1,))
    data = resnet50.data_of(size)
    trainer, by_fluid = resnet50.steps_by_fluid(size, None, data)
    by_hand = resnet50.steps_by_hand(size, "float32", trainer, data)
    np.testing.assert_allclose(by_fluid(2), by_hand(2), rtol=1e-3)


@pytest.mark.soak
def test_small_gpu_benchmark_runs_on_a_cpu():
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "gpu" / "run.py", "--small", "--rounds", "1"],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "GPT of 0 M, fluid / JAX" in done.stdout
    assert "in small" in done.stdout


def test_saved_rows_replace_rows_of_their_section_only():
    report = importlib.import_module("report")
    row = "| {} | us (lower is better) | 2 | 1 | {} | 1.0 to 3.0 |\n"
    first, second = (report.HEADER + row.format("b", 2) for _ in "AB")
    text = f"# F\n\n## A\n\nx:\n\n{first}\n## B\n\n{second}"
    found = report.merged(text, "A", report.read(row.format("b", 1.5) + row.format("c", 2)))
    assert found == text.replace(row.format("b", 2), row.format("b", 1.5) + row.format("c", 2), 1)
    assert report.read(row.format("b", 2))["b"].speed == (1 / 3, 0.5, 1.0)
    with pytest.raises(SystemExit, match="no section 'C'; there are 'A', 'B'"):
        report.merged(text, "C", {})


def test_benchmark_page_equals_the_recorded_figures():
    report = importlib.import_module("report")
    figures = report.read(report.FIGURES.read_text(encoding="utf-8"))
    shown = report.read(report.README.read_text(encoding="utf-8"))
    assert list(shown) == report.TEN
    assert all(figures[what] == figure for what, figure in shown.items())
