"""Linear regression: predict the progression of diabetes within a year from ten measurements of a patient.

The data are the 442 patients that come with scikit-learn. Run `python examples/fit_a_line.py`.
"""

import argparse
import os
import tempfile

import numpy as np
from sklearn.datasets import load_diabetes

import fluid


def load_data():
    """Load measurements `[n, 10]` and progression `[n, 1]`, with mean 0 and deviation 1 in the training part.

    Returns:
      The training part, the test part of 88 patients, and a function that converts progression to its original unit.
    """
    data = load_diabetes(scaled=False)
    order = np.random.default_rng(0).permutation(len(data.target))
    x, y = data.data[order].astype("float32"), data.target[order, None].astype("float32")
    train, test = slice(0, -88), slice(-88, None)
    x = (x - x[train].mean(0)) / x[train].std(0)
    center, unit = y[train].mean(), y[train].std()
    y = (y - center) / unit
    return (x[train], y[train]), (x[test], y[test]), lambda v: v * unit + center


def inference_program():
    """Return the prediction of a linear model with one weight for each measurement, and a bias."""
    x = fluid.layers.data(name="x", shape=[10])
    return fluid.layers.fc(x, size=1)


def train_program():
    """Return the loss, the mean squared error."""
    y = fluid.layers.data(name="y", shape=[1])
    return fluid.layers.mean(fluid.layers.square_error_cost(inference_program(), y))


def main(num_epochs=100):
    """Train, compare with least squares, save, load and predict; return the errors on the test part by name."""
    (x, y), (x_test, y_test), to_units = load_data()
    train_reader = fluid.reader.arrays({"x": x, "y": y}, batch_size=16, shuffle=True, seed=0)
    test_reader = fluid.reader.arrays({"x": x_test, "y": y_test}, batch_size=64)

    trainer = fluid.Trainer(train_program, optimizer=fluid.optimizer.SGD(learning_rate=0.003))

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent) and (event.epoch + 1) % max(1, num_epochs // 5) == 0:
            train_loss, test_loss = trainer.test(train_reader)[0], trainer.test(test_reader)[0]
            print(f"epoch {event.epoch + 1:3}: loss {train_loss:.4f} in training, {test_loss:.4f} in test")

    trainer.train(train_reader, num_epochs=num_epochs, event_handler=on_event)

    with_bias = np.c_[x, np.ones(len(x))]
    solution = np.linalg.lstsq(with_bias, y, rcond=None)[0]
    errors = {
        "fluid": float(trainer.test(test_reader)[0]),
        "least squares": float(np.mean((np.c_[x_test, np.ones(len(x_test))] @ solution - y_test) ** 2)),
        "always the mean": float(np.mean((y_test - y.mean()) ** 2)),
    }
    print("\nmean squared error on the test part (in units of the training variance)")
    for name, error in errors.items():
        print(f"  {name:<16} {error:.4f}")

    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "line.params")
        trainer.save_params(path)
        (predicted,) = fluid.Inferencer(inference_program, param_path=path).infer({"x": x_test[:8]})
    print("\npredicted   true")
    for p, t in zip(to_units(predicted)[:, 0], to_units(y_test)[:8, 0], strict=True):
        print(f"{p:9.0f} {t:6.0f}")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    main(parser.parse_args().epochs)
