"""Predict ratings of movies from the similarity of two towers, one for people and one for movies.

If `--data` names a directory with MovieLens 1M (users.dat, movies.dat, ratings.dat), the model trains on MovieLens.
Otherwise the model trains on generated ratings, which depend on a few hidden tastes. A step updates only the rows of
the embedding tables that its batch uses. Run

    python examples/recommender_system.py
    python examples/recommender_system.py --data ml-1m --epochs 10
"""

import argparse
import os
import pathlib
import tempfile

import numpy as np

import fluid

AGES = (1, 18, 25, 35, 45, 50, 56)
# A movie has at most six categories; a shorter list of categories is padded with the id CATEGORIES.
JOBS, CATEGORIES, PER_MOVIE = 21, 18, 6


def read_movielens(directory):
    """Read users `[n, 4]` (id, gender, age, job), movies `[n, 1 + 6]` (id, categories), ratings `[n, 3]` and titles."""

    def read(name, fields):
        path = pathlib.Path(directory) / name
        if not path.is_file():
            raise FileNotFoundError(f"no {path}; --data takes the directory of MovieLens 1M (ml-1m)")
        rows = [line.split("::") for line in path.read_text(encoding="latin-1").splitlines()]
        for number, row in enumerate(rows, 1):
            if len(row) != fields:
                raise ValueError(f"{path}, line {number}: {len(row)} fields between '::'; expected {fields}")
        return rows

    people, films, marks = read("users.dat", 5), read("movies.dat", 3), read("ratings.dat", 4)
    users = np.array([(int(r[0]), r[1] == "F", AGES.index(int(r[2])), int(r[3])) for r in people], "int64")
    names = sorted({category for row in films for category in row[2].split("|")})
    movies = np.full((len(films), 1 + PER_MOVIE), CATEGORIES, "int64")
    for movie, row in zip(movies, films, strict=True):
        found = [names.index(category) for category in row[2].split("|")]
        movie[0], movie[1 : 1 + len(found)] = int(row[0]), found
    ratings = np.array([[int(number) for number in row[:3]] for row in marks], "int64")
    return users, movies, ratings, {int(row[0]): row[1] for row in films}


def generate(users=500, movies=300, ratings=30_000, tastes=3, seed=0):
    """Generate data in the form of `read_movielens`; tastes depend on age, job, categories and chance."""
    random = np.random.default_rng(seed)
    people = np.stack([np.arange(users), *(random.integers(0, n, users) for n in (2, len(AGES), JOBS))], axis=1)
    films = np.full((movies, 1 + PER_MOVIE), CATEGORIES)
    for number, movie in enumerate(films):
        found = random.choice(CATEGORIES, size=random.integers(1, 4), replace=False)
        movie[0], movie[1 : 1 + len(found)] = number, found

    def normal(*shape):
        return random.normal(size=(*shape, tastes))

    likes = normal(len(AGES))[people[:, 2]] + normal(JOBS)[people[:, 3]] + normal(users)
    of_category = np.concatenate([normal(CATEGORIES), np.zeros((1, tastes))])
    has = of_category[films[:, 1:]].sum(1) + normal(movies)
    who, what = random.integers(0, users, ratings), random.integers(0, movies, ratings)
    affinity = np.sum(likes[who] * has[what], axis=1)
    marks = 3.4 + 0.9 * affinity / affinity.std() + random.normal(0, 0.4, movies)[what] + random.normal(0, 0.4, ratings)
    marks = np.clip(np.rint(marks), 1, 5).astype(int)
    return people, films, np.stack([who, what, marks], axis=1), {i: f"generated movie {i}" for i in range(movies)}


def columns(users, movies, ratings):
    """Return the feeds of the program, one row for each rating."""
    of_user = {row[0]: row for row in users}
    of_movie = {row[0]: row for row in movies}
    user, movie = np.array([of_user[i] for i in ratings[:, 0]]), np.array([of_movie[i] for i in ratings[:, 1]])
    feeds = dict(zip(("user", "gender", "age", "job"), user.T, strict=True))
    return feeds | {"movie": movie[:, 0], "categories": movie[:, 1:], "rating": ratings[:, 2].astype("float32")}


def make_programs(user_count, movie_count):
    """Return the inference program and the training program of a net that predicts ratings of movies."""

    def look_up(name, rows, width, shape=(1,), padding_idx=None):
        ids = fluid.layers.data(name=name, shape=list(shape), dtype="int64")
        return fluid.layers.embedding(ids, size=[rows, width], is_sparse=True, padding_idx=padding_idx)

    def user_tower():
        sizes = {"user": (user_count, 32), "gender": (2, 8), "age": (len(AGES), 8), "job": (JOBS, 8)}
        parts = [look_up(name, *size) for name, size in sizes.items()]
        return fluid.layers.fc(parts, size=32, act="tanh")

    def movie_tower():
        movie = look_up("movie", movie_count, 32)
        categories = look_up("categories", CATEGORIES + 1, 16, (PER_MOVIE, 1), padding_idx=CATEGORIES)
        return fluid.layers.fc([movie, fluid.layers.reduce_sum(categories, dim=1)], size=32, act="tanh")

    def inference_program():
        nearness = fluid.layers.cos_sim(user_tower(), movie_tower())  # the cosine is from -1 to 1
        return fluid.layers.scale(nearness, scale=2.5, bias=3.0)  # ratings from 0.5 to 5.5

    def train_program():
        rating = fluid.layers.data(name="rating", shape=[1])
        return fluid.layers.mean(fluid.layers.square_error_cost(inference_program(), rating))

    return inference_program, train_program


def baselines(train, test):
    """Compute the root mean square errors of two guesses: the mean of all ratings, and the mean of the movie."""
    mean = train["rating"].mean()
    size = int(max(train["movie"].max(), test["movie"].max())) + 1
    count = np.bincount(train["movie"], minlength=size)
    of_movie = (np.bincount(train["movie"], train["rating"], size) + mean) / (count + 1)
    guesses = {"always the mean": mean, "the movie's mean": of_movie[test["movie"]]}
    return {name: float(np.sqrt(np.mean((test["rating"] - guess) ** 2))) for name, guess in guesses.items()}


def main(data=None, num_epochs=5, path="movies.params", **generated):
    """Train, compare with means, save, load and recommend; return the errors on the test part."""
    users, movies, ratings, titles = read_movielens(data) if data else generate(**generated)
    source = f"MovieLens from {data}" if data else "generated ratings (not MovieLens)"
    print(f"{source}: {len(ratings)} by {len(users)} users of {len(movies)} movies")
    ratings = np.random.default_rng(0).permutation(ratings)
    held_out = len(ratings) // 10
    test, train = columns(users, movies, ratings[:held_out]), columns(users, movies, ratings[held_out:])

    inference_program, train_program = make_programs(int(users[:, 0].max()) + 1, int(movies[:, 0].max()) + 1)
    trainer = fluid.Trainer(train_program, optimizer=fluid.optimizer.Adagrad(0.05))
    train_reader = fluid.reader.arrays(train, batch_size=128, shuffle=True, seed=0)
    test_reader = fluid.reader.arrays(test, batch_size=512)

    def error():
        return float(np.sqrt(trainer.test(test_reader)[0]))

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            print(f"epoch {event.epoch + 1:2}: test error {error():.4f} stars")

    trainer.train(train_reader, num_epochs=num_epochs, event_handler=on_event)
    errors = {"fluid": error(), **baselines(train, test)}
    print("\nroot mean squared error on the test part, in stars")
    for name, value in errors.items():
        print(f"  {name:<16} {value:.4f}")

    trainer.save_params(path)
    user = users[0]
    everything = np.stack([np.full(len(movies), user[0]), movies[:, 0], np.zeros(len(movies), int)], axis=1)
    feed = columns(users, movies, everything)
    del feed["rating"]
    (stars,) = fluid.Inferencer(inference_program, param_path=path).infer(feed)
    print(f"\nparameters saved to {path}, loaded again; for user {user[0]}:")
    for i in np.argsort(-stars[:, 0])[:5]:
        print(f"  {stars[i, 0]:.1f} stars  {titles[int(movies[i, 0])]}")
    return errors


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="DIR", help="with users.dat, movies.dat and ratings.dat")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save = arguments.save or os.path.join(folder, "movies.params")
        main(arguments.data, arguments.epochs, save)
