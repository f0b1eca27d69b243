"""`fluid.reader.files`: rows of files, here or in an object store."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fluid import errors
from fluid.core import whole_number
from fluid.reader.base import Reader, seed_with_shuffle

if TYPE_CHECKING:
    from fluid.reader.files.fields import Columns
    from fluid.reader.files.listing import Path
    from fluid.reader.files.pieces import Pieces


@seed_with_shuffle
def files(
    paths: "Path | Sequence[Path]",
    columns: "Columns | None" = None,
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
    """Read rows of files that lie on this machine, on a web server or in an object store.

    Addresses are those of fsspec: `train.csv`, `s3://bucket/train-*.parquet`, `gs://...`, `https://...`. Names that end
    in .gz, .zst, .bz2 or .xz are decompressed. Several files are read at once, in threads, and come in the same order
    whatever the threads do. With `shuffle` the files, of Parquet the row groups, come in another order in each pass,
    and then rows are shuffled within a buffer. The order depends on the seed and the number of the pass alone.

    Several processes that train together decode the rows of their own parts of minibatches only. So that each reads no
    other files either, `parts` gives the rows another order: those of a pass are divided evenly into parts, and
    minibatches take the same number of rows from each. The order depends on `parts` and `batch_size` then, and still
    not on how many processes there are.

    The names, sizes and versions of the files are part of a position: a training is not resumed with other files.

    Args:
      paths: a path, address or pattern such as `data/**/train-*.csv`, or several; the files of a pattern are sorted by
        name.
      columns: which fields of a row are read; or for each name that a field shall have the one that it has in the
        files, `{"x": "pixels"}`; None for all.
      dtypes: of fields by name, such as `{"x": "float32", "zip": "str"}`; a value that does not fit is an error that
        names the file and the row. Without, values are what the format holds.
      format: "parquet", "jsonl", "csv", "tsv", "npz", "tfrecord" or "webdataset"; by default what the names of the
        files end in.
      shuffle: whether each pass has an order of its own.
      buf_size: how many rows the buffer of `shuffle` holds; several files' worth mixes well.
      seed: at least 0.
      parallel: how many files (or row groups) are read at once, at least 1. It has no influence on the order.
      storage_options: of the file system, for fsspec: credentials, `{"anon": True}`, an endpoint.
      parts: into how many parts rows are divided, of formats that say how many rows a file has (Parquet, npz). It
        should be a multiple of the number of processes, and there should be more files or row groups than parts.
      batch_size: of the `batch` around this reader, a multiple of `parts`; only with `parts`.

    Returns:
      A Reader of rows, which are dicts by field: numbers and arrays; lists of any length as arrays `[k]` (of JSON as
      lists); text; images and the like as bytes, for a function of yours to decode: `reader.xmap(decode, rows, 4)`.

    Raises:
      ArgumentError: there is no such file, the format is not known, or does not say how many rows a file has as
        `parts` needs it; or a number is out of range.
      ArgumentTypeError: paths or columns are none.
      ReaderError: a library is missing or the files cannot be listed; and while reading: a file is damaged, a field is
        not there or does not fit.

    Example:
      >>> import pathlib
      >>> _ = pathlib.Path("a.jsonl").write_text('{"x": [1, 2], "label": 0}')
      >>> _ = pathlib.Path("b.jsonl").write_text('{"x": [3, 4], "label": 1}')
      >>> rows = files("*.jsonl", dtypes={"x": "float32"})
      >>> list(rows)
      [{'x': array([1., 2.], dtype=float32), 'label': 0}, {'x': array([3., 4.], dtype=float32), 'label': 1}]
    """
    # Not everybody reads files, and what reads all the formats takes a while to import.
    from fluid.reader.files.fields import Fields
    from fluid.reader.files.formats import format_of
    from fluid.reader.files.listing import listed, stamps
    from fluid.reader.files.parts import Parts
    from fluid.reader.files.pieces import Pieces
    from fluid.reader.files.stream import Shuffling, Stream

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


def _sizes(parts: int | None, batch_size: int | None, pieces: "Pieces") -> tuple[int, int]:
    """The two numbers, which must fit together; of pieces that say how many rows they have."""
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
