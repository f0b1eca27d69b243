"""Detection of labels, which are feeds that only losses and metrics need, and of results that need no labels."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import TEST, Program
from fluid.core.equations import is_literal

# Layers that compare a result with a label. Their outputs are losses and metrics, and not results of the net.
JUDGES = frozenset(
    "accuracy auc bpr_loss center_loss chunk_eval cross_entropy dice_loss edit_distance hsigmoid huber_loss kldiv_loss "
    "linear_chain_crf log_loss margin_rank_loss mean_iou metric mse_loss nce npair_loss precision rank_loss "
    "recall sampled_softmax_with_cross_entropy sigmoid_cross_entropy_with_logits sigmoid_focal_loss smooth_l1 "
    "softmax_with_cross_entropy square_error_cost ssd_loss teacher_student_sigmoid_loss warpctc yolov3_loss".split()
)
# The kinds of losses and metrics in the dict `Program.kinds`. A kind is the name of a layer function, or the first part
# of an automatic value name, such as "cross_entropy2" for the value "cross_entropy2_0.tmp_0".
_KINDS = JUDGES | {"cross_entropy2", "hierarchical_sigmoid", "smooth_l1_loss"}
_PARAMETER, _JUDGED = "@parameter", "@judged"


class Unlabelled(NamedTuple):
    """The results of a program that do not depend on labels.

    Attributes:
      fetch: names of these results; None for all outputs of the program, if no feed is a label.
      feeds: names of the feeds that these results need.
      labels: names of the feeds that only the loss needs.
    """

    fetch: tuple[str, ...] | None
    feeds: tuple[str, ...]
    labels: tuple[str, ...]

    def __str__(self) -> str:
        results = "the outputs" if self.fetch is None else _quoted(self.fetch)
        labels = f", without {_quoted(self.labels)}" if self.labels else ""
        return f"{results}, computed from {_quoted(self.feeds) or 'no feed'}{labels}"


class _Output(NamedTuple):
    """An output of a program with its dependencies.

    Attributes:
      name: the name of the output; empty if the output has no name.
      needs: the names of the feeds on which the output depends; also "@parameter" if the output depends on a parameter,
        and "@judged" if it depends on a loss or metric layer.
      has_rows: True if the output has one row for each example.
    """

    name: str
    needs: frozenset[str]
    has_rows: bool


def unlabelled(program: Program) -> Unlabelled:
    """Find the results of a trained program that do not depend on labels.

    A value of the net is computed with parameters and before any loss, and does not need all feeds of the loss. A feed
    is an input if a value of the net depends on it; the other feeds of the loss are labels. The results are the outputs
    that depend only on inputs. If a program returns only losses and metrics, the result is the last value before them.

    Raises:
      ArgumentError: every output with a row for each example depends on labels.

    Example:
      >>> import fluid
      >>> def program():
      ...     y = fluid.layers.data("y", shape=[1])
      ...     guess = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="guess")
      ...     return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
      >>> unlabelled(fluid.Program(program))
      Unlabelled(fetch=('guess',), feeds=('x',), labels=('y',))
    """
    values, outputs = _dependencies(program)
    of_loss = outputs[program.loss_output].needs & program.feeds.keys()
    net = {name: found & program.feeds.keys() for name, found in values.items() if _is_of_net(program, name, found)}
    net = {name: feeds for name, feeds in net.items() if feeds and feeds < of_loss}
    labels = of_loss - frozenset[str]().union(*net.values())
    if not net or not labels:
        every = frozenset[str]().union(*(output.needs for output in outputs))
        return Unlabelled(None, _in_order(program, every), ())
    others = [
        o for i, o in enumerate(outputs) if i != program.loss_output and o.name and o.needs & program.feeds.keys()
    ]
    chosen = {output.name: output.needs for output in others if not output.needs & labels}
    if not chosen:
        name, feeds = list(net.items())[-1]
        if of_rows := [o.name for o in others if o.has_rows and _JUDGED not in o.needs]:
            raise errors.ArgumentError(
                f"every output of {program.name} depends on {_quoted(_in_order(program, labels))}, which a part of the "
                f"net does without, expected an output that needs no label; say what is exported: fetch={of_rows}, or "
                f"fetch={[_short(program, name)]}, which needs {_quoted(_in_order(program, feeds))} only"
            )
        chosen = {_short(program, name): feeds}
    needed = frozenset[str]().union(*chosen.values())
    return Unlabelled(tuple(chosen), _in_order(program, needed), _in_order(program, labels))


def _is_of_net(program: Program, name: str, found: frozenset[str]) -> bool:
    """Return True if a named value has rows of floats and depends on parameters, but on no loss or metric.

    Args:
      found: the names of the feeds on which the value depends; also "@parameter" if the value depends on a parameter,
        and "@judged" if it depends on a loss or metric layer.
    """
    array = program.values[name]
    is_float = jnp.issubdtype(jnp.dtype(array.dtype), jnp.floating)
    return is_float and array.shape[:1] == (None,) and _PARAMETER in found and _JUDGED not in found


def _dependencies(program: Program) -> tuple[dict[str, frozenset[str]], list[_Output]]:
    """Find the feeds on which each named value and each output depend."""
    arrays = {n: jax.ShapeDtypeStruct(s.shape, jnp.dtype(s.dtype)) for n, s in program.parameters.items()}
    states = {n: jax.ShapeDtypeStruct(s.shape, jnp.dtype(s.dtype)) for n, s in program.states.items()}
    recorded: list[str | None] = []

    def run(feeds: Mapping[str, Any], parameters: Mapping[str, Any], states: Mapping[str, Any]) -> Any:
        applied = program.apply({**parameters, **states}, feeds, key=jax.random.key(0), mode=TEST)
        made = {name: value for name, value in applied.values.items() if name in program.values}
        known = {id(value): name for name, value in made.items()}
        recorded.extend(known.get(id(value)) for value in applied.outputs)
        return made, applied.outputs

    given = (program.stand_ins(), arrays, states)
    closed, shapes = jax.make_jaxpr(run, return_shape=True)(*given)
    marks: dict[Any, frozenset[str]] = {}
    for (path, _), variable in zip(jax.tree_util.tree_leaves_with_path(given), closed.jaxpr.invars, strict=True):
        group = path[0].idx
        marks[variable] = frozenset({path[1].key} if group == 0 else {_PARAMETER} if group == 1 else ())
    values, outputs = jax.tree.unflatten(jax.tree.structure(shapes), closed.jaxpr.outvars)
    judged = {leaf for n, v in values.items() if program.kinds.get(n) in _KINDS for leaf in _variables(v)}
    for equation in closed.jaxpr.eqns:
        together = frozenset[str]().union(*(marks.get(v, frozenset()) for v in _variables(equation.invars)))
        for variable in equation.outvars:
            marks[variable] = together | ({_JUDGED} if variable in judged else frozenset())

    def of(value: Any) -> frozenset[str]:
        return frozenset[str]().union(*(marks.get(leaf, frozenset()) for leaf in _variables(value)))

    keys = program.output_names or [_short(program, name) if name else "" for name in recorded]
    rows = [array.shape[:1] == (None,) for array in program.outputs]
    described = [_Output(key, of(value), has) for key, value, has in zip(keys, outputs, rows, strict=True)]
    return {name: of(value) for name, value in values.items()}, described


def _variables(tree: Any) -> list[Any]:
    return [leaf for leaf in jax.tree.leaves(tree) if not is_literal(leaf)]


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _in_order(program: Program, names: Any) -> tuple[str, ...]:
    return tuple(name for name in program.feeds if name in names)


def _short(program: Program, name: str) -> str:
    layer = name.rpartition(".tmp_")[0]
    return layer if layer and program.aliases.get(layer) == name else name
