"""Training ResNet-32 on generated images of 32 x 32 pixels in three colours: batch 128, Momentum, NCHW and NHWC."""

import optax
from models import RESNET, RESNET_NHWC
from timing import Row, interleave
from training import Setup, turns_of

import fluid

STEPS = 2
SETUP = Setup(fluid.optimizer.Momentum(0.01, momentum=0.9), optax.sgd(0.01, momentum=0.9), batch=128, read_every=STEPS)


def run(rounds: int) -> list[Row]:
    peers = {}
    for layout, model in (("NCHW", RESNET), ("NHWC", RESNET_NHWC)):
        turns = turns_of(model, steps_per_epoch=STEPS, epochs=1, setup=SETUP)
        peers |= {f"fluid {layout}": turns["fluid"], "hand": turns["hand"]}
    found = interleave(peers, -(-rounds // 3))

    def row(what: str, fluid_peer: str, peer: str) -> Row:
        return Row(what, "steps/s", {"fluid": found[fluid_peer], "hand": found[peer]}, higher_is_better=True)

    return [
        row("training, ResNet-32, NCHW", "fluid NCHW", "hand"),
        row("training, ResNet-32, NHWC", "fluid NHWC", "hand"),
        row("training, ResNet-32, fluid NHWC / fluid NCHW", "fluid NHWC", "fluid NCHW"),
    ]
