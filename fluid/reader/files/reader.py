"""`fluid.reader.files`: read rows of files, on this machine or in an object store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluid import errors
from fluid.core import whole_number
from fluid.reader.base import Reader, seed_with_shuffle

if TYPE_CHECKING:
    from fluid.reader.files.format import Columns
    from fluid.reader.files.listing import Path
    from fluid.reader.files.order import Pieces


@seed_with_shuffle
def files(
    paths: Path | Sequence[Path],
    columns: Columns | None = None,
    dtypes: Mapping[str, Any] | None = None,
    format: str | None = None,
    shuffle: bool = False,
    buf_size: int = 10_000,
    seed: int = 0,
    parallel: int = 4,
    storage_options: Mapping[str, Any] | None = None,
    parts: int | None = None,
    batch_size: int | None = None,
) -> Reader:
    """Read rows of files on this machine, on a web server or in an object store.

    Addresses are in the form of fsspec: `train.csv`, `s3://bucket/train-*.parquet`, `gs://...`, `https://...`. Files
    with names in .gz, .zst, .bz2 or .xz are decompressed. Several files are read at once, in threads; the order of rows
    does not depend on the threads. With `shuffle`, each pass has a new order of files (for Parquet, of row groups), and
    rows are then shuffled within a buffer. The order depends only on the seed and the number of the pass.

    In multi-process training, each process decodes only the rows of its own parts of minibatches. With `parts`, a
    process also reads only its own files. `parts` changes the order: the rows of a pass are divided evenly into parts,
    and minibatches take equal numbers of rows from each part. The order then also depends on `parts` and `batch_size`,
    but not on the number of processes.

    A saved position of the reader contains the names, sizes and versions of the files: training does not resume with
    other files.

    Args:
      paths: a path, address or pattern, for example `data/**/train-*.csv`, or several; the files of a pattern are
        sorted by name.
      columns: the names of the fields to read; or a mapping from each new name to the name in the files,
        `{"x": "pixels"}`; None for all.
      dtypes: dtypes by field name, for example `{"x": "float32", "zip": "str"}`; a value that does not fit is an error
        that names the file and the row. By default the dtypes of the format.
      format: "parquet", "jsonl", "csv", "tsv", "npz", "tfrecord" or "webdataset"; by default chosen by the file name
        extension.
      shuffle: True reads each pass in a new order.
      buf_size: the number of rows in the buffer of `shuffle`; a buffer larger than several files mixes their rows well.
      seed: at least 0.
      parallel: the number of files (or row groups) to read at once, at least 1. The order does not depend on it.
      storage_options: options of the file system, for fsspec: credentials, `{"anon": True}`, an endpoint.
      parts: the number of parts into which rows are divided, for formats that store the number of rows (Parquet, npz).
        Use a multiple of the number of processes, and more files or row groups than parts.
      batch_size: the `batch_size` of the `reader.batch` that wraps this reader, a multiple of `parts`; only with
        `parts`.

    Returns:
      A Reader of rows, which are dicts by field: numbers and arrays; lists of any length as arrays `[k]` (JSON lists
      stay lists); text; images and similar data as bytes, for your own decoder: `reader.xmap(decode, rows, 4)`.

    Raises:
      ArgumentError: a file does not exist, the format is unknown, or does not store the number of rows that `parts`
        needs; or a number is out of range.
      ArgumentTypeError: paths or columns have another type.
      ReaderError: a library is not installed or the files cannot be listed; while reading: a file is damaged, a field
        is absent or does not fit.

    Example:
      >>> import pathlib
      >>> _ = pathlib.Path("a.jsonl").write_text('{"x": [1, 2], "label": 0}')
      >>> _ = pathlib.Path("b.jsonl").write_text('{"x": [3, 4], "label": 1}')
      >>> rows = files("*.jsonl", dtypes={"x": "float32"})
      >>> list(rows)
      [{'x': array([1., 2.], dtype=float32), 'label': 0}, {'x': array([3., 4.], dtype=float32), 'label': 1}]
    """
    # These modules are imported on use: few programs read files, and the import of all formats is slow.
    from fluid.reader.files.format import Fields
    from fluid.reader.files.formats import format_of
    from fluid.reader.files.listing import listed, stamps
    from fluid.reader.files.order import Pieces
    from fluid.reader.files.stream import Parts, Shuffling, Stream

    fields = Fields(columns, dtypes)
    size = whole_number("reader.files", "buf_size", buf_size)
    seed = whole_number("reader.files", "seed", seed, least=0)
    parallel = whole_number("reader.files", "parallel", parallel)
    found = listed(paths, storage_options)
    pieces = Pieces(found, format_of(found, format), fields, parallel)
    shuffling = Shuffling(seed, size) if shuffle else None
    plan: Any = {"files": stamps(found), "format": pieces.format.name, "shuffle": seed if shuffle else None}
    if shuffle:
        plan = {"shuffle": size, "seed": seed, "of": plan}
    if parts is None and batch_size is None:
        stream = Stream(pieces, shuffling, parallel)
    else:
        parts, batch_size = _sizes(parts, batch_size, pieces)
        stream = Parts(pieces, shuffling, parallel, parts, batch_size)
        plan = {"parts": parts, "batch_size": batch_size, "of": plan}
    return Reader(stream.iterate, plan, stream.in_blocks)


def column_names(paths: Path | Sequence[Path], format: str | None = None) -> list[str]:
    """Return the names of the columns of files, which are read from the first file only.

    Raises:
      ArgumentError: a file does not exist, or the format is unknown.
      ReaderError: the file cannot be read.

    Example:
      >>> import pathlib
      >>> _ = pathlib.Path("a.csv").write_text("x,label\\n0.5,1\\n")
      >>> column_names("a.csv")
      ['x', 'label']
    """
    # These modules are imported on use: few programs read files, and the import of all formats is slow.
    from fluid.reader.files.formats import format_of
    from fluid.reader.files.listing import listed

    found = listed(paths, None)
    return format_of(found, format).columns(found[0])


def _sizes(parts: int | None, batch_size: int | None, pieces: Pieces) -> tuple[int, int]:
    """Check the arguments `parts` and `batch_size` of `reader.files`, and return both numbers.

    Each of the `parts` parts of the files gives an equal number of rows to a minibatch. So `parts` must divide
    `batch_size`, and the format of the files must store the number of rows.
    """
    if parts is None or batch_size is None:
        raise errors.ArgumentError(
            f"reader.files(parts={parts!r}, batch_size={batch_size!r}): expected both numbers or none, as in parts=8, "
            f"batch_size=1024; without parts, reader.batch alone has a batch_size"
        )
    parts = whole_number("reader.files", "parts", parts)
    size = whole_number("reader.files", "batch_size", batch_size)
    if size % parts:
        raise errors.ArgumentError(
            f"reader.files(parts={parts}, batch_size={size}): expected a multiple of {parts}, so that each part gives "
            f"as many rows: batch_size={-(-size // parts) * parts}"
        )
    if not pieces.format.counts_rows:
        raise errors.ArgumentError(
            f"reader.files(parts={parts}): files of the format {pieces.format.name!r} do not say how many rows they "
            f"have, expected 'parquet' or 'npz'; write the rows as Parquet, or leave out parts and batch_size"
        )
    return parts, size
