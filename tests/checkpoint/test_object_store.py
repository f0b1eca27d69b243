"""Checkpoints in object stores: incomplete and damaged ones are found, and only the later of two trainers writes."""

import sys
import tempfile
import types

import fsspec
import numpy as np
import pytest
from resumed_programs import arrays, assert_equal, seen_by, state, trainer
from s3_server import KEYS, served

import fluid
from fluid import errors
from fluid.__main__ import main
from fluid.checkpoint import integrity
from fluid.checkpoint.folder import Folder
from fluid.checkpoint.object_store import RemoteFolder
from fluid.trainer.checkpoint.config import check_shared

ADDRESS = "memory://bucket/run"
STORE = fsspec.filesystem("memory")


@pytest.fixture(autouse=True)
def empty_store():
    yield
    STORE.store.clear()
    STORE.pseudo_dirs[:] = [""]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return the files of the checkpoints of steps 2 and 4: bytes by relative path."""
    folder = Folder(tmp_path_factory.mktemp("written"))
    for step in (2, 4):
        folder.write(step, {"w": np.full(3, step, "float32")}, {"note": step, "score": None})
    return {
        str(path.relative_to(folder.path)): path.read_bytes()
        for step in ("2", "4")
        for path in (folder.path / step).rglob("*")
        if path.is_file()
    }


@pytest.fixture
def folder(written):
    """Yield a writable checkpoint folder in an object store, with the checkpoint files of the fixture `written`."""
    for name, data in written.items():
        STORE.pipe_file(f"/bucket/run/{name}", data)
    found = RemoteFolder(ADDRESS)
    with found.locked():
        yield found


def names(below=""):
    return sorted(name.removeprefix("/bucket/run/") for name in STORE.store if name.startswith(f"/bucket/run/{below}"))


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


def w(step):
    return {"w": np.full(3, step, "float32")}


def test_remote_folder_behaves_as_a_local_folder(folder):
    assert (folder.steps(), folder.flaw(2), folder.flaw(4)) == ([2, 4], None, None)
    assert folder.meta(2)["note"] == 2
    np.testing.assert_array_equal(folder.arrays(4)["w"], [4, 4, 4])
    folder.write(6, w(6), {})
    assert folder.steps() == [2, 4, 6] and folder.flaw(6) is None
    folder.delete(2)
    assert not names("2/") and folder.steps() == [4, 6]


@pytest.mark.parametrize("key", ["4/../../outside", "4//{}/outside", "4/./outside"])
def test_nothing_is_written_outside_of_the_temporary_folder(folder, key, tmp_path, monkeypatch):
    like = next(iter(STORE.store.values()))
    STORE.store[f"/bucket/run/{key.format(tmp_path)}"] = type(like)(STORE, "/x", b"bad")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    reading = RemoteFolder(ADDRESS, read_only=True)
    assert reading.flaw(4) is None
    assert not list(tmp_path.rglob("outside"))


class Killed(BaseException):
    """An exception that simulates the sudden end of a process."""


def test_row_64_killed_upload_leaves_no_checkpoint(folder, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(type(STORE), "put_file", failing(Killed()))
        patched.setattr(type(STORE), "put", lambda self, here, there: self.pipe_file(there[0], b"half"))
        patched.setattr(type(STORE), "rm", failing(OSError("gone")))
        with pytest.raises(Killed):
            folder.write(6, w(6), {})
    assert names("6/") and folder.steps() == [2, 4] and folder.newest_whole() == (4, {})
    again = RemoteFolder(ADDRESS)
    with again.locked():
        again.sweep()
        assert not names("6/")
        again.write(6, w(7), {})
        assert again.flaw(6) is None and again.arrays(6)["w"][0] == 7


def test_row_64_killed_deletion_leaves_no_checkpoint(folder, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(type(STORE), "rm", failing(Killed()))
        with pytest.raises(Killed):
            folder.delete(4)
    assert names("4/") and folder.steps() == [2]
    folder.sweep()
    assert not names("4/")


def test_row_64_damage_of_any_file_is_found(folder, written):
    for name, data in written.items():
        if not name.startswith("4/"):
            continue
        file = name.removeprefix("4/")
        for damaged in (data[:-1] + bytes([data[-1] ^ 1]), b""):
            STORE.pipe_file(f"/bucket/run/{name}", damaged)
            assert folder.flaw(4) == f"{file} is not what was written"
        STORE.rm_file(f"/bucket/run/{name}")
        if file == integrity.NAME:
            assert folder.steps() == [2]
        else:
            assert folder.flaw(4) == f"{file} is missing"
        STORE.pipe_file(f"/bucket/run/{name}", data)
    STORE.pipe_file("/bucket/run/4/more", b"")
    assert folder.newest_whole() == (2, {4: "more does not belong here"})
    assert folder.set_aside(4, "damaged") == "4.damaged"
    assert folder.aside() == ["4.damaged"] and folder.steps() == [2] and not names("4/")


def test_a_store_that_fails_is_named(folder, monkeypatch):
    for method, call in (("put", lambda: folder.write(6, w(6), {})), ("get", lambda: folder.flaw(4))):
        with monkeypatch.context() as patched:
            patched.setattr(type(STORE), method, failing(TimeoutError("no answer")))
            with pytest.raises(errors.CheckpointError, match=r"'memory://bucket/run' cannot .*TimeoutError: no answer"):
                call()
    assert folder.steps() == [2, 4] and not names("6/") and folder.flaw(4) is None


def test_addresses_and_uses_that_cannot_be_are_refused(monkeypatch):
    with pytest.raises(errors.CheckpointError, match=r"'s4://bucket' is no address that fsspec knows"):
        RemoteFolder("s4://bucket")
    with pytest.raises(errors.CheckpointError, match=r"'file:///tmp/run' is a folder .*its path: '/tmp/run'"):
        RemoteFolder("file:///tmp/run")
    with pytest.raises(errors.CheckpointError, match=r"2 processes cannot keep checkpoints in 'memory://bucket/run'"):
        check_shared(RemoteFolder(ADDRESS), types.SimpleNamespace(size=2))
    mine = trainer(ADDRESS)
    with pytest.raises(errors.ArgumentError, match=r"restore_best=.*not in 'memory://bucket/run'.*keep_best="):
        mine.train(arrays(), test_reader=arrays(), restore_best=True)
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(errors.CheckpointError, match=r"not installed .*pip install 'fluid-jax\[files\]'"):
        RemoteFolder(ADDRESS)


class PowerCut(Exception):
    """An exception that ends a training before its last checkpoint."""


def interrupted(address, count, **config):
    with pytest.raises(PowerCut):
        trainer(address, config={"step_interval": 2, **config}).train(
            arrays(), num_epochs=2, event_handler=seen_by([], count, failing(PowerCut()))
        )


@pytest.fixture(scope="module")
def whole():
    """Return the state after an uninterrupted training of two epochs."""
    alone = trainer()
    alone.train(arrays(), num_epochs=2)
    return state(alone)


def test_row_64_training_survives_damage_and_an_unavailable_store(whole, caplog, monkeypatch, capsys):
    interrupted(ADDRESS, 5)
    assert RemoteFolder(ADDRESS, read_only=True).steps() == [2, 4]
    STORE.pipe_file("/bucket/run/4/meta.json", b"{}")
    config = {"step_interval": 2, "max_num_checkpoints": 2, "keep_best": ("loss", "min")}
    again = trainer(ADDRESS, config=config)
    assert int(again.session.scope.step) == 2
    put = type(STORE).put

    def away_at_first(self, here, there, **options):
        if "/6/" in there[0]:
            raise ConnectionError("away")
        put(self, here, there, **options)

    monkeypatch.setattr(type(STORE), "put", away_at_first)
    again.train(arrays(), num_epochs=2)
    assert "checkpoint 6 failed: CheckpointError: the checkpoints in 'memory://bucket/run' cannot be" in caplog.text
    assert_equal(state(again), whole)
    steps = RemoteFolder(ADDRESS, read_only=True).steps()
    assert steps[-1] == 12 and len(steps) <= 3 and 6 not in steps
    assert_equal(state(trainer(ADDRESS, config=config)), whole)
    guess = fluid.Inferencer(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1), checkpoint=ADDRESS)
    np.testing.assert_array_equal(guess.session.params()["fc_0.w_0"], whole["fc_0.w_0"])
    assert main(["inspect", ADDRESS]) == 0
    assert "4.damaged" in capsys.readouterr().out


def test_row_64_last_of_two_trainers_writes(caplog):
    first = trainer(ADDRESS, config={"step_interval": 2})

    def second_comes():
        trainer(ADDRESS)

    with pytest.raises(errors.CheckpointError, match="another trainer .* has begun to write to 'memory://bucket/run'"):
        first.train(arrays(), num_epochs=2, event_handler=seen_by([], 1, second_comes))
    assert "checkpoint 2 failed: CheckpointError: another trainer" in caplog.text
    assert RemoteFolder(ADDRESS, read_only=True).steps() == []


@pytest.mark.full
def test_training_is_restored_from_an_s3_server(monkeypatch):
    import s3fs

    with served() as address:
        for name, value in (("ENDPOINT_URL", address), ("ACCESS_KEY_ID", KEYS["key"]), ("REGION", "us-east-1")):
            monkeypatch.setenv(f"AWS_{name}", value)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret"])
        s3fs.S3FileSystem.clear_instance_cache()
        at_the_end = {"step_interval": None, "epoch_interval": None}
        mine = trainer("s3://data/run", config=at_the_end)
        mine.train(arrays(), num_epochs=1)
        assert_equal(state(trainer("s3://data/run", config=at_the_end)), state(mine))
        store = s3fs.S3FileSystem()
        store.pipe({"data/run/6/meta.json": b"{}", "data/run/7/meta.json": b"{}"})
        folder = RemoteFolder("s3://data/run")
        assert folder.newest_whole() == (None, {6: "meta.json is not what was written"})
        with folder.locked():
            folder.sweep()
            assert folder.set_aside(6, "damaged") == "6.damaged"
        store.invalidate_cache()
        assert store.ls("data/run") == ["data/run/6.damaged"]
        with pytest.raises(errors.CheckpointError, match="'s3://nothing/run' cannot be read or written"):
            RemoteFolder("s3://nothing/run")
        s3fs.S3FileSystem.clear_instance_cache()
