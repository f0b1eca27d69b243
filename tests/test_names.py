"""Unknown attributes, arguments and modules: errors name the right spelling. Known attributes can be set."""

import copy
import inspect
import pickle
import re

import jax
import numpy as np
import pytest

import fluid
from fluid import errors, layers
from fluid._util.known_names import KnownAttributes, argument_advice, hints, names

X = np.arange(24, dtype="float32").reshape(8, 3) / 24
Y = X.sum(1, keepdims=True)


def program():
    guess = layers.fc(layers.data("x", shape=[3]), size=1, name="guess")
    return {"loss": layers.mean(layers.square_error_cost(guess, layers.data("y", shape=[1])))}


def infer_func():
    return layers.fc(layers.data("x", shape=[3]), size=1, name="guess")


def make(**options):
    return fluid.Trainer(program, fluid.optimizer.Adam(0.1), **options)


def data():
    return fluid.reader.arrays({"x": X, "y": Y}, batch_size=4)


@pytest.fixture
def trainer():
    return make()


def the_last_of(trainer):
    return {
        "History": trainer.history,
        "Inferencer": fluid.Inferencer(infer_func, params=trainer.params),
        "Loop": fluid.Loop(fluid.Session(minimizing), []),
        "Population": fluid.Population(program, fluid.optimizer.SGD(0.1), size=2),
        "Program": trainer.program,
        "Session": trainer.session,
        "Trainer": trainer,
        "Auc": fluid.metrics.Auc(),
    }


def minimizing():
    loss = program()["loss"]
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def test_unknown_attributes_are_neither_set_nor_read(trainer):
    for kind, value in the_last_of(trainer).items():
        with pytest.raises(errors.MissingNameError, match=f"'{kind}' object has no attribute 'qqq'"):
            value.qqq = 1
        with pytest.raises(errors.MissingNameError, match=f"'{kind}' object has no attribute 'qqq'"):
            value.qqq  # noqa: B018
        assert not hasattr(value, "qqq") and getattr(value, "qqq", 3) == 3
        assert not hasattr(value, "_ipython_canary_method_should_not_exist_")
        with pytest.raises(AttributeError) as caught:
            value._qqq  # noqa: B018
        assert type(caught.value) is AttributeError
        value._qqq = 1  # a name with an underscore can be set, as in any object of Python
        assert value._qqq == 1 and dir(value)


def test_an_online_trainer_has_known_attributes_too(tmp_path):
    online = fluid.OnlineTrainer(program, fluid.optimizer.SGD(0.1), tmp_path)
    with pytest.raises(errors.MissingNameError, match=r"write online\.send\(rows\)"):
        online.partial_fit([])
    with pytest.raises(errors.MissingNameError, match="no attribute 'batch_size'"):
        online.batch_size = 3
    online.close()


def test_attribute_hints_name_existing_attributes(trainer, tmp_path):
    found = {"trainer": trainer, "session": trainer.session, "history": trainer.history, "metric": fluid.metrics.Auc()}
    found["inferencer"] = fluid.Inferencer(infer_func, params=trainer.params)
    found["online"] = fluid.OnlineTrainer(program, fluid.optimizer.SGD(0.1), tmp_path)
    kinds = (type(trainer), fluid.Inferencer, fluid.Session, fluid.History, fluid.metrics.MetricBase)
    for kind in (*kinds, fluid.OnlineTrainer):
        for name, hint in (*hints(kind.__name__).items(), *kind._set_by.items()):
            for of, path in re.findall(r"\b(trainer|session|history|metric|inferencer|online|fluid)\.([\w.]*\w)", hint):
                value = found.get(of, fluid)
                for part in path.split("."):
                    value = getattr(value, part)
            assert hint, name
    found["online"].close()


def test_user_subclasses_accept_any_attribute(trainer):
    class Mine(fluid.Trainer):
        pass

    class Counting(fluid.handlers.EarlyStopping):
        pass

    class Metric(fluid.metrics.Accuracy):
        pass

    for value in (Mine(program, fluid.optimizer.SGD(0.1)), Counting("loss", mode="min"), Metric()):
        value.something = 3
        assert value.something == 3
    counting = Counting("loss", mode="min")
    counting.something = 3
    trainer.train(data(), handlers=[counting])


def test_methods_can_be_replaced_for_a_test(trainer, monkeypatch):
    monkeypatch.setattr(trainer, "save_params", lambda path: path)
    assert trainer.save_params("a") == "a"


def test_handler_setting_after_construction_is_refused(trainer):
    stopping = fluid.handlers.EarlyStopping("loss", mode="min")
    stopping.patience = 10
    with pytest.raises(errors.MissingNameError, match=r"write EarlyStopping\(\.\.\., patience=10\)"):
        trainer.train(data(), handlers=[stopping])
    assert int(trainer.session.scope.step) == 0
    again = fluid.handlers.EarlyStopping("loss", mode="min")
    trainer.train(data(), handlers=[again])
    trainer.train(data(), handlers=[again])  # training changed the state of the handler, but no setting


@pytest.mark.parametrize(
    "change",
    [
        lambda params: params.__setitem__("guess.w_0", 1),
        lambda params: params.__delitem__("guess.w_0"),
        lambda params: params.update({"guess.w_0": 1}),
        lambda params: params.pop("guess.w_0"),
        lambda params: params.__ior__({"guess.w_0": 1}),
    ],
)
def test_setting_read_only_parameters_names_the_scope(trainer, change):
    for params in (trainer.params, trainer.session.params()):
        with pytest.raises(errors.ArgumentTypeError, match=r"'guess\.w_0' is not set.*scope\['guess\.w_0'\] = array"):
            change(params)
    population = fluid.Population(program, fluid.optimizer.SGD(0.1), size=2)
    with pytest.raises(errors.ArgumentTypeError, match="is not set"):
        change(population[1])


def test_the_calls_that_set_parameters_work(trainer):
    array = np.ones((3, 1), "float32")
    trainer.session.scope["guess.w_0"] = array
    np.testing.assert_array_equal(trainer.params["guess.w_0"], array)
    trainer.load_params({"guess.w_0": 2 * array}, strict=False)
    np.testing.assert_array_equal(trainer.params["guess.w_0"], 2 * array)
    with pytest.raises(errors.MissingNameError, match="'params' of a Trainer is read, and not set"):
        trainer.params = {}


def test_read_only_parameters_behave_as_a_dict(trainer):
    params = trainer.params
    assert isinstance(params, dict) and list(params) == list(trainer.session.scope)
    for other in (copy.copy(params), copy.deepcopy(params), pickle.loads(pickle.dumps(params)), dict(params)):
        assert type(other) is dict and other.keys() == params.keys()
    doubled = jax.tree.map(lambda a, b: a + b, params, trainer.params)
    np.testing.assert_array_equal(doubled["guess.w_0"], 2 * params["guess.w_0"])
    assert [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)] == [
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(dict(params))
    ]


@pytest.mark.parametrize("rate", [0.1, layers.warmup_cosine(0.1, 1, 8)])
def test_place_set_before_the_first_run_counts(rate):
    last = jax.local_devices()[-1]
    name = f"{last.platform}:{last.id}"
    there = fluid.Trainer(program, fluid.optimizer.Adam(rate), place=name)
    moved = fluid.Trainer(program, fluid.optimizer.Adam(rate))
    assert moved.place == f"{last.platform}:0"
    moved.place = name
    assert moved.place == there.place == name and moved.session.device == last
    assert dict(there.train(data(), 2)) == dict(moved.train(data(), 2))
    for array in (*moved.session.scope.arrays.values(), moved.session.scope.step):
        assert array.devices() == {last}
    for same in (name, name.upper(), last):  # three names of the current device
        moved.place = same


def test_a_population_can_be_placed_too():
    last = jax.local_devices()[-1]
    made = {}
    for place in (None, f"{last.platform}:{last.id}"):
        population = fluid.Population(program, fluid.optimizer.SGD(), vary={"learning_rate": [0.1, 0.2]})
        population.place = population.place if place is None else place
        made[place] = population.train(data(), 2)["loss"]
        assert population.params["guess.w_0"].devices() == {last if place else jax.local_devices()[0]}
    np.testing.assert_allclose(*made.values(), rtol=1e-6)


@pytest.mark.parametrize(
    "run", [lambda t: t.train(data()), lambda t: t.test(data()), lambda t: t.session.feed({"x": X})]
)
def test_the_place_is_fixed_by_the_first_run(trainer, run):
    run(trainer)
    with pytest.raises(errors.ArgumentError, match=r"has run on cpu:0.*place='cpu:1', params=trainer\.params"):
        trainer.place = "cpu:1"


def test_places_that_cannot_be_set(trainer):
    with pytest.raises(errors.DeviceError, match="'cpu:99' asks for a device that is not here"):
        trainer.session.place = "cpu:99"
    parallel = fluid.Session(program, parallel=fluid.Mesh(data=1))
    assert parallel.place == ["cpu:0"]
    with pytest.raises(errors.ArgumentError, match="divided among"):
        parallel.place = "cpu:0"


# The constructors of these classes take no arguments, or accept any, so no argument name can be wrong.
NO_ARGUMENTS = ("Handler", "NonFiniteReport", "WandB")
KINDS = [
    fluid.ParamAttr,
    fluid.LowRankParamAttr,
    fluid.WeightNormParamAttr,
    fluid.CheckpointConfig,
    fluid.Session,
    fluid.Inferencer,
    fluid.Loop,
    fluid.Program,
    *(getattr(fluid.clip, name) for name in dir(fluid.clip) if name.startswith("GradientClip")),
    *(getattr(fluid.regularizer, name) for name in ("L1Decay", "L2Decay")),
    *(getattr(fluid.initializer, n) for n in ("Constant", "Uniform", "Normal", "Xavier", "MSRA", "NumpyArray")),
    *(
        value
        for name in fluid.handlers.__all__
        if inspect.isclass(value := getattr(fluid.handlers, name)) and name not in NO_ARGUMENTS
    ),
    *(fluid.metrics.Accuracy, fluid.metrics.Auc, fluid.metrics.DetectionMAP, fluid.metrics.Precision),
]


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_arguments_of_classes_are_named(kind):
    with pytest.raises(errors.ArgumentTypeError, match=rf"{kind.__name__}\(\) got an unexpected keyword argument"):
        kind(qqq=1)
    assert "self" not in inspect.signature(kind).parameters and inspect.signature(kind).parameters, "as before"
    assert kind.__init__.__name__ == "__init__"


@pytest.mark.parametrize(
    "value, name",
    [
        (fluid.ParamAttr("w"), "name"),
        (fluid.CheckpointConfig("a"), "step_interval"),
        (fluid.regularizer.L2Decay(0.1), "regularization_coeff"),
        (fluid.clip.GradientClipByNorm(1.0), "clip_norm"),
        (fluid.initializer.Constant(1.0), "value"),
        (fluid.optimizer.SGD(0.1), "learning_rate"),
    ],
)
def test_changing_fixed_settings_names_the_new_call(value, name):
    with pytest.raises(errors.MissingNameError, match=rf"{name!r} of a fluid\.\S+ is fixed.*\({name}=3\)"):
        setattr(value, name, 3)
    with pytest.raises(errors.MissingNameError, match=f"no attribute {name[:-1]!r}. Did you mean {name!r}"):
        setattr(value, name[:-1], 3)
    assert copy.copy(value) == value == pickle.loads(pickle.dumps(value))


ADVICE = [(owner, name) for name, owners in names()["arguments"]["instead"].items() for owner in owners]


@pytest.mark.parametrize("owner, name", ADVICE)
def test_argument_hints_name_existing_functions_and_arguments(owner, name):
    hint = argument_advice(owner, name, [])
    assert hint.startswith(" ") and hint.endswith("."), hint
    for path in re.findall(r"\b(?:fluid|layers)\.[\w.]*\w", hint):
        value = fluid
        for part in path.removeprefix("fluid.").split("."):
            value = getattr(value, part)
    for name, given in re.findall(r"\b(fluid\.[\w.]+|layers\.\w+)\(([^()]*)\)", hint):
        taken = inspect.signature(eval(name, {"fluid": fluid, "layers": layers})).parameters
        assert set(re.findall(r"(\w+)=", given)) <= set(taken), hint


def test_hints_prefer_an_argument_of_the_called_function():
    assert argument_advice("trainer.train", "max_epochs", ["num_epochs"]) == " Did you mean 'num_epochs'?"
    assert "num_epochs=10" in argument_advice("fluid.Trainer", "max_epochs", ["place"])
    assert argument_advice("layers.fc", "qqq", ["size"]) == ""


def test_modules_that_are_called():
    fluid.optimizer.Adam(0.1), fluid.optimizer.Momentum(0.1, 0.9)  # noqa: B018
    for module, call in (
        (fluid.optimizer.adam, "Adam"),
        (fluid.optimizer.momentum, "Momentum"),
        (fluid.trainer, "Trainer"),
    ):
        with pytest.raises(errors.ArgumentTypeError, match=rf"is a module, which is not called; write fluid.*{call}\("):
            module(0.1)
    assert inspect.ismodule(fluid.optimizer) and "Adam" in dir(fluid.optimizer)


def test_known_attributes_subclass_outside_fluid_accepts_any_attribute():
    class Mine(KnownAttributes):
        pass

    mine = Mine()
    mine.anything = 1
    with pytest.raises(errors.MissingNameError, match="Did you mean 'anything'"):
        mine.anythign  # noqa: B018
