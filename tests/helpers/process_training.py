"""A training for several processes: `process_training.py FOLDER [MODE [PARALLEL]]` writes a line for each step.

Each process writes its lines to a separate file in the folder, such as `0.said`, and also prints them; output of C++
libraries may split printed lines. The line of a step has the step number and a checksum of the minibatch; `end.params`
holds the final parameters. MODE selects the failure, mostly in process 1; "begun" and "rest" leave out `Trainer.test`.
With "fsdp" as PARALLEL, the large layer is sharded over the processes.
"""

import os
import pathlib
import resource
import signal
import sys
import time

import jax
import numpy as np

import fluid
from fluid.checkpoint import integrity
from fluid.checkpoint.folder import Folder
from fluid.distributed.group import whole
from fluid.trainer.resume import fingerprint

EPOCHS, ROWS, BATCH = 4, 45, 8  # the last minibatch of an epoch has 5 rows
WIDTH = 1200  # a layer of this width is large enough for "fsdp" to shard; 2, 3 and 4 processes divide it evenly
FULL = 4096  # in tests of a full disk, files may have at most this number of bytes
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]] + 0.7).astype("float32")
STEPS = EPOCHS * -(-ROWS // BATCH)


def program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    hidden = fluid.layers.dropout(
        fluid.layers.batch_norm(fluid.layers.fc(x, size=WIDTH, act="tanh", bias_attr=False)), 0.3
    )
    guess = fluid.layers.identity(fluid.layers.fc(hidden, size=1), name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y))}


def jittered(row, rng, worked=[0]):  # noqa: B006
    """Add random noise to a row of the data; `worked[0]` counts the calls of this function in the process."""
    worked[0] += 1
    return row[0] + rng.normal(0, 1e-3), row[1]


def reader(rows=ROWS):
    shuffled = fluid.reader.shuffle(list(zip(X[:rows], Y[:rows], strict=True)), 20, seed=5)
    return fluid.batch(fluid.reader.map(jittered, shuffled, seed=6), BATCH)


def tested():
    """Return a reader of test minibatches of 9, 1, 34 and 1 rows; a single row cannot be divided among processes."""
    return lambda: iter([(X[:9], Y[:9]), (X[9:10], Y[9:10]), (X[10:44], Y[10:44]), (X[44:], Y[44:])])


def noting_parts():
    """Patch the reading of checkpoints; return a set of the names of arrays that this process reads only in part."""
    read = Folder.arrays
    names = set()

    def noted(self, *arguments):
        found = read(self, *arguments)
        names.update(name for name, value in found.items() if isinstance(value, jax.Array))
        return found

    Folder.arrays = noted
    return names


def die(function, step):
    """Patch a function of `fluid.checkpoint.integrity` to kill this process when it gets the checkpoint of a step."""
    plain = getattr(integrity, function)

    def dying(folder, *arguments):
        if folder.name.startswith(f"{step}."):
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(folder, *arguments)

    setattr(integrity, function, dying)


def happen(mode, trainer, event, other):
    """Cause the failure named `mode`: most happen in process 1 at step 8; "begun" stops every process at step 8."""
    if not isinstance(event, fluid.EndStepEvent):
        return
    done = int(trainer.session.scope.step)
    if mode == "begun" and done == 8:
        trainer.stop()
    if other and mode == "full":
        limit = FULL if 8 <= done < 14 else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    if other and done == 8:
        at_step_8(mode, trainer)


def at_step_8(mode, trainer):
    if mode == "raise":
        raise ValueError("an accident")
    if mode == "exit":
        sys.exit(7)
    if mode == "terminated":
        signal.raise_signal(signal.SIGTERM)
    if mode == "stop":
        trainer.stop()
    if mode == "late":
        time.sleep(60)
    if mode == "alone":
        trainer.test(tested())


def noting_gathered():
    """Patch the function that gathers a sharded array on every host; return a set of shapes, such as `4x1200`.

    Each call of the function adds the shape of its array to the set.
    """
    module = sys.modules[whole.__module__]
    gathered = module._gathered
    shapes = set()

    def noted(array):
        shapes.add("x".join(map(str, array.shape)))
        return gathered(array)

    module._gathered = noted
    return shapes


def train(folder, mode, parallel, say):
    group = fluid.distributed.group()
    gathered = noting_gathered() if group.size > 1 else set()
    parts = noting_parts() if group.size > 1 else set()
    other = group.index == 1
    if mode == "folder" and other:
        folder = folder / "another"
    trainer = fluid.Trainer(
        program,
        fluid.optimizer.Adam(0.02, accumulate_steps=3),
        seed=4 if mode == "seed" and other else 3,
        parallel=None if mode == "forgotten" else "fsdp" if parallel == "fsdp" else True,
        checkpoint_config=fluid.CheckpointConfig(folder, step_interval=2, max_num_checkpoints=2),
    )
    if mode == "torn" and other:
        die("checksums", 14)  # the process dies after writing its part of a checkpoint, before process 0 knows
    if mode == "unsealed" and group.is_first:
        die("seal", 14)  # process 0 dies when all parts are written, before the checkpoint is marked complete
    say("parts", *sorted(parts))
    if mode == "parameters" and other:
        trainer.session.scope["fc_0.w_0"] *= 0

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            done = int(trainer.session.scope.step)
            say("step", done, fingerprint(whole(event.feed))["digest"])
        happen(mode, trainer, event, other)

    log = fluid.handlers.CSVLogger(folder / "log.csv")
    short = reader(29) if mode == "short" and other else reader()
    trainer.train(short, num_epochs=EPOCHS, event_handler=on_event, handlers=[log], progress=False)
    say("gathered", *sorted(gathered))
    return trainer


def main(folder, mode="plain", parallel="data"):
    folder = pathlib.Path(folder)
    index = fluid.distributed.group().index
    (folder / f"{index}.pid").write_text(str(os.getpid()))

    def say(*words):
        line = " ".join(map(str, words))
        with (folder / f"{index}.said").open("a") as file:
            file.write(f"{line}\n")
        print(line, flush=True)

    trainer = train(folder, mode, parallel, say)
    say("worked", *jittered.__defaults__[0])
    if mode not in ("begun", "rest"):
        say("tested", *(f"{value:.9g}" for value in trainer.test(tested())))
        fetched = trainer.test(tested(), fetch=["guess"])["guess"]
        say("guessed", *fetched.shape, f"{np.abs(fetched).sum():.6f}")
    trainer.save_params(folder / "end.params")
    say("ended", int(trainer.session.scope.step))


if __name__ == "__main__":
    main(*sys.argv[1:])
