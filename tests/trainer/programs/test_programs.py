"""Several programs in one Trainer: schedules, readers and chained programs, with the same bits as a custom loop."""

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest
from gan_trainings import COLUMNS, EPOCHS, by_hand, discriminator, generator, reader, trainer
from hypothesis import given
from hypothesis import strategies as st
from resumed_programs import assert_equal, state

import fluid
from fluid import errors, layers
from fluid.reader.adapters import minibatches
from fluid.trainer.programs.schedule import Pattern, Turns, Weighted, schedule_of

SGD = fluid.optimizer.SGD


def arrays_of(session):
    return {name: np.array(value) for name, value in session.scope.items()}


def turns_seen(into):
    return lambda event: isinstance(event, fluid.EndStepEvent) and into.append((event.epoch, event.step, event.program))


@pytest.fixture(scope="module")
def whole():
    """Return the Trainer of a GAN after a whole training, the (epoch, step, program) of each step, and the history."""
    mine = trainer()
    turns = []
    history = mine.train(reader(), EPOCHS, event_handler=turns_seen(turns))
    return mine, turns, history


def test_custom_loop_gives_the_same_bits(whole):
    mine, turns, _ = whole
    assert "".join(name[0] for _, _, name in turns) == "ddg" * 7 and len(turns) == EPOCHS * 7
    hand = by_hand()
    assert_equal(arrays_of(mine.session), arrays_of(hand))
    slots = zip(mine.session.scope.slots.values(), hand.scope.slots.values(), strict=True)
    for one, other in slots:
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert np.array_equal(a, b)
    assert int(mine.session.scope.step) == int(hand.scope.step) == 21
    assert len(mine.session.compilations) == 2 + 2  # two programs, each compiled for two minibatch sizes


@pytest.mark.parametrize("cut", [3, 7])
def test_aborted_training_resumes_to_the_same_bits(cut, whole, tmp_path):
    """Check that training resumes after an exception, which saves nothing: it continues from an older checkpoint."""
    first, turns = [], []

    def fail(event):
        turns_seen(first)(event)
        if len(first) == cut:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path).train(reader(), EPOCHS, event_handler=fail)
    again = trainer(tmp_path)
    history = again.train(reader(), EPOCHS, event_handler=turns_seen(turns))
    done = len(whole[1]) - len(turns)
    assert done in (cut - 2, cut - 1, cut) and first[:done] + turns == whole[1]
    assert_equal(state(again), state(whole[0]))
    assert list(history) == list(whole[2])
    assert all(history[name] == pytest.approx(whole[2][name]) for name in history)


def test_paused_or_interrupted_training_continues_to_same_bits(whole):
    batches = reader()
    mine = trainer()
    endings = iter([mine.pause, KeyboardInterrupt])
    count = itertools.count(1)

    def end(event):
        if isinstance(event, fluid.EndStepEvent) and next(count) in (4, 12):
            how = next(endings)
            if how is KeyboardInterrupt:
                raise how
            how()

    mine.train(batches, EPOCHS, event_handler=end)
    with pytest.raises(KeyboardInterrupt):
        mine.train(batches, EPOCHS, event_handler=end)
    mine.train(batches, EPOCHS)
    assert_equal(state(mine), state(whole[0]))


def test_metrics_carry_the_name_of_their_program(whole, tmp_path):
    mine, _, history = whole
    assert list(history)[2:] == ["discriminator/loss", "discriminator/fake", "generator/loss"]
    seen = {"discriminator": [], "generator": []}

    def note(event):
        if isinstance(event, fluid.EndStepEvent) and event.epoch == 0:
            seen[event.program].append((float(event.metrics["loss"]), event.examples))

    handlers = [
        fluid.handlers.CSVLogger(tmp_path / "log.csv"),
        fluid.handlers.EarlyStopping("generator/loss", patience=1, mode="max", min_delta=100),
        fluid.handlers.TestEvery(reader(), program=discriminator),
        fluid.handlers.LearningRateMonitor(),
        fluid.handlers.GradientMonitor(),
    ]
    trainer().train(reader(), EPOCHS, event_handler=note, handlers=handlers)
    for name, values in seen.items():
        losses, sizes = zip(*values, strict=True)
        assert history[f"{name}/loss"][0] == pytest.approx(np.average(losses, weights=sizes), rel=1e-6)
    header, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert len(rows) == 2  # EarlyStopping stopped the training after two of three epochs
    columns = header.split(",")
    row = dict(zip(columns, rows[0].split(","), strict=True))
    assert float(row["generator/loss"]) == pytest.approx(history["generator/loss"][0])
    assert float(row["discriminator/learning_rate_0"]) == pytest.approx(0.02)
    assert float(row["generator/learning_rate_0"]) == pytest.approx(0.05)
    assert {"test_discriminator/loss", "discriminator/grad_norm_0", "generator/update_ratio_0"} <= set(columns)


def test_each_program_tests_predicts_runs_and_exports(whole, in_tmp):
    mine, _, _ = whole
    data = fluid.reader.arrays(COLUMNS, batch_size=20)
    noise = fluid.reader.arrays({"noise": COLUMNS["noise"]}, batch_size=20)
    expected = mine.session.run("generator", {"noise": COLUMNS["noise"]}, mode="test")
    assert mine.test(data, program="discriminator")["loss"] == pytest.approx(
        float(mine.session.run("discriminator", COLUMNS, mode="test")["loss"]), rel=1e-5
    )
    assert mine.test(data, program=generator)["loss"] == pytest.approx(float(expected["loss"]), rel=1e-5)
    made = np.concatenate([found["made"] for found in mine.predict(noise, fetch="made", program="generator")])
    assert np.allclose(made, expected["made"], atol=1e-6)
    assert np.allclose(mine.run({"noise": COLUMNS["noise"]}, ["made"], program="generator")[0], made, atol=1e-6)
    mine.save_inference_model("generator.fluid", fetch=["made"], program="generator")
    found = fluid.Inferencer(param_path="generator.fluid").infer({"noise": COLUMNS["noise"]})
    assert np.allclose(found["made"], made, atol=1e-6)
    assert repr(mine).startswith("Trainer(discriminator, generator: ")
    for call in (lambda: mine.test(noise), lambda: mine.run({}), lambda: mine.predict(noise)):
        with pytest.raises(errors.ArgumentTypeError, match="'discriminator', 'generator' is meant .* program='disc"):
            next(iter(call()))
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'generator'"):
        mine.test(noise, program="generatr")
    with pytest.raises(AttributeError, match=r"trainer.programs\[name\]"):
        mine.program  # noqa: B018


def test_learning_rates_are_set_per_program():
    mine = trainer()
    with pytest.raises(errors.ArgumentError, match=r"find_learning_rate\(discriminator, reader, optimizer\)"):
        fluid.find_learning_rate(mine, reader())
    assert mine.learning_rate == {"discriminator": pytest.approx(0.02), "generator": pytest.approx(0.05)}
    mine.learning_rate = {"generator": 0.01}
    assert mine.learning_rate == {"discriminator": pytest.approx(0.02), "generator": pytest.approx(0.01)}
    with pytest.raises(errors.ArgumentError, match=r"trainer.learning_rate = \{'discriminator': 0.5\}"):
        mine.learning_rate = 0.5


def test_keep_best_follows_the_loss_of_its_program(tmp_path):
    config = {"step_interval": 1, "max_num_checkpoints": 1, "keep_best": ("generator/loss", "min")}
    mine = trainer(tmp_path, schedule="alternate", config=config)
    losses = []

    def note(event):
        if isinstance(event, fluid.EndStepEvent):
            losses.append(float(event.metrics["loss"]) if event.program == "generator" else np.inf)

    mine.train(reader(), 2, event_handler=note)
    mine.restore("best")
    assert int(mine.session.scope.step) == int(np.argmin(losses)) + 1
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'generator/loss'"):
        trainer(tmp_path / "other", config={"keep_best": ("generator/los", "min")})


def test_nan_report_finds_the_step_and_its_program():
    columns = {name: column.copy() for name, column in COLUMNS.items()}
    columns["noise"][21, 1] = np.nan  # row 21 is row 5 of the third minibatch, for the generator
    mine = trainer()
    with (
        pytest.warns(errors.FluidWarning, match="NaN"),
        pytest.raises(errors.NonFiniteError, match=r"step 2 of epoch 0 is not finite(.|\n)*row 5"),
    ):
        data = fluid.reader.arrays(columns, batch_size=8)
        mine.train(data, handlers=[fluid.handlers.TerminateOnNaN(report=True, every=4)])
    assert int(mine.session.scope.step) == 2 and all(np.isfinite(v).all() for v in mine.params.values())


# Tests of several programs in one training: the order of their steps, and their readers.


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=4), step=st.integers(0, 200))
def test_pattern_repeats_each_program_by_its_count(counts, step):
    written_out = list(itertools.chain.from_iterable([i] * count for i, count in enumerate(counts)))
    endless = itertools.cycle(written_out)
    assert Pattern(counts).at(step, epoch=0) == next(itertools.islice(endless, step, None))


def test_weighted_draws_depend_only_on_seed_and_step():
    schedule = Weighted([0.2, 0.5, 0.3], seed=1)
    drawn = [schedule.at(step, 0) for step in range(20_000)]
    assert np.bincount(drawn) / len(drawn) == pytest.approx([0.2, 0.5, 0.3], abs=0.015)
    again = Weighted([0.2, 0.5, 0.3], seed=1)
    assert [again.at(step, 0) for step in (15_000, 3, 1024)] == [drawn[15_000], drawn[3], drawn[1024]]
    other = Weighted([0.2, 0.5, 0.3], seed=2)
    assert [other.at(step, 0) for step in range(50)] != drawn[:50]


SCHEDULES = {
    "3:1": lambda step, epoch: [0, 0, 0, 1][step % 4],
    "alternate": lambda step, epoch: step % 2,
    "epoch": lambda step, epoch: epoch % 2,
    "function": lambda step, epoch: (step // 2) % 2,
}


def turned(sizes, schedule, leading=0, first=0):
    """Return Turns, which alternates between readers of `sizes` minibatches; a minibatch is (reader, epoch, number)."""
    rows = [fluid.reader.base.Reader(_counting(number, size), number) for number, size in enumerate(sizes)]
    given = (lambda step: (step // 2) % 2) if schedule == "function" else schedule
    return Turns([minibatches(reader) for reader in rows], schedule_of(given, ["a", "b"], 0), leading, first)


def _counting(number, size):
    def iterate(epoch, start):
        for i in range(start, size):
            yield number, epoch, i

    return iterate


def expected(sizes, schedule, leading, epochs):
    """Yield the minibatches of each epoch when two readers take turns by a schedule, computed step by step."""
    passes, at, step = [0, 0], [0, 0], 0
    for epoch in range(epochs):
        found = []
        ends = epoch % 2 if schedule == "epoch" else leading
        # At the start of an epoch, the leading reader (the reader whose end ends the epoch) begins again.
        if at[ends]:
            passes[ends], at[ends] = passes[ends] + 1, 0
        while True:
            which = SCHEDULES[schedule](step, epoch)
            if at[which] == sizes[which]:
                passes[which], at[which] = passes[which] + 1, 0
                if which == ends:
                    break
            found.append((which, (which, passes[which], at[which])))
            at[which] += 1
            step += 1
        yield found


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(sizes=st.tuples(st.integers(1, 5), st.integers(1, 5)), leading=st.integers(0, 1), cut=st.integers(0, 12))
def test_minibatches_follow_the_schedule_after_any_restore(schedule, sizes, leading, cut):
    turns = turned(sizes, schedule, leading)
    wanted = list(expected(sizes, schedule, leading, epochs=4))
    state, count, found = turns.state(), 0, []
    for _ in range(4):
        items = []
        for item in turns():
            items.append(item)
            count += 1
            if count == cut:
                state = turns.state()
        found.append(items)
    assert found == wanted
    again = turned(sizes, schedule, leading)
    again.restore(state)
    rest = [item for _ in range(4) for item in again()]
    flat = [item for items in wanted for item in items]
    cut = min(cut, len(flat)) if cut <= len(flat) else 0
    left = flat[cut:]
    assert rest[: len(left)] == left


def task(name):
    """Return a TrainingProgram whose loss is the mean of the feed `x` times the parameter `shared.w`."""

    def program():
        x = layers.data("x", shape=[1])
        return layers.mean(layers.fc(x, size=1, param_attr="shared.w", bias_attr=False))

    return fluid.TrainingProgram(program, SGD(0.1), name=name)


def numbers(*values):
    return lambda: iter([[(np.full(1, value, "float32"),)] for value in values])


def trained_on(mine, given, epochs=1, **options):
    """Train several programs; return the program and the fed number of each step in one string, such as "a1 b3"."""
    seen = []

    def note(event):
        if isinstance(event, fluid.BeginStepEvent):
            seen.append(f"{event.program}{int(event.feed['x'][0, 0])}")

    mine.train(given, epochs, event_handler=note, **options)
    return " ".join(seen)


def test_epoch_is_a_pass_of_the_leading_reader():
    given = {"a": numbers(1, 2), "b": numbers(3, 4, 5)}
    mine = fluid.Trainer([task("a"), task("b")])
    assert trained_on(mine, given, 2) == "a1 b3 a2 b4 a1 b5 a2 b3"
    assert trained_on(mine, given) == "a1 b3 a2 b4"  # a new call of `train` starts all readers again
    mine = fluid.Trainer([task("a"), task("b")], epoch_of="b")
    assert trained_on(mine, given) == "a1 b3 a2 b4 a1 b5 a2"
    mine = fluid.Trainer([task("a"), task("b")], schedule="epoch")
    assert trained_on(mine, given, 3) == "a1 a2 b3 b4 b5 a1 a2"


def test_programs_share_a_reader_or_use_separate_readers():
    mine = fluid.Trainer([task("a"), task("b")], schedule=lambda step: "b" if step % 3 == 2 else 0)
    assert trained_on(mine, numbers(1, 2, 3, 4)) == "a1 a2 b3 a4"
    mine = fluid.Trainer([task("a"), replace(task("b"), reader=numbers(7, 8))])
    assert trained_on(mine, numbers(1, 2, 3)) == "a1 b7 a2 b8 a3 b7"
    mine = fluid.Trainer([replace(task("a"), reader=numbers(1)), replace(task("b"), reader=numbers(7, 8))])
    assert trained_on(mine, None, 2) == "a1 b7 a1 b8"
    with pytest.raises(errors.ArgumentError, match="leave it out"):
        mine.train(numbers(1))


def test_schedule_continues_over_epochs_and_calls():
    mine = fluid.Trainer([task("a"), task("b")], schedule="3:1")
    assert trained_on(mine, numbers(1, 2, 3), 2) == "a1 a2 a3 b1 a2 a3"
    assert trained_on(mine, numbers(1, 2, 3)) == "a1 b2 a3"


def test_program_without_a_turn_is_warned_of():
    mine = fluid.Trainer([task("a"), task("b")], schedule=lambda step: "a")
    with pytest.warns(errors.FluidWarning, match="'b' was not trained in any of 2 steps"):
        mine.train(numbers(1, 2))


def drawing():
    x = layers.gaussian_random([4, 1], name="drawn")
    return layers.mean(layers.fc(x, size=1, param_attr="shared.w", bias_attr=False))


def test_a_program_without_feeds_reads_nothing():
    seen = []
    mine = fluid.Trainer([(drawing, SGD(0.1)), task("b")])
    mine.train(numbers(1, 2), event_handler=turns_seen(seen))
    assert [name for _, _, name in seen] == ["drawing", "b", "drawing", "b", "drawing"]
    alone = fluid.Trainer([(drawing, SGD(0.1)), fluid.TrainingProgram(drawing, SGD(0.1), name="other")])
    with pytest.raises(errors.ArgumentTypeError, match=r"train\(\{'drawing': range\(1000\)\}\)"):
        alone.train(None)
    seen.clear()
    alone.train({"other": range(2)}, event_handler=turns_seen(seen))
    assert [name for _, _, name in seen] == ["drawing", "other", "drawing", "other", "drawing"]


def test_shared_optimizer_has_a_rate_per_program():
    mine = fluid.Trainer([task("a").program_func, fluid.TrainingProgram(task("b").program_func, name="b")], SGD(0.5))
    assert list(mine.programs) == ["program", "b"] and mine.learning_rate == {"program": 0.5, "b": 0.5}


# Tests of chained programs: the output of one program is a feed of another program.


def refine():
    """Return the loss of a second program, whose feed `made` is an output of the program `generator`."""
    made = layers.data("made", shape=[2])
    return {"loss": layers.mean(layers.square(layers.fc(made, size=1, name="refine")))}


def chained(folder=None):
    programs = [
        fluid.TrainingProgram(generator, SGD(0.1), parameter_list="generator/*"),
        fluid.TrainingProgram(refine, SGD(0.1), feed_from={"made": "generator/made"}),
    ]
    config = None if folder is None else fluid.CheckpointConfig(folder, step_interval=3)
    return fluid.Trainer(programs, seed=3, checkpoint_config=config)


def noises():
    return fluid.reader.arrays({"noise": COLUMNS["noise"]}, batch_size=13)


def test_feed_from_equals_feeding_by_hand(tmp_path):
    mine = chained()
    mine.train(noises(), 2)

    def generate():
        outputs = generator()
        SGD(0.1).minimize(outputs["loss"], parameter_list="generator/*")
        return outputs

    def refining():
        outputs = refine()
        SGD(0.1).minimize(outputs["loss"])
        return outputs

    hand = fluid.Session(generate, refining, seed=3)
    batches = noises()
    for step, batch in enumerate(itertools.chain(batches(), batches())):
        if step % 2 == 0:
            hand.run(generate, batch)
        else:
            hand.run(refining, {"made": hand.run(generate, batch, fetch=["made"], mode="test")[0]})
    assert_equal(arrays_of(mine.session), arrays_of(hand))

    count = itertools.count(1)

    def fail(event):
        if isinstance(event, fluid.EndStepEvent) and next(count) == 5:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        chained(tmp_path).train(noises(), 2, event_handler=fail)
    again = chained(tmp_path)
    again.train(noises(), 2)
    assert_equal(state(again), state(mine))
    made = hand.run(generate, {"noise": COLUMNS["noise"]}, fetch=["made"], mode="test")[0]
    wanted = float(hand.run(refining, {"made": made}, mode="test")["loss"])
    assert float(mine.test(noises(), program="refine")[0]) == pytest.approx(wanted, rel=1e-5)
    found = [r["loss"] for r in mine.predict(noises(), ["loss"], program="refine")]
    assert np.mean(found) == pytest.approx(wanted, rel=1e-5)


def test_step_values_are_fetched_and_overridden_per_program():
    mine = chained()
    found = []

    def ask(event):
        if isinstance(event, fluid.BeginStepEvent) and event.step < 2:
            event.fetch("made")
            if event.program == "refine":
                event.override({"made": np.zeros((13, 2), "float32")})
        if isinstance(event, fluid.EndStepEvent) and event.step < 2:
            found.append((event.program, np.asarray(event.fetched["made"]).any()))

    mine.train(noises(), event_handler=ask)
    assert found == [("generator", True), ("refine", False)]
    given = {"made": np.zeros((13, 2), "float32")}
    wanted = float(mine.session.run("refine", given, mode="test")["loss"])
    assert float(mine.test(noises(), program="refine", feed=given)[0]) == pytest.approx(wanted)
    assert mine.test(noises(), program="generator", fetch=["made"])["made"].shape == (52, 2)
    predicted = mine.predict(noises(), ["loss"], program="refine", feed=given)
    assert [float(r["loss"]) for r in predicted] == pytest.approx([wanted] * 4)


# Tests of wrong arguments.


def other_shape():
    return layers.mean(layers.fc(layers.data("x", shape=[2]), size=1, param_attr="shared.w"))


def first():
    return layers.mean(layers.fc(layers.data("x", shape=[1]), size=1))


def second():
    return layers.mean(layers.square(layers.fc(layers.data("x", shape=[1]), size=1)))


A, B = task("a"), task("b")
FED = fluid.TrainingProgram(generator, SGD(0.1), parameter_list="generator/*")


def refined(**chain):
    return fluid.TrainingProgram(refine, SGD(0.1), **chain)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: fluid.Trainer([A, A]), errors.ArgumentError, r"two .* 'a'; .*TrainingProgram\(a, optimizer, name="),
        (lambda: fluid.Trainer([]), errors.ArgumentError, "at least one program"),
        (lambda: fluid.Trainer([(first, SGD(0.1), 3)]), errors.ArgumentTypeError, "pairs of a program function"),
        (lambda: fluid.Trainer([first, B]), errors.ArgumentTypeError, "needs an optimizer"),
        (lambda: fluid.Trainer([A, B], schedule="3:1:1"), errors.ArgumentError, 'write schedule="3:1"'),
        (lambda: fluid.Trainer([A, B], schedule="often"), errors.ArgumentError, 'expected "alternate", "3:1"'),
        (lambda: fluid.Trainer([A, B], schedule="3:0"), errors.ArgumentError, "never trains 'b'"),
        (lambda: fluid.Trainer([A, B], schedule={"a": 1}), errors.ArgumentError, "never trains 'b'"),
        (lambda: fluid.Trainer([A, B], schedule={"a": 1, "c": 1}), errors.UnknownNameError, "no program 'c'"),
        (lambda: fluid.Trainer([A, B], schedule={"a": 1, "b": -1}), errors.ArgumentError, "weight of 'b'"),
        (lambda: fluid.Trainer([A, B], schedule=lambda step: "c"), errors.UnknownNameError, "gave 'c' for step 0"),
        (lambda: fluid.Trainer([A, B], schedule=3), errors.ArgumentTypeError, "a function of the number"),
        (lambda: fluid.Trainer(first, SGD(0.1), schedule="3:1"), errors.ArgumentError, "the Trainer has one"),
        (lambda: fluid.Trainer([A, B], epoch_of="c"), errors.UnknownNameError, "epoch_of='c'"),
        (
            lambda: fluid.Trainer([A, (other_shape, SGD(0.1))]),
            errors.ParameterError,
            "'shared.w' with different shapes",
        ),
        (
            lambda: fluid.TrainingProgram(first, SGD(0.1), parameter_list="fcc_*").discovered(None),
            errors.UnknownNameError,
            r"Did you mean 'fc_0\.\*'",
        ),
        (lambda: fluid.Trainer([refined(parameter_list="x/*", name="r")]), errors.UnknownNameError, "'x/.' matches no"),
        (lambda: fluid.TrainingProgram(first, name="a/b"), errors.ArgumentError, "without '/'"),
        (lambda: fluid.Trainer([A, B]).train(), errors.ArgumentTypeError, r"train\(\{'a': a_reader, 'b': b_reader\}"),
        (lambda: fluid.Trainer([A, B]).train({"a": [1]}), errors.ArgumentTypeError, "reader for the program 'b'"),
        (lambda: fluid.Trainer([A, B]).train({"c": [1]}), errors.UnknownNameError, "'c', which is no program"),
        (
            lambda: fluid.Trainer([A, B]).train(numbers(1), feed_order=["x"]),
            errors.ArgumentError,
            "TrainingProgram\\(a, optimizer, feed_order=",
        ),
        (
            lambda: fluid.Trainer([A, B]).train(numbers(1), restore_best=True, test_reader={"a": numbers(1)}),
            errors.ArgumentError,
            'restore_best="test_a/loss"',
        ),
        (
            lambda: fluid.Trainer([(drawing, SGD(0.1)), B], schedule="epoch").train(numbers(1)),
            errors.ArgumentError,
            "'drawing' has none",
        ),
        (
            lambda: fluid.Trainer([FED, refined(feed_from={"m": "generator/made"})]),
            errors.UnknownNameError,
            "no feed 'm'",
        ),
        (
            lambda: fluid.Trainer([FED, refined(feed_from={"made": "made"})]),
            errors.UnknownNameError,
            "as in 'generator/output'",
        ),
        (
            lambda: fluid.Trainer([FED, refined(feed_from={"made": "generator/mode"})]),
            errors.UnknownNameError,
            "Did you mean 'made'",
        ),
        (
            lambda: fluid.Trainer([FED, refined(feed_from={"made": "generator/loss"})]),
            errors.ArgumentError,
            "declare it",
        ),
    ],
)
def test_wrong_arguments_raise_named_errors(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


def test_mutual_feed_from_raises_argument_error():
    def back():
        return {"made": layers.fc(layers.data("noise", shape=[2]), size=2, name="back")}

    def forth():
        return {"loss": layers.mean(layers.fc(layers.data("made", shape=[2]), size=2, name="forth"))}

    one = fluid.TrainingProgram(lambda: {"loss": layers.mean(back()["made"])}, SGD(0.1), name="one")
    two = fluid.TrainingProgram(forth, SGD(0.1), name="two", feed_from={"made": "one/back"})
    fluid.Trainer([one, two])
    with pytest.raises(errors.ArgumentError, match="wait for each other"):
        fluid.Trainer([replace(one, feed_from={"noise": "two/forth"}), two])


def test_layers_sharing_only_default_names_are_warned_of():
    with pytest.warns(errors.FluidWarning, match=r"share parameters that different lines make.*fc_0.w_0 \(first: "):
        fluid.Trainer([(first, SGD(0.1)), (second, SGD(0.1))])


def test_another_schedule_within_an_epoch_is_refused(tmp_path):
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path).train(reader(), EPOCHS, event_handler=_fail_at(5))
    with pytest.raises(errors.ArgumentError, match="another schedule"):
        trainer(tmp_path, schedule="alternate").train(reader(), EPOCHS)


def _fail_at(step):
    def fail(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == step:
            raise ZeroDivisionError

    return fail
