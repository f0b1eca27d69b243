"""Files in an object store: an S3 server in this process, read by the usual client."""

import json

import numpy as np
import pytest
import written_files
from s3_server import KEYS, served
from written_files import id_of

import fluid
from fluid import errors

pytestmark = pytest.mark.full
COUNTS = [5, 9, 1, 17]


@pytest.fixture(scope="module")
def options():
    """Start an S3 server with an empty bucket, and yield the storage options that connect to it."""
    with served() as address:
        yield {**KEYS, "endpoint_url": address}


@pytest.fixture(scope="module")
def store(options):
    import s3fs

    return s3fs.S3FileSystem(**options)


def uploaded(store, folder, format, compression=""):
    """Upload generated files of a format, and return their pattern."""
    written_files.write(folder, format, COUNTS)
    for path in sorted(folder.iterdir()):
        store.put(str(path), f"data/{format}/{path.name}")
    return f"s3://data/{format}/part-*"


@pytest.mark.parametrize("format", written_files.FORMATS)
def test_rows_equal_rows_of_local_files(format, store, options, tmp_path):
    address = uploaded(store, tmp_path, format)
    shuffle = {"shuffle": True, "buf_size": 8}
    here = [id_of(row) for row in fluid.reader.files(tmp_path / "part-*", **shuffle)]
    there = fluid.reader.files(address, storage_options=options, **shuffle)
    rows = there()
    found = [id_of(next(rows)) for _ in range(13)]
    state = json.loads(json.dumps(there.state()))
    rows.close()
    resumed = fluid.reader.files(address, storage_options=options, parallel=1, **shuffle)
    resumed.restore(state)
    assert found + [id_of(row) for row in resumed] == here
    assert sorted(here) == list(range(sum(COUNTS)))


def test_a_changed_file_is_detected_by_its_etag(store, options, tmp_path):
    store.pipe("data/changing/a.csv", b"id\n1\n")
    rows = fluid.reader.files("s3://data/changing/*.csv", storage_options=options)
    next(rows())
    store.pipe("data/changing/a.csv", b"id\n1\n")  # the same contents are written again, so the ETag is the same
    fluid.reader.files("s3://data/changing/*.csv", storage_options=options).restore(rows.state())
    store.pipe("data/changing/a.csv", b"id\n2\n")  # the file gets other contents of the same size
    with pytest.raises(errors.ArgumentError, match=r"'a\.csv' is new, gone, or has another size, version"):
        fluid.reader.files("s3://data/changing/*.csv", storage_options=options).restore(rows.state())


def test_absent_buckets_and_files_are_named(options):
    with pytest.raises(errors.ReaderError, match="s3://nothing/.*storage_options="):
        fluid.reader.files("s3://nothing/a-*.csv", storage_options=options)
    with pytest.raises(errors.ArgumentError, match="found no file that matches 's3://data/a-"):
        fluid.reader.files("s3://data/a-*.csv", storage_options=options)


def test_a_program_is_trained_from_the_store(store, options):
    rng = np.random.default_rng(0)
    for number in range(3):
        x = rng.normal(size=(32, 4)).astype("float32")
        with store.open(f"data/train/{number}.npz", "wb") as file:
            np.savez(file, x=x, y=x.sum(axis=1, keepdims=True))

    def program():
        guess = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1)
        return fluid.layers.mean(fluid.layers.square_error_cost(guess, fluid.layers.data("y", shape=[1])))

    rows = fluid.reader.files("s3://data/train/*.npz", shuffle=True, storage_options=options)
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    history = trainer.train(fluid.reader.batch(rows, 32), num_epochs=4)
    assert history["loss"][-1] < history["loss"][0] / 10
