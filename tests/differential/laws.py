"""Laws: independent ways to the same numbers of a drawn program must agree.

A law is a function of a case, of a `random.Random` and of an empty folder. It raises an AssertionError if two ways
differ. `fits` says which programs have a law: a pattern that the source must contain, and one that it must not contain.

An array that a program declares as float32 stays float32 in a float64 program; so such programs have no exact
differences.
"""

import re
import warnings

import jax
import numpy as np
from differential.programs import ROWS, TIME, Case, cut
from differential.templates import METRICS

import fluid
from fluid.serving.batching import Runner
from fluid.serving.settings import Settings

LAWS = {}
# Layers whose results in training depend on the whole minibatch, on earlier steps or on random numbers.
STATES = "batch_norm|data_norm|average|center_loss"
RANDOM = "dropout|downgrade"
# Templates that mix the rows of a batch in test mode too.
MIXES = (
    r"dim=0|axis=0\)(?!\[)|layers.roll\(\w+, 1, 0\)|layers.shape|layers.reduce_mean\(\w+\), -1|clip_by_norm\(\w+, 1|"
    r"reduce_max\(v\) >|reduce_mean\(\w+\) > 0|\[1, -1\]\)|argsort\(layers.reduce_sum"
)


def law(needs="", without=None, weight=1):
    """Register a law for the programs whose source contains `needs` and not `without`, drawn with a weight.

    A law of weight 0 is not drawn; the command line can name it.
    """

    def register(function):
        LAWS[function.__name__] = function
        function.weight = weight
        function.fits = lambda source: bool(re.search(needs, source) and not (without and re.search(without, source)))
        return function

    return register


def same(found, wanted, tolerance=3e-5, what=""):
    """Check that two results agree: arrays, sequences on their valid steps, or dicts of these; up to rounding."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), f"{what}: {list(found)} and {list(wanted)}"
        for name in wanted:
            same(found[name], wanted[name], tolerance, f"{what} {name}")
        return
    if isinstance(wanted, fluid.SequenceBatch):
        np.testing.assert_array_equal(found.lengths, wanted.lengths, what)
        found, wanted = (np.concatenate(jax.tree.map(np.asarray, v).rows()) for v in (found, wanted))
    found, wanted = np.asarray(found, "float64"), np.asarray(wanted, "float64")
    assert found.shape == wanted.shape, f"{what}: the shapes {found.shape} and {wanted.shape}"
    scale = 1 + np.abs(wanted[np.isfinite(wanted)]).max(initial=0)
    np.testing.assert_allclose(found / scale, wanted / scale, rtol=0, atol=tolerance, err_msg=what)


def rows_of_feed(case, draw, count):
    """Draw rows with repetitions; sometimes all numbers are zero or large."""
    rows = cut(case.feed, np.array([draw.randrange(ROWS) for _ in range(count)]))
    factor = draw.choice([1, 1, 1, 0, 0.1, 10])
    return {name: scaled(value, factor) for name, value in rows.items()}


def scaled(value, factor):
    """Multiply the floats of a value."""
    return jax.tree.map(lambda v: v * np.asarray(factor, v.dtype) if v.dtype.kind == "f" else v, value)


def guess(case, feed):
    """Return the guess of a program for a feed, from `Program.apply` alone."""
    return case.apply(feed)["guess"]


def inputs(case, feed):
    """Return the feeds that the net reads."""
    return {name: value for name, value in feed.items() if name not in ("y", "label", "tags")}


@law(weight=3)
def rows(case, draw, folder):
    """An Inferencer gives each row of a batch the result of this row alone, in any order of calls, padded or not."""
    inferencer = fluid.Inferencer(case.net, params=case.arrays, bucket=draw.random() < 0.9)
    sizes = draw.sample([1, 2, 3, 5, 6, 7], 2)
    for number in range(4):
        size = draw.choice(sizes)
        feed = rows_of_feed(case, draw, size)
        found = inferencer.infer(inputs(case, feed))["guess"]
        same(found, guess(case, feed), what=f"call {number}, batch of {size}")
        if not re.search(MIXES, case.source):
            for row in range(size):
                one = np.array([row])
                alone = guess(case, cut(feed, one))
                same(jax.tree.map(lambda v, one=one: v[one], found), alone, what=f"row {row} alone")


@law(weight=2)
def served(case, draw, folder):
    """A server answers requests that share a batch as it answers each of them alone."""
    session = fluid.Session(case.net, mode="test", initial=False)
    session.load_params(case.arrays, strict=False)
    runner = Runner(session, next(iter(session.programs.values())), Settings(max_batch=4, buckets=(TIME,)), "net")
    runner.warm_up()
    feeds = [rows_of_feed(case, draw, count) for count in draw.choice([[1, 2, 1], [1, 1], [3], [2, 1]])]
    jobs = [runner.job(inputs(case, feed), timeout=60) for feed in feeds]
    batches = [jobs] if runner.together else [[job] for job in jobs]
    results = [result for batch in batches for result in runner.run(batch)]
    for number, (feed, result) in enumerate(zip(feeds, results, strict=True)):
        same(result["guess"], guess(case, feed), what=f"request {number}")


@law(weight=2)
def ways(case, draw, folder):
    """Session, Trainer, Inferencer and exported model agree, with parameters in memory and from a file."""
    feed = rows_of_feed(case, draw, draw.choice([1, 3, 4]))
    wanted, fed = guess(case, feed), inputs(case, feed)
    trainer = fluid.Trainer(case.program, fluid.optimizer.SGD(0.1), params=case.arrays, infer_func=case.net)
    trainer.save_params(folder / "net.params")
    trainer.save_inference_model(folder / "net.fluid")
    everything = {
        "test step": lambda: trainer.session.run(feed=feed, fetch=["guess"], mode="test")["guess"],
        "predict": lambda: next(iter(trainer.predict([fed], fetch=["guess"])))["guess"],
        "Inferencer": lambda: fluid.Inferencer(case.net, params=trainer.params).infer(fed)["guess"],
        "file": lambda: fluid.Inferencer(case.net, folder / "net.params").infer(fed)["guess"],
        "exported": lambda: fluid.Inferencer(param_path=folder / "net.fluid").infer(fed)["guess"],
    }
    for name in ["exported", *draw.sample(["test step", "predict", "Inferencer", "file"], 2)]:
        same(everything[name](), wanted, what=name)


@law("lod_level", RANDOM, weight=2)
def padding(case, draw, folder):
    """Padding changes neither results nor gradients: neither its length nor the numbers in it."""
    feed, added = cut(case.feed, np.arange(5)), draw.choice([0, 2])

    def padded(value):
        if not isinstance(value, fluid.SequenceBatch):
            return value
        more = np.zeros((len(value.data), added, *value.data.shape[2:]), value.data.dtype)
        data = np.concatenate([value.data, more], axis=1)
        valid = np.arange(data.shape[1])[None, :, None] < value.lengths[:, None, None]
        filling = np.asarray(draw.choice([1, 1e3, np.nan]) if data.dtype.kind == "f" else 1, data.dtype)
        return value.with_data(np.where(valid, data, filling))

    other = {name: padded(value) for name, value in feed.items()}
    mode = draw.choice(["train", "test"])
    same(case.apply(other, mode), case.apply(feed, mode), what=f"{mode} mode")
    same(case.gradients(other, mode), case.gradients(feed, mode), 1e-4, "gradient")


@law(without=f"{STATES}|{RANDOM}|is_training")
def modes(case, draw, folder):
    """Without states and random numbers, a training step computes the numbers of a test."""
    feed = cut(case.feed, np.arange(draw.choice([2, 5])))
    same(case.apply(feed, "train"), case.apply(feed, "test"))


def measured_by_numpy(case):
    """Return the loss and the metrics of a program for all rows, the metrics by NumPy from the guess and the target."""
    whole = case.apply(case.feed)
    target = case.feed[next(name for name in ("y", "label", "tags") if name in case.feed)]
    values = (np.concatenate(jax.tree.map(np.asarray, rows_of(value))) for value in (whole["guess"], target))
    guess, target = values
    texts = re.findall(r'"metric_\d": (.*?)(?=, "metric|}$)', case.source.strip())
    formulas = (METRICS[re.sub(r"\b(y|label|tags)\)$", "{target})", text)] for text in texts)
    return {"loss": whole["loss"]} | {f"metric_{i}": formula(guess, target) for i, formula in enumerate(formulas)}


def rows_of(value):
    """Return a list of the rows of a SequenceBatch, without padding; for any other value, a list with the value."""
    return value.rows() if isinstance(value, fluid.SequenceBatch) else [value]


def measured(case, methods):
    """Compare the results of methods with NumPy, until a method warns that a result depends on the batch size."""
    wanted = measured_by_numpy(case)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for what, method in methods.items():
            found = method(list(wanted))
            if any(re.search("batch size|rows", str(warning.message)) for warning in said):
                return
            same({name: found[name] for name in wanted}, wanted, 1e-4, what)


@law(weight=2)
def measures(case, draw, folder):
    """A test has the numbers of NumPy for all rows, whatever the batch size, or a warning says otherwise."""
    trainer = fluid.Trainer(case.program, fluid.optimizer.SGD(0.0), params=case.arrays)
    few, many = (case.minibatches(size) for size in draw.sample([1, 3, 7, 23], 2))
    by_name = draw.random() < 0.5
    tests = {
        "the first test": lambda names: trainer.test(few, fetch=names if by_name else None),
        "the second test": lambda names: trainer.test(many, fetch=None if by_name else names),
    }
    measured(case, tests)


@law(without=f"{STATES}|{RANDOM}|is_training", weight=2)
def history(case, draw, folder):
    """A history has the numbers of NumPy for all rows if no parameter changes, or a warning says otherwise."""
    trainer = fluid.Trainer(case.program, fluid.optimizer.SGD(0.0), params=case.arrays)
    size = draw.choice([1, 3, 7])

    def last(names):
        history = trainer.train(case.minibatches(size))
        return {name: history[name][-1] for name in names}

    measured(case, {f"a history with batches of {size}": last})


@law(without="one_hot|average|bpr|iter", weight=2)
def gradients(case, draw, folder):
    """The gradient of the loss is the limit of its differences, in float64."""
    with jax.enable_x64(True):
        exact = Case(case.source, case.seed, "float64")
        feed = cut(exact.feed, np.arange(4))
        mode = draw.choice(["train", "test"])
        slopes = exact.gradients(feed, mode)
        random = np.random.default_rng(draw.randrange(1 << 30))
        for name in draw.sample(sorted(slopes), min(3, len(slopes))):
            way = random.normal(size=slopes[name].shape)

            def loss(step, name=name, way=way):
                arrays = exact.arrays | {name: exact.arrays[name] + step * way}
                return float(exact.apply(feed, mode, arrays)["loss"])

            slope = float(np.sum(np.asarray(slopes[name]) * way))
            differences = [(loss(step) - loss(-step)) / (2 * step) for step in (1e-5, 1e-6, -3e-6)]
            errors = [abs(difference - slope) for difference in differences]
            # One width may step over a kink, for example at the zero of relu.
            assert min(errors) <= 2e-5 * (1 + abs(slope)), f"{name}: {slope} and the differences {differences}"
