"""Exported models: answers, entry points, the content of a file, refused files and options, and errors."""

import inspect
import io
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import time
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, export
from fluid.export import archive, standalone

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(40, 1, 8, 8)).astype("float32")
WORDS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1], [2, 2]]


def digits():
    image = fluid.layers.data("image", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(image, 4, 3, 2, 2, act="relu")
    hidden = fluid.layers.dropout(fluid.layers.batch_norm(hidden), 0.3)
    return fluid.layers.fc(hidden, size=5, act="softmax", name="guess")


def train_digits():
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    prediction = digits()
    return {"loss": fluid.layers.mean(fluid.layers.cross_entropy(prediction, label)), "prediction": prediction}


def sentiment():
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    embedded = fluid.layers.embedding(words, size=[10, 4])
    states = fluid.layers.dynamic_gru(fluid.layers.fc(embedded, size=9), size=3)
    return {"score": fluid.layers.fc(fluid.layers.sequence_last_step(states), size=2), "states": states}


def params_of(function, seed=0):
    return {n: np.asarray(v) for n, v in fluid.Session(function, seed=seed).params().items()}


def close(first, second):
    """Return whether two results have equal dtypes and shapes, and almost equal numbers.

    Numbers may differ by 1e-6 times the largest number of their array. In half precision, the factor is the epsilon of
    the dtype instead of 1e-6.
    """
    pairs = zip(jax.tree.leaves(list(first)), jax.tree.leaves(list(second)), strict=True)
    return all(_close(np.asarray(a), np.asarray(b)) for a, b in pairs)


def _close(a, b):
    if (a.dtype, a.shape) != (b.dtype, b.shape) or not jnp.issubdtype(a.dtype, jnp.floating):
        return a.dtype == b.dtype and np.array_equal(a, b)
    step = max(1e-6, float(jnp.finfo(a.dtype).eps))
    a, b = a.astype("float64"), b.astype("float64")
    largest = np.abs(b[np.isfinite(b)]).max(initial=0)
    return np.allclose(a, b, rtol=0, atol=step * largest, equal_nan=True)


def same(first, second):
    """Return whether two results have equal dtypes and bits."""
    pairs = zip(jax.tree.leaves(list(first)), jax.tree.leaves(list(second)), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() and a.dtype == b.dtype for a, b in pairs)


@pytest.fixture
def saved(tmp_path):
    """Export a model; return its file, and an Inferencer of its program function."""
    params = params_of(digits)
    fluid.io.save_inference_model(tmp_path / "digits.fluid", digits, params)
    return tmp_path / "digits.fluid", fluid.Inferencer(digits, params=params)


@pytest.fixture(scope="module")
def trained():
    trainer = fluid.Trainer(train_digits, fluid.optimizer.Adam(0.01))
    labels = RNG.integers(0, 5, size=(40, 1))
    trainer.train(fluid.reader.arrays({"image": IMAGES, "label": labels}, batch_size=8), num_epochs=2)
    return trainer


# Tests of the answers of exported models.


def test_exported_model_answers_as_its_function(saved):
    path, with_function = saved
    inferencer = fluid.Inferencer(param_path=path)
    for rows in (1, 5, 16):
        for images in (IMAGES[:rows], IMAGES[:rows].tolist(), IMAGES[:rows].reshape(rows, 64)):
            assert close(inferencer.infer({"image": images}), with_function.infer({"image": images}))
    assert len(inferencer.session.compilations) == len(with_function.session.compilations) == 3
    on_device = inferencer.infer({"image": IMAGES[:3]}, return_numpy=False)
    assert isinstance(on_device[0], jax.Array) and same(on_device, inferencer.infer({"image": IMAGES[:3]}))


def test_sequences_are_padded_as_with_the_function(tmp_path):
    params = params_of(sentiment)
    fluid.io.save_inference_model(tmp_path / "m", sentiment, params)
    for buckets in (None, [8, 32]):
        inferencer = fluid.Inferencer(param_path=tmp_path / "m", buckets=buckets)
        with_function = fluid.Inferencer(sentiment, params=params, buckets=buckets)
        for words in (WORDS, WORDS[:1], fluid.create_lod_tensor(np.array([[1], [2], [3]]), [[2, 1]], None)):
            got, want = (i.infer({"words": words}) for i in (inferencer, with_function))
            assert close(got, want) and got["states"].shape == want["states"].shape
    lod = inferencer.infer({"words": WORDS}, return_numpy=False)["states"]
    assert lod.recursive_sequence_lengths() == [[3, 1, 6, 2]]


def test_trainer_exports_only_the_fetched_values(trained, tmp_path):
    trained.save_inference_model(tmp_path / "digits.fluid", fetch=["prediction"])
    found = export.load(tmp_path / "digits.fluid")
    assert [feed.name for feed in found.entries["predict"].feeds] == ["image"]
    want = fluid.Inferencer(digits, params=trained.params).infer({"image": IMAGES[:7]})
    got = fluid.Inferencer(param_path=found).infer({"image": IMAGES[:7]})
    assert close(got, want) and got.names == ("prediction",)
    trained.save_inference_model(tmp_path / "all.fluid", fetch=["loss", "prediction"])
    everything = fluid.Inferencer(param_path=tmp_path / "all.fluid")
    feed = {"image": IMAGES[:7], "label": np.zeros((7, 1), "int64")}
    assert close(everything.infer(feed), fluid.Inferencer(train_digits, params=trained.params).infer(feed))


def test_row_40_training_layers_act_as_in_tests(trained, tmp_path):
    """Check that an exported net equals `trainer.test`: it drops nothing, and its rows do not affect each other."""
    trained.save_inference_model(tmp_path / "digits.fluid", fetch=["prediction"])
    inferencer = fluid.Inferencer(param_path=tmp_path / "digits.fluid", bucket=False)
    tested = trained.test(fluid.reader.arrays({"image": IMAGES, "label": np.zeros((40, 1), "int64")}, batch_size=40))
    (whole,) = inferencer.infer({"image": IMAGES})
    np.testing.assert_allclose(whole, tested["prediction"], rtol=1e-5, atol=1e-6)
    for row in range(3):
        np.testing.assert_allclose(
            inferencer.infer({"image": IMAGES[row : row + 1]})[0], whole[row : row + 1], rtol=1e-5
        )
    assert export.load(tmp_path / "digits.fluid").entries["predict"].random is False


def test_random_layers_draw_as_with_the_function(tmp_path):
    def noisy():
        x = fluid.layers.data("x", shape=[3])
        return x + fluid.layers.uniform_random_batch_size_like(x, shape=[-1, 3])

    fluid.io.save_inference_model(tmp_path / "m", noisy, {})
    feed = {"x": np.zeros((5, 3))}
    assert export.load(tmp_path / "m").entries["predict"].random
    with_function = fluid.Inferencer(noisy, params={}, seed=7).infer(feed)
    assert close(fluid.Inferencer(param_path=tmp_path / "m", seed=7).infer(feed), with_function)
    assert np.unique(with_function[0]).size == 15


def test_program_that_mixes_rows_is_not_padded(tmp_path):
    def centered():
        x = fluid.layers.data("x", shape=[1])
        return x - jnp.mean(x, axis=0)

    fluid.io.save_inference_model(tmp_path / "m", centered, {})
    with pytest.warns(errors.FluidWarning, match="depend on the other rows"):
        found = fluid.Inferencer(param_path=tmp_path / "m").infer({"x": [[1], [2], [6]]})[0]
    assert found.tolist() == [[-2], [-1], [3]]


def test_feed_with_unread_values_determines_the_rows(tmp_path):
    def as_many_zeros():
        x = fluid.layers.data("x", shape=[2])
        s = fluid.layers.data("s", shape=[1], lod_level=1)
        unused = fluid.layers.data("unused", shape=[1])
        return fluid.layers.zeros_like(x), fluid.layers.zeros_like(s), fluid.layers.scale(unused, 2.0)

    fluid.io.save_inference_model(tmp_path / "m", as_many_zeros, {}, fetch=["zeros_like_0", "zeros_like_1"])
    inferencer = fluid.Inferencer(param_path=tmp_path / "m")
    assert list(inferencer.program.feeds) == ["s"]  # "s" gives the number of rows, so "x" is not needed
    zeros, sequences = inferencer.infer({"s": [[1.0, 2.0], [3.0], [4.0]]})
    assert zeros.shape == (3, 2) and sequences.lengths.tolist() == [2, 1, 1] and sequences.shape == (3, 4, 1)


def test_a_single_number_is_fed(tmp_path):
    def scaled():
        factor = fluid.layers.data("factor", shape=[], append_batch_size=False)
        return fluid.layers.data("x", shape=[2]) * factor

    fluid.io.save_inference_model(tmp_path / "m", scaled, {})
    (found,) = fluid.Inferencer(param_path=tmp_path / "m").infer({"factor": 2.0, "x": [[1, 2], [3, 4]]})
    assert found.tolist() == [[2, 4], [6, 8]]


def test_values_can_be_fed_and_fetched_by_name(saved, tmp_path):
    _, with_function = saved
    params = with_function.session.params()
    path = tmp_path / "upper"
    fluid.io.save_inference_model(path, digits, params, feed=["batch_norm_0.tmp_2"], fetch=["guess", "guess.w_0"])
    hidden = with_function.infer({"image": IMAGES[:6]}, fetch=["batch_norm_0.tmp_2"])[0]
    upper = fluid.Inferencer(param_path=path)
    got = upper.infer({"batch_norm_0.tmp_2": hidden})
    assert close(got, with_function.infer({"batch_norm_0.tmp_2": hidden}, fetch=["guess", "guess.w_0"]))
    assert set(export.load(path).arrays) == {"guess.w_0", "guess.b_0"}
    (guess,) = upper.infer({"batch_norm_0.tmp_2": hidden}, fetch=["guess"])
    # XLA compiles a separate program for a single fetched value, so the last bits may differ.
    np.testing.assert_allclose(guess, got[0], rtol=1e-6)


# Tests of models with several entry points.


def encoder():
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    embedded = fluid.layers.embedding(words, size=[10, 4], param_attr="table")
    return fluid.layers.sequence_pool(embedded, "sum")


def decode_step():
    state = fluid.layers.data("state", shape=[4])
    word = fluid.layers.embedding(fluid.layers.data("word", shape=[1], dtype="int64"), [10, 4], param_attr="table")
    return {"state": fluid.layers.tanh(state + word), "logits": fluid.layers.fc(state, size=10, name="out")}


@pytest.fixture
def translator(tmp_path):
    params = params_of(encoder) | params_of(decode_step)
    path = tmp_path / "translator.fluid"
    fluid.io.save_inference_model(path, {"encode": encoder, "decode_step": decode_step}, params)
    return path, params


def test_entry_points_share_parameters(translator):
    path, params = translator
    found = export.load(path)
    assert list(found.entries) == ["encode", "decode_step"] and set(found.arrays) == {"table", "out.w_0", "out.b_0"}
    encode = fluid.Inferencer(param_path=path, entry="encode")
    step = fluid.Inferencer(param_path=path, entry="decode_step")
    (state,) = encode.infer({"words": WORDS})
    assert close([state], fluid.Inferencer(encoder, params=params).infer({"words": WORDS}))
    feed = {"state": state, "word": [[1], [2], [3], [4]]}
    assert close(step.infer(feed), fluid.Inferencer(decode_step, params=params).infer(feed))


def test_entries_share_arrays_on_the_device(translator):
    found = export.load(translator[0])
    encode, step = (fluid.Inferencer(param_path=found, entry=entry) for entry in found.entries)
    tables = [inferencer.session.scope.arrays["table"].unsafe_buffer_pointer() for inferencer in (encode, step)]
    assert tables[0] == tables[1]
    with fluid.Session(*(found.program(entry) for entry in found.entries)) as session:
        (state,) = session.run("encode", {"words": WORDS})
        assert session.run("decode_step", {"state": state, "word": [[1]] * 4})["logits"].shape == (4, 10)


@pytest.mark.parametrize("entry", [None, "decode"])
def test_an_entry_point_that_is_not_there(translator, entry):
    with pytest.raises(errors.UnknownNameError, match="'encode', 'decode_step'.*entry='encode'"):
        fluid.Inferencer(param_path=translator[0], entry=entry)


def test_feeds_and_fetches_of_several_entry_points(tmp_path, translator):
    _, params = translator
    programs = {"encode": encoder, "decode_step": decode_step}
    fluid.io.save_inference_model(tmp_path / "m", programs, params, fetch={"decode_step": ["logits"]})
    entries = export.load(tmp_path / "m").entries
    assert [[o.name for o in entry.outputs] for entry in entries.values()] == [[None], ["logits"]]
    assert [feed.name for feed in entries["decode_step"].feeds] == ["state"]
    with pytest.raises(errors.ArgumentTypeError, match="dicts by entry point"):
        fluid.io.save_inference_model(tmp_path / "m", programs, params, fetch=["logits"])


# Tests of the content of a file.


def test_equal_programs_and_parameters_make_equal_bytes(saved, tmp_path):
    path, with_function = saved
    jax.clear_caches()
    params = dict(reversed(with_function.session.params().items()))
    fluid.io.save_inference_model(tmp_path / "again.fluid", lambda: digits(), params)
    assert (tmp_path / "again.fluid").read_bytes() == path.read_bytes()


@pytest.mark.sample(3)
def test_other_folders_and_hash_seeds_make_equal_bytes(saved, tmp_path):
    path, with_function = saved
    fluid.io.save_arrays(tmp_path / "digits.params", with_function.session.params())
    source = textwrap.dedent(
        f"""

        import fluid

        {textwrap.indent(inspect.getsource(digits), " " * 8).strip()}

        fluid.io.save_inference_model("again.fluid", digits, "digits.params")
        """
    )
    (tmp_path / "moved.py").write_text(source)
    root = str(pathlib.Path(fluid.__file__).parents[1])
    for seed in "12":
        others = os.environ | {"PYTHONPATH": root, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "moved.py"], cwd=tmp_path, env=others, check=True)
        assert (tmp_path / "again.fluid").read_bytes() == path.read_bytes()


def test_file_has_no_paths_of_its_machine(saved):
    _, entries = archive.read(saved[0])
    content = b"".join(content for name, content in entries.items() if name != "standalone.py")
    for secret in (str(pathlib.Path(fluid.__file__).parents[1]), "test_artifact", "site-packages", ".py"):
        assert secret.encode() not in content, secret


def test_saved_parameters_omit_the_folder_of_the_model(saved, tmp_path):
    """Check that saved parameters do not name the folder of their model, so that bytes are equal on all machines."""
    path, _ = saved
    fluid.Inferencer(param_path=path).session.save_params(tmp_path / "x.params")
    manifest = zipfile.ZipFile(tmp_path / "x.params").read("manifest.json").decode()
    assert path.name in manifest and str(path.parent) not in manifest


def test_parameters_are_no_part_of_the_program(saved):
    _, entries = archive.read(saved[0])
    kernel = np.load(io.BytesIO(entries["arrays/0.npy"]), allow_pickle=False)
    assert kernel.shape == (4, 1, 3, 3)
    functions = b"".join(content for name, content in entries.items() if name.startswith("functions/"))
    assert functions and kernel.tobytes()[:32] not in functions


def test_every_checksum_is_in_the_file(saved):
    manifest, entries = archive.read(saved[0])
    assert set(entries) >= {"manifest.json", "standalone.py", "functions/0.jax_export", "arrays/0.npy"}
    assert manifest["version"] == standalone.VERSION and manifest["platforms"] == ["cpu", "cuda", "tpu"]
    with zipfile.ZipFile(saved[0]) as file:
        names = [line.split("  ")[1] for line in file.read("SHA256SUMS").decode().splitlines()]
    assert sorted(names) == sorted(entries)


def test_a_directory_holds_the_file(tmp_path):
    fluid.io.save_inference_model(tmp_path, digits, params_of(digits))
    assert [p.name for p in tmp_path.iterdir()] == ["model.fluid"]
    assert fluid.Inferencer(param_path=tmp_path).infer({"image": IMAGES[:1]})[0].shape == (1, 5)


def test_a_failing_save_keeps_the_old_file(saved):
    path = saved[0]
    before = path.read_bytes()

    def printing():
        return fluid.layers.Print(fluid.layers.data("x", shape=[1]))

    with pytest.raises(errors.ArtifactError, match="cannot be exported.*layers.Print"):
        fluid.io.save_inference_model(path, printing, {})
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == [path.name]
    with pytest.raises(errors.ArtifactError, match="its folder must exist"):
        fluid.io.save_inference_model(path.parent / "no" / "folder", digits, params_of(digits))


@pytest.mark.sample(3)
def test_row_37_load_during_write_sees_a_whole_file(tmp_path):
    both = [params_of(digits, seed) for seed in (1, 2)]
    path = tmp_path / "digits.fluid"
    fluid.io.save_inference_model(path, digits, both[0])
    known = {array.tobytes() for array in (params["guess.w_0"] for params in both)}
    seen, stop = set(), threading.Event()

    def read():
        while not stop.is_set():
            seen.add(export.load(path).arrays["guess.w_0"].tobytes())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for turn in range(6):
            fluid.io.save_inference_model(path, digits, both[turn % 2], platforms=["cpu"])
    finally:
        stop.set()
        reader.join()
    assert seen and seen <= known


def test_row_37_threads_get_the_right_answers(saved):
    path, with_function = saved
    inferencer = fluid.Inferencer(param_path=path)
    wrong = []

    def ask(start):
        for rows in range(1, 12):
            images = IMAGES[start : start + rows]
            if not close(inferencer.infer({"image": images}), with_function.infer({"image": images})):
                wrong.append((start, rows))

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(0, 12, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# The following tests check that damaged or invalid exported files are refused.


@pytest.fixture
def no_deserializing(monkeypatch):
    """Make deserialization fail, to check that a damaged file is refused before its functions are deserialized."""

    def deserialize(_):
        raise AssertionError("deserialized what is damaged")

    monkeypatch.setattr(jax.export, "deserialize", deserialize)


def test_row_38_every_flipped_byte_is_refused_or_harmless(saved, no_deserializing, monkeypatch):
    content = saved[0].read_bytes()
    whole = standalone.read(saved[0])
    harmless = 0
    for position in range(0, len(content), 61):
        damaged = bytearray(content)
        damaged[position] ^= 0x04
        saved[0].write_bytes(damaged)
        try:
            manifest, entries = archive.read(saved[0])
        except errors.ArtifactError:
            continue
        assert (manifest, entries) == whole, position  # the changed byte is part of a time stamp or a flag
        harmless += 1
    assert harmless < len(content) / 61 / 10


def test_row_38_every_truncation_is_refused(saved, no_deserializing):
    content = saved[0].read_bytes()
    for length in [0, 1, 21, *range(22, len(content), len(content) // 40)]:
        saved[0].write_bytes(content[:length])
        with pytest.raises(errors.ArtifactError, match="no exported model, or is damaged"):
            export.load(saved[0])


def a_zip(**entries):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


class Exploding:
    """An object that runs code when it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("unpickled",)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", pickle.dumps(Exploding()), a_zip(a="b"), a_zip(SHA256SUMS=""), a_zip(SHA256SUMS="no sums at all\n"),
     a_zip(SHA256SUMS="", **{"manifest.json": "{}"}), b"PK\x05\x06" + b"\0" * 18],
)  # fmt: skip
def test_row_38_other_files_are_refused_within_a_second(tmp_path, content, no_deserializing):
    path = tmp_path / "x.fluid"
    path.write_bytes(content)
    start = time.monotonic()
    with pytest.raises(errors.ArtifactError, match="is no exported model, (or is damaged|but )"):
        fluid.Inferencer(param_path=path)
    assert time.monotonic() - start < 1


def rewritten(path, change):
    """Change the manifest and entries of an exported model, and update the checksums, as an attacker would."""
    manifest, entries = standalone.read(path)
    change(manifest, entries)
    entries["manifest.json"] = json.dumps(manifest).encode()
    sums = "".join(f"{archive.hashlib.sha256(c).hexdigest()}  {n}\n" for n, c in entries.items())
    path.write_bytes(a_zip(**entries, SHA256SUMS=sums))


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            lambda m, e: m.update(version=99),
            "version 99, newer than fluid-artifact version 1.*pip install -U fluid-jax",
        ),
        (lambda m, e: m.update(format="fluid-arrays"), "fluid-arrays"),
        (lambda m, e: m.pop("entries"), "makes no sense"),
        (lambda m, e: m.update(entries=[1]), "makes no sense"),
        (lambda m, e: m["entries"]["predict"].update(feeds=[{}]), "makes no sense"),
        (lambda m, e: m["arrays"]["guess.w_0"].update(file="../../secret.npy"), "makes no sense"),
        (lambda m, e: m["arrays"]["guess.w_0"].update(shape=[1 << 40]), "makes no sense"),
        (lambda m, e: m["arrays"]["guess.w_0"].update(dtype="object"), "makes no sense"),
        (lambda m, e: e.update({"arrays/0.npy": pickle.dumps(Exploding())}), "makes no sense"),
    ],
)
def test_changed_manifest_with_valid_checksums_is_refused(saved, change, match):
    rewritten(saved[0], change)
    with pytest.raises(errors.ArtifactError, match=match):
        fluid.Inferencer(param_path=saved[0])


def test_array_orders_of_earlier_versions_are_ignored(saved):
    """Check that `orders` in the manifest has no effect: earlier versions wrote it as a hint for the CPU."""
    feed = {"image": IMAGES}
    (want,) = fluid.Inferencer(param_path=saved[0]).infer(feed)
    orders = {"guess.w_0": {"split": [64, 10], "axes": [1, 0]}}
    rewritten(saved[0], lambda manifest, entries: manifest["entries"]["predict"].update(orders=orders))
    np.testing.assert_array_equal(fluid.Inferencer(param_path=saved[0]).infer(feed)[0], want)


def test_compressed_entries_are_refused_before_they_are_read(saved):
    _, entries = standalone.read(saved[0])
    with zipfile.ZipFile(saved[0], "w", zipfile.ZIP_DEFLATED) as archive_:
        for name, content in (entries | {"bomb": bytes(10**6)}).items():
            archive_.writestr(name, content)
    with pytest.raises(errors.ArtifactError, match="not stored"):
        export.load(saved[0])


def test_loading_runs_no_code_of_the_file(saved):
    """Check the audit events of Python for code execution, compilation, unpickling, imports and opened files."""
    fluid.Inferencer(param_path=saved[0])  # import modules before the recording, because an import is an event
    events = "exec compile import pickle.find_class os.system os.exec subprocess.Popen open".split()
    watching, seen = [True], []
    sys.addaudithook(lambda event, about: seen.append((event, about)) if watching and event in events else None)
    export.load(saved[0]).program()
    exec("1")  # the hook must record this call, which proves that the hook works
    watching.clear()
    # Compilations for array headers are left out: NumPy reads a header as a Python literal, which runs no code.
    rest = [(event, about) for event, about in seen if not (event == "compile" and b"'descr'" in about[0])]
    assert [event for event, _ in rest] == ["open", "compile", "exec"], rest
    assert str(rest[0][1][0]) == str(saved[0])


def test_row_39_other_devices(tmp_path):
    fluid.io.save_inference_model(tmp_path / "m", digits, params_of(digits), platforms=["tpu"])
    with pytest.raises(errors.ArtifactError, match=r"exported for tpu, and this device is a cpu.*platforms=\['cpu'"):
        fluid.Inferencer(param_path=tmp_path / "m")
    with pytest.raises(errors.ArgumentError, match="'cpu', 'cuda', 'rocm', 'tpu'"):
        fluid.io.save_inference_model(tmp_path / "m", digits, params_of(digits), platforms=["gpu"])


def test_row_39_functions_of_a_newer_compiler(saved):
    def newer(manifest, entries):
        manifest["made_with"] = {"jax": "99.0"}
        name = "functions/0.jax_export"
        entries[name] = entries[name].replace(b"multiply_v1", b"multiply_v9")

    rewritten(saved[0], newer)
    with pytest.raises(errors.ArtifactError, match="made with JAX 99.0.*pip install -U jax"):
        fluid.Inferencer(param_path=saved[0])


def test_row_39_missing_flatbuffers_error_names_the_package(saved, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("jax._src.export.serialization")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    monkeypatch.setattr(sys.modules["jax._src.export"], "serialization", None, raising=False)
    with pytest.raises(errors.ArtifactError, match="flatbuffers.*pip install"):
        fluid.Inferencer(param_path=saved[0])
    with pytest.raises(errors.ArtifactError, match="flatbuffers.*pip install"):
        fluid.io.save_inference_model(saved[0], digits, params_of(digits))


def test_another_setting_of_jax(saved):
    with jax.enable_x64(True), pytest.raises(errors.ArtifactError, match="jax_enable_x64"):
        fluid.Inferencer(param_path=saved[0])


# Tests of errors.


@pytest.mark.parametrize(
    "feed",
    [{}, {"img": IMAGES}, {"image": IMAGES[:0]}, {"image": IMAGES[:, :, :7]}, {"image": "digits.png"},
     {"image": [[1.0], [1.0, 2.0]]}, {"image": np.where(IMAGES > 2, IMAGES, None)}],
)  # fmt: skip
def test_row_36_bad_input_is_the_same_error(saved, feed):
    def complaint(inferencer):
        with pytest.raises(errors.FluidError) as caught:
            inferencer.infer(feed)
        # Only the beginnings of the error messages are compared. The program function can also name the lines of
        # declarations and all known names; an exported model cannot.
        return type(caught.value), re.split(r"declared at|Did you|Known|which nobody", str(caught.value))[0][
            -60:
        ].split()[:4]

    path, with_function = saved
    kind, _ = complaint(fluid.Inferencer(param_path=path))
    assert kind is complaint(with_function)[0]


def test_row_36_unusual_input_answers_as_the_function(saved):
    path, with_function = saved
    inferencer = fluid.Inferencer(param_path=path)
    broken = IMAGES[:3].copy()
    broken[1] = np.nan
    for images in (
        broken,
        IMAGES[:3].astype("float64"),
        np.asfortranarray(IMAGES[:3]),
        IMAGES[:6][::-2],
        jnp.asarray(IMAGES[:3]),
    ):
        assert close(inferencer.infer({"image": images}), with_function.infer({"image": images}))


def test_fetching_values_outside_the_file_is_refused(saved):
    inferencer = fluid.Inferencer(param_path=saved[0])
    feed = {"image": IMAGES[:1]}
    assert inferencer.infer(feed, fetch=["guess.tmp_2"])[0].shape == (1, 5)
    assert inferencer.infer(feed, fetch=["guess.w_0", "image"])[1].shape == (1, 1, 8, 8)
    for fetch in ("batch_norm_0.tmp_2", "*.tmp_1", "net.py:3", "image@GRAD"):
        with pytest.raises(errors.UnknownNameError, match="It was exported.*fetch="):
            inferencer.infer(feed, fetch=[fetch])
    with pytest.raises(errors.UnknownNameError, match="It was exported"):
        inferencer.infer({"batch_norm_0.tmp_2": np.zeros((1, 4, 3, 3))})
    with pytest.raises(errors.ArgumentError, match="exported for inference"):
        inferencer.session.run("predict", feed, mode="train")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda p: p.pop("guess.w_0"), "missing: guess.w_0"),
        (lambda p: p.update({"guess.w_0": np.ones((2, 2), "float32")}), r"found float32\[2, 2\]"),
        (lambda p: p.update({"guess.w_0": p["guess.w_0"].astype("float64")}), "found float64"),
    ],
)
def test_row_35_parameters_of_something_else(tmp_path, change, match):
    params = params_of(digits)
    change(params)
    with pytest.raises(errors.ParameterError, match=match):
        fluid.io.save_inference_model(tmp_path / "m", digits, params)
    fluid.io.save_arrays(tmp_path / "p", params)
    with pytest.raises(errors.ParameterError, match=match):
        fluid.io.save_inference_model(tmp_path / "m", digits, tmp_path / "p")
    assert not (tmp_path / "m").exists()


def test_files_of_the_other_kind(saved, tmp_path):
    fluid.io.save_arrays(tmp_path / "p", params_of(digits))
    with pytest.raises(errors.ArtifactError, match="no exported model"):
        fluid.Inferencer(param_path=tmp_path / "p")
    with pytest.raises(errors.ParameterFileError, match=r"an exported model.* runs it without infer_func"):
        fluid.Session(digits).load_params(saved[0])
    with pytest.raises(errors.ArtifactError, match="no exported model at"):
        fluid.Inferencer(param_path=tmp_path / "nothing")


@pytest.mark.parametrize("options", [{"precision": "bfloat16"}, {"rename": {"a": "b"}}])
def test_export_options_of_an_inferencer_are_refused(saved, options):
    with pytest.raises(errors.ArgumentTypeError, match="save_inference_model"):
        fluid.Inferencer(param_path=saved[0], **options)


def test_impossible_exports_raise_named_errors(tmp_path):
    params = params_of(digits)
    with pytest.raises(errors.ArgumentError, match="no gradients"):
        fluid.io.save_inference_model(tmp_path / "m", digits, params, fetch=["image@GRAD"])
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'guess"):
        fluid.io.save_inference_model(tmp_path / "m", digits, params, fetch=["gues"])
    with pytest.raises(errors.FeedError, match="depend on the feed 'image'.*add 'image'"):
        fluid.io.save_inference_model(tmp_path / "m", digits, params, feed=[])
    fluid.io.save_inference_model(tmp_path / "m", digits, params)
    with pytest.raises(errors.ArgumentError, match="exported already"):
        fluid.io.save_inference_model(tmp_path / "n", export.load(tmp_path / "m").program(), params)
