"""What compiled training steps do with buffers: whether each array that a step replaces lends its own."""

import re

import jax

from fluid.runtime import CompiledStep


def lent(compiled):
    """The numbers of the arguments whose buffers the results take over, of a step that was compiled."""
    head = compiled.as_text().splitlines()[0]
    return {int(number) for number in re.findall(r"\((\d+), \{\}", head)}


def watch(monkeypatch):
    """From now on each training step lends the buffer of each array that it replaces, and asks nothing of the host.

    Returns:
      A list that grows by the number of arrays that are replaced, for each step that is compiled.
    """
    update = CompiledStep._update
    known, found = {}, []

    def watched(self, train, *fed):
        there = fed if self._mesh is not None else jax.device_put(fed, self._scope.step.sharding)
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(there))
        if (id(train), shapes) not in known:
            carry = self._carry()
            compiled = train.lower(carry, self._not_carried(), *there).compile()
            known[id(train), shapes] = (compiled, train)  # that too, so that no other has its id
            found.append(len(jax.tree.leaves(carry)))
            assert lent(compiled) == set(range(found[-1]))
        with jax.transfer_guard("disallow"):
            return update(self, known[id(train), shapes][0], *there)

    monkeypatch.setattr(CompiledStep, "_update", watched)
    return found
