"""Answers of a server: to real clients and `fluid.Inferencer(url=)`, for sequences, versions and tokens."""

import concurrent.futures
import json
import logging
import pathlib
import subprocess

import jax
import numpy as np
import pytest
import tritonclient.http as triton
from serving.running_server import (
    DIGITS,
    IMAGES,
    WORDS,
    ask,
    centered,
    digits,
    image_request,
    nested,
    params_of,
    raw,
    save,
    sentiment,
)
from tritonclient.utils import InferenceServerException

import fluid
from fluid import errors


@pytest.fixture
def client(server):
    with triton.InferenceServerClient(server.url.removeprefix("http://")) as made:
        yield made


def wanted(program, feed):
    return fluid.Inferencer(program, params=params_of(program)).infer(feed)


# Tests with Triton's client and with curl.


def test_triton_liveness_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("digits") and client.is_model_ready("digits", "1")
    assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
    told = client.get_model_metadata("digits")
    assert (told["name"], told["versions"]) == ("digits", ["1"])
    assert told["inputs"] == [{"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}]
    assert told["outputs"] == [{"name": "output_0", "datatype": "FP32", "shape": [-1, 5]}]
    told = client.get_model_metadata("sentiment")
    assert [(i["name"], i["datatype"], i["shape"]) for i in told["inputs"]] == [
        ("words", "INT64", [-1, -1, 1]),
        ("words.lengths", "INT32", [-1]),
    ]
    assert told["outputs"][1]["shape"] == [-1, -1, 3]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_triton_infer(client, binary_in, binary_out):
    given = triton.InferInput("image", [3, 1, 8, 8], "FP32")
    given.set_data_from_numpy(IMAGES[:3], binary_data=binary_in)
    asked = triton.InferRequestedOutput("output_0", binary_data=binary_out)
    answer = client.infer("digits", [given], outputs=[asked], request_id="seven")
    np.testing.assert_array_equal(answer.as_numpy("output_0"), wanted(digits, {"image": IMAGES[:3]})[0])
    assert answer.get_response()["id"] == "seven" and answer.get_response()["model_version"] == "1"
    np.testing.assert_array_equal(client.infer("digits", [given]).as_numpy("output_0"), answer.as_numpy("output_0"))


def test_triton_sequences(client):
    rows = np.zeros((3, 5, 1), "int64")
    for row, words in zip(rows, WORDS, strict=True):
        row[: len(words), 0] = words
    tensors = [("words", rows, "INT64"), ("words.lengths", np.array([3, 1, 5], "int32"), "INT32")]
    given = []
    for name, data, datatype in tensors:
        given.append(triton.InferInput(name, data.shape, datatype))
        given[-1].set_data_from_numpy(data)
    answer = client.infer("sentiment", given)
    want = wanted(sentiment, {"words": WORDS})
    np.testing.assert_array_equal(answer.as_numpy("score"), want["score"])
    assert answer.as_numpy("states.lengths").tolist() == [3, 1, 5]
    assert answer.as_numpy("states").shape == (3, 5, 3)
    for got, row, n in zip(answer.as_numpy("states"), want["states"].rows(), (3, 1, 5), strict=True):
        np.testing.assert_array_equal(got[:n], row)


@pytest.mark.parametrize(
    ("name", "data", "datatype", "match"),
    [
        ("img", IMAGES[:1], "FP32", "no tensor 'img' here. Did you mean 'image'"),
        ("image", IMAGES[:1, :, :7], "FP32", "expected.*8, 8"),
        ("image", IMAGES[:9], "FP32", "found 9 rows, expected at most 8"),
        ("image", np.full((1, 1, 8, 8), b"x", object), "BYTES", "BYTES"),
        ("image", IMAGES[:0], "FP32", "at least one"),
    ],
)
def test_wrong_triton_tensors_return_400(client, name, data, datatype, match):
    given = triton.InferInput(name, data.shape, datatype)
    given.set_data_from_numpy(data)
    with pytest.raises(InferenceServerException, match=match) as caught:
        client.infer("digits", [given])
    assert caught.value.status() == "400"


def test_absent_triton_names_are_refused(client):
    given = triton.InferInput("image", [1, 1, 8, 8], "FP32")
    given.set_data_from_numpy(IMAGES[:1])
    with pytest.raises(InferenceServerException, match="no model 'digit' here. Did you mean 'digits'"):
        client.infer("digit", [given])
    with pytest.raises(InferenceServerException, match="no version '2'"):
        client.infer("digits", [given], model_version="2")
    with pytest.raises(InferenceServerException, match="no output 'output_1'"):
        client.infer("digits", [given], outputs=[triton.InferRequestedOutput("output_1")])
    words = triton.InferInput("words", [1, 2], "FP32")
    words.set_data_from_numpy(np.ones((1, 2), "float32"))
    with pytest.raises(InferenceServerException, match="float32"):
        client.infer("sentiment", [words])


def test_curl_posts_json_and_reads_the_answer(server, tmp_path):
    (tmp_path / "request.json").write_text(json.dumps(image_request(2)))
    command = ["curl", "-sS", "--fail", "--data-binary", f"@{tmp_path}/request.json", server.url + DIGITS]
    told = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    want = wanted(digits, {"image": IMAGES[:2]})[0]
    (output,) = told["outputs"]
    assert output["shape"] == [2, 5]
    np.testing.assert_array_equal(np.array(output["data"], "float32").reshape(2, 5), want)
    alive = subprocess.run(["curl", "-sS", f"{server.url}/v2/health/live"], capture_output=True, check=True)
    assert json.loads(alive.stdout) == {"live": True}


# Tests of requests and answers in JSON.


def test_sequences_as_lists_of_any_length(server):
    tensor = {"name": "words", "datatype": "INT64", "shape": [3, -1], "data": WORDS}
    status, told = ask(server, "/v2/models/sentiment/infer", {"inputs": [tensor]})
    assert status == 200
    score, states, lengths = told["outputs"]
    want = wanted(sentiment, {"words": WORDS})
    np.testing.assert_array_equal(np.array(score["data"], "float32"), want["score"].ravel())
    assert lengths == {"name": "states.lengths", "datatype": "INT32", "shape": [3], "data": [3, 1, 5]}
    assert states["shape"] == [3, 5, 3]
    # Sequences of equal length need no -1 in the shape.
    tensor = {"name": "words", "datatype": "INT64", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}
    status, told = ask(server, "/v2/models/sentiment/infer", {"inputs": [tensor], "outputs": [{"name": "score"}]})
    want = wanted(sentiment, {"words": [[1, 2, 3], [4, 5, 6]]})
    np.testing.assert_array_equal(np.array(told["outputs"][0]["data"], "float32"), want["score"].ravel())
    assert len(told["outputs"]) == 1


def test_nested_sequences(server):
    rows = [[[1, 2], [3]], [[4, 5, 6]]]
    tensor = {"name": "text", "datatype": "INT64", "shape": [2, -1, -1], "data": rows}
    status, told = ask(server, "/v2/models/nested/infer", {"inputs": [tensor]})
    assert status == 200, told
    want = wanted(nested, {"text": rows})
    outputs = {output["name"]: output for output in told["outputs"]}
    assert outputs["sums.lengths"]["data"] == [2, 1]
    np.testing.assert_array_equal(np.array(outputs["all"]["data"], "float32"), want["all"].ravel())


# Tests with fluid's client, `fluid.Inferencer(url=)`.


@pytest.mark.parametrize(
    ("name", "program", "feed"),
    [
        ("digits", digits, {"image": IMAGES[:5]}), ("digits", digits, {"image": IMAGES[:1].tolist()}),
        ("sentiment", sentiment, {"words": WORDS}),
        ("sentiment", sentiment, {"words": fluid.create_lod_tensor(np.array([[1], [2], [3]]), [[2, 1]], None)}),
        ("nested", nested, {"text": [[[1, 2], [3]], [[4, 5, 6]], []]}), ("centered", centered, {"x": [[1], [5]]}),
    ],
)  # fmt: skip
def test_remote_and_local_inferencers_give_equal_answers(server, files, name, program, feed):
    remote = fluid.Inferencer(url=f"{server.url}/v2/models/{name}")
    local = fluid.Inferencer(param_path=files[name])
    got, want = remote.infer(feed), local.infer(feed)
    assert got.names == want.names
    for a, b in zip(got, want, strict=True):
        assert type(a) is type(b) and a.shape == b.shape and a.dtype == b.dtype
        rows = [x.rows() if hasattr(x, "rows") else list(x) for x in (a, b)]
        assert all(np.array_equal(p, q) for p, q in zip(*map(jax.tree.leaves, rows), strict=True))
    on_device = remote.infer(feed, return_numpy=False)
    assert all(type(a) is type(b) for a, b in zip(on_device, local.infer(feed, return_numpy=False), strict=True))
    assert repr(remote) == f"Inferencer({name} at {server.url}/v2/models/{name})"


@pytest.mark.parametrize(
    "feed",
    [{}, {"img": IMAGES}, {"image": IMAGES[:0]}, {"image": IMAGES[:, :, :7]}, {"image": "digits.png"},
     {"image": [[1.0], [1.0, 2.0]]}, {"image": np.where(IMAGES > 2, IMAGES, None)}],
)  # fmt: skip
def test_bad_feeds_are_the_same_errors(server, files, feed):
    inferencers = [
        fluid.Inferencer(url=f"{server.url}/v2/models/digits"), fluid.Inferencer(param_path=files["digits"]),
    ]  # fmt: skip
    kinds = []
    for inferencer in inferencers:
        with pytest.raises(errors.FluidError) as caught:
            inferencer.infer(feed)
        kinds.append(type(caught.value))
    assert kinds[0] is kinds[1]


def test_wrong_remote_requests_raise_local_errors(server):
    remote = fluid.Inferencer(url=f"{server.url}/v2/models/sentiment/versions/1")
    assert remote.infer({"words": WORDS}, fetch="score").names == ("score",)
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'score'"):
        remote.infer({"words": WORDS}, fetch=["scores"])
    with pytest.raises(errors.FeedError, match="at most 16"):
        remote.infer({"words": [[1] * 17]})
    with pytest.raises(errors.UnknownNameError, match="name one: http"):
        fluid.Inferencer(url=server.url)
    with pytest.raises(errors.UnknownNameError, match="no model 'x' here"):
        fluid.Inferencer(url=f"{server.url}/v2/models/x")
    with pytest.raises(errors.ArgumentError, match="expected that of a server"):
        fluid.Inferencer(url="digits.fluid")
    assert remote.infer(WORDS)["score"].shape == (3, 3)  # the model has a single feed, so no name is needed
    with pytest.raises(errors.ArgumentTypeError, match="for each minibatch"):
        remote.predict([{"words": WORDS}])
    with pytest.raises(errors.ArgumentTypeError, match="takes nothing else"):
        fluid.Inferencer(digits, url=server.url)
    with pytest.raises(errors.ArgumentTypeError, match="takes nothing else"):
        fluid.Inferencer(url=server.url, buckets=(2,))


@pytest.mark.parametrize(
    ("path", "call"),
    [
        ("/v2/models/digits", "/infer"),
        ("/v2/models/infer/versions/1", "/infer"),
        ("/v2/models/digits", "/ready"),
        ("", "/v2/models"),
        ("", "/v2/health/ready"),
        ("/behind/a/proxy", "/v2"),
    ],
)
def test_url_of_a_call_names_the_model_url(path, call):
    with pytest.raises(errors.ArgumentError, match=f"ends in '{call}'.*url='http://127.0.0.1:1{path}'"):
        fluid.Inferencer(url=f"http://127.0.0.1:1{path}{call}")
    with pytest.raises(errors.RemoteError, match="does not answer"):  # no server listens at this address
        fluid.Inferencer(url=f"http://127.0.0.1:1{path}")


def test_an_unreachable_server_raises_an_error(files):
    with fluid.serve(files["digits"], port=0, max_batch=1) as server:
        remote = fluid.Inferencer(url=server.url)
        assert remote.infer({"image": IMAGES[:1]})[0].shape == (1, 5)
    with pytest.raises(errors.RemoteError, match="does not answer"):
        remote.infer({"image": IMAGES[:1]})


def test_batched_requests_get_their_rows(server):
    remote = fluid.Inferencer(url=f"{server.url}/v2/models/digits")
    want = wanted(digits, {"image": IMAGES})[0]

    def asked(i):
        return np.concatenate([remote.infer({"image": IMAGES[i : i + n]})[0][:1] for n in (1, 2, 3)])

    before = server.app.models.find("digits").runner.compilations
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        for i, got in enumerate(threads.map(asked, range(30))):
            np.testing.assert_allclose(got, np.repeat(want[i : i + 1], 3, axis=0), rtol=1e-5, atol=1e-6)
    assert server.app.models.find("digits").runner.compilations == before == 4


def test_models_with_dependent_rows_are_not_batched(server):
    runners = {name: server.app.models.find(name).runner for name in ("digits", "centered", "sentiment", "nested")}
    assert {name: runner.together for name, runner in runners.items()} == {
        "digits": True, "centered": False, "sentiment": True, "nested": True,
    }  # fmt: skip
    remote = fluid.Inferencer(url=f"{server.url}/v2/models/centered")
    assert remote.infer({"x": [[1], [5]]})[0].tolist() == [[-2], [2]]
    assert remote.infer({"x": [[1], [2], [6]]})[0].tolist() == [[-2], [-1], [3]]


# Tests of model versions.


def test_new_versions_are_loaded_and_damaged_versions_skipped(tmp_path, caplog):
    save(tmp_path / "digits/1/model.fluid", digits, seed=1)
    save(tmp_path / "digits/3/model.fluid", digits, seed=3)
    (tmp_path / "digits/notes").mkdir()
    with fluid.serve(tmp_path / "digits", port=0, max_batch=1) as server:
        remote = fluid.Inferencer(url=server.url)

        def answers(seed):
            want = fluid.Inferencer(digits, params=params_of(digits, seed)).infer({"image": IMAGES[:1]})
            return np.array_equal(remote.infer({"image": IMAGES[:1]})[0], want[0])

        assert answers(3) and server.app.models.find("digits").version == "3"
        (tmp_path / "digits/4").mkdir()
        server.app.models.reload()
        assert server.app.models.find("digits").version == "3", "nothing is in it yet"
        (tmp_path / "digits/4/model.fluid").write_bytes(b"broken")
        for _ in range(2):
            server.app.models.reload()
        assert [r.levelname for r in caplog.records].count("ERROR") == 1 and "is damaged" in caplog.text
        assert answers(3)
        save(tmp_path / "digits/4/model.fluid", digits, seed=4)
        server.app.models.reload()
        assert answers(4) and server.app.models.find("digits").version == "4"
        assert ask(server, "/v2/models/digits/versions/3")[0] == 404
        for version in (6, 7):
            save(tmp_path / f"digits/{version}/model.fluid", digits, seed=version)
        server.app.models.reload()
        assert answers(7) and server.app.models.find("digits").version == "7", "of two newer versions, the newest"


def test_a_good_version_before_a_damaged_version_loads(tmp_path, caplog):
    save(tmp_path / "digits/1/model.fluid", digits, seed=1)
    with fluid.serve(tmp_path / "digits", port=0, max_batch=1) as server:
        save(tmp_path / "digits/2/model.fluid", digits, seed=2)
        (tmp_path / "digits/3").mkdir()
        (tmp_path / "digits/3/model.fluid").write_bytes(b"broken")
        assert server.app.models.reload() and server.app.models.find("digits").version == "2"
        assert not server.app.models.reload()
        assert [r.levelname for r in caplog.records].count("ERROR") == 1


def test_model_names_with_dots_are_separate_models(tmp_path):
    for name, version in (("digits", 1), ("v2", 7)):
        save(tmp_path / f"{name}/{version}/model.fluid", digits)
    sources = {"digits": tmp_path / "digits", "digits.v2": tmp_path / "v2"}
    with fluid.serve(sources, port=0, max_batch=1) as server:
        save(tmp_path / "digits/2/model.fluid", digits)
        assert server.app.models.reload()
        assert [server.app.models.find(name).version for name in sources] == ["2", "7"]


def test_an_absent_folder_is_checked_again(tmp_path, caplog):
    save(tmp_path / "digits/1/model.fluid", digits)
    with fluid.serve({"d": tmp_path / "digits"}, port=0, max_batch=1, reload_every=0.01) as server:
        (tmp_path / "digits").rename(tmp_path / "away")
        while "cannot be looked for" not in caplog.text:
            pass
        save(tmp_path / "away/2/model.fluid", digits)
        (tmp_path / "away").rename(tmp_path / "digits")
        while ask(server, "/v2/models/d")[1]["versions"] != ["2"]:
            pass
    assert [r.levelname for r in caplog.records].count("ERROR") == 1


@pytest.mark.parametrize("name", [".", "..", "", "a/b", "a b", "x" * 129, "ä"])
def test_names_that_are_no_part_of_a_url(name):
    def program():
        return fluid.layers.data("x", shape=[2]) * 2

    with pytest.raises(errors.ArgumentError, match="neither . nor .., as it is a part of URLs"):
        fluid.serve({name: fluid.Inferencer(program, params={})}, port=0)


def test_reload_every_loads_new_versions(tmp_path):
    save(tmp_path / "digits/1/model.fluid", digits)
    with fluid.serve({"d": tmp_path / "digits"}, port=0, max_batch=1, reload_every=0.01) as server:
        save(tmp_path / "digits/2/model.fluid", digits)
        while ask(server, "/v2/models/d")[1]["versions"] != ["2"]:
            pass


def test_entry_points_are_served_as_separate_models(tmp_path):
    programs = {"encode": sentiment, "decode": digits}
    params = params_of(sentiment) | params_of(digits)
    fluid.io.save_inference_model(tmp_path / "both.fluid", programs, params)
    with fluid.serve(tmp_path / "both.fluid", port=0, max_batch=1, buckets=(4,)) as server:
        assert ask(server, "/v2/models")[1] == {"models": ["both.encode", "both.decode"]}
        remote = fluid.Inferencer(url=f"{server.url}/v2/models/both.encode")
        assert remote.infer({"words": [[1, 2]]})["score"].shape == (1, 3)


def test_an_inferencer_is_served_without_export():
    inferencer = fluid.Inferencer(digits, params=params_of(digits))
    with fluid.serve({"digits": inferencer}, port=0, max_batch=2) as server:
        got = fluid.Inferencer(url=server.url).infer({"image": IMAGES[:2]})
        assert np.array_equal(got[0], inferencer.infer({"image": IMAGES[:2]})[0])


def test_sizes_that_a_model_was_exported_for(tmp_path):
    def by_numbers():
        x = fluid.layers.data("x", shape=[2], lod_level=1)
        return fluid.layers.reduce_sum(x.data * np.linspace(0, 1, x.shape[1], dtype="float32")[None, :, None], dim=1)

    path = tmp_path / "m.fluid"
    fluid.io.save_inference_model(path, by_numbers, {}, platforms=["cpu"], batch_sizes=[1, 2], buckets=[4])
    feed = {"x": [[[1, 2]], [[3, 4], [5, 6]]]}
    with fluid.serve(path, port=0) as server:
        got = fluid.Inferencer(url=server.url).infer(feed)
    assert np.array_equal(got[0], fluid.Inferencer(param_path=path).infer(feed)[0])


# Tests of tokens, origins and host names.


def test_row_67_a_token(files):
    with fluid.serve(files["digits"], port=0, max_batch=1, token="s3cret") as server:
        assert ask(server, "/v2/health/ready")[0] == 200
        for path in ("/v2", "/v2/models", "/v2/models/digits", "/metrics"):
            assert ask(server, path)[0] == 401
            assert ask(server, path, None, "Authorization: Bearer wrong")[0] == 401
        assert ask(server, DIGITS, image_request())[0] == 401
        assert ask(server, DIGITS, image_request(), "Authorization: Bearer s3cret")[0] == 200
        with pytest.raises(errors.RemoteError, match="answered 401: this server asks for a token"):
            fluid.Inferencer(url=server.url)
        remote = fluid.Inferencer(url=server.url, token="s3cret")
        assert remote.infer({"image": IMAGES[:1]})[0].shape == (1, 5)


def test_unused_and_invalid_tokens_are_refused(files):
    with pytest.raises(errors.ArgumentTypeError, match="token= is for a model behind a server"):
        fluid.Inferencer(param_path=files["digits"], token="s3cret")
    for token in ("s3cret\n", "Bearer s3cret"):
        with pytest.raises(errors.ArgumentError, match=r"the token holds spaces.*token=text\.strip\(\)"):
            fluid.Inferencer(url="http://127.0.0.1:1", token=token)


def test_row_67_other_origins_are_refused_without_a_token(files):
    with fluid.serve(files["digits"], port=0, max_batch=1) as server:
        for origin, status in [
            ("http://localhost", 200),
            ("https://example.org", 403),
            ("http://localhost.example.org", 403),
            ("http://[::1", 403),
            ("null", 403),
        ]:
            assert ask(server, DIGITS, image_request(), f"Origin: {origin}")[0] == status
    with fluid.serve(files["digits"], port=0, max_batch=1, token="s3cret") as server:
        asked = ask(server, DIGITS, image_request(), "Authorization: Bearer s3cret", "Origin: https://example.org")
        assert asked[0] == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_row_67_a_public_address_needs_a_token(files, host):
    with pytest.raises(errors.ArgumentError, match="can be reached from other machines.*--token-file"):
        fluid.serve(files["digits"], host, port=0)


def test_allow_anonymous_serves_a_public_address(files):
    with fluid.serve(files["digits"], "0.0.0.0", port=0, max_batch=1, allow_anonymous=True) as server:
        assert ask(server, "/v2/models", None, "X: y")[0] == 200


def test_row_67_a_foreign_host_header_is_refused(server):
    import http.client

    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("GET", "/v2/models", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 403
    connection.close()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"max_batch": 0}, "max_batch=0"), ({"timeout": float("nan")}, "timeout=nan"), 
        ({"buckets": (4, 4)}, "increasing"),
        ({"outer_buckets": (1,)}, "as many as buckets"), ({"max_bach": 3}, "Did you mean 'max_batch'"),
        ({"token": "two words"}, "a token is a word"),
    ],
)  # fmt: skip
def test_inconsistent_settings_are_refused(files, options, match):
    with pytest.raises(errors.FluidError, match=match):
        fluid.serve(files["digits"], port=0, **options)


def test_models_that_cannot_be_served(files, tmp_path, server):
    for models, match in [
        ({}, "no model to serve"), ({"a/b": files["digits"]}, "the model name 'a/b'"),
        (tmp_path / "nothing", "no exported model at"), (tmp_path, "expected model.fluid there"),
        ({"d": fluid.Inferencer(url=f"{server.url}/v2/models/digits")}, "already"),
    ]:  # fmt: skip
        with pytest.raises(errors.FluidError, match=match):
            fluid.serve(models, port=0)
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(errors.ArgumentError, match="choose another port"):
        fluid.serve(files["digits"], port=port)
    for port in (65536, -1, "8000", True):
        with pytest.raises(errors.ArgumentError, match=f"found port={port!r}, expected a number from 1 to 65535"):
            fluid.serve(files["digits"], port=port)


# Tests of the metrics, the log and the page.


def test_metrics_and_the_log(files, caplog):
    with fluid.serve(files["digits"], port=0, max_batch=4) as server, caplog.at_level(logging.INFO, "fluid.serving"):
        for _ in range(3):
            ask(server, DIGITS, image_request(3))
        ask(server, DIGITS, {})
        ask(server, "/v2/models/a%0Ab/infer", {})
        import http.client

        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
    assert 'fluid_requests_total{model="digits",status="200",version="1"} 3.0' in text
    assert 'fluid_requests_total{model="digits",status="400",version="1"} 1.0' in text
    assert 'fluid_requests_total{model="",status="404",version=""} 1.0' in text
    assert 'fluid_batch_rows_sum{model="digits",version="1"} 9.0' in text
    assert 'fluid_compilations{model="digits",version="1"} 3.0' in text
    assert 'fluid_queue_requests{model="digits",version="1"} 0.0' in text
    lines = [json.loads(r.message) for r in caplog.records if r.name == "fluid.serving.access"]
    assert [line["status"] for line in lines] == [200, 200, 200, 400, 404, 200]
    assert lines[0]["model"] == "digits" and lines[0]["path"] == DIGITS and lines[0]["ms"] > 0
    assert lines[4]["path"] == "/v2/models/a\nb/infer"


def test_metrics_forget_versions_that_are_gone(tmp_path):
    save(tmp_path / "digits/1/model.fluid", digits)
    with fluid.serve(tmp_path / "digits", port=0, max_batch=1) as server:
        for version in ("1", "2"):
            assert ask(server, DIGITS, image_request())[0] == 200
            assert ask(server, "/v2/models/none/infer", {})[0] == 404
            text = raw(server, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")[1].decode()
            assert {line.partition('version="')[2][0] for line in text.splitlines() if 'version="' in line} == {
                version, '"',
            }  # fmt: skip
            if version == "1":
                save(tmp_path / "digits/2/model.fluid", digits)
                assert server.app.models.reload()


def test_the_server_returns_its_page(server):
    import http.client

    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    for path in ("/", "/page.js", "/page.css"):
        connection.request("GET", path)
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200 and "default-src 'none'" in answer.headers["content-security-policy"]
        name = "page.html" if path == "/" else path[1:]
        folder = pathlib.Path(fluid.__file__).parent / "serving" / "static"
        assert content == (folder / name).read_bytes()
    connection.close()
