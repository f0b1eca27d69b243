"""Data files of commands: read feeds from the columns of CSV, Parquet and other files, and write results to files.

A column belongs to the feed with its name. CSV has no lists, so the columns `image_0`, `image_1`, ... form the feed
`image`. Results with several values per row are written to CSV in numbered columns too.
"""

import argparse
import contextlib
import csv
import difflib
import functools
import glob
import io
import itertools
import pathlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import fluid
from fluid import errors
from fluid.checkpoint import replaced
from fluid.cli.common import MistypedError, existing, mistyped
from fluid.core import FeedSpec
from fluid.reader.files import column_names


def add_data(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments `--data`, `--column` and `--batch-size`."""
    parser.add_argument("--data", required=True, metavar="FILE", help="a data file, or a quoted pattern of files")
    add_column(parser)
    parser.add_argument("--batch-size", type=int, default=64, help="rows of a minibatch; 64 by default")


def add_column(parser: argparse.ArgumentParser) -> None:
    """Declare the argument `--column`."""
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        type=_pair,
        metavar="FEED=COLUMN",
        help="the column of a feed that has another name; may be given repeatedly",
    )


def minibatches(
    path: str,
    feeds: Mapping[str, FeedSpec],
    batch_size: int,
    renamed: Mapping[str, str],
    shuffle: bool = False,
    seed: int = 0,
) -> fluid.reader.Reader:
    """Return a reader of minibatches from data files. All commands read data by this function.

    Raises:
      ArgumentError: there is no such file, or a feed has no column.
      ReaderError: a file cannot be read.
    """
    for name in renamed:
        if name not in feeds:
            raise mistyped(f"--column names {name!r}, which is no feed that is read.", name, feeds)
    if not glob.has_magic(path):
        existing("data file", path)
    known = column_names(path)
    columns = {name: _columns(renamed.get(name, name), known) for name in feeds}
    if absent := [name for name, found in columns.items() if not found]:
        used = {column for found in columns.values() for column in found}
        unused = [column for column in known if column not in used]
        raise _no_column(path, feeds[absent[0]], renamed.get(absent[0], absent[0]), known, unused)
    dtypes = {column: spec.dtype for name, spec in feeds.items() for column in columns[name] if _is_plain(spec)}
    names = list(dict.fromkeys(column for found in columns.values() for column in found))
    rows = fluid.reader.files(path, names, dtypes, shuffle=shuffle, seed=seed)
    return fluid.reader.batch(fluid.reader.map(functools.partial(_feed, columns), rows), batch_size)


def write(path: str | None, results: Iterable[Mapping[str, Any]]) -> int:
    """Write the rows of results to a CSV or Parquet file, minibatch by minibatch, and return the number of rows.

    Args:
      results: for each minibatch, columns `[rows, ...]` by name.

    Raises:
      ArgumentError: the path has another ending, or a result is one number for all rows.
      ReaderError: pyarrow is not installed.
    """
    if path is None:
        return _written(_Csv(sys.stdout), results)
    kind = pathlib.Path(path).suffix
    if kind not in (".csv", ".parquet"):
        raise errors.ArgumentError(f"--output {path}: expected a file in .csv or .parquet: --output predictions.csv")
    with replaced(pathlib.Path(path), errors.ArgumentError) as (_, file):
        if kind == ".parquet":
            return _written(_Parquet(file), results)
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        count = _written(_Csv(text), results)
        text.detach()  # flush `text`, but leave `file` open, because `replaced` closes it
        return count


class _Csv:
    """A writer of results to a CSV file; a result `[rows, k]` becomes k columns."""

    def __init__(self, file: Any):
        self._writer = csv.writer(file, lineterminator="\n")
        self._names: list[str] | None = None

    def add(self, columns: Mapping[str, np.ndarray | list[Any]]) -> None:
        flat: dict[str, Any] = {}
        for name, column in columns.items():
            if not isinstance(column, np.ndarray):
                raise errors.ArgumentError(
                    f"the rows of the result {name!r} differ in length, which CSV cannot hold, expected a Parquet "
                    f"file: --output predictions.parquet"
                )
            each = column.reshape(len(column), -1)
            names = [name] if each.shape[1] == 1 else [f"{name}_{i}" for i in range(each.shape[1])]
            flat.update(zip(names, each.T, strict=True))
        if self._names is None:
            self._names = list(flat)
            self._writer.writerow(self._names)
        # `str` of a float32 scalar gives the digits of float32: 0.1. As a Python float it would be 0.10000000149011612.
        self._writer.writerows(zip(*(map(str, column) for column in flat.values()), strict=True))

    def close(self) -> None:
        pass


class _Parquet:
    """A writer of results to a Parquet file; a result `[rows, k]` becomes a column of lists."""

    def __init__(self, file: Any):
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise errors.ReaderError(
                "Parquet files need pyarrow, which is not installed: pip install 'fluid-jax[files]'"
            ) from error
        self._arrow = pyarrow
        self._file = file
        self._writer: Any = None

    def add(self, columns: Mapping[str, np.ndarray | list[Any]]) -> None:
        table = self._arrow.table({name: self._values(column) for name, column in columns.items()})
        if self._writer is None:
            self._writer = self._arrow.parquet.ParquetWriter(self._file, table.schema)
        self._writer.write_table(table)

    def _values(self, column: np.ndarray | list[Any]) -> Any:
        if not isinstance(column, np.ndarray):
            return self._arrow.array([np.asarray(row).tolist() for row in column])
        return self._arrow.array(column if column.ndim == 1 else list(column.reshape(len(column), -1)))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _written(writer: _Csv | _Parquet, results: Iterable[Mapping[str, Any]]) -> int:
    count = 0
    with contextlib.closing(writer):
        for minibatch in results:
            columns = {name: _rows(name, value) for name, value in minibatch.items()}
            writer.add(columns)
            count += len(next(iter(columns.values())))
    return count


def _rows(name: str, value: Any) -> np.ndarray | list[Any]:
    """Convert a result to rows: an array `[rows]` or `[rows, ...]`, or for sequences a list of one array per row."""
    if hasattr(value, "rows"):
        return list(value.rows())
    array = np.asarray(value)
    if not array.ndim:
        raise errors.ArgumentError(
            f"the result {name!r} is one number for all rows, expected a value for each row; name such values: "
            f"--fetch prediction"
        )
    if array.dtype.kind == "V":  # NumPy's kind "V" stands for bfloat16, which Arrow does not support
        array = array.astype("float32")
    return array[:, 0] if array.shape[1:] == (1,) else array


def _pair(text: str) -> tuple[str, str]:
    feed, sign, column = text.partition("=")
    if not (feed and sign and column):
        raise argparse.ArgumentTypeError(f"found {text!r}, expected a feed and its column, as in label=species")
    return feed, column


def _columns(column: str, known: Sequence[str]) -> list[str]:
    """Return the names of a feed's columns in a data file; empty if the file has none of them.

    A single column has the name `column`. Several columns have the names `column_0`, `column_1` and so on.
    """
    if column in known:
        return [column]
    numbered = (f"{column}_{number}" for number in itertools.count())
    return list(itertools.takewhile(lambda name: name in known, numbered))


def _is_plain(spec: FeedSpec) -> bool:
    return spec.lod_level < 2 and np.dtype(spec.dtype).kind in "biuf"


def _feed(columns: Mapping[str, Sequence[str]], row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of a data file, with values by column name, to a dict of values by feed name."""
    return {
        name: row[found[0]] if len(found) == 1 else np.array([row[column] for column in found])
        for name, found in columns.items()
    }


def _no_column(
    path: str, spec: FeedSpec, column: str, known: Iterable[str], unused: Sequence[str]
) -> errors.ArgumentError:
    """Return the error for a feed without a column. The error suggests a column that no other feed uses."""
    message = (
        f"{path} has no column {column!r} for layers.data({spec.name!r}) at {spec.site}, found the columns "
        f"{', '.join(map(repr, known))}"
    )
    if not unused:
        return errors.ArgumentError(f"{message}; add the column, or declare what the file has")
    nearest = difflib.get_close_matches(column, unused, n=1) or unused[-1:]
    addition = f"{spec.name}={nearest[0]}"
    return MistypedError(
        f"{message}; a column with another name is given by --column, as in --column {addition}",
        lambda arguments: [*arguments, "--column", addition],
    )
