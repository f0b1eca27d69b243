"""Tables: encode raw rows of a DataFrame as feeds, with vocabularies and scales computed from the training rows."""

from __future__ import annotations

import itertools
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from fluid import errors
from fluid.core import unmasked
from fluid.reader import reader_misuse
from fluid.reader.adapters import arrays
from fluid.reader.base import Reader

NUMBERS, CATEGORIES, LABEL, WEIGHT = "numbers", "categories", "label", "weight"
FEEDS = (NUMBERS, CATEGORIES, LABEL, WEIGHT)
_VERSION = 1


class Scale(NamedTuple):
    """An encoding of a column of numbers: `(value - shift) / scale`; `fill` replaces each missing value."""

    fill: float
    shift: float
    scale: float


@dataclass(frozen=True)
class Table:
    """An encoding of raw rows as feeds: strings become indices, numbers are scaled, and missing values are filled.

    A value is missing if it is None, NaN, `pandas.NA` or an empty string.

    - A number becomes `(value - mean) / deviation` of its column, and a missing number becomes the mean. Mean and
      standard deviation come from the training rows.
    - A category becomes its index from 1 on in the vocabulary of its column. Index 0 stands for missing values, and
      for values that the training rows lack. Values are compared as text, so 3, 3.0 and "3" are one category.
    - A label of text, of booleans or of a column in `categories` becomes the index of its class, from 0 on. Another
      label stays a number, and is not scaled.

    `Table.fit` computes a Table from the training rows. A program that calls `fluid.nets.table_features` refers to its
    Table. `save_params`, checkpoints and exported models store this Table beside the parameters.

    Attributes:
      numbers: a Scale for each column of numbers, by name.
      categories: the vocabulary of each other column, by name.
      label: the name of the label column, or None.
      classes: the classes of the label; None for a label of numbers, or without a label.
      weight: the name of the column with the weights of rows, or None.
      class_weights: a factor for the weight of each class, in the order of `classes`; or None.

    Example:
      >>> rows = {"age": [20, 40, None], "city": ["Rome", "", "Oslo"], "paid": ["no", "yes", "no"]}
      >>> table = Table.fit(rows, label="paid")
      >>> table.categories, table.classes
      ({'city': ('Oslo', 'Rome')}, ('no', 'yes'))
      >>> {name: feed.tolist() for name, feed in table(rows).items()}
      {'numbers': [[-1.0], [1.0], [0.0]], 'categories': [[2], [0], [1]], 'label': [[0], [1], [0]]}
    """

    numbers: Mapping[str, Scale]
    categories: Mapping[str, tuple[str, ...]]
    label: str | None = None
    classes: tuple[str, ...] | None = None
    weight: str | None = None
    class_weights: tuple[float, ...] | None = None

    @classmethod
    def fit(
        cls,
        rows: Any,
        label: str | None = None,
        categories: Collection[str] = (),
        normalize: bool | Collection[str] = True,
        weight: str | None = None,
        class_weight: str | Mapping[Any, float] | None = None,
        min_count: int = 1,
    ) -> Table:
        """Compute a Table, with vocabularies, scales and classes, from the training rows.

        Args:
          rows: a DataFrame, or columns `[rows]` by name.
          label: the column with the label, or None.
          categories: columns of numbers that are categories, such as a postcode, or a label of classes 0, 1, 2. Columns
            of text, and of the dtype "category", are categories in any case.
          normalize: True scales all columns of numbers, False scales none, and a list of names scales these columns.
          weight: the column with a weight for each row, from 0 up; or None.
          class_weight: "balanced" weights each row by `rows / (classes * rows of its class)`; a dict has a factor for
            each class.
          min_count: the least number of training rows of a category. Rarer values have index 0, so that training also
            updates the parameters of index 0.

        Raises:
          ArgumentError: a column is unknown, has the name of a feed, or has no values; or the label does not fit.
          ArgumentTypeError: the rows are no table.
        """
        columns = _columns(rows)
        _check_names("label", [] if label is None else [label], columns)
        _check_names("weight", [] if weight is None else [weight], columns)
        _check_names("categories", categories, columns)
        dtypes = _dtypes(rows)
        texts = {name for name in columns if name in categories or _is_category(dtypes[name], columns[name])}
        features = [name for name in columns if name not in (label, weight)]
        if taken := [name for name in features if name in FEEDS]:
            raise errors.ArgumentError(
                f"the column {taken[0]!r} has the name of a feed of every table ({', '.join(FEEDS)}), expected another "
                f"name: frame.rename(columns={{{taken[0]!r}: '{taken[0]}_'}})"
            )
        if not features:
            raise errors.ArgumentError("the table has no column to learn from, expected one beside label and weight")
        scaled = [name for name in features if name not in texts]
        if not isinstance(normalize, bool):
            _check_names("normalize", normalize, scaled)
        numbers = {
            name: _scale(name, columns[name], normalize if isinstance(normalize, bool) else name in normalize)
            for name in scaled
        }
        words = {name: _vocabulary(columns[name], min_count) for name in features if name in texts}
        is_class = label is not None and (label in texts or all(isinstance(v, bool | np.bool_) for v in columns[label]))
        classes = _vocabulary(columns[label]) if label is not None and is_class else None
        factors = None if class_weight is None else _class_weights(class_weight, classes, columns.get(label or ""))
        return cls(numbers, words, label, classes, weight, factors)

    def __call__(self, rows: Any) -> dict[str, np.ndarray]:
        """Encode raw rows as arrays for the feeds of a program.

        Args:
          rows: a DataFrame, or columns `[rows]` by name, with all columns of `numbers` and `categories`. Other columns
            are ignored. The label and the weight may be absent.

        Returns:
          A dict of arrays by feed name. `numbers` is float32 `[rows, columns]`, and `categories` is int64
          `[rows, columns]`; the columns have the order of the attributes `numbers` and `categories`. If the rows have
          the label, `label` is `[rows, 1]`: int64 for classes, float32 for numbers. If there are weights, `weight` is
          float32 `[rows, 1]`.

        Raises:
          FeedError: a column is absent, or a value does not fit; the message names the column and the row.
          ArgumentTypeError: the rows are no table.
        """
        columns = _columns(rows)
        if lacking := [name for name in (*self.numbers, *self.categories) if name not in columns]:
            raise errors.FeedError(
                f"the rows have no column {lacking[0]!r}{f', and lack {len(lacking) - 1} more' * (len(lacking) > 1)}, "
                f"expected {', '.join(map(repr, (*self.numbers, *self.categories)))}. "
                f"{errors.nearest(lacking[0], columns)}"
            )
        feeds = {}
        if self.numbers:
            feeds[NUMBERS] = np.stack([_scaled(n, columns[n], s) for n, s in self.numbers.items()], axis=1)
        if self.categories:
            feeds[CATEGORIES] = np.stack([_indices(columns[n], w) for n, w in self.categories.items()], axis=1)
        if self.label in columns:
            feeds[LABEL] = self._labels(columns[self.label])[:, None]
        if (weights := self._weights(columns, feeds)) is not None:
            feeds[WEIGHT] = weights[:, None]
        return feeds

    def is_raw(self, feed: Any) -> bool:
        """Return whether a feed holds raw rows: a DataFrame, or a dict with a column that this Table encodes.

        Example:
          >>> Table.fit({"age": [1, 2]}).is_raw({"age": [3]}), Table.fit({"age": [1, 2]}).is_raw({"numbers": [[0.5]]})
          (True, False)
        """
        if reader_misuse.is_frame(feed):
            return True
        return isinstance(feed, Mapping) and any(name in self.numbers or name in self.categories for name in feed)

    def to_json(self) -> dict[str, Any]:
        """Return this Table as JSON, the inverse of `from_json`.

        Example:
          >>> table = Table.fit({"age": [1, 3], "city": ["Oslo", None]})
          >>> table.to_json()["numbers"], Table.from_json(table.to_json()) == table
          ({'age': [2.0, 2.0, 1.0]}, True)
        """
        return {
            "version": _VERSION,
            "numbers": {name: list(scale) for name, scale in self.numbers.items()},
            "categories": {name: list(words) for name, words in self.categories.items()},
            "label": self.label,
            "classes": None if self.classes is None else list(self.classes),
            "weight": self.weight,
            "class_weights": None if self.class_weights is None else list(self.class_weights),
        }

    @classmethod
    def from_json(cls, found: Any) -> Table:
        """Return the Table for a result of `to_json`.

        Raises:
          ValueError: the JSON is of a newer version, or makes no sense.
        """
        try:
            if found["version"] > _VERSION:
                raise ValueError(f"a table of version {found['version']}, expected {_VERSION}; install a newer fluid")
            texts = [*found["categories"].values(), *([] if found["classes"] is None else [found["classes"]])]
            if not all(isinstance(words, list) and len({*words}) == len(words) for words in texts) or not all(
                isinstance(text, str)
                for text in [*itertools.chain(*texts), found["label"] or "", found["weight"] or ""]
            ):
                raise ValueError("a table with vocabularies or names that are no different texts")
            table = cls(
                {str(name): Scale(*map(float, scale)) for name, scale in found["numbers"].items()},
                {str(name): tuple(map(str, words)) for name, words in found["categories"].items()},
                found["label"],
                None if found["classes"] is None else tuple(map(str, found["classes"])),
                found["weight"],
                None if found["class_weights"] is None else tuple(map(float, found["class_weights"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a table that makes no sense: {error!r}") from error
        if any(not np.isfinite(scale).all() or scale.scale <= 0 for scale in table.numbers.values()):
            raise ValueError("a table with scales that are no numbers above 0")
        names = [*table.numbers, *table.categories, *filter(None, (table.label, table.weight))]
        if len({*names}) < len(names) or {*table.numbers, *table.categories} & {*FEEDS} or len(names) == 0:
            raise ValueError(f"a table with the columns {names}, expected different names, none that of a feed")
        factors = table.class_weights
        if factors is not None and (
            len(factors) != len(table.classes or ()) or not all(0 <= f < math.inf for f in factors)
        ):
            raise ValueError(f"a table with the class weights {factors}, expected a number from 0 up for each class")
        return table

    def _labels(self, column: np.ndarray) -> np.ndarray:
        """Return labels as int64 classes or float32 numbers, `[rows]`; refuse missing and unknown labels."""
        if self.classes is None:
            found = _floats(str(self.label), column)
            _check_rows(np.isnan(found), f"the label {self.label!r} is missing", column)
            return found.astype(np.float32)
        indices = _indices(column, self.classes) - 1
        expected = f"is none of the classes {', '.join(map(repr, self.classes[:8]))}"
        _check_rows(indices < 0, f"the label {self.label!r} {expected}", column)
        return indices

    def _weights(self, columns: Mapping[str, np.ndarray], feeds: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Return the weights of rows, float32 `[rows]`; None without weights, or if the rows lack a column for them."""
        if self.weight is None and self.class_weights is None:
            return None
        if (self.weight is not None and self.weight not in columns) or (self.class_weights and LABEL not in feeds):
            return None
        weights: Any = 1.0
        if self.weight is not None:
            weights = _floats(self.weight, columns[self.weight])
            _check_rows(~(weights >= 0), f"the weight {self.weight!r} is no number from 0 up", columns[self.weight])
        if self.class_weights:
            weights = weights * np.asarray(self.class_weights)[feeds[LABEL][:, 0]]
        return np.asarray(weights, np.float32)


def frame(
    rows: Any,
    label: str | None = None,
    categories: Collection[str] = (),
    normalize: bool | Collection[str] = True,
    *,
    table: Table | None = None,
    weight: str | None = None,
    class_weight: str | Mapping[Any, float] | None = None,
    min_count: int = 1,
    batch_size: int = 64,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
) -> Reader:
    """Read a table of raw rows as minibatches of the feeds `numbers`, `categories`, `label` and `weight`.

    The reader of the training rows computes vocabularies and scales from these rows, see `Table`. Readers of other rows
    need this Table: `fluid.reader.frame(test_rows, table=reader.table)`. All rows are held in memory.

    Args:
      rows: a DataFrame, columns `[rows]` by name, or the path of a file that ends in ".csv" or ".parquet", which pandas
        reads; "" and "NA" in a CSV file are missing values.
      label: the column with the label, or None.
      categories: columns of numbers that are categories, as for `Table.fit`.
      normalize: the columns of numbers to scale, as for `Table.fit`.
      table: the Table of the training rows, instead of the arguments `label`, `categories`, `normalize`, `weight`,
        `class_weight` and `min_count`.
      weight: the column with a weight for each row, or None.
      class_weight: "balanced", a dict of factors by class, or None, as for `Table.fit`.
      min_count: the least number of training rows of a category, as for `Table.fit`.
      batch_size: the number of rows of each minibatch.
      shuffle: True reads each pass in a new order.
      seed: determines these orders.
      drop_last: True leaves out a last, shorter minibatch.

    Returns:
      A Reader of dicts of columns; its attribute `table` is the Table.

    Raises:
      ArgumentError: a column is unknown, or `table` is given beside arguments for learning a Table.
      ArgumentTypeError: the rows are no table.
      FeedError: a value does not fit; the message names the column and the row.
      ReaderError: the file cannot be read, or pandas is not installed.

    Example:
      >>> reader = frame({"age": [20, 40], "city": ["Rome", None]}, batch_size=2)
      >>> [{name: feed.tolist() for name, feed in minibatch.items()} for minibatch in reader]
      [{'numbers': [[-1.0], [1.0]], 'categories': [[1], [0]]}]
      >>> next(frame({"age": [30], "city": ["Oslo"]}, table=reader.table)())["categories"].tolist()
      [[0]]
    """
    if isinstance(rows, str | os.PathLike):
        rows = _read(os.fspath(rows))
    if table is None:
        table = Table.fit(rows, label, categories, normalize, weight, class_weight, min_count)
    elif (label, weight, class_weight, tuple(categories), normalize, min_count) != (None, None, None, (), True, 1):
        raise errors.ArgumentError(
            "reader.frame(table=...): the table says what the columns are, found arguments that learn another one; "
            "leave them out: fluid.reader.frame(rows, table=train_reader.table)"
        )
    reader = arrays(table(rows), batch_size, shuffle, seed, drop_last)
    reader.table = table
    return reader


def check_reader(call: str, reader: Any, table: Table | None) -> None:
    """Check that a reader of raw rows encodes them with the Table of a program.

    Raises:
      ArgumentError: the reader has another table.
    """
    found = getattr(reader, "table", None)
    if table is not None and isinstance(found, Table) and found != table:
        raise errors.ArgumentError(
            f"{call}: the reader has learned another table than that of the program, found other vocabularies, scales "
            f"or columns, expected those of the training rows: fluid.reader.frame(rows, table=train_reader.table)"
        )


def _read(path: str) -> Any:
    """Read a CSV or Parquet file with pandas."""
    try:
        import pandas
    except ImportError as error:
        raise errors.ReaderError(
            f"reader.frame({path!r}) needs pandas, which is not installed: pip install 'fluid-jax[table]'"
        ) from error
    readers = {".csv": pandas.read_csv, ".parquet": pandas.read_parquet}
    ending = os.path.splitext(path.removesuffix(".gz"))[1]
    if ending not in readers:
        raise errors.ArgumentError(
            f"reader.frame({path!r}): expected a path that ends in .csv or .parquet; another file becomes a DataFrame "
            f"first: fluid.reader.frame(pandas.read_excel(path), label=...)"
        )
    try:
        return readers[ending](path)
    except (OSError, ValueError, ImportError) as error:  # ParserError of pandas is a ValueError
        raise errors.ReaderError(f"reader.frame cannot read {path!r}: {type(error).__name__}: {error}") from error


def _columns(rows: Any) -> dict[str, np.ndarray]:
    """Return the columns `[rows]` of a DataFrame, or of a mapping, by name; refuse other values."""
    if not reader_misuse.is_frame(rows) and not isinstance(rows, Mapping):
        raise errors.ArgumentTypeError(
            f"found {type(rows).__name__}, expected a table: a DataFrame, or a dict of columns of equal length, as in "
            f"{{'age': [20, 40], 'city': ['Rome', None]}}"
        )
    names = [str(name) for name in (rows.columns if reader_misuse.is_frame(rows) else rows)]
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        raise errors.ArgumentError(f"two columns are called {repeated[0]!r}, expected a name of its own for each")
    columns = (
        reader_misuse.columns_of(rows) if reader_misuse.is_frame(rows) else {str(n): _array(n, rows[n]) for n in rows}
    )
    lengths = {name: column.shape for name, column in columns.items()}
    if any(len(shape) != 1 for shape in lengths.values()) or len(set(lengths.values())) != 1 or not columns:
        raise errors.ArgumentError(
            f"expected columns of one length, with one value a row, found the shapes "
            f"{', '.join(f'{name}: {list(shape)}' for name, shape in list(lengths.items())[:8]) or 'of no column'}"
        )
    if not len(next(iter(columns.values()))):
        raise errors.ArgumentError("the table has no rows, expected at least one")
    return columns


def _array(name: Any, column: Any) -> np.ndarray:
    """Convert a column to an array; lists of mixed values keep their types, so that None stays None."""
    if isinstance(column, list | tuple):
        found = np.empty(len(column), object)
        found[:] = column
        return found
    return unmasked(column, what=f"column {name!r} of the table")


def _check_names(argument: str, names: Any, known: Collection[str]) -> None:
    if isinstance(names, str) or not isinstance(names, Collection):
        raise errors.ArgumentTypeError(f"{argument}={names!r}: expected names of columns: {argument}=['city']")
    for name in names:
        if name not in known:
            raise errors.ArgumentError(
                f"{argument}: found {name!r}, which is no column that fits. {errors.nearest(str(name), known)}"
            )


def _is_missing(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return not value
    return type(value).__name__ == "NAType" or bool(value != value)


def _dtypes(rows: Any) -> dict[str, str]:
    if reader_misuse.is_frame(rows):
        return {str(name): str(dtype) for name, dtype in zip(rows.columns, rows.dtypes, strict=True)}
    return {str(name): str(getattr(column, "dtype", "")) for name, column in rows.items()}


def _is_category(dtype: str, column: np.ndarray) -> bool:
    if dtype.lower().startswith("categor"):
        return True
    return column.dtype.kind not in "biufmM" and not all(isinstance(v, Real) or _is_missing(v) for v in column)


def _text(value: Any) -> str:
    is_number = isinstance(value, Real) and not isinstance(value, bool | np.bool_)
    return str(int(value)) if is_number and math.isfinite(value) and value == int(value) else str(value)


def _vocabulary(column: np.ndarray, min_count: int = 1) -> tuple[str, ...]:
    """Return the distinct values of a column as sorted text, without rare values; numbers are sorted by their value."""
    counts = Counter(_text(value) for value in column if not _is_missing(value))
    words = sorted(word for word, count in counts.items() if count >= min_count)
    try:
        return tuple(sorted(words, key=float))
    except ValueError:
        return tuple(words)


def _indices(column: np.ndarray, words: Sequence[str]) -> np.ndarray:
    """Return the index of each value in `words`, from 1 on, int64 `[rows]`; 0 for a missing or unknown value."""
    known = {word: index for index, word in enumerate(words, start=1)}
    return np.array([0 if _is_missing(v) else known.get(_text(v), 0) for v in column], np.int64)


def _floats(name: str, column: np.ndarray) -> np.ndarray:
    """Return a column of numbers as float64 `[rows]`, with NaN for missing values; refuse other values."""
    if column.dtype.kind in "biuf":
        found = column.astype(np.float64)
    elif column.dtype.kind in "mM":
        raise errors.FeedTypeError(
            f"the column {name!r} has dates or durations ({column.dtype}), expected numbers or text: "
            f"frame[{name!r}].dt.dayofyear, or another number that means something"
        )
    else:
        found = np.array([_float(name, row, value) for row, value in enumerate(column)], np.float64)
    _check_rows(np.isinf(found), f"the column {name!r} is infinite", column)
    return found


def _float(name: str, row: int, value: Any) -> float:
    try:
        return math.nan if _is_missing(value) else float(value)
    except (TypeError, ValueError):
        raise errors.FeedTypeError(
            f"row {row}: the column {name!r} is {_brief(value)}, expected a number, as in the training rows"
        ) from None


def _brief(value: Any) -> str:
    return f"{value!r}"[:60]


def _check_rows(wrong: np.ndarray, what: str, column: np.ndarray) -> None:
    """Raise a FeedError if the mask `wrong` is True for a row of a table; the error names the first of these rows."""
    if wrong.any():
        row, count = int(np.argmax(wrong)), int(wrong.sum())
        more = f", and {count - 1} more rows like this" if count > 1 else ""
        raise errors.FeedError(
            f"row {row}: {what}, found {_brief(column[row])}{more}; correct the rows, or leave them out"
        )


def _scale(name: str, column: np.ndarray, normalize: bool) -> Scale:
    """Return the Scale (shift, factor and fill value) by which a column of numbers is encoded.

    Without `normalize`, the Scale only replaces missing numbers by the mean.
    """
    values = _floats(name, column)
    values = values[~np.isnan(values)]
    if not len(values):
        raise errors.ArgumentError(
            f"the column {name!r} has no value in the training rows, so it has no mean; leave it out: "
            f"frame.drop(columns=[{name!r}])"
        )
    mean, deviation = float(values.mean()), float(values.std())
    # If all values are equal, the deviation is set to 1, because numbers are divided by it. Rounding errors could make
    # it about 1e-17 instead of 0.
    deviation = deviation if values.min() < values.max() else 1.0
    return Scale(mean, mean, deviation) if normalize else Scale(mean, 0.0, 1.0)


def _scaled(name: str, column: np.ndarray, scale: Scale) -> np.ndarray:
    values = _floats(name, column)
    return ((np.where(np.isnan(values), scale.fill, values) - scale.shift) / scale.scale).astype(np.float32)


def _class_weights(
    given: str | Mapping[Any, float], classes: tuple[str, ...] | None, column: np.ndarray | None
) -> tuple[float, ...]:
    """Return the factor by which each class is weighted, computed from the argument `class_weight`."""
    if classes is None or column is None:
        raise errors.ArgumentError(
            "class_weight= needs a label of classes; a label of numbers has classes if it is in categories: "
            "categories=['paid'], label='paid'"
        )
    if isinstance(given, Mapping):
        factors = {_text(name): float(factor) for name, factor in given.items()}
        if factors.keys() != set(classes) or not all(0 <= factor < math.inf for factor in factors.values()):
            raise errors.ArgumentError(
                f"class_weight={dict(given)!r}: expected a number from 0 up for each class: "
                f"class_weight={dict.fromkeys(classes, 1.0)}"
            )
        return tuple(factors[name] for name in classes)
    if given != "balanced":
        raise errors.ArgumentError(f"class_weight={given!r}: expected 'balanced', or a dict of factors by class")
    counts = np.bincount(_indices(column, classes), minlength=len(classes) + 1)[1:]
    return tuple(float(counts.sum() / (len(classes) * count)) for count in counts)
