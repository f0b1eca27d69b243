"""Inference models saved by PaddlePaddle: loading, running, fetching, overriding and fine-tuning."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle_programs import FOLDER, Written, case, serialized

import fluid
from fluid import errors
from fluid.compat.paddle_files import program_desc

NETS = ["lenet", "sentiment"]
load = fluid.io.load_inference_model


def recorded(net):
    """Return the recorded feed of a net, and the output that PaddlePaddle computed for this feed."""
    facts = json.loads((FOLDER / net / "io.json").read_text())
    with np.load(FOLDER / net / "io.npz") as file:
        feed = {name: file[f"in_{name}"] for name in facts["feeds"]}
        if facts["lengths"]:
            feed = {name: fluid.create_lod_tensor(array, [facts["lengths"]]) for name, array in feed.items()}
        return feed, file["out"]


def combined(net, folder, model="__model__", params="weights"):
    """Combine the parameters of a PaddlePaddle model into one file; return the new folder."""
    parts = {p.name: p.read_bytes() for p in (FOLDER / net / "inference").iterdir()}
    (folder / model).write_bytes(parts.pop("__model__"))
    (folder / params).write_bytes(b"".join(parts[name] for name in sorted(parts)))
    return folder


@pytest.mark.parametrize("net", NETS)
def test_model_folder_gives_paddles_outputs(net):
    feed, want = recorded(net)
    (got,) = fluid.Inferencer(param_path=FOLDER / net / "inference").infer(feed)
    np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("given", [{}, {"params_filename": "weights"}, {"model_filename": "program"}])
def test_combined_files_give_paddles_outputs(net, given, tmp_path):
    model = load(combined(net, tmp_path, given.get("model_filename", "__model__")), **given)
    feed, want = recorded(net)
    np.testing.assert_allclose(fluid.Session(model.program).run(feed=feed)[0], want, atol=1e-5)


def test_load_returns_program_feeds_and_fetches():
    executor = fluid.Session()
    program, feed_target_names, fetch_targets = load(FOLDER / "lenet" / "inference", executor)
    assert feed_target_names == ["img"] and fetch_targets == ["save_infer_model/scale_0.tmp_0"]
    feed, want = recorded("lenet")
    (got,) = executor.run(program, feed={feed_target_names[0]: feed["img"]}, fetch=fetch_targets)
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_session_starts_from_the_saved_values():
    session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[6]), size=10))
    assert not session.scope["fc_0.b_0"].any()
    program, *_ = load(FOLDER / "lenet" / "inference", session)
    assert np.array_equal(session.scope["fc_0.b_0"], program.params["fc_0.b_0"])


def test_loaded_program_has_the_saved_names():
    model = load(FOLDER / "lenet" / "inference")
    program = fluid.Program(model.program)
    assert list(program.feeds) == ["img"] and str(program.outputs[0]) == "float32[batch, 10]"
    assert list(program.states) == ["batch_norm_0.w_1", "batch_norm_0.w_2"]
    assert sorted({**program.parameters, **program.states}) == sorted(model.program.params)
    assert list(program.values) == [
        "conv2d_0.tmp_0", "conv2d_0.tmp_1", "conv2d_0.tmp_2", "pool2d_0.tmp_0", "batch_norm_0.tmp_2",
        "conv2d_1.tmp_0", "conv2d_1.tmp_1", "conv2d_1.tmp_2", "pool2d_1.tmp_0",
        "fc_0.tmp_0", "fc_0.tmp_1", "fc_0.tmp_2", "save_infer_model/scale_0.tmp_0",
    ]  # fmt: skip
    assert "img -> save_infer_model/scale_0.tmp_0" in repr(model.program)


def test_named_values_are_fetched_overridden_and_differentiated():
    model = load(FOLDER / "lenet" / "inference")
    session = fluid.Session(model.program)
    feed, want = recorded("lenet")
    hidden, logits = session.run(feed=feed, fetch=["pool2d_1.tmp_0", "fc_0.tmp_1"])
    weight, bias = (model.program.params[f"fc_0.{n}_0"] for n in "wb")
    np.testing.assert_allclose(logits, np.asarray(hidden).reshape(len(hidden), -1) @ weight + bias, atol=1e-5)
    (got,) = session.run(feed={"pool2d_1.tmp_0": np.asarray(hidden)})
    np.testing.assert_allclose(got, want, atol=1e-5)
    changed = {"fc_0.w_0": np.zeros_like(weight), "fc_0.b_0": np.zeros_like(bias)}
    np.testing.assert_allclose(session.run(feed={**feed, **changed})[0], 0.1, atol=1e-6)
    session.add(lambda: fluid.layers.mean(model.program(fetch=["fc_0.tmp_0"])[0]))
    (gradient,) = session.run("program", feed=feed, fetch=["fc_0.w_0@GRAD"])
    columns = np.asarray(hidden).reshape(len(hidden), -1).mean(0)[:, None] / 10
    np.testing.assert_allclose(gradient, np.broadcast_to(columns, (6, 10)), atol=1e-5)


def tuned(net, program, steps=25):
    """Fine-tune a loaded program on the labels from `labels_of`; return the trainer and the loss of each step."""
    ((name, rows),) = recorded(net)[0].items()
    rows = rows.batch().rows() if isinstance(rows, fluid.LoDTensor) else rows
    minibatch = list(zip(rows, labels_of(net), strict=True))

    def train_program():
        (prediction,) = program()
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        return fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))

    losses = []

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            losses.append(float(event.metrics[0]))

    trainer = fluid.Trainer(train_program, fluid.optimizer.Momentum(0.1, 0.9))
    trainer.train(lambda: [minibatch], num_epochs=steps, event_handler=on_event, feed_order=[name, "label"])
    return trainer, losses


def labels_of(net):
    """Return, for each row, a label other than the label that the net predicts."""
    want = recorded(net)[1]
    return (want.argmax(1) + 1) % want.shape[1]


@pytest.mark.parametrize("net", NETS)
def test_fine_tuning_lowers_the_loss_of_saved_values(net, tmp_path):
    program = load(FOLDER / net / "inference").program
    trainer, losses = tuned(net, program)
    feed, want = recorded(net)
    if net == "sentiment":  # in training, lenet normalizes by the batch, so its outputs differ
        before = -np.log(want[np.arange(len(want)), labels_of(net)]).mean()
        assert losses[0] == pytest.approx(before, abs=1e-5)
    assert losses[-1] < losses[0] / 2
    assert sorted(trainer.params) == sorted(program.params)
    for name, array in program.params.items():
        assert not np.array_equal(trainer.params[name], array), f"{name} did not move"
    trainer.save_params(tmp_path / "tuned.params")
    (got,) = fluid.Inferencer(program, param_path=tmp_path / "tuned.params").infer(feed)
    assert not np.allclose(got, want, atol=1e-2)


def test_saved_features_feed_new_layers():
    program = load(FOLDER / "lenet" / "inference").program

    def train_program():
        (features,) = program(fetch=["pool2d_1.tmp_0"])
        return fluid.layers.fc(features, size=3, act="softmax")

    made = fluid.Program(train_program)
    assert "fc_0.w_0" not in made.parameters and made.parameters["fc_1.w_0"].shape == (6, 3)
    assert "fc_0.tmp_0" not in made.values and made.parameters["conv2d_0.w_0"].shape == (4, 1, 3, 3)
    assert str(fluid.Program(lambda: program(fetch="fc_0.w_0")).outputs[0]) == "float32[6, 10]"
    with pytest.raises(errors.UnknownNameError, match="no value 'pool2d_2.tmp_0'. Did you mean 'pool2d_"):
        fluid.Program(lambda: program(fetch=["pool2d_2.tmp_0"]))


def test_earlier_layers_with_saved_names_are_refused():
    program = load(FOLDER / "lenet" / "inference").program

    def first():
        x = fluid.layers.fc(fluid.layers.data("x", shape=[6]), size=10)
        return x + program()[0]

    with pytest.raises(errors.ProgramError, match="'fc_0.w_0' of a saved program was made already at .*first"):
        fluid.Program(first)


def test_two_copies_in_a_program_share_parameters():
    program = load(FOLDER / "lenet" / "inference").program

    def both():
        with fluid.name_scope("a"):
            (one,) = program()
        with fluid.name_scope("b"):
            (two,) = program()
        return one, two

    made = fluid.Program(both)
    assert sorted({**made.parameters, **made.states}) == sorted(program.params)
    assert {"a/fc_0.tmp_0", "b/fc_0.tmp_0"} <= set(made.values)
    with pytest.raises(errors.ProgramError, match="used twice"):
        fluid.Program(lambda: [*program(), *program()])


def test_a_saved_program_needs_a_program_function():
    program = load(FOLDER / "lenet" / "inference").program
    with pytest.raises(errors.OutsideProgramError, match="load_inference_model"):
        program()


def test_dropout_drops_in_training_only(tmp_path):
    """Check that dropout depends on the mode of a run, and not on the saved attribute `is_test`."""
    written = Written().feed("x", (-1, 8)).fetch("a", "b")
    for out in "ab":
        written.op("dropout", {"X": "x"}, {"Out": out, "Mask": f"{out}_mask"}, dropout_prob=0.5, is_test=True)
    session = fluid.Session(load(written.save(tmp_path)).program)
    values = {
        mode: [np.asarray(v) for v in session.run(feed={"x": np.ones((50, 8), "float32")}, mode=mode)]
        for mode in ("test", "train")
    }
    assert all((value == 0.5).all() for value in values["test"])
    first, second = values["train"]
    assert set(np.unique(first)) == {0, 1} and 0.3 < first.mean() < 0.7
    assert not np.array_equal(first, second), "each has a random key of its own"


def test_sparse_tables_stay_sparse(tmp_path):
    program = load(case("net/word2vec")[0].save(tmp_path)).program
    made = fluid.Program(program)
    assert made.lookups == ("shared_w",) and "shared_w" not in made.dense_uses


def test_feeds_and_outputs_follow_the_saved_columns(tmp_path):
    written = Written().feed("late", (-1, 2)).feed("early", (-1, 2))
    written.op("scale", {"X": "early"}, {"Out": "y"}, scale=2.0).op("relu", {"X": "late"}, {"Out": "z"}).fetch("z", "y")
    model = load(written.save(tmp_path))
    assert model.feed_target_names == ["late", "early"] and model.fetch_targets == ["z", "y"]
    assert list(fluid.Program(model.program).feeds) == ["late", "early"]


def test_large_integers_are_no_parameters_of_32_bits(tmp_path):
    written = Written().feed("x", (-1, 1), "int64").param("big", np.int64([1 << 40]))
    written.op("elementwise_add", {"X": "x", "Y": "big"}, {"Out": "y"}).fetch("y")
    with pytest.raises(errors.ParameterFileError, match="'big' do not fit into int32"):
        load(written.save(tmp_path))
    written.params["big"] = np.int64([7])
    program = load(written.save(tmp_path)).program
    assert not fluid.Program(program).parameters["big"].trainable
    assert fluid.Session(program).run(feed={"x": [[1]]})[0].tolist() == [[8]]


def relu(**options):
    return Written(**options).feed("x", (-1, 2)).op("relu", {"X": "x"}, {"Out": "y"}).fetch("y")


def test_all_unknown_ops_are_listed_at_once(tmp_path):
    written = relu().op("hash", {"X": "y"}, {"Out": "h"}).op("hash", {"X": "h"}, {"Out": "i"})
    written.op("temporal", {"X": "i"}, {"Out": "t"}).op("not_needed", {"X": "y"}, {"Out": "n"})
    written.fetches[:] = ["t"]
    with pytest.raises(errors.ProgramError) as caught:
        load(written.save(tmp_path))
    text = str(caught.value)
    assert "2 kinds of ops" in text and "not_needed" not in text
    assert "hash: 2 of them, the first makes 'h'" in text and "temporal: 1 of them, the first makes 't'" in text
    assert "load_fluid_params" in text


def test_ops_with_blocks_are_refused_by_name(tmp_path):
    written = relu()
    written.ops.append(("while", {"X": ["y"]}, {"Out": ["z"]}, {"sub_block": ("BLOCK", 1)}))
    written.variables["z"] = ("float32", (-1, 2), 0, False)
    written.fetches[:] = ["z"]
    with pytest.raises(errors.ProgramError, match="while run blocks that assign to variables, write these parts anew"):
        load(written.save(tmp_path))


def broken(change):
    written = relu().param("w", np.float32([1, 2]))
    written.op("elementwise_add", {"X": "y", "Y": "w"}, {"Out": "z"}).fetches[:] = ["z"]
    change(written)
    return written


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.ops.clear(), "no op computes what is fetched: z"),
        (lambda w: w.ops.pop(0), "'elementwise_add' reads the variable 'y', which is neither fed nor saved"),
        (lambda w: w.ops.reverse(), "reads the variable 'y'"),
        (lambda w: w.fetches.clear(), "nothing is fetched"),
        (lambda w: w.variables.pop("x"), "variable 'x' is fed or fetched, and is no tensor"),
        (lambda w: setattr(w, "version", 2_001_003), "version 2.1.3 wrote it; 0.14 to 1.8 are read"),
        (lambda w: setattr(w, "version", -1), "0.14 to 1.8 are read"),
        (
            lambda w: w.params.update(w=np.float32([1, 2, 3])),
            r"'w' holds float32\[3\], its program declares float32\[2\]",
        ),
        (lambda w: w.params.update(w=np.int32([1, 2])), r"'w' holds int32\[2\], its program declares float32\[2\]"),
        (lambda w: w.params.clear(), "lacks 1 of the 1 parameters of its program: w"),
        (lambda w: w.variables.update({"../w": w.variables.pop("w")}), "called '../w', which is no file in there"),
        (lambda w: w.ops.append(("", {}, {"Out": ["q"]}, {})), "an op has no type"),
        (lambda w: w.variables.update(x=("float32", (-1, 2), 3, False)), "LoD level 3"),
        (lambda w: w.ops.insert(0, ("feed", {}, {"Out": []}, {})), "'feed' does not name one variable and its column"),
    ],
)
def test_inconsistent_model_files_are_refused(change, message, tmp_path):
    with pytest.raises(errors.ParameterFileError, match=message):
        load(broken(change).save(tmp_path))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (("relu", {"X": "x", "Y": "x"}, {"Out": "z"}, {}), "is given Y, which no layer of fluid takes"),
        (("relu", {"X": "x"}, {"Out": "z"}, {"strange": 2}), "is given strange=2, which no layer of fluid takes"),
        (("relu", {}, {"Out": "z"}, {}), "has 0 variables in its slot X, expected one"),
        (("relu", {"X": "x"}, {"Out": ["z", "q"]}, {}), "1 values for the 2 variables of its slot Out"),
        (("leaky_relu", {"X": "x"}, {"Out": "z"}, {"alpha": "x"}), "has alpha='x', expected float"),
        (("clip", {"X": "x"}, {"Out": "z"}, {"min": 0.0}), "lacks its attribute 'max'"),
        (("cast", {"X": "x"}, {"Out": "z"}, {"out_dtype": 99}), "has out_dtype=99, which is no data type"),
        (("scale", {"X": "x"}, {"Out": "w"}, {"scale": 2.0}), "'w' is a parameter, and only layers of normal"),
        (("prelu", {"X": "x", "Alpha": "x"}, {"Out": "z"}, {}), "takes 'x' as its Alpha, which is no parameter"),
        (("lookup_table", {"Ids": "x", "W": "w"}, {"Out": "z"}, {}), "ids are integers"),
        (("fc", {"Input": "x", "W": "wide", "Bias": "w"}, {"Out": "z"}, {}), r"'w' was saved as \[2\], expected \[4\]"),
        (("range", {"Start": "x", "End": "x", "Step": "x"}, {"Out": "z"}, {}), "only behind an op 'fill_constant'"),
        (("reduce_sum", {"X": "x"}, {"Out": "z"}, {"dim": 7}), "dim=7"),
    ],
)
def test_an_op_that_cannot_be_run_is_named(op, message, tmp_path):
    written = Written().feed("x", (-1, 2)).param("w", np.float32([1, 2])).param("wide", np.ones((2, 4), "float32"))
    *slots, attributes = op
    written.op(*slots, **attributes).op("relu", {"X": "w"}, {"Out": "kept"})
    written.fetch(next(iter(written.ops[0][2].values()))[0], "kept")
    program = load(written.save(tmp_path)).program
    with pytest.raises(errors.FluidError, match=message) as caught:
        fluid.Program(program)
    assert f"in the op '{op[0]}' that makes" in " ".join(caught.value.__notes__)


def test_results_that_fluid_does_not_have_are_named(tmp_path):
    written = Written().feed("x", (-1, 2)).op("dropout", {"X": "x"}, {"Out": "y", "Mask": "mask"})
    program = load(written.op("relu", {"X": "mask"}, {"Out": "z"}).fetch("z").save(tmp_path)).program
    with pytest.raises(errors.ProgramError, match="'mask' is not computed here"):
        fluid.Program(program)


@pytest.mark.parametrize("path", ["nowhere", "lenet/io.json", "lenet/params"])
def test_no_model_there(path):
    with pytest.raises(errors.ParameterFileError, match="no folder|is a file|no program at"):
        load(FOLDER / path)


def test_a_program_that_cannot_be_read(tmp_path):
    for content in (b"", b"hello", b"\x80\x02}q\x00.", b"PK\3\4" + bytes(50)):
        (tmp_path / "__model__").write_bytes(content)
        with pytest.raises(errors.ParameterFileError, match="is no program that save_inference_model"):
            load(tmp_path)


def test_protobuf_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    program_desc.message.cache_clear()
    try:
        with pytest.raises(errors.ParameterFileError, match=r"pip install 'fluid-jax\[original\]'"):
            load(FOLDER / "lenet" / "inference")
    finally:
        program_desc.message.cache_clear()


def damaged(content, folder):
    """Load a copy of the saved model "lenet" with the bytes `content` as program file; return "read" or "refused"."""
    folder.mkdir(exist_ok=True)
    for path in (FOLDER / "lenet" / "inference").iterdir():
        if not (folder / path.name).exists():
            (folder / path.name).write_bytes(path.read_bytes())
    (folder / "__model__").write_bytes(content)
    try:
        load(folder)
    except errors.FluidError:
        return "refused"
    return "read"


def test_a_program_that_ends_too_early_is_refused(tmp_path):
    content = (FOLDER / "lenet" / "inference" / "__model__").read_bytes()
    block = content.rfind(b"fetch") // 2
    for length in range(0, block, 97):
        assert damaged(content[:length], tmp_path) == "refused"


@settings(max_examples=150)
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_program_is_refused_or_loads(tmp_path_factory, changes):
    """Change bytes of a program file, which has no checksum: loading succeeds, or raises an error of fluid."""
    content = bytearray((FOLDER / "lenet" / "inference" / "__model__").read_bytes())
    for place, byte in changes:
        content[place % len(content)] = byte
    assert damaged(bytes(content), tmp_path_factory.getbasetemp() / "damaged") in ("refused", "read")


def test_a_parameter_that_was_cut_off_is_named(tmp_path):
    written = broken(lambda w: None)
    folder = written.save(tmp_path)
    (folder / "w").write_bytes(serialized(written.params["w"])[:-1])
    with pytest.raises(errors.ParameterFileError, match=r"variable 'w', before byte .* of 8 bytes, and 7 are left"):
        load(folder)
