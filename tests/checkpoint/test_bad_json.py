"""Files with valid checksums and meaningless JSON: fluid reads each file, or raises a FluidError."""

import copy
import hashlib
import json
import os
import pathlib
import shutil
import zipfile

import numpy as np
import pytest
from resumed_programs import X, arrays, trainer

import fluid
from fluid import errors
from fluid.__main__ import main
from fluid.checkpoint import integrity, newest_checkpoint, zip_entry
from fluid.export import standalone

# The tests replace a member of a JSON file by a wrong value. `make soak` tests each member with each of `VALUES`; other
# runs test every 23rd replacement.
STRIDE = int(os.environ.get("FLUID_STRIDE", "23"))
DEEP = "@deep"
VALUES = [None, True, -1, 1.5, 10**30, "", "\x1b[2J", [], {}, [None], [-1], {"a": []}, DEEP]


def places(value, place=()):
    """Yield the path of each member of a JSON value, as a tuple of keys and indices."""
    yield place
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from places(member, (*place, key))


def mutated(text):
    """Yield pairs (description, JSON text): in each text, one member is replaced or removed."""
    whole = json.loads(text)
    count = 0
    for place in places(whole):
        for value in [*VALUES, ...]:
            count += 1
            if count % STRIDE or (value is ... and not place):
                continue
            outer = [copy.deepcopy(whole)]
            inner, key = outer, 0
            for part in place:
                inner, key = inner[key], part
            if value is ...:
                del inner[key]
            else:
                inner[key] = value
            made = json.dumps(outer[0]).replace(json.dumps(DEEP), "[" * 100_000 + "]" * 100_000)
            yield f"{value!r} at {place}", made


class Found:
    """A collector of exceptions that are not a FluidError."""

    def __init__(self):
        self.raw = []

    def reading(self, what, read, *given):
        try:
            read(*given)
        except errors.FluidError as error:
            assert str(error)
        except Exception as error:
            self.raw.append(
                f"{what[:60]}, {getattr(read, '__name__', read)}: {type(error).__name__}: {str(error)[:200]}"
            )

    def check(self):
        assert not self.raw, f"{len(self.raw)} raw errors:\n" + "\n".join(self.raw[:40])


def inspected(path, capsys):
    assert main(["inspect", str(path)]) in (0, 1)
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err


def rewritten(source, target, manifest):
    """Copy a zip archive to `target`, with another `manifest.json` and with matching checksums."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        entries = {name: old.read(name) for name in old.namelist()}
        entries["manifest.json"] = manifest.encode()
        if standalone.SUMS in entries:
            del entries[standalone.SUMS]
            sums = (f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in entries.items())
            entries[standalone.SUMS] = "".join(sums).encode()
        for name, content in entries.items():
            new.writestr(zip_entry(name), content)


def manifest_of(path):
    with zipfile.ZipFile(path) as archive:
        return archive.read("manifest.json")


def test_row_38_bad_parameter_manifests_raise_fluid_errors(tmp_path, capsys):
    mine, found = trainer(), Found()
    mine.save_params(tmp_path / "good.params")
    mine.session.save(tmp_path / "good.session")
    for kind, load in (("params", mine.load_params), ("session", mine.session.load)):
        for what, manifest in mutated(manifest_of(tmp_path / f"good.{kind}")):
            rewritten(tmp_path / f"good.{kind}", tmp_path / f"bad.{kind}", manifest)
            found.reading(what, load, tmp_path / f"bad.{kind}")
            found.reading(what, inspected, tmp_path / f"bad.{kind}", capsys)
    found.check()


def test_row_38_bad_model_manifests_raise_fluid_errors(tmp_path, capsys):
    def program():
        words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
        pooled = fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[5, 3]), "sum")
        return fluid.layers.fc([pooled, fluid.layers.data("x", shape=[4])], size=2, act="softmax")

    params = fluid.Session(program).params()
    fluid.io.save_inference_model(tmp_path / "good.fluid", program, params)

    found = Found()

    def infer():
        fluid.Inferencer(param_path=tmp_path / "bad.fluid").infer({"x": X[:2], "words": [[1, 2], [3]]})

    for what, manifest in mutated(manifest_of(tmp_path / "good.fluid")):
        rewritten(tmp_path / "good.fluid", tmp_path / "bad.fluid", manifest)
        found.reading(what, infer)
        found.reading(what, inspected, tmp_path / "bad.fluid", capsys)
    found.check()


@pytest.fixture
def kept(tmp_path):
    """Return a Trainer, and its checkpoint folder, whose last checkpoint is in the middle of an epoch."""
    mine = trainer(tmp_path / "kept", config={"step_interval": 4, "keep_best": ("loss", "min")})
    mine.train(arrays())
    shutil.rmtree(tmp_path / "kept" / "6")
    return mine, tmp_path / "kept"


def test_row_21_bad_checkpoint_json_raises_fluid_errors(kept, capsys):
    mine, folder = kept
    meta = folder / "4" / "meta.json"
    whole = shutil.copytree(folder / "4", folder.parent / "whole")
    found = Found()
    for what, text in mutated(meta.read_text()):
        meta.write_text(text)
        integrity.seal(folder / "4")
        for step in (None, "best", 4):
            found.reading(what, mine.restore, step)
        found.reading(what, newest_checkpoint, folder)
        found.reading(what, inspected, folder, capsys)
        for name in ("4", "4.damaged"):
            shutil.rmtree(folder / name, ignore_errors=True)
        shutil.copytree(whole, folder / "4")
    found.check()


def test_row_21_misnamed_step_is_damaged(kept, capsys):
    mine, folder = kept
    (folder / "4").rename(folder / "400")
    with pytest.raises(errors.CheckpointError, match="400: meta.json is that of step 4"):
        trainer(folder)
    assert main(["inspect", str(folder)]) == 1 and "meta.json is that of step 4" in capsys.readouterr().out


def test_control_characters_of_a_file_are_escaped(tmp_path, capsys):
    name = "\x1b[2J\x1b]0;title\x07\n\u202e"
    fluid.io.save_arrays(tmp_path / "odd.params", {name: np.ones(2)}, kind=name)
    assert main(["inspect", str(tmp_path / "odd.params")]) == 0
    said = capsys.readouterr().out
    assert said.count(r"\x1b[2J\x1b]0;title\x07\n\u202e") == 2 and said.replace("\n", "").isprintable()
    (tmp_path / "odd.params").write_bytes(b"nothing")
    assert main(["inspect", str(tmp_path / "odd.params")]) == 1
    folder = pathlib.Path(tmp_path / "\x1b[2J")
    assert main(["inspect", str(folder)]) == 1
    assert "\x1b" not in capsys.readouterr().err
