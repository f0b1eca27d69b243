"""Export of every program: a process without the program function returns the answers of the function."""

import os

import golden_cases
import pytest
from export import fresh_process
from export.programs import (
    FIXED,
    IMPOSSIBLE,
    NOT_DEPLOYED,
    NOT_OPEN,
    Model,
    cases_that_run,
    examples,
    golden_models,
    is_fixed,
    matches,
    opened,
)  # fmt: skip
from export.test_artifact import close

import fluid
from fluid import errors, export

# The tests of all sizes run every STRIDE-th golden program; `make soak` sets 1, so that all golden programs run.
STRIDE = int(os.environ.get("FLUID_STRIDE", "12"))

MODELS = {model.id: model for model in (*examples(), *golden_models()) if model.id not in IMPOSSIBLE}


@pytest.fixture(scope="module")
def process():
    with fresh_process.started() as started:
        yield started


def check(model, process, path, sizes):
    """Check that a process that loads the exported model gets the results of the program function, for all `sizes`."""
    params = model.params()
    fluid.io.save_inference_model(path, model.program, params)
    entry = export.load(path).entries["predict"]
    assert (len(entry.functions) > 1) == (model.id in NOT_OPEN), entry.note
    seed = 7 if entry.random else None
    inferencer = fluid.Inferencer(model.program, params=params, seed=seed)
    names = [feed.name for feed in entry.feeds]
    feeds = [{n: v for n, v in model.feed(rows, steps).items() if n in names} for rows, steps in sizes]
    wanted = [inferencer.infer(feed) for feed in feeds]
    found, compilations = process.infer(path, feeds, seed=seed)
    different = [size for size, a, b in zip(sizes, found, wanted, strict=True) if not close(a, b)]
    assert not different, f"other answers for these rows and steps: {different}"
    assert compilations == len(inferencer.session.compilations)


def all_sizes(model):
    """Return pairs of a batch size, from 1 to 17, and a sequence length, from 1 to 50."""
    if model.has_steps:
        return [(1 + i % 17, 1 + i) for i in range(50)]
    return [(rows, 1) for rows in range(1, 18)] if model.has_rows else [(1, 1)]


def by_length():
    """Yield each model as a test parameter; only `make soak` tests slow models, and all but the first of a family."""
    seen = set()
    for id in MODELS:
        family = id.rpartition("/")[0] if id.startswith("golden/") else id
        long = family in seen or "image_classification" in id
        seen.add(family)
        # Of the golden programs, tests/test_goldens.py compares the same numbers, without an export.
        marks = [pytest.mark.sample(0 if id.startswith("golden/") else 6)]
        yield pytest.param(id, marks=[*marks, pytest.mark.soak] if long else marks)


# Some golden programs update sparse tables densely, which warns.
@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
@pytest.mark.parametrize("id", list(by_length()))
def test_exported_program_answers_as_its_function(id, process, tmp_path):
    place = list(MODELS).index(id)
    check(MODELS[id], process, tmp_path / "model.fluid", [(1 + 7 * place % 17, 1 + 7 * place % 50)])


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
@pytest.mark.parametrize("id", [*list(MODELS)[: len(examples())], *list(MODELS)[len(examples()) :: STRIDE]])
def test_exported_program_answers_at_all_sizes(id, process, tmp_path):
    check(MODELS[id], process, tmp_path / "model.fluid", all_sizes(MODELS[id]))


def opens(case):
    """Return whether the program of a golden case runs with batch sizes other than the recorded size."""
    model = Model(case.id, opened(case))
    try:
        inferencer = fluid.Inferencer(model.program, params=model.params())
        return all(len(inferencer.infer(model.feed(rows, 3))) == len(case.spec["fetch"]) for rows in (1, 7))
    except (errors.FluidError, KeyError, TypeError, ValueError):
        return False


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_the_tables_are_true(tmp_path):
    cases = cases_that_run()
    for pattern in FIXED:
        matching = [case for case in cases if matches(case, [pattern]) and is_fixed(case)]
        assert matching and not any(map(opens, matching)), pattern
    models = {model.id: model for model in (*examples(), *golden_models())}
    assert {*NOT_OPEN, *IMPOSSIBLE} <= set(models)
    for id in IMPOSSIBLE:
        with pytest.raises(errors.ArtifactError):
            fluid.io.save_inference_model(tmp_path / "model.fluid", models[id].program, models[id].params())


def test_every_example_is_there():
    files = {path.stem for path in (golden_cases.FOLDER.parents[1] / "examples").glob("*.py")}
    exported = {id.split("/")[1].partition(".")[0] for id in MODELS if id.startswith("examples/")}
    assert files == exported | NOT_DEPLOYED.keys()
