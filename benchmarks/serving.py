"""LeNet behind HTTP: fluid's server beside a bare uvicorn handler that calls the jitted function of the same artifact.

    python benchmarks/serving.py --rounds 5 --seconds 5

Each server is a process of its own, and so are the clients: connections that are kept, each of which asks for one
image, as bytes, and asks again when it has the answer. The handler takes the bytes of the image and gives those of the
result, and parses nothing. Cold starts are timed from the start of the process to the first time that it is ready.
"""

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from load import Figures, clients, exchange
from models import LENET

import fluid
from fluid import artifact, protocol, serving


def bare(path: str) -> None:
    """A server that calls the jitted function, and does nothing else."""
    import jax
    import uvicorn

    program = artifact.load(path).program()
    arrays = program.init(jax.random.key(0))
    call = jax.jit(lambda arrays, x: program.apply(arrays, {"x": x}, key=jax.random.key(0)).outputs[0])
    np.asarray(call(arrays, np.zeros((1, *LENET.shape), "float32")))

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message.get("more_body", False)
        result = b""
        if body:
            result = np.asarray(call(arrays, np.frombuffer(body, "float32").reshape(1, *LENET.shape))).tobytes()
        headers = [(b"content-length", str(len(result)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": result})

    config = uvicorn.Config(app, port=0, http="httptools", log_level="error", access_log=False, lifespan="off")
    listening = config.bind_socket()
    listening.listen(2048)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(config).run([listening])


def by_function(params: str) -> None:
    """fluid's server, for the program function and a file of parameters."""
    inferencer = fluid.Inferencer(LENET.inference_program, param_path=params)
    server = serving.Server({"lenet": inferencer}, port=0)
    print(server.url, flush=True)
    server.run()


@contextlib.contextmanager
def running(*command: str) -> Iterator[tuple[str, float]]:
    """A server in a process of its own: where it is, and how many seconds it took to be ready."""
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
    """Whether a server says so."""
    try:
        with urllib.request.urlopen(f"{url}/v2/health/ready") as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False


def fluid_request(image: np.ndarray) -> bytes:
    """One image, as the protocol has it."""
    body, length = protocol.write_request(protocol.InferRequest([protocol.Tensor("x", image)], binary=True))
    return _head("/v2/models/lenet/infer", body, f"Inference-Header-Content-Length: {length}\r\n") + body


def bare_request(image: np.ndarray) -> bytes:
    """One image, and nothing else."""
    return _head("/", image.tobytes()) + image.tobytes()


def _head(path: str, body: bytes, more: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode()


def throughput(path: str, rounds: int, seconds: float) -> None:
    """Print what both servers do with 1 and with 64 connections; they take turns."""
    image = LENET.data(1)[0]
    print("| connections | server | requests/s | p50 ms | p99 ms |\n|---|---|---|---|---|")
    with (
        running("-m", "fluid", "serve", f"lenet={path}", "--port", "0", "--max-batch", "64") as (served, _),
        running(__file__, "--bare", path) as (plain, _),
    ):
        asked: dict[str, Callable[[int, float], Figures]] = {
            "fluid": lambda n, s: clients(served, fluid_request(image), n, s),
            "bare handler": lambda n, s: clients(plain, bare_request(image), n, s),
        }
        for connections in (1, 64):
            for ask in asked.values():
                ask(connections, 1.0)
            found: dict[str, list[Figures]] = {name: [] for name in asked}
            for number in range(rounds):
                for name in list(asked) if number % 2 == 0 else list(reversed(asked)):
                    found[name].append(asked[name](connections, seconds))
            for name, figures in found.items():
                rate, p50, p99 = (statistics.median(column) for column in zip(*figures, strict=True))
                print(f"| {connections} | {name} | {rate:.0f} | {p50:.2f} | {p99:.2f} |")


def cold_start(path: str, params: str, rounds: int) -> None:
    """Print how long it takes until the server is ready, with the artifact and with the program function."""
    commands = {
        "artifact": ("-m", "fluid", "serve", f"lenet={path}", "--port", "0"),
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
            path, params = os.path.join(folder, "lenet.fluid"), os.path.join(folder, "lenet.params")
            with fluid.Session(LENET.inference_program, seed=0) as session:
                session.save_params(params)
            fluid.io.save_inference_model(path, LENET.inference_program, params, platforms=["cpu", "cuda", "tpu"])
            print(f"{pathlib.Path(path).stat().st_size:,} bytes; {len(os.sched_getaffinity(0))} cores\n")
            throughput(path, given.rounds, given.seconds)
            print()
            cold_start(path, params, given.rounds)


if __name__ == "__main__":
    main()
