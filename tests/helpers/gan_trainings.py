"""A small GAN for tests of a Trainer with two programs: it has dropout and batch normalisation.

The functions train the GAN with a Trainer and, for comparison, with a custom loop.
"""

import numpy as np

import fluid
from fluid import layers

RNG = np.random.default_rng(0)
COLUMNS = {
    "real": RNG.normal(3, 1, (52, 2)).astype("float32"),
    "noise": RNG.normal(size=(52, 3)).astype("float32"),
}
EPOCHS = 3
LONG = 10  # the number of epochs of a training that a test kills
MOVED = {"discriminator": ["discriminator/*"], "generator": ["generator/*"]}


def generate(noise):
    with fluid.name_scope("generator"):
        hidden = layers.batch_norm(layers.fc(noise, size=4, name="first"), act="relu", name="norm")
        return layers.fc(hidden, size=2, name="last")


def realness(x):
    hidden = layers.fc(x, size=5, act="tanh", param_attr="discriminator/first.w", bias_attr="discriminator/first.b")
    hidden = layers.dropout(hidden, 0.3)
    return layers.fc(hidden, size=1, param_attr="discriminator/last.w", bias_attr="discriminator/last.b")


def loss_of(logits, truth):
    return layers.mean(layers.sigmoid_cross_entropy_with_logits(logits, layers.full_like(logits, truth)))


def discriminator():
    real = loss_of(realness(layers.data("real", shape=[2])), 1.0)
    fake = loss_of(realness(generate(layers.data("noise", shape=[3]))), 0.0)
    return {"loss": real + fake, "fake": fake}


def generator():
    made = generate(layers.data("noise", shape=[3]))
    return {"loss": loss_of(realness(made), 1.0), "made": made}


def optimizer_of(name):
    return fluid.optimizer.Adam(0.02) if name == "discriminator" else fluid.optimizer.Momentum(0.05, 0.9)


def reader():
    """Return a reader of seven minibatches: the last has four rows instead of eight, and each pass has a new order."""
    return fluid.reader.arrays(COLUMNS, batch_size=8, shuffle=True, seed=4)


def trainer(folder=None, schedule="2:1", config=None, **options):
    if folder is not None:
        options["checkpoint_config"] = fluid.CheckpointConfig(folder, **(config or {"step_interval": 2}))
    programs = [
        fluid.TrainingProgram(function, optimizer_of(name), parameter_list=MOVED[name])
        for name, function in (("discriminator", discriminator), ("generator", generator))
    ]
    return fluid.Trainer(programs, seed=3, schedule=schedule, **options)


def by_hand(pattern="ddg", epochs=EPOCHS):
    """Train the discriminator and the generator of a GAN in a custom loop over a Session; return the Session.

    Args:
      pattern: the program of each step, repeated: "d" for the discriminator, any other letter for the generator.
      epochs: the number of passes over the data.
    """

    def discriminate():
        outputs = discriminator()
        optimizer_of("discriminator").minimize(outputs["loss"], parameter_list=MOVED["discriminator"])
        return outputs

    def deceive():
        outputs = generator()
        optimizer_of("generator").minimize(outputs["loss"], parameter_list=MOVED["generator"])
        return outputs

    session = fluid.Session(discriminate, deceive, seed=3)
    batches = reader()
    step = 0
    for _ in range(epochs):
        for batch in batches():
            if pattern[step % len(pattern)] == "d":
                session.run(discriminate, batch)
            else:
                session.run(deceive, {"noise": batch["noise"]})
            step += 1
    return session


def turns_said(say):
    """Return an event handler that calls `say` with the epoch, step and program of each finished step."""
    return lambda e: isinstance(e, fluid.EndStepEvent) and say(f"{e.epoch} {e.step} {e.program}")


# A test starts this script, `python tests/helpers/gan_trainings.py FOLDER`, and kills it.
if __name__ == "__main__":
    import sys

    from trainer_to_kill import digest

    mine = trainer(sys.argv[1])
    mine.train(reader(), LONG, event_handler=turns_said(lambda line: print(line, flush=True)))
    print("ended", digest(mine.session), flush=True)
