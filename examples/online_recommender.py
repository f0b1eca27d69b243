"""Train a recommender online on ratings as they arrive, while tastes change, and serve recommendations.

The ratings are generated. In the middle of the stream, the tastes of all people change (a drift). One process trains
online and publishes versions, and another process serves the versions. This process sends ratings and requests
recommendations. The example compares the last served version with the version before the drift. It needs
`pip install 'fluid-jax[serve]'`. Run

    python examples/online_recommender.py
    python examples/online_recommender.py --ratings 40000
"""

import argparse
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

import numpy as np

import fluid

USERS, MOVIES, TASTES = 100, 60, 2
NOISE = 0.3


def train_program():
    """Return the loss of ratings, predicted by the product of user vector and movie vector, plus a movie bias."""
    user = fluid.layers.data("user", shape=[1], dtype="int64")
    movie = fluid.layers.data("movie", shape=[1], dtype="int64")
    rating = fluid.layers.data("rating", shape=[1])
    spread = fluid.ParamAttr(initializer=fluid.initializer.Normal(0.0, 0.3))
    likes = fluid.layers.embedding(user, size=[USERS, 8], param_attr=spread)
    has = fluid.layers.embedding(movie, size=[MOVIES, 8], param_attr=spread)
    suits = fluid.layers.reduce_sum(likes * has, dim=1, keep_dim=True)
    guess = fluid.layers.identity(suits + fluid.layers.embedding(movie, size=[MOVIES, 1]), name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, rating))}


def optimizer():
    return fluid.optimizer.Adagrad(0.15)


class People:
    """People with generated tastes, who rate movies."""

    def __init__(self, seed):
        self._random = np.random.default_rng(seed)
        self._has = self._random.normal(size=(MOVIES, TASTES))
        self.drift()

    def drift(self):
        """Draw new tastes for all users, so that the trained model must adapt."""
        self._likes = self._random.normal(size=(USERS, TASTES))

    def rate(self, count):
        """Generate ratings of movies, as columns."""
        user, movie = self._random.integers(0, USERS, count), self._random.integers(0, MOVIES, count)
        marks = np.sum(self._likes[user] * self._has[movie], axis=1) + self._random.normal(0, NOISE, count)
        return {"user": user, "movie": movie, "rating": marks.astype("float32")}


@contextlib.contextmanager
def process(*arguments):
    """Run a command of fluid in a separate process, yield its URL, and stop the process with SIGTERM."""
    command = [sys.executable, "-m", "fluid", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as running:
        try:
            yield running.stdout.readline().strip()
        finally:
            running.send_signal(signal.SIGTERM)


def send(trainer, people, count, part=1000):
    """Send ratings in parts, and wait until each part is trained on; return the moving test error after each part."""
    tests = []
    for _ in range(0, count, part):
        trainer.send(people.rate(part))
        while (status := trainer.status())["state"] == "training":
            time.sleep(0.05)
        tests.append(status["test"]["loss"])
        print(f"{status['accepted']:>8} ratings, {status['trained']:>6} trained on, moving test {tests[-1]:.3f}")
    return tests


def wait_for(url, version):
    """Wait until the server at `url` serves the version `version` of the model "movies"."""
    while True:
        with urllib.request.urlopen(f"{url}/v2/models/movies") as answer:
            if f'"{version}"' in answer.read().decode():
                return
        time.sleep(0.1)


def error(inferencer, ratings):
    """Compute the mean squared error of the ratings that an Inferencer predicts."""
    parts = np.array_split(np.arange(len(ratings["rating"])), len(ratings["rating"]) // 32)
    guesses = [inferencer.infer({n: ratings[n][part] for n in ("user", "movie")})["guess"][:, 0] for part in parts]
    return float(np.mean((np.concatenate(guesses) - ratings["rating"]) ** 2))


def main(ratings=20_000, folder="recommender", seed=0):
    """Train a recommender online, change the tastes of all people, and serve it; return the test errors by name."""
    folder = pathlib.Path(folder)
    models = folder / "movies"
    people = People(seed)
    online = ["online", f"{__file__}:train_program", folder / "online", "--optimizer", f"{__file__}:optimizer"]
    online += ["--port", 0, "--publish-to", models, "--fetch", "guess", "--platforms", "cpu", "--test-window", 200]
    with process(*online) as url:
        trainer = fluid.RemoteTrainer(url)
        print("generated ratings, in which the taste of all people changes half-way")
        first = send(trainer, people, ratings // 2)[-1]
        before = trainer.publish()["published"]
        print(f"version {before} is published")
        with process("serve", f"movies={models}", "--port", 0, "--reload-every", 0.2) as served:
            wait_for(served, before)
            people.drift()
            print("taste changes")
            tests = send(trainer, people, ratings // 2)
            version = trainer.publish()["published"]
            print(f"version {version} is published")
            wait_for(served, version)
            newest = people.rate(1024)
            errors = {
                "moving test before": first,
                "moving test after the change": max(tests),
                "moving test in the end": tests[-1],
                "served": error(fluid.Inferencer(url=f"{served}/v2/models/movies"), newest),
                "never trained since": error(fluid.Inferencer(param_path=models / str(before) / "model.fluid"), newest),
                "always the mean": float(np.var(newest["rating"])),
            }
    for name, value in errors.items():
        print(f"{name:>28}: {value:.3f}")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", type=int, default=20_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(given.ratings, os.path.join(folder, "recommender"))
