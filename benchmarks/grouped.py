"""Training three grouped convolutions of 128 channels of 14 x 14 pixels, batch 8, Adam.

The peers are a hand-written step with XLA's grouped convolutions, a hand-written step with dense convolutions of 128
channels, and PyTorch if it is installed.
"""

import functools
import importlib.util

from models import grouped
from timing import Row, interleave, rate
from training import ADAM, turns_of

GROUPS = (4, 32, 64, 128)  # 128 groups of 128 channels are a depthwise convolution
STEPS = 4
SETUP = ADAM._replace(batch=8, read_every=STEPS)


def run(rounds: int) -> list[Row]:
    few = -(-rounds // 3)
    dense = turns_of(grouped(1), STEPS, 1, SETUP)
    rows = [Row("training, three dense convolutions", "steps/s", interleave(dense, few), higher_is_better=True)]
    for groups in GROUPS:
        turns = turns_of(grouped(groups), STEPS, 1, SETUP) | {"dense": dense["hand"]}
        peers = {"hand": "XLA's by hand", "dense": "dense ones by hand"}
        if importlib.util.find_spec("torch"):
            import by_torch
            from libraries import torch_rule

            x, labels = grouped(groups).data(STEPS * SETUP.batch)
            train = by_torch.trained(by_torch.grouped(groups), torch_rule("grouped"), (x,), labels, SETUP.batch, STEPS)
            turns["torch"] = functools.partial(rate, STEPS, functools.partial(train, 1))
            peers["torch"] = "PyTorch"
        found = interleave(turns, few)
        what = f"training, three convolutions in {groups} groups, fluid"
        rows += [
            Row(f"{what} / {name}", "steps/s", {"fluid": found["fluid"], "hand": found[peer]}, higher_is_better=True)
            for peer, name in peers.items()
        ]
    return rows
