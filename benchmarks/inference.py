"""Inference from NumPy to NumPy: the latency of one example, and the throughput of batches of 256."""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from models import LENET, LENET_NHWC, MLP, Model
from timing import Row, interleave, rate
from training import split

import fluid


def make_peers(model: Model) -> dict[str, Callable[[np.ndarray], Any]]:
    """Return the inference functions "fluid" and "hand" of a model; each computes probabilities from an array."""
    session = fluid.Session(model.inference_program)
    program = next(iter(session.programs.values()))
    params = dict(session.scope)
    parameters, states = split(model.arrays_by_hand(params), set(program.parameters))
    inferencer = fluid.Inferencer(model.inference_program, params=params)

    @jax.jit
    def predict(parameters: Any, states: Any, x: Any) -> Any:
        return jax.nn.softmax(model.forward(parameters, states, x, False)[0])

    return {
        "fluid": lambda x: inferencer.infer({"x": x})[0],
        "hand": lambda x: np.asarray(predict(parameters, states, x)),
    }


def latencies(call: Callable[[Any], Any], x: np.ndarray, count: int) -> tuple[float, float]:
    """Run `call(x)` `count` times, and return the median and the 99th percentile of its microseconds."""
    found = []
    for _ in range(count):
        start = time.perf_counter()
        call(x)
        found.append((time.perf_counter() - start) * 1e6)
    return float(np.percentile(found, 50)), float(np.percentile(found, 99))


def repeat(call: Callable[[Any], Any], x: np.ndarray, count: int) -> None:
    """Run `call(x)` `count` times."""
    for _ in range(count):
        call(x)


def run(rounds: int) -> list[Row]:
    rows = []
    for what, model in (("MLP", MLP), ("LeNet, NCHW", LENET), ("LeNet, NHWC", LENET_NHWC)):
        peers = make_peers(model)
        one, many = model.data(1)[0], model.data(256)[0]
        fed = {"fluid": (one, many), "hand": (model.images_by_hand(one), model.images_by_hand(many))}
        np.testing.assert_allclose(peers["fluid"](fed["fluid"][1]), peers["hand"](fed["hand"][1]), rtol=1e-4, atol=1e-6)

        single = interleave({n: functools.partial(latencies, c, fed[n][0], 2000) for n, c in peers.items()}, rounds)
        for index, percent in enumerate((50, 99)):
            numbers = {name: [found[index] for found in all_found] for name, all_found in single.items()}
            rows.append(Row(f"inference, {what}, batch 1, p{percent}", "us", numbers, higher_is_better=False))

        work = {name: functools.partial(repeat, call, fed[name][1], 40) for name, call in peers.items()}
        batches = interleave({name: functools.partial(rate, 40 * 256, w) for name, w in work.items()}, rounds)
        rows.append(Row(f"inference, {what}, batch 256", "examples/s", batches, higher_is_better=True))
    return rows
