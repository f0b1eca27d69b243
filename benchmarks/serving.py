"""Models over HTTP: fluid's server beside a bare uvicorn handler that calls the jitted function of the model.

    python benchmarks/serving.py --rounds 5 --seconds 5

Each server runs in a separate process, and all clients run in another process (`load.py`). A client keeps its
connection open, sends one row as a binary tensor of the Open Inference Protocol, and sends the next request after the
response. The hand-written handler reads the same request and returns the same response. The handler checks nothing, has
no limits, no log and no metrics, and computes each request separately. A cold start is measured from the start of the
process until the server is ready.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from load import UNITS, clients, exchange
from models import LENET
from timing import interleave

import fluid
from fluid import export, serving
from fluid.serving import protocol


def wide_program() -> Any:
    """Return probabilities of a perceptron 784-4096-4096-10, which reads its 20 million parameters once per batch."""
    hidden = fluid.layers.data(name="x", shape=[784])
    for _ in range(2):
        hidden = fluid.layers.fc(hidden, size=4096, act="relu")
    return fluid.layers.fc(hidden, size=10, act="softmax")


# The hand-written handler and the model without a server compute in the calling thread, as fluid's server does.
jax.config.update("jax_cpu_enable_async_dispatch", False)

# The program function of each model, and the shape of one row.
MODELS = {"LeNet": (LENET.inference_program, LENET.shape), "perceptron": (wide_program, (784,))}


def bare(path: str) -> None:
    """Serve the jitted function of the exported model `path` by a bare uvicorn handler, and print the URL."""
    import uvicorn

    program = export.load(path).program()
    arrays = program.init(jax.random.key(0))
    call = jax.jit(lambda arrays, x: program.apply(arrays, {"x": x}, key=jax.random.key(0)).outputs[0])
    (feed,) = program.feeds.values()
    np.asarray(call(arrays, np.zeros((1, *feed.shape[1:]), "float32")))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":  # a GET request checks whether the server is ready
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        length = int(dict(scope["headers"])[b"inference-header-content-length"])
        (given,) = json.loads(body[:length])["inputs"]
        result = np.asarray(call(arrays, np.frombuffer(body, "float32", offset=length).reshape(given["shape"])))
        told = {"name": "output_0", "datatype": "FP32", "shape": result.shape}
        output = told | {"parameters": {"binary_data_size": result.nbytes}}
        text = json.dumps({"model_name": "bare", "model_version": "1", "outputs": [output]}).encode()
        answer = text + result.tobytes()
        headers = [
            (b"content-length", b"%d" % len(answer)),
            (b"inference-header-content-length", b"%d" % len(text)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    config = uvicorn.Config(app, port=0, http="httptools", log_level="error", access_log=False, lifespan="off")
    listening = config.bind_socket()
    listening.listen(2048)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listening])


def by_function(params: str) -> None:
    """Run fluid's server for the program function of LeNet with the parameter file `params`, and print the URL."""
    inferencer = fluid.Inferencer(LENET.inference_program, param_path=params)
    server = serving.Server({"model": inferencer}, port=0)
    print(server.url, flush=True)
    server.run()


@contextlib.contextmanager
def running(*command: str) -> Iterator[tuple[str, float]]:
    """Run a server in a separate process, and yield its URL and the seconds until it was ready."""
    start = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        try:
            assert run.stdout is not None
            url = run.stdout.readline().strip()
            while not ready(url):
                time.sleep(0.005)
            yield url, time.perf_counter() - start
        finally:
            run.terminate()


def ready(url: str) -> bool:
    """Return whether a server reports that it is ready."""
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready") as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def request_of(row: np.ndarray) -> bytes:
    """Return the bytes of a client's request for one row."""
    body, length = protocol.write_request(protocol.InferRequest([protocol.MessageTensor("x", row)], binary=True))
    head = (
        "POST /v2/models/model/infer HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Length: {len(body)}\r\nInference-Header-Content-Length: {length}\r\n\r\n"
    )
    return head.encode() + body


def address_of(url: str) -> tuple[str, int]:
    """Return the host and the port of a server."""
    return "127.0.0.1", int(url.rpartition(":")[2])


def check(url: str, request: bytes, wanted: np.ndarray) -> None:
    """Send a request, decode the response, and compare it with `wanted`, the result of the model."""
    head, _, body = exchange(address_of(url), request).partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"inference-header-content-length:")[2].split(b"\r\n")[0])
    (found,) = protocol.read_response(body, length).outputs
    np.testing.assert_allclose(found.data, wanted, rtol=1e-5, atol=1e-6)


def forward(name: str, path: str) -> None:
    """Print the time per row without a server, alone and in a batch of 64: the ratio limits the gain by batching."""
    program = export.load(path).program()
    arrays = program.init(jax.random.key(0))
    call = jax.jit(lambda arrays, x: program.apply(arrays, {"x": x}, key=jax.random.key(0)).outputs[0])
    took = {}
    for rows in (1, 64):
        x = np.zeros((rows, *MODELS[name][1]), "float32")
        np.asarray(call(arrays, x))
        took[rows] = min(timeit.repeat(lambda x=x: np.asarray(call(arrays, x)), number=1, repeat=50)) / rows * 1e6
    print(f"{name} without a server: {took[1]:.0f} us for one row, {took[64]:.0f} us for each of 64")


def throughput(name: str, path: str, rounds: int, seconds: float) -> None:
    """Print the figures of fluid's server and of a bare uvicorn server with 1, 4 and 64 connections, in turns."""
    row = np.random.default_rng(0).normal(size=(1, *MODELS[name][1])).astype("float32")
    request = request_of(row)
    (wanted,) = fluid.Inferencer(param_path=path).infer({"x": row})
    with (
        running("-m", "fluid", "serve", f"model={path}", "--port", "0", "--max-batch", "64") as (served, _),
        running(__file__, "--bare", path) as (plain, _),
    ):
        urls = {"fluid": served, "bare": plain}
        for url in urls.values():
            check(url, request, wanted)
        for connections in (1, 4, 64):
            found = interleave(
                {
                    who: lambda url=url, n=connections: clients(address_of(url), request, n, seconds)
                    for who, url in urls.items()
                },
                rounds,
            )
            for what, unit in UNITS.items():
                numbers = {who: [getattr(figures, what) for figures in rounds] for who, rounds in found.items()}
                ratios = sorted(f / b for f, b in zip(numbers["fluid"], numbers["bare"], strict=True))
                low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
                fluids, bares = (statistics.median(numbers[who]) for who in urls)
                print(
                    f"| {name}, {connections} | {unit} | {fluids:.4g} | {bares:.4g} | {middle:.2f} "
                    f"| {low:.2f} to {high:.2f} |"
                )


def cold_start(path: str, params: str, rounds: int) -> None:
    """Print the time until the server is ready, with the exported model and with the program function."""
    commands = {
        "artifact": ("-m", "fluid", "serve", f"model={path}", "--port", "0"),
        "function and parameters": (__file__, "--by-function", params),
    }
    for name, command in commands.items():
        seconds = []
        for _ in range(rounds):
            with running(*command) as (_, took):
                seconds.append(took)
        print(f"cold start, {name}: {statistics.median(seconds):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each round")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    parser.add_argument("--by-function", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        bare(given.bare)
    elif given.by_function:
        by_function(given.by_function)
    else:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{len(os.sched_getaffinity(0))} cores\n")
            print("| model, connections | what | fluid | bare handler | fluid / bare | quartiles |")
            print("|---|---|---|---|---|---|")
            paths = {}
            for name, (program, _) in MODELS.items():
                path, params = (os.path.join(folder, f"{name}.{ending}") for ending in ("fluid", "params"))
                with fluid.Session(program, seed=0) as session:
                    session.save_params(params)
                fluid.io.save_inference_model(path, program, params, platforms=["cpu", "cuda", "tpu"])
                paths[name] = path
                throughput(name, path, given.rounds, given.seconds)
            print()
            for name, path in paths.items():
                forward(name, path)
            path, params = (os.path.join(folder, f"LeNet.{ending}") for ending in ("fluid", "params"))
            print(f"{pathlib.Path(path).stat().st_size:,} bytes")
            cold_start(path, params, given.rounds)


if __name__ == "__main__":
    main()
