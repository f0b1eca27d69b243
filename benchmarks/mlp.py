"""Training a perceptron 64-200-200-10, batch 64, Adam: a step so small that only the loop is measured."""

from models import MLP
from timing import Row
from training import compare


def run(rounds: int) -> list[Row]:
    return compare("training, MLP 64-200-200-10", MLP, steps_per_epoch=500, epochs=8, rounds=rounds)
