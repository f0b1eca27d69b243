"""Bytes that each of several training processes reads from files, compared with a training in one process.

    python benchmarks/files.py --processes 2

Each training makes one pass over generated Parquet files: in the order of the files, shuffled, or shuffled in parts.
As usual, the row groups of the files have more rows than a minibatch. The bytes are the sizes of all reads, except the
first read of each process, which counts the rows. The minibatches are equal, so the losses must equal the losses of
one process.
"""

import argparse
import contextlib
import pathlib
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

import fluid
from fluid.reader.files import listing

# The numbers of files, of row groups in a file, of rows in a group, and of values in a row.
FILES, GROUPS, ROWS, WIDTH = 16, 2, 512, 200
BATCH = 256
ORDERS: dict[str, dict[str, Any]] = {
    "in the order of the files": {},
    "shuffled": {"shuffle": True, "buf_size": 4096},
    "shuffled, parts=8": {"shuffle": True, "buf_size": 4096, "parts": 8, "batch_size": BATCH},
}


def write(folder: pathlib.Path) -> None:
    """Write `FILES` Parquet files of random numbers to a folder."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for number in range(FILES):
        x = rng.normal(size=(GROUPS * ROWS, WIDTH)).astype("float32")
        column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), WIDTH)
        pq.write_table(pa.table({"x": column}), folder / f"{number:02d}.parquet", row_group_size=ROWS)


class Counted:
    """A file that adds the size of each read to `Counted.total`."""

    total = 0
    _lock = threading.Lock()

    def __init__(self, stream: Any):
        self._stream = stream

    def read(self, *size: int) -> bytes:
        data: bytes = self._stream.read(*size)
        with Counted._lock:
            Counted.total += len(data)
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def counted(file: listing.File, opened: Any = listing.File.open) -> Iterator[Any]:
    """Open a file as a stream that counts the bytes of all reads; this function replaces `File.open`."""
    with opened(file) as stream:
        yield Counted(stream)


def program() -> object:
    return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(fluid.layers.data("x", shape=[WIDTH]), size=1)))


def train(folder: pathlib.Path) -> None:
    """Train for one epoch with each file order in `ORDERS`; write the losses, and the bytes of this process's reads."""
    group = fluid.distributed.group()
    listing.File.open = counted  # type: ignore[method-assign, assignment]
    said = []
    for options in ORDERS.values():
        rows = fluid.reader.files(folder / "*.parquet", **options)
        with contextlib.closing(rows()) as looked_at:
            next(looked_at)
        rows.restore({**rows.state(), "epoch": 0, "given": 0})
        before = Counted.total
        trainer = fluid.Trainer(program, fluid.optimizer.SGD(1e-3), parallel=True)
        history = trainer.train(fluid.reader.batch(rows, BATCH), progress=False)
        said.append(f"{Counted.total - before} {history['loss'][-1]:.6f}")
    (folder / f"{group.size}.{group.index}.said").write_text("\n".join(said))


def measured(folder: pathlib.Path, processes: int) -> list[list[tuple[int, float]]]:
    """Train in several processes; return (bytes read, mean loss) of each process, for each order of the rows."""
    command = [sys.executable, "-m", "fluid", "launch", "--processes", str(processes), __file__, "--train", str(folder)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = [(folder / f"{processes}.{i}.said").read_text().splitlines() for i in range(processes)]
    return [[(int(a), float(b)) for a, b in map(str.split, of_process)] for of_process in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--train", type=pathlib.Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder))
        (alone,) = measured(pathlib.Path(folder), 1)
        several = measured(pathlib.Path(folder), given.processes)
    for place, name in enumerate(ORDERS):
        bytes_alone, loss = alone[place]
        parts = [of_process[place][0] / bytes_alone for of_process in several]
        losses = [of_process[place][1] for of_process in several]
        np.testing.assert_allclose(losses, loss, rtol=1e-4)
        shown = " and ".join(f"{part:.2f}" for part in parts)
        print(f"{name}: {given.processes} processes read {shown} of the bytes that one reads")


if __name__ == "__main__":
    main()
