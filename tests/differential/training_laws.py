"""Laws of training: independent ways to the same parameters and losses of a drawn program must agree.

Adam and Adagrad make whole steps of a gradient that is 0 but for rounding, such as the gradient of a bias before
`batch_norm`. So a law uses these optimizers only where both ways add numbers in one order.
"""

import jax
import numpy as np
from differential.laws import MIXES, RANDOM, STATES, law, same
from differential.programs import cut, executed

import fluid
import fluid.static as static


def trained(case, optimizer, minibatches, epochs=2, function=None, **options):
    """Train from the arrays of the case; return the Trainer."""
    trainer = fluid.Trainer(function or case.program, optimizer, params=case.arrays, seed=case.seed, **options)
    trainer.train(minibatches, num_epochs=epochs)
    return trainer


def arrays_of(trainer):
    """Return the parameters and states of a Trainer or Session, by name."""
    return {name: np.array(value) for name, value in (getattr(trainer, "session", trainer)).scope.items()}


def drawn_optimizer(draw, names="SGD Momentum"):
    """Return a function that creates an optimizer; each use gets a new object."""
    name = draw.choice(names.split())
    settings = {"Momentum": {"momentum": 0.9}}.get(name, {})
    return lambda **more: getattr(fluid.optimizer, name)(learning_rate=0.02, **settings, **more)


@law(without="conv2d|pool2d|prelu|resize", weight=2)
def steps(case, draw, folder):
    """Several steps in one call change parameters, states and losses as single steps do."""
    optimizer, size = drawn_optimizer(draw), draw.choice([4, 7])
    one, many = (
        trained(case, optimizer(), case.minibatches(size), steps_per_dispatch=count)
        for count in (1, draw.choice([2, 3]))
    )
    same(arrays_of(many), arrays_of(one), 1e-4)
    same(np.array(many.history["loss"]), np.array(one.history["loss"]), 1e-4, "loss")


@law(without=f"{STATES}|{RANDOM}|tags|{MIXES}")
def accumulation(case, draw, folder):
    """The gradients of k small minibatches, accumulated, update as one minibatch of all their rows."""
    count, size = draw.choice([2, 3]), draw.choice([2, 4])
    optimizer, feed = drawn_optimizer(draw), cut(case.feed, np.arange(count * size))
    small = [cut(feed, np.arange(i * size, (i + 1) * size)) for i in range(count)]
    found, wanted = (
        trained(case, optimizer(**more), data) for more, data in (({"accumulate_steps": count}, small), ({}, [feed]))
    )
    same(arrays_of(found), arrays_of(wanted), 1e-4)


class Cut(Exception):
    """The exception that ends a training at a step."""


@law(weight=2)
def resume(case, draw, folder):
    """A training that is cut at a step, and continued by another Trainer, ends with the same bits."""
    optimizer, size = drawn_optimizer(draw, "SGD Momentum Adam Adagrad"), draw.choice([4, 6, 9])
    minibatches = case.minibatches(size)
    end = draw.randrange(1, 2 * len(minibatches))
    config = fluid.CheckpointConfig(folder / "checkpoints", step_interval=draw.choice([1, 2, 3]))

    def cut_at_end(event):
        if isinstance(event, fluid.EndStepEvent) and event.epoch * len(minibatches) + event.step == end:
            raise Cut

    whole = trained(case, optimizer(), minibatches)
    try:
        first = fluid.Trainer(case.program, optimizer(), params=case.arrays, seed=case.seed, checkpoint_config=config)
        first.train(minibatches, num_epochs=2, event_handler=cut_at_end)
        raise AssertionError(f"step {end} of {len(minibatches)} minibatches was not reached")
    except Cut:
        del first
    again = trained(case, optimizer(), minibatches, checkpoint_config=config)
    found, wanted = arrays_of(again), arrays_of(whole)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, name)
    assert again.history["loss"] == whole.history["loss"]


@law("is_sparse=True", weight=3)
def sparse(case, draw, folder):
    """A sparse table trains as a dense table."""
    optimizer, size = drawn_optimizer(draw, "SGD Adagrad"), draw.choice([4, 9])
    dense = executed(case.source.replace("is_sparse=True", "is_sparse=False"), "program")
    found, wanted = (trained(case, optimizer(), case.minibatches(size), function=f) for f in (None, dense))
    same(arrays_of(found)["table"], arrays_of(wanted)["table"], 1e-4, "table")


@law()
def member(case, draw, folder):
    """A member of a Population trains as a Trainer with its seed and its rate."""
    seeds, rates, size = draw.sample(range(99), 2), [0.01, 0.03], draw.choice([5, 9])
    optimizer, minibatches = drawn_optimizer(draw), case.minibatches(size)
    population = fluid.Population(case.program, optimizer(), seeds=seeds, vary={"learning_rate": rates})
    population.train(minibatches, num_epochs=1)
    which = draw.randrange(2)
    alone = fluid.Trainer(case.program, optimizer(), seed=seeds[which])
    alone.session.set_learning_rates(rates[which])
    alone.train(minibatches, num_epochs=1)
    same({n: np.asarray(v) for n, v in population[which].items()}, arrays_of(alone), 1e-4)
    same(np.asarray(population.test(minibatches)["loss"])[which], alone.test(minibatches)["loss"], 1e-4, "test")


@law(weight=2)
def programs(case, draw, folder):
    """A Trainer of one program, or of two in turn, trains as a Session that runs them by hand."""
    optimizer, count = drawn_optimizer(draw), draw.choice([1, 2])
    functions = [case.program, executed(case.source.replace("def program(", "def other("), "other")][:count]
    minibatches = case.minibatches(draw.choice([5, 8]))

    def minimizing(function):
        def step():
            results = function()
            optimizer().minimize(results["loss"])
            return results

        step.__name__ = function.__name__
        return step

    session = fluid.Session(*map(minimizing, functions), seed=case.seed)
    session.load_params(case.arrays)
    names = list(session.programs)
    losses = [float(session.step(feed, names[i % count])["loss"]) for i, feed in enumerate(minibatches)]
    given = [(function, optimizer()) for function in functions] if count > 1 else functions[0]
    trainer = fluid.Trainer(given, None if count > 1 else optimizer(), params=case.arrays, seed=case.seed)
    seen = []
    trainer.train(minibatches, event_handler=lambda e: isinstance(e, fluid.EndStepEvent) and seen.append(e.metrics))
    same(np.array([float(m["loss"]) for m in seen]), np.array(losses), 1e-4, "loss")
    same(arrays_of(trainer), arrays_of(session), 1e-4)


# Static programs have neither functions of the user nor cells.
@law(without="lambda|jnp|average|block|is_training|layers.shape|create_parameter|Cell", weight=2)
def recorded(case, draw, folder):
    """A static program computes the losses and the test results of the function, step by step."""
    optimizer, minibatches = drawn_optimizer(draw), case.minibatches(5, steps=2)
    trainer = trained(case, optimizer(), minibatches, epochs=1)
    build = executed(case.source, "program", {"fluid": static, "layers": static.layers})
    main, startup = static.Program(), static.Program()
    main.random_seed = startup.random_seed = case.seed
    guards = (static.scope_guard(static.Scope()), static.unique_name.guard(), static.program_guard(main, startup))
    with guards[0], guards[1], guards[2]:
        results = build()
        test = main.clone(for_test=True)
        optimizer_of = {"SGD": static.optimizer.SGD, "Momentum": static.optimizer.Momentum}
        given = optimizer()
        more = {"momentum": 0.9} if type(given).__name__ == "Momentum" else {}
        optimizer_of[type(given).__name__](learning_rate=0.02, **more).minimize(results["loss"])
        executor = static.Executor(static.CPUPlace())
        executor.run(startup)
        for name, array in case.arrays.items():
            static.global_scope().find_var(name).get_tensor().set(np.asarray(array), static.CPUPlace())
        for feed in minibatches:
            executor.run(main, feed=feed, fetch_list=[results["loss"]])
        fed = minibatches[0]
        (found,) = executor.run(test, feed=fed, fetch_list=[results["loss"]])
    same(np.reshape(found, ()), case.apply(fed, arrays=arrays_of(trainer))["loss"], 1e-4, "loss of a test")


@law(without="center_loss", weight=0)
def devices(case, draw, folder):
    """All devices together train and test as one device does; a process with eight devices draws this law."""
    optimizer, minibatches = drawn_optimizer(draw), case.minibatches(draw.choice([7, 8, 11]))
    parallel = draw.choice([True, "fsdp", fluid.Mesh(data=2, fsdp=jax.device_count() // 2)])
    one, all_ = (trained(case, optimizer(), minibatches, epochs=1, parallel=way) for way in (None, parallel))
    same(arrays_of(all_), arrays_of(one), 1e-4)
    same(np.array(all_.history["loss"]), np.array(one.history["loss"]), 1e-4, "loss")
    same(all_.test(minibatches)["loss"], one.test(minibatches)["loss"], 1e-4, "test")
