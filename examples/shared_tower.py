"""Predict ratings of rarely rated movies with a second task that shares the tower of movies.

Each movie has only a few ratings. Data about movies that people watch together are plentiful, and show similar movies.
Two programs share the tower of movies, an embedding and a layer. One program predicts ratings, and the other predicts
pairs. A Trainer trains both programs, and draws the program of each step by weight. The data are generated: a few
hidden tastes determine ratings and pairs. Run `python examples/shared_tower.py`.
"""

import argparse

import numpy as np

import fluid
from fluid import layers

USERS, MOVIES, TASTES, SIZE = 150, 400, 4, 8


def generate(ratings=2400, pairs=40_000, seed=0):
    """Generate ratings and pairs of movies as columns `[n, 1]`, and 2000 more ratings to test with."""
    random = np.random.default_rng(seed)
    users, movies = random.normal(size=(USERS, TASTES)), random.normal(size=(MOVIES, TASTES))

    def column(highest, count):
        return random.integers(0, highest, (count, 1))

    def rated(count):
        user, movie = column(USERS, count), column(MOVIES, count)
        rating = np.sum(users[user[:, 0]] * movies[movie[:, 0]], axis=1, keepdims=True) / 2
        return {
            "user": user,
            "movie": movie,
            "rating": (rating + random.normal(0, 0.3, rating.shape)).astype("float32"),
        }

    first, second = column(MOVIES, pairs), column(MOVIES, pairs)
    alike = np.sum(movies[first[:, 0]] * movies[second[:, 0]], axis=1, keepdims=True)
    together = (random.random(alike.shape) < 1 / (1 + np.exp(-1.5 * alike))).astype("float32")
    return rated(ratings), {"first": first, "second": second, "together": together}, rated(2000)


def tower(movie):
    """Return vectors `[batch, 8]` of movies `[batch, 1]`; the names make both programs share the parameters."""
    found = layers.embedding(movie, size=[MOVIES, SIZE], param_attr="movies.w")
    return layers.fc(found, size=SIZE, param_attr="movies.fc.w", bias_attr="movies.fc.b")


def number(name, dtype="int64"):
    return layers.data(name, shape=[1], dtype=dtype)


def ratings():
    """Return the loss of ratings, predicted by the product of two vectors."""
    user = layers.embedding(number("user"), size=[USERS, SIZE], param_attr="users.w")
    guess = layers.reduce_sum(user * tower(number("movie")), dim=1, keep_dim=True)
    return {"loss": layers.mean(layers.square_error_cost(guess, number("rating", "float32")))}


def watched():
    """Return the loss of pairs of movies watched together, predicted by the product of their vectors."""
    alike = layers.reduce_sum(tower(number("first")) * tower(number("second")), dim=1, keep_dim=True)
    return {"loss": layers.mean(layers.sigmoid_cross_entropy_with_logits(alike, number("together", "float32")))}


def optimizer():
    """Return a new optimizer, one for each program."""
    return fluid.optimizer.Adam(5e-3, regularization=fluid.regularizer.L2Decay(1e-4))


def best_error(losses):
    """Return the root mean square error of ratings in the best epoch; `losses` has one loss for each epoch."""
    return float(np.sqrt(min(losses)))


def main(num_epochs=30):
    """Train on ratings alone, and on ratings and pairs; return the errors on the test ratings."""
    few, pairs, test = generate()
    rated = fluid.reader.arrays(few, batch_size=100, shuffle=True)
    together = fluid.reader.arrays(pairs, batch_size=500, shuffle=True)
    tested = fluid.reader.arrays(test, batch_size=500)

    trainer = fluid.Trainer(ratings, optimizer(), seed=1)
    alone = trainer.train(rated, num_epochs, test_reader=tested)

    programs = [(ratings, optimizer()), (watched, optimizer())]
    trainer = fluid.Trainer(programs, schedule={"ratings": 0.3, "watched": 0.7}, seed=1)
    readers = {"ratings": rated, "watched": together}  # an epoch is one pass over the first reader, `rated`
    shared = trainer.train(readers, num_epochs, test_reader={"ratings": tested})
    errors = {
        "always the mean": float(np.sqrt(np.mean((test["rating"] - few["rating"].mean()) ** 2))),
        "ratings alone": best_error(alone["test_loss"]),
        "with the shared tower": best_error(shared["test_ratings/loss"]),
        "knowing the tastes": 0.3,
    }
    print("generated ratings; the error of what is predicted, root mean square, in the best epoch:")
    for name, error in errors.items():
        print(f"{name:24} {error:.3f}")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=30)
    main(parser.parse_args().epochs)
