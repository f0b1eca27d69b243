"""Nets built twice, as a program of `fluid.static` and as a program function: training must give equal bits."""

import contextlib

import numpy as np

import fluid as functions
import fluid.static as static


@contextlib.contextmanager
def fresh():
    """Enter a new scope and name generator; yield a new main program and a new startup program."""
    main = static.Program()
    startup = static.Program()
    guards = (static.scope_guard(static.Scope()), static.unique_name.guard(), static.program_guard(main, startup))
    with guards[0], guards[1], guards[2]:
        yield main, startup


def scope_value(name):
    """Return the value of a variable in the global scope as an array."""
    return np.array(static.global_scope().find_var(name).get_tensor())


def train_both(net, feeds, optimizer=lambda fluid: fluid.optimizer.SGD(learning_rate=0.1)):
    """Train a net as a program and as a program function; compare all losses and parameters bit for bit.

    Args:
      net: the function that builds the net with the module `fluid` or `fluid.static`, its argument; it returns the
        loss or a tuple that begins with the loss.
      feeds: a feed for each step.
      optimizer: the function that returns the optimizer of the module `fluid` or `fluid.static`, its argument.

    Returns:
      The losses of all steps, as floats.
    """

    def function():
        found = net(functions)
        loss = found[0] if isinstance(found, tuple) else found
        optimizer(functions).minimize(loss)
        return loss

    session = functions.Session(function)
    wanted = [float(np.asarray(session.run(feed=feed)[0]).reshape(-1)[0]) for feed in feeds]
    with fresh() as (main, startup):
        found = net(static)
        loss = found[0] if isinstance(found, tuple) else found
        optimizer(static).minimize(loss)
        exe = static.Executor(static.CPUPlace())
        exe.run(startup)
        losses = [float(exe.run(main, feed=feed, fetch_list=[loss])[0]) for feed in feeds]
        assert losses == wanted
        assert {v.name for v in main.list_vars() if v.persistable} == set(session.scope)
        for name, value in session.scope.items():
            np.testing.assert_array_equal(scope_value(name), value, err_msg=name)
    return losses
