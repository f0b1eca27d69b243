"""Training a perceptron 64-200-200-10, batch 64, Adam: the steps are small, so the loop takes much of the time."""

import functools

from models import MLP
from timing import Row, interleave, rate
from training import fluid_peer, fused_peer, hand_peer, products_peer, scan_peer

STEPS = 500  # steps per epoch
EPOCHS = 8


def run(rounds: int) -> list[Row]:
    x, labels = MLP.data(STEPS * 64)
    trainer, by_fluid = fluid_peer(MLP, x, labels)
    params = dict(trainer.params)
    peers = {
        "fluid": by_fluid,
        "hand": hand_peer(MLP, x, labels, params),
        "fused": fused_peer(MLP, x, labels)[1],
        "scan": scan_peer(MLP, x, labels, params),
        "products": products_peer(MLP, x, params),
    }
    turns = {name: functools.partial(rate, STEPS * EPOCHS, functools.partial(f, EPOCHS)) for name, f in peers.items()}
    numbers = interleave(turns, rounds)
    what = "training, MLP 64-200-200-10"
    fused = f"{what}, steps_per_dispatch=50, data on the device"
    compared = [
        (what, "fluid", "hand"),
        (f"{fused} / hand-written loop", "fused", "hand"),
        (f"{fused} / hand-written scan of 50", "fused", "scan"),
        (f"{what}, matrix products alone / hand-written loop", "products", "hand"),
    ]
    return [Row(name, "steps/s", {"fluid": numbers[a], "hand": numbers[b]}, True) for name, a, b in compared]
