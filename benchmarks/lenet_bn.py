"""Training LeNet with batch normalisation on generated 1 x 28 x 28 images, batch 64, Adam."""

from models import LENET
from timing import Row
from training import compare


def run(rounds: int) -> list[Row]:
    return compare("training, LeNet with batch norm", LENET, steps_per_epoch=50, epochs=1, rounds=rounds)
