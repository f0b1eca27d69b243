"""Checks of donated buffers: each array that a compiled training step replaces must donate its buffer."""

import re

import jax

from fluid.runtime import CompiledStep


def lent(compiled):
    """Return the indices of the arguments of a compiled step that donate their buffers to results."""
    head = compiled.as_text().splitlines()[0]
    return {int(number) for number in re.findall(r"\((\d+), \{\}", head)}


def watch(monkeypatch):
    """Check from now on that each training step donates the buffers of replaced arrays, without host transfers.

    Returns:
      A list that grows by the number of replaced arrays with each compiled step.
    """
    update = CompiledStep._update
    known, found = {}, []

    def watched(self, train, *fed):
        there = fed if self.engine.layout.mesh is not None else jax.device_put(fed, self._scope.step.sharding)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(there))
        if (id(train), shapes) not in known:
            state, constants = self.engine.arguments(self._form.step)
            compiled = train.trace(state, constants, *there).lower().compile()
            known[id(train), shapes] = (compiled, train)  # keep `train` alive, so that no other object gets its id
            found.append(len(jax.tree.leaves(state)))
            assert lent(compiled) == set(range(found[-1]))
        with jax.transfer_guard("disallow"):
            return update(self, known[id(train), shapes][0], *there)

    monkeypatch.setattr(CompiledStep, "_update", watched)
    return found
