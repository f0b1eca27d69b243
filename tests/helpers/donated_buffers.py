"""Checks of donated buffers: a compiled training step must donate the buffer of each array that it replaces."""

import re

import jax

from fluid.runtime import CompiledStep


def lent(compiled):
    """Return the indices of those arguments whose buffers a compiled step donates to its results."""
    head = compiled.as_text().splitlines()[0]
    return {int(number) for number in re.findall(r"\((\d+), \{\}", head)}


def watch(monkeypatch):
    """Patch training steps: check that each step donates the buffers of all arrays that it replaces.

    The patch also checks that no step moves an array implicitly between the host and the device.

    Returns:
      A list that gets an entry for each newly compiled step: the number of arrays that the step replaces.
    """
    update = CompiledStep._update
    known, found = {}, []

    def watched(self, train, *fed):
        there = fed if self.engine.layout.mesh is not None else jax.device_put(fed, self._scope.step.sharding)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(there))
        if (id(train), shapes) not in known:
            state, constants = self.engine.arguments(self._form.step)
            compiled = train.trace(state, constants, *there).lower().compile()
            # The dict keeps `train` alive, so that no other object can get the id of `train`.
            known[id(train), shapes] = (compiled, train)
            found.append(len(jax.tree.leaves(state)))
            assert lent(compiled) == set(range(found[-1]))
        with jax.transfer_guard("disallow"):
            return update(self, known[id(train), shapes][0], *there)

    monkeypatch.setattr(CompiledStep, "_update", watched)
    return found
