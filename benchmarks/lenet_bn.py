"""Training LeNet with batch normalisation on generated images of 28 x 28 pixels, batch 64, Adam, in NCHW and NHWC."""

from models import LENET, LENET_NHWC
from timing import Row
from training import compare


def run(rounds: int) -> list[Row]:
    return [
        *compare("training, LeNet with batch norm, NCHW", LENET, steps_per_epoch=50, epochs=1, rounds=rounds),
        *compare("training, LeNet with batch norm, NHWC", LENET_NHWC, steps_per_epoch=50, epochs=1, rounds=rounds),
    ]
