"""One process of `startup.py`: it makes the first training step or the first inference of a small net, and ends.

    python benchmarks/first_step.py fluid digits step parameters.npz

The process prints JSON with three numbers: the time at the end of the step or the inference, the CPU seconds of all
threads since the start of the process, and their CPU seconds since the end of the imports. The parent process measures
the elapsed time. A training step writes the parameters to the file, and inference reads the parameters from the file.
"""

import json
import sys
import time
from typing import Any

import numpy as np

BATCH = 64


def data(shape: tuple[int, ...]) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.normal(size=(BATCH, *shape)).astype("float32"), random.integers(0, 10, BATCH).astype("int32")


def step_by_fluid(net: str, path: str) -> float:
    import by_fluid

    import fluid

    model = by_fluid.NETS[net]
    x, labels = data(model.shape)
    imported = time.process_time()
    trainer = fluid.Trainer(model.train_program, fluid.optimizer.Adam(1e-3))

    whole = fluid.reader.arrays({"x": x, "label": labels}, batch_size=BATCH)
    trainer.train(whole, num_epochs=1)
    np.savez(path, **trainer.params)
    return imported


def step_drawn_by_jax(net: str, path: str) -> float:
    """Run the step of fluid, but draw the initial values by `jax.random` on the device instead of on the host."""
    from fluid._util import host_random

    host_random.key_data = host_random.threefry.key_data = lambda key: None
    return step_by_fluid(net, path)


def answer_by_fluid(net: str, path: str) -> float:
    import by_fluid

    import fluid

    model = by_fluid.NETS[net]
    imported = time.process_time()
    inferencer = fluid.Inferencer(model.inference_program, params=dict(np.load(path)))
    inferencer.infer({"x": data(model.shape)[0][:1]})
    return imported


def step_by_hand(net: str, path: str) -> float:
    import by_hand
    import jax
    import optax

    x, labels = data(by_hand.NETS[net].shape)
    imported = time.process_time()
    optimizer = optax.adam(1e-3)
    parameters, states = by_hand.NETS[net].init()
    slots = jax.jit(optimizer.init)(parameters)
    step = by_hand.make_step(by_hand.NETS[net].forward, optimizer)
    (parameters, states, _), _ = step(jax.device_put((parameters, states, slots)), x, labels)
    np.savez(path, **parameters, **states)
    return imported


def answer_by_hand(net: str, path: str) -> float:
    import by_hand
    import jax

    imported = time.process_time()
    arrays = dict(np.load(path))
    x = data(by_hand.NETS[net].shape)[0][:1]
    np.asarray(jax.jit(lambda p, x: jax.nn.softmax(by_hand.NETS[net].forward(p, p, x, False)[0]))(arrays, x))
    return imported


WORK = {
    ("fluid", "step"): step_by_fluid,
    ("fluid", "answer"): answer_by_fluid,
    ("drawn by jax", "step"): step_drawn_by_jax,
    ("hand", "step"): step_by_hand,
    ("hand", "answer"): answer_by_hand,
}

if __name__ == "__main__":
    imported = WORK[sys.argv[1], sys.argv[3]](sys.argv[2], sys.argv[4])
    used = time.process_time()
    print(json.dumps({"done": time.time(), "CPU": used, "CPU, imported": used - imported}))
