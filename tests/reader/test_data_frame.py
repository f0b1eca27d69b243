"""Tables that encode raw rows as feeds: results are compared with pandas and scikit-learn."""

import json

import numpy as np
import pandas
import pytest
from sklearn.preprocessing import StandardScaler
from sklearn.utils.class_weight import compute_class_weight

import fluid
from fluid import errors
from fluid.reader import Table, frame

RNG = np.random.default_rng(0)
ROWS = pandas.DataFrame(
    {
        "age": RNG.integers(18, 80, 50).astype(float),
        "income": RNG.lognormal(10, 1, 50),
        "city": RNG.choice(["Rome", "Oslo", "Lima"], 50),
        "paid": RNG.choice(["no", "yes"], 50, p=[0.8, 0.2]),
        "rows": RNG.integers(1, 5, 50),
    }
)
FEATURES = ROWS[["age", "income", "city"]]


def first(reader):
    return next(reader())


def test_numbers_are_scaled_as_by_scikit_learn():
    expected = StandardScaler().fit_transform(ROWS[["age", "income"]])
    np.testing.assert_allclose(Table.fit(FEATURES)(FEATURES)["numbers"], expected, rtol=1e-5, atol=1e-6)


def test_category_indexes_are_pandas_codes_plus_1():
    expected = pandas.Categorical(ROWS.city).codes + 1
    found = Table.fit(FEATURES)(FEATURES)["categories"]
    assert found.dtype == np.int64 and found[:, 0].tolist() == expected.tolist()


@pytest.mark.parametrize("missing", [None, np.nan, pandas.NA, "", pandas.NaT])
def test_missing_values_become_mean_and_index_0(missing):
    table = Table.fit({"age": [1.0, missing, 3.0], "city": ["a", "b", missing]})
    feeds = table({"age": [missing, 2.0], "city": [missing, "b"]})
    assert feeds["numbers"].tolist() == [[0.0], [0.0]] and feeds["categories"].tolist() == [[0], [2]]


def test_unknown_category_has_index_0():
    assert Table.fit(FEATURES)({**FEATURES.iloc[:1].to_dict("list"), "city": ["Bonn"]})["categories"].item() == 0


def test_rare_categories_have_index_0():
    table = Table.fit({"city": ["a", "b", "a", "c", "c"]}, min_count=2)
    assert table({"city": ["a", "b", "c"]})["categories"][:, 0].tolist() == [1, 0, 2]


def test_nullable_pandas_columns_are_numbers():
    rows = pandas.DataFrame({"n": pandas.array([1, None, 3], dtype="Int64")})
    table = Table.fit(rows)
    assert table.numbers["n"].fill == 2.0 and table(rows)["numbers"][:, 0].tolist() == [-1.0, 0.0, 1.0]


@pytest.mark.parametrize("column", [[1, 2, None], [1.0, 2.0, np.nan], ["1", "2", ""], np.array([1, 2, 7])])
def test_categories_of_any_type_are_compared_as_text(column):
    table = Table.fit({"zip": [2, 1, 1]}, categories=["zip"])
    assert table.categories == {"zip": ("1", "2")}
    assert table({"zip": column})["categories"][:, 0].tolist() == [1, 2, 0]


def test_pandas_category_dtype_is_a_category():
    assert Table.fit(pandas.DataFrame({"c": pandas.Categorical([10, 9])})).categories == {"c": ("9", "10")}


@pytest.mark.parametrize(("normalize", "scaled"), [(True, "ab"), (False, ""), (["b"], "b")])
def test_normalize_chooses_the_scaled_columns(normalize, scaled):
    rows = {"a": [0.0, 4.0, np.nan], "b": [10.0, 14.0, np.nan]}
    found = Table.fit(rows, normalize=normalize)(rows)["numbers"]
    for index, name in enumerate("ab"):
        mean = np.nanmean(rows[name])
        expected = [-1, 1, 0] if name in scaled else [*rows[name][:2], mean]
        assert found[:, index].tolist() == expected


def test_equal_numbers_become_zeros():
    assert abs(Table.fit({"a": [0.1] * 7})({"a": [0.1]})["numbers"].item()) < 1e-12


@pytest.mark.parametrize(
    ("label", "categories", "classes", "encoded"),
    [
        (["no", "yes", "no"], [], ("no", "yes"), [0, 1, 0]),
        ([True, False, True], [], ("False", "True"), [1, 0, 1]),
        ([10, 9, 10], ["y"], ("9", "10"), [1, 0, 1]),
        ([10, 9, 10], [], None, [10.0, 9.0, 10.0]),
    ],
)
def test_labels_are_classes_or_numbers(label, categories, classes, encoded):
    rows = {"x": [1.0, 2.0, 3.0], "y": label}
    table = Table.fit(rows, label="y", categories=categories)
    found = table(rows)["label"]
    assert table.classes == classes and found[:, 0].tolist() == encoded
    assert found.dtype == (np.float32 if classes is None else np.int64)


def test_balanced_weights_equal_scikit_learn_weights():
    table = Table.fit(ROWS, label="paid", class_weight="balanced")
    expected = compute_class_weight("balanced", classes=np.array(["no", "yes"]), y=ROWS.paid)
    np.testing.assert_allclose(table.class_weights, expected)
    weights = table(ROWS)["weight"][:, 0]
    np.testing.assert_allclose(weights, expected[(ROWS.paid == "yes").astype(int)], rtol=1e-6)


def test_class_weights_multiply_the_weight_column():
    found = Table.fit(ROWS, label="paid", weight="rows", class_weight={"no": 1, "yes": 3})(ROWS)["weight"][:, 0]
    np.testing.assert_allclose(found, ROWS["rows"] * np.where(ROWS.paid == "yes", 3, 1))


def test_table_comes_back_from_json_exactly():
    table = Table.fit(ROWS, label="paid", weight="rows", class_weight="balanced", min_count=2)
    again = Table.from_json(json.loads(json.dumps(table.to_json())))
    assert again == table
    for name, feed in table(ROWS).items():
        assert again(ROWS)[name].tobytes() == feed.tobytes()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"numbers": {"age": [1, 2]}},
        {"numbers": {"age": [1, 2, 0]}},
        {"categories": 3},
        {"categories": {"city": "Oslo"}},
        {"categories": {"city": ["Oslo", "Oslo"]}},
        {"categories": {"city": [3]}},
        {"classes": ["no", "no"]},
        {"classes": ["no", "yes"], "class_weights": [1.0]},
        {"classes": ["no"], "class_weights": [-1.0]},
        {"label": 3},
        {"label": "age"},
        {"weight": ["age"]},
        {"numbers": {"label": [1, 1, 1]}},
        {"numbers": None},
    ],
)
def test_json_that_makes_no_sense_is_refused(change):
    with pytest.raises(ValueError, match="table"):
        Table.from_json({**Table.fit(FEATURES).to_json(), **change})
    with pytest.raises(ValueError, match="table"):
        Table.from_json([])


def test_reader_yields_minibatches_of_the_encoded_rows():
    reader = frame(ROWS, label="paid", weight="rows", batch_size=20)
    minibatches = list(reader())
    assert [len(minibatch["label"]) for minibatch in minibatches] == [20, 20, 10]
    for name, feed in reader.table(ROWS).items():
        assert np.concatenate([minibatch[name] for minibatch in minibatches]).tobytes() == feed.tobytes()


def test_reader_of_other_rows_takes_the_table():
    train, test = ROWS[:30], ROWS[30:]
    reader = frame(train, label="paid", weight="rows")
    found = first(frame(test, table=reader.table))["numbers"]
    expected = StandardScaler().fit(train[["age", "income"]]).transform(test[["age", "income"]])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert "label" not in first(frame(test.drop(columns=["paid"]), table=reader.table))


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "parquet"])
def test_file_gives_the_feeds_of_its_frame(ending, tmp_path):
    path = tmp_path / f"rows.{ending}"
    rows = FEATURES.copy()
    rows.loc[3, "age"] = np.nan
    rows.loc[4, "city"] = None
    rows.to_parquet(path) if ending == "parquet" else rows.to_csv(path, index=False)
    expected = first(frame(rows))
    for name, feed in first(frame(path)).items():
        assert feed.tobytes() == expected[name].tobytes()


def test_raw_rows_are_distinguished_from_feeds():
    table = Table.fit(FEATURES)
    assert table.is_raw(FEATURES) and table.is_raw({"age": [1]})
    assert not table.is_raw(table(FEATURES)) and not table.is_raw([1])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: frame(ROWS, label="payed"), errors.ArgumentError, "Did you mean 'paid'"),
        (lambda: frame(ROWS, categories=["town"]), errors.ArgumentError, "categories: found 'town'"),
        (lambda: frame(ROWS, categories="city"), errors.ArgumentTypeError, r"categories=\['city'\]"),
        (lambda: frame(ROWS, normalize=["city"]), errors.ArgumentError, "normalize: found 'city'"),
        (lambda: frame(ROWS, weight="heft"), errors.ArgumentError, "weight: found 'heft'"),
        (lambda: frame([1, 2]), errors.ArgumentTypeError, "found list, expected a table"),
        (lambda: frame({"a": [1], "b": [1, 2]}), errors.ArgumentError, "columns of one length"),
        (lambda: frame({"a": []}), errors.ArgumentError, "no rows"),
        (lambda: frame({"numbers": [1]}), errors.ArgumentError, "the name of a feed"),
        (lambda: frame({"a": [None, None]}), errors.ArgumentError, "no value in the training rows"),
        (lambda: frame({"a": [1.0, np.inf]}), errors.FeedError, "row 1: the column 'a' is infinite"),
        (lambda: frame({"y": ["a"]}, label="y"), errors.ArgumentError, "no column to learn from"),
        (lambda: frame(pandas.DataFrame([[1, 2]], columns=["a", "a"])), errors.ArgumentError, "two columns"),
        (
            lambda: frame(pandas.DataFrame({"d": pandas.to_datetime(["2020-01-01"])})),
            errors.FeedTypeError,
            "dates or durations",
        ),
        (lambda: frame(ROWS, label="age", class_weight="balanced"), errors.ArgumentError, "a label of classes"),
        (lambda: frame(ROWS, label="paid", class_weight={"no": 1}), errors.ArgumentError, "for each class"),
        (lambda: frame(ROWS, label="paid", class_weight="equal"), errors.ArgumentError, "expected 'balanced'"),
        (lambda: frame(ROWS, "paid", table=Table.fit(ROWS)), errors.ArgumentError, "the table says"),
        (lambda: frame("rows.xlsx"), errors.ArgumentError, "ends in .csv or .parquet"),
        (lambda: frame("nowhere.csv"), errors.ReaderError, "cannot read 'nowhere.csv'"),
    ],
)
def test_wrong_arguments_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age": ["old"]}, "row 0: the column 'age' is 'old', expected a number"),
        ({"paid": ["maybe"]}, "row 0: the label 'paid' is none of the classes 'no', 'yes', found 'maybe'"),
        ({"paid": [None]}, "the label 'paid' is none of the classes"),
        ({"rows": [-1]}, "the weight 'rows' is no number from 0 up, found -1"),
    ],
)
def test_wrong_values_name_column_and_row(change, message):
    table = Table.fit(ROWS, label="paid", weight="rows")
    with pytest.raises(errors.FeedError, match=message):
        table({**ROWS.iloc[:1].to_dict("list"), **change})


def test_absent_columns_are_named():
    with pytest.raises(errors.FeedError, match="no column 'age', and lack 1 more"):
        Table.fit(FEATURES)({"city": ["Rome"]})


def test_columns_of_a_program_have_their_names():
    table = Table.fit(FEATURES)

    def program():
        return fluid.nets.table_columns(table)

    found = fluid.Session(program).run(feed=table(FEATURES))
    assert list(found.keys()) == ["age", "income", "city"]
    np.testing.assert_array_equal(found["city"], table(FEATURES)["categories"])


def test_two_tables_in_a_program_are_refused():
    first, second = Table.fit({"a": [1.0, 2.0]}), Table.fit({"a": [1.0, 3.0]})
    with pytest.raises(errors.ProgramError, match="two different tables"):
        fluid.Program(lambda: fluid.nets.table_features(first) + fluid.nets.table_features(second))
    with pytest.raises(errors.ProgramError, match="different tables"):
        fluid.Session(lambda: fluid.nets.table_features(first), lambda: fluid.nets.table_features(second))
    with pytest.raises(errors.ArgumentTypeError, match="expected the Table"):
        fluid.Program(lambda: fluid.nets.table_features(FEATURES))
