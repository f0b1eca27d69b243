"""Program of 2019 that trains on two machines: `transpiled_program.py FOLDER` writes the losses and the weights.

Each trainer feeds its part of each minibatch: trainer 0 feeds two rows, and trainer 1 feeds three rows.
"""

import os
import pathlib
import sys

import numpy as np

import fluid.static as fluid

STEPS = 3
RANDOM = np.random.default_rng(0)
SENTENCES = [[RANDOM.integers(0, 9, (n, 1)) for n in RANDOM.integers(1, 5, 5)] for _ in range(STEPS)]
Y = RANDOM.normal(size=(STEPS, 5, 1)).astype("float32")
ROWS = [slice(0, 2), slice(2, 5)]  # the rows of a minibatch that each trainer feeds


def tensor(rows):
    return fluid.create_lod_tensor(np.concatenate(rows), [[len(row) for row in rows]], fluid.CPUPlace())


def main(folder, rows):
    main_program, startup = fluid.Program(), fluid.Program()
    with fluid.scope_guard(fluid.Scope()), fluid.program_guard(main_program, startup), fluid.unique_name.guard():
        words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
        mean = fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[9, 4]), "average")
        guess = fluid.layers.fc(mean, size=1)
        rate = fluid.layers.data("rate", shape=[1], append_batch_size=False)
        cost = fluid.layers.square_error_cost(guess, fluid.layers.data("y", shape=[1]))
        loss = fluid.layers.mean(cost)
        test_program = main_program.clone(for_test=True)
        fluid.optimizer.Momentum(rate, 0.9).minimize(loss)
        config = fluid.DistributeTranspilerConfig()
        config.mode = "nccl2"
        trainer = int(os.getenv("PADDLE_TRAINER_ID", "0"))
        addresses = os.getenv("PADDLE_TRAINER_ENDPOINTS", "127.0.0.1:6170")
        here = os.getenv("PADDLE_CURRENT_ENDPOINT", "127.0.0.1:6170")
        assert here == addresses.split(",")[trainer]
        count = int(os.getenv("PADDLE_TRAINERS_NUM", "1"))
        transpiler = fluid.DistributeTranspiler(config=config)
        transpiler.transpile(trainer, trainers=addresses, current_endpoint=here, startup_program=startup)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        pe = fluid.ParallelExecutor(False, loss.name, main_program, num_trainers=count, trainer_id=trainer)
        found = []
        for step in range(STEPS):
            feed = {"words": tensor(SENTENCES[step][rows]), "y": Y[step][rows], "rate": np.float32([0.1])}
            found.append(float(pe.run([loss], feed=feed)[0]))
        (costs,) = exe.run(test_program, feed=feed, fetch_list=[cost])
        if trainer == 0:
            fluid.io.save_persistables(exe, folder, main_program)
    np.savez(pathlib.Path(folder) / f"{trainer}.npz", losses=found, costs=costs)


if __name__ == "__main__":
    main(sys.argv[1], ROWS[int(os.environ["PADDLE_TRAINER_ID"])])
