"""Raw table rows, from training to a server: parameters, checkpoints and exported models contain the `Table`."""

import csv
import subprocess
import sys

import numpy as np
import pandas
import pytest
from serving.running_server import ask, image_request
from sklearn.metrics import roc_auc_score

import fluid
from fluid import errors
from fluid.export import standalone
from fluid.reader import Table, frame

RNG = np.random.default_rng(0)
AGE = RNG.integers(18, 80, 200).astype(float)
CITY = RNG.choice(["Rome", "Oslo", "Lima"], 200)
PAID = np.where((AGE > 50) ^ (CITY == "Rome") ^ (RNG.random(200) < 0.1), "yes", "no")
ROWS = pandas.DataFrame({"age": AGE, "city": CITY, "paid": PAID})
ROWS.loc[3, "age"] = np.nan
ROWS.loc[4, "city"] = None
RAW = ROWS.drop(columns=["paid"])
READER = frame(ROWS, label="paid", class_weight="balanced")
TABLE = READER.table


def net(table=TABLE):
    hidden = fluid.layers.fc(fluid.nets.table_features(table, size=4), size=8, act="relu")
    return {"paid": fluid.layers.fc(hidden, size=2, act="softmax")}


def train_program(table=TABLE):
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    weight = fluid.layers.data("weight", shape=[1])
    prediction = net(table)["paid"]
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label) * weight)
    return {"loss": loss, "auc": fluid.layers.auc(prediction, label)[0], "paid": prediction}


@pytest.fixture(scope="module")
def trainer():
    made = fluid.Trainer(train_program, fluid.optimizer.Adam(0.02))
    made.train(READER, num_epochs=5)
    return made


@pytest.fixture(scope="module")
def model(trainer, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "paid.fluid"
    trainer.save_inference_model(path, platforms=["cpu"])
    return path


@pytest.fixture(scope="module")
def expected(trainer):
    return np.concatenate([results["paid"] for results in trainer.predict(READER, fetch="paid")])


@pytest.fixture(scope="module")
def server(model):
    with fluid.serve({"paid": model, "plain": plain(model)}, port=0, max_batch=256) as running:
        yield running


def plain(model):
    """Export a model without a Table (an encoding of raw rows as feeds), and return the path of its file."""
    path = model.with_name("plain.fluid")
    fluid.io.save_inference_model(
        path, lambda: {"y": fluid.layers.data("image", shape=[1, 8, 8]) * 2.0}, {}, platforms=["cpu"]
    )
    return path


def test_auc_equals_scikit_learn(trainer, expected):
    np.testing.assert_allclose(trainer.test(READER)["auc"], roc_auc_score(PAID == "yes", expected[:, 1]), atol=2e-3)


def test_weights_multiply_the_loss_of_each_row(trainer, expected):
    labels, weights = TABLE(ROWS)["label"][:, 0], TABLE(ROWS)["weight"][:, 0]
    losses = -np.log(expected[np.arange(len(labels)), labels]) * weights
    np.testing.assert_allclose(trainer.test(READER)["loss"], losses.mean(), rtol=1e-4)


def test_exported_model_takes_a_frame_of_raw_rows(model, expected):
    inferencer = fluid.Inferencer(param_path=model)
    np.testing.assert_allclose(inferencer.infer(RAW)["paid"], expected, rtol=1e-5)
    assert inferencer.table == TABLE


@pytest.mark.parametrize("ending", ["params", "safetensors"])
def test_saved_parameters_take_a_frame_of_raw_rows(ending, trainer, expected, tmp_path):
    path = tmp_path / f"paid.{ending}"
    trainer.save_params(path)
    table = fluid.io.load_table(path)
    found = fluid.Inferencer(lambda: net(table), path).infer(ROWS)["paid"]
    assert table == TABLE
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_raw_columns_by_name_are_accepted(model, expected):
    found = fluid.Inferencer(param_path=model).infer({"age": [AGE[0], None], "city": [CITY[0], "Bonn"]})["paid"]
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    unknown = {"numbers": [[0.0]], "categories": [[0]]}
    np.testing.assert_allclose(found[1:], fluid.Inferencer(param_path=model).infer(unknown)["paid"], rtol=1e-5)


def test_predict_returns_a_frame_named_by_classes(model, expected):
    found = fluid.Inferencer(param_path=model).predict(RAW).to_pandas()
    assert list(found.columns) == ["paid[no]", "paid[yes]"]
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-5)


def test_predict_takes_a_reader_with_labels(model, expected):
    found = fluid.Inferencer(param_path=model).predict(READER).to_pandas()
    np.testing.assert_allclose(found.to_numpy(), expected, rtol=1e-5)


def test_reader_with_another_table_is_refused(trainer, model):
    own = frame(ROWS.replace({"city": {"Rome": "Bonn"}}), label="paid", class_weight="balanced")
    for call in (
        trainer.train,
        trainer.test,
        trainer.predict,
        trainer.check,
        fluid.Inferencer(param_path=model).predict,
    ):
        with pytest.raises(errors.ArgumentError, match="has learned another table"):
            call(own)
    with pytest.raises(errors.ArgumentError, match="has learned another table"):
        fluid.Trainer(train_program, fluid.optimizer.SGD(0.0)).train(READER, test_reader=own)


def test_predict_writes_a_csv_file(model, tmp_path):
    inferencer = fluid.Inferencer(param_path=model)
    inferencer.predict(RAW).to_csv(tmp_path / "paid.csv")
    found = pandas.read_csv(tmp_path / "paid.csv")
    pandas.testing.assert_frame_equal(found, inferencer.predict(RAW).to_pandas().astype("float64"))
    with open(tmp_path / "paid.csv", newline="") as file:
        assert next(csv.reader(file)) == ["paid[no]", "paid[yes]"]


def test_predictions_without_rows_are_refused(trainer):
    with pytest.raises(errors.ArgumentError, match="'loss' has no row for each example"):
        trainer.predict(READER).to_pandas()


def test_single_values_are_columns_of_their_name():
    data = fluid.reader.arrays({"x": np.arange(3.0)[:, None]}, batch_size=2)
    program = lambda: {"twice": fluid.layers.data("x", shape=[1]) * 2.0}  # noqa: E731
    found = fluid.Inferencer(program, params={}).predict(data).to_pandas()
    assert found.to_dict("list") == {"twice": [0.0, 2.0, 4.0]}


def test_served_model_takes_raw_rows(server, expected):
    rows = [{"age": AGE[0], "city": CITY[0]}, {"age": None, "city": "Bonn"}, {"age": 30, "city": None, "id": 7}]
    status, answer = ask(server, "/v2/models/paid/infer", {"rows": rows})
    assert status == 200
    found = np.reshape(answer["outputs"][0]["data"], answer["outputs"][0]["shape"])
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    assert found.shape == (3, 2)


def test_client_of_a_server_takes_raw_rows(server, expected):
    inferencer = fluid.Inferencer(url=f"{server.url}/v2/models/paid")
    np.testing.assert_allclose(inferencer.infer(RAW)["paid"], expected, rtol=1e-5)
    assert inferencer.table == TABLE


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"rows": []}, "at least one"),
        ({"rows": [3]}, "a list of objects"),
        ({"rows": [{"age": 3}]}, "row 0 has no 'city'"),
        ({"rows": [{"age": "old", "city": "Rome"}]}, "expected a number"),
        ({"rows": [{"age": [3], "city": "Rome"}]}, "expected a text, a number or null"),
        ({"rows": [{"age": 3, "city": "Rome"}] * 300}, "expected at most 256"),
        ({"rows": [{"age": 3, "city": "Rome"}], **image_request()}, "found both"),
    ],
)
def test_wrong_raw_rows_are_refused_by_the_server(request_, message, server):
    status, answer = ask(server, "/v2/models/paid/infer", request_)
    assert status == 400 and message in answer["error"]


def test_server_without_table_refuses_raw_rows(server):
    status, answer = ask(server, "/v2/models/plain/infer", {"rows": [{"age": 3}]})
    assert status == 400 and "no table of raw rows" in answer["error"]


def test_standalone_reader_takes_and_describes_arrays(model, expected):
    feeds = {name: array for name, array in TABLE(RAW).items() if name != "weight"}
    np.testing.assert_allclose(standalone.load(model)(feeds)[0], expected, rtol=1e-5)
    told = subprocess.run([sys.executable, standalone.__file__, model], capture_output=True, text=True, check=True)
    assert "{'city': ['Lima', 'Oslo', 'Rome']}" in told.stdout and "(value - shift) / scale" in told.stdout


def test_checkpoint_keeps_the_table(tmp_path):
    folder = tmp_path / "checkpoints"
    config = fluid.CheckpointConfig(folder, step_interval=1)
    fluid.Trainer(train_program, fluid.optimizer.SGD(0.1), checkpoint_config=config).train(READER)
    assert fluid.io.load_table(folder) == TABLE
    found = fluid.Inferencer(net, checkpoint=folder).infer(RAW)["paid"]
    assert found.shape == (200, 2)
    with pytest.raises(errors.ParameterError, match="another table of raw rows"):
        fluid.Trainer(lambda: train_program(other()), fluid.optimizer.SGD(0.1), checkpoint_config=config)


def other():
    """Return a Table that has the shapes of `TABLE`, but the city Bonn instead of Rome."""
    return Table.fit(ROWS.replace({"city": {"Rome": "Bonn"}}), label="paid", class_weight="balanced")


@pytest.mark.parametrize("kind", ["params", "session", "model"])
def test_parameters_of_another_table_are_refused(kind, trainer, model, tmp_path):
    path = model if kind == "model" else tmp_path / kind
    if kind == "params":
        trainer.save_params(path)
    elif kind == "session":
        trainer.session.save(path)
    with pytest.raises(errors.ParameterError, match="categories differ: found {'city': .*load_table"):
        fluid.Inferencer(lambda: net(other()), path)
    if kind != "model":
        with pytest.raises(errors.ParameterError, match="another table"):
            fluid.Session(lambda: train_program(other())).load(path)
        with pytest.raises(errors.ParameterError, match="another table"):
            fluid.io.save_inference_model(tmp_path / "x.fluid", lambda: net(other()), path)


def test_parameters_of_another_table_may_be_a_start(trainer, tmp_path):
    trainer.save_params(tmp_path / "old.params")
    fluid.Trainer(
        lambda: train_program(other()), fluid.optimizer.SGD(0.1), param_path=tmp_path / "old.params", strict=False
    )


def test_file_without_table_is_named(tmp_path):
    fluid.io.save_arrays(tmp_path / "w.params", {"w": np.ones(2)})
    with pytest.raises(errors.ParameterFileError, match="has no table of raw rows"):
        fluid.io.load_table(tmp_path / "w.params")
    fluid.io.save_arrays(tmp_path / "w.params", {"w": np.ones(2)}, table={"version": 1})
    with pytest.raises(errors.ParameterFileError, match="makes no sense"):
        fluid.io.load_table(tmp_path / "w.params")


def test_weighted_loss_exports_the_prediction(trainer, model):
    assert list(fluid.Inferencer(param_path=model).program.feeds) == ["numbers", "categories"]


def test_files_without_table_keep_their_bytes(tmp_path):
    fluid.io.save_arrays(tmp_path / "a", {"w": np.ones(2)})
    assert b'"table"' not in (tmp_path / "a").read_bytes()
