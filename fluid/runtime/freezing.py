"""Freezing: parameters and states that the training steps of a session leave unchanged.

Each compiled step reads the frozen names before it runs. A new set of names needs another compilation; the new step
computes no gradients for the frozen parameters. The optimizer state keeps its entries for frozen parameters, so that
the structure of checkpoints does not change. Wrappers of an update rule, such as averages of parameters, still include
all parameters. A state, such as a moving mean, is frozen if all parameters of its layer are frozen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid._util.globs import select
from fluid.core import Scope
from fluid.runtime.parameter_updates import Rule

FROZEN = "@frozen"


class Freezing:
    """The frozen parameters and states of a session; compiled steps read them before each run.

    Moving statistics of a layer are frozen when all parameters of the layer are frozen.

    Attributes:
      chosen: names that `freeze` has frozen.
      names: names of all frozen parameters and states, including moving statistics; a new object after each change.

    Example:
      >>> import fluid
      >>> def program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.optimizer.SGD(0.5).minimize(loss)
      ...     return loss
      >>> freezing = fluid.Session(program).engine.freezing
      >>> freezing.freeze("*.w_0")
      ['fc_0.w_0']
      >>> freezing.unfreeze()
      ['fc_0.w_0']
    """

    def __init__(
        self,
        scope: Scope,
        rules: Mapping[str, Sequence[Rule]],
        place: Callable[[Any], Any],
        members: int | None = None,
    ):
        self._scope = scope
        self._members = members
        self._rules = rules
        self._place = place
        self.chosen: frozenset[str] = frozenset()
        self.names: frozenset[str] = frozenset()

    def freeze(self, patterns: str | Sequence[str]) -> list[str]:
        """Freeze parameters and states from the next training step on.

        Raises:
          UnknownNameError: a pattern matches no name.
          ArgumentError: nothing would be left to train, or an optimizer cannot leave parameters out.
        """
        chosen = self.chosen | set(select(patterns, self._scope.specs, "freeze"))
        names = self._with_statistics(chosen)
        before = self.names
        self._check(names)
        self.put(chosen)
        return [name for name in self._scope.specs if name in names - before]

    def unfreeze(self, patterns: str | Sequence[str] | None = None) -> list[str]:
        """Unfreeze parameters and states; None unfreezes everything that `freeze` has frozen.

        Raises:
          UnknownNameError: a pattern matches no frozen name.
          ArgumentError: a name belongs to statistics that are frozen with the parameters of their layer.
        """
        frozen = [name for name in self._scope.specs if name in self.names]
        freed = set(frozen if patterns is None else select(patterns, frozen, "unfreeze"))
        chosen = self.chosen - freed
        names = self._with_statistics(chosen)
        if still := sorted(freed & names):
            raise errors.ArgumentError(
                f"unfreeze: {', '.join(still)} stand still with the parameters of their layer, which are frozen; "
                f"unfreeze these: trainer.unfreeze({self._scope.specs[still[0]].layer + '.*'!r})"
            )
        before = self.names
        self.put(chosen)
        return [name for name in frozen if name in before - names]

    def put(self, chosen: frozenset[str]) -> None:
        """Freeze the parameters and states called `chosen`, and unfreeze all other parameters and states."""
        self.chosen = chosen
        self.names = self._with_statistics(chosen)

    def state(self) -> dict[str, Any]:
        """Return the frozen names as a dict with one entry for a checkpoint; an empty dict if nothing is frozen.

        The entry holds a flag for each parameter and state, in alphabetical order: True if `freeze` has frozen it.
        """
        if not self.chosen:
            return {}
        return {FROZEN: self._place(np.array([name in self.chosen for name in sorted(self._scope.specs)]))}

    def optional(self, names: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return the expected shape and dtype of the entry for frozen names in a checkpoint, as a dict by entry name.

        Args:
          names: a dict whose keys are the names of all entries in the checkpoint. If the entry for frozen names is not
            among them, the result is empty.
        """
        return {FROZEN: ((len(self._scope.specs),), "bool")} if FROZEN in names else {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Freeze exactly the arrays that a checkpoint lists as frozen; if it has no such list, unfreeze all arrays."""
        flags = state.get(FROZEN)
        names = sorted(self._scope.specs)
        self.put(frozenset() if flags is None else frozenset(n for n, f in zip(names, flags, strict=True) if f))

    def _with_statistics(self, chosen: frozenset[str]) -> frozenset[str]:
        """Return `chosen`, parameters to freeze, and the states of each layer whose parameters are all in `chosen`."""
        layers: dict[str, list[str]] = {}
        for name, spec in self._scope.specs.items():
            if spec.trainable is not None and spec.layer:
                layers.setdefault(spec.layer, []).append(name)
        frozen = {layer for layer, parameters in layers.items() if chosen.issuperset(parameters)}
        states = (n for n, s in self._scope.specs.items() if s.trainable is None and s.layer in frozen)
        return chosen.union(states)

    def _check(self, names: frozenset[str]) -> None:
        """Check that the parameters `names` can be frozen.

        Raise an error if no other parameter is trained, or if an optimizer cannot skip frozen parameters.
        """
        trained = [n for rules in self._rules.values() for rule in rules for n in rule.parameters]
        if trained and names.issuperset(trained):
            raise errors.ArgumentError(
                f"freeze would leave nothing to train: all of {', '.join(trained[:5])}"
                f"{', ...' if len(trained) > 5 else ''} would be frozen; leave some out, as in "
                f'trainer.freeze("backbone/*"), or unfreeze others first. trainer.test and trainer.run train nothing'
            )
        for program, rules in self._rules.items():
            for rule, slots in zip(rules, self._scope.slots[program], strict=True):
                specs = {n: self._scope.specs[n] for n in rule.parameters}
                arrays = {n: jax.ShapeDtypeStruct(spec.shape, spec.dtype) for n, spec in specs.items()}
                rule.without(names).check(arrays, slots, self._members)
