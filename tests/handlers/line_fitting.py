"""Helpers for tests of handlers: a linear model, its data, a scripted handler and a CSV reader."""

import csv

import numpy as np

import fluid

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]] + 0.7).astype("float32")


def train_program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))}


def make(optimizer=None, **options):
    return fluid.Trainer(train_program, optimizer or fluid.optimizer.SGD(0.1), **options)


def reader(batch_size=16):
    return fluid.reader.arrays((X, Y), batch_size=batch_size)


class Scripted(fluid.Handler):
    """A handler that reports `values[epoch]` as a measured value at the end of each epoch."""

    def __init__(self, values, name="test_loss"):
        self.values, self.name = values, name

    def measures(self):
        return [self.name]

    def end_epoch(self, event):
        self.announce(event.epoch, event.steps - 1, {self.name: self.values[event.epoch]})


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
