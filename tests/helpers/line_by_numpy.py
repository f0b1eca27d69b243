"""A linear model for fluid and for NumPy alone: `guess = x @ w + b`, trained by SGD on the squared error."""

import numpy as np

import fluid

SIZE = 3


def inference_program():
    return fluid.layers.fc(fluid.layers.data("x", shape=[SIZE]), size=1, name="guess")


def train_program():
    guess = inference_program()
    loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, fluid.layers.data("y", shape=[1])))
    return {"loss": loss, "guess": guess}


def data(rows=24, seed=0):
    """Return columns `x` of [rows, SIZE] and `y` of [rows, 1] that lie near a line."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, SIZE)).astype("float32")
    return {"x": x, "y": x.sum(1, keepdims=True) + random.normal(0, 0.1, size=(rows, 1)).astype("float32")}


def minibatches(columns, batch_size=8):
    """Split columns into minibatches of `batch_size` rows, in order; each minibatch is a dict of columns."""
    rows = len(columns["x"])
    return [{name: c[i : i + batch_size] for name, c in columns.items()} for i in range(0, rows, batch_size)]


def guess_of(params, x):
    """Compute the predictions of the linear model with NumPy."""
    return x @ np.asarray(params["guess.w_0"]) + np.asarray(params["guess.b_0"])


def descend(params, batches, rate, epochs=1):
    """Train the linear model with NumPy, in float64.

    Args:
      params: the arrays `guess.w_0` and `guess.b_0` to begin with.
      batches: minibatches, dicts of columns.
      rate: the learning rate.
      epochs: the number of passes.

    Returns:
      The arrays after training, and the loss of each step.
    """
    w, b = (np.array(params[name], "float64") for name in ("guess.w_0", "guess.b_0"))
    losses = []
    for batch in list(batches) * epochs:
        error = batch["x"] @ w + b - batch["y"]
        losses.append(float((error**2).mean()))
        w -= rate * 2 * batch["x"].T @ error / len(error)
        b -= rate * 2 * error.mean(axis=0)
    return {"guess.w_0": w, "guess.b_0": b}, losses


def assert_params(found, expected):
    """Check that the arrays in `found` are close to the expected arrays of the same names."""
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


def save_after(save, steps):
    """Call `save()` of an online training until it reports `steps` finished steps; fail after about a minute."""
    for _ in range(5000):
        if save()["steps"] == steps:
            return
    raise AssertionError(f"found {save()}, expected {steps} steps")
