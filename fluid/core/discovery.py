"""Discovery: one run of a program function on stand-in data, and what it shows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core.equations import ends_in_a_product, squared_batches, with_slope
from fluid.core.explain import in_own_words
from fluid.core.frame import TRAIN, Frame, running, warn
from fluid.core.nested import NestedSequenceBatch
from fluid.core.reduction import Reduction, said_of
from fluid.core.sequence import SequenceBatch


@dataclass(frozen=True)
class Discovery:
    """What one run of a program function showed.

    Attributes:
      frame: what the run read and wrote; its arrays are traced and of no use any more.
      outputs: shape and dtype of each output, in order.
      output_names: the keys when the function returned a dict, else None.
      loss_output: which output is the loss, see `Program`.
      aliases: other names of named values, see `Program`.
      jaxpr: the equations of the run.
      losses: the variable of each minimised loss.
      parameters: the variables of the parameters, by name; those that only loops and branches use are not among them.
      probabilities: the variables of `frame.made.probabilities`.
      reductions: for each output what layers have noted of it, or None.
    """

    frame: Frame
    outputs: list[Any]
    output_names: tuple[str, ...] | None
    loss_output: int
    aliases: dict[str, str]
    jaxpr: Any
    losses: list[Any]
    parameters: dict[str, Any]
    probabilities: list[Any]
    reductions: list[Reduction | None]


def discover(
    function: Callable[[], Any], name: str, precision: str | None, batch: int, feeds: Mapping[str, Sequence[int]]
) -> Discovery:
    """Run a program function once, traced, so that nothing is computed.

    Args:
      function: the program function.
      name: of the program, for messages.
      precision: see `Program`.
      batch: the stand-in for the batch size.
      feeds: shapes of feeds, instead of the declared ones with the stand-in.

    Raises:
      ProgramError: it returns nothing, or something that is no array; FluidError: whatever its layers find.
    """
    frame = Frame(mode=TRAIN, precision=precision, placeholder_batch=batch)
    names: tuple[str, ...] | None = None
    aliases: dict[str, str] = {}
    loss_output = 0
    notes: list[str] = []
    reductions: list[Reduction | None] = []

    def trace() -> Any:
        nonlocal names, loss_output
        frame.given.key = jax.random.key(0)
        frame.given.feeds = {feed: jnp.zeros(shape) for feed, shape in feeds.items()}
        try:
            with running(frame):
                outputs, names = flatten_outputs(name, function())
                for output in outputs:
                    frame.check_not_changed(output)
        except Exception as error:
            notes.extend(getattr(error, "__notes__", ()))
            raise
        aliases.update(_aliases(frame, outputs, names))
        loss_output = _loss_output(frame, outputs, names)
        reductions.extend(said_of(frame, value) for value in outputs)
        losses = [m.loss for m in frame.made.minimizations]
        parameters = {n: v for n, v in frame.given.parameters.items() if isinstance(v, jax.core.Tracer)}
        return outputs, losses, parameters, [jnp.asarray(p.value) for p in frame.made.probabilities]

    try:
        closed, shapes = jax.make_jaxpr(trace, return_shape=True)()
        _check_leaks(name, closed.consts)
    except Exception as error:
        error.__notes__ = notes  # without what JAX says of its own frames
        explained = in_own_words(error, name)
        if explained is not None:
            explained.__notes__ = notes
            raise explained from None
        if not isinstance(error, errors.FluidError):
            error.add_note(f"while tracing the program {name}; in shapes, {batch} stands for the batch size")
        raise
    _, losses, parameters, probabilities = jax.tree.unflatten(jax.tree.structure(shapes), closed.jaxpr.outvars)
    outputs = shapes[0]
    return Discovery(
        frame, outputs, names, loss_output, aliases, closed.jaxpr, losses, parameters, probabilities, reductions
    )


def flatten_outputs(program: str, result: Any) -> tuple[list[Any], tuple[str, ...] | None]:
    """The outputs that a program function returned, in order, and their names when it returned a dict.

    Raises:
      ProgramError: there are none, or something else than arrays among them.
    """
    names = None
    if isinstance(result, Mapping):
        names, values = tuple(str(k) for k in result), list(result.values())
    elif isinstance(result, list | tuple):
        values = list(result)
    else:
        values = [result]
    if not values or any(v is None for v in values):
        found = "nothing" if result is None or not values else "None among its outputs"
        raise errors.ProgramError(
            f"the program function {program} returned {found}; return its result, the loss first: return loss, accuracy"
        )
    for value in values:
        if not hasattr(value, "dtype") and not isinstance(value, int | float):
            raise errors.ProgramError(
                f"the program function {program} returned a {type(value).__name__} among its outputs; "
                f"return arrays made by layers, in one flat list, tuple or dict"
            )
    # Only what is no array yet is converted: annotations belong to the very objects that layers returned.
    kept = SequenceBatch | NestedSequenceBatch | jax.Array
    return [v if isinstance(v, kept) else jnp.asarray(v) for v in values], names


def _loss_output(frame: Frame, outputs: Sequence[Any], names: Sequence[str] | None) -> int:
    """Which output is minimised first; or else the one named "loss", or else the first."""
    minimized = [m.value for m in frame.made.minimizations[:1]]
    found = [i for i, output in enumerate(outputs) if any(output is value for value in minimized)]
    named = [i for i, name in enumerate(names or ()) if name == "loss"]
    return (*found, *named, 0)[0]


def _aliases(frame: Frame, outputs: Sequence[Any], names: Sequence[str] | None) -> dict[str, str]:
    """Layers for their last results, keys of outputs for the values returned under them; names that are taken stay."""
    aliases = {name.rpartition(".tmp_")[0]: name for name in frame.made.values if ".tmp_" in name}
    recorded = {id(value): name for name, value in frame.made.values.items()}
    aliases |= {key: recorded[id(v)] for key, v in zip(names or (), outputs, strict=False) if id(v) in recorded}
    taken = {**frame.made.values, **frame.declared.arrays, **frame.declared.feeds}
    return {alias: name for alias, name in aliases.items() if alias not in taken}


def check_losses(program: str, found: Discovery, minimized: Sequence[tuple[str, ...]]) -> None:
    """Refuse a loss that training cannot change.

    Args:
      program: its name.
      found: its discovery.
      minimized: for each loss the parameters that shall change.

    Raises:
      ProgramError: there is no such parameter, or the loss has no gradient with respect to any.
    """
    for loss, names in zip(found.losses, minimized, strict=True):
        if not names:
            known = [n for n, s in found.frame.declared.arrays.items() if s.trainable is not None]
            which = f"it has {', '.join(known[:5])}, none of them trainable here" if known else "it has none"
            raise errors.ProgramError(
                f"the program {program} minimises a loss, but has no trainable parameter: {which}; parameters come "
                f"from layers such as layers.fc, and ParamAttr(trainable=True) is their default"
            )
        tracked = {n: found.parameters[n] for n in names if n in found.parameters}
        if len(tracked) == len(names) and not with_slope(found.jaxpr, tracked, loss):
            raise errors.ProgramError(
                f"the loss that the program {program} minimises has no gradient with respect to any of its parameters "
                f"({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}), so training would change nothing; "
                f'return the loss first, or in a dict under "loss": return {{"loss": loss, "accuracy": accuracy}}'
            )


def warn_of_likely_mistakes(program: str, found: Discovery, batch: int) -> None:
    """Warn of what the equations show to be most likely a mistake, although everything can be computed."""
    for line in squared_batches(found.jaxpr, batch, found.losses):
        warn(
            f"{line}: arithmetic lays a column [batch, 1] and values [batch] out to [batch, batch], and the loss of "
            f"the program {program} depends on that; give both one shape: layers.reshape(y, [-1, 1]), or declare "
            f"layers.data(..., shape=[1]). If every pair is meant, write x[:, None] - y[None, :]"
        )
    for expected, variable in zip(found.frame.made.probabilities, found.probabilities, strict=True):
        if ends_in_a_product(found.jaxpr, variable):
            warn(
                f"{expected.layer} at {expected.site} takes probabilities, and is given the result of a matrix product "
                f'or convolution, which may be any numbers; write fc(..., act="softmax"), or use '
                f"layers.softmax_with_cross_entropy(logits, label)"
            )


def _check_leaks(program: str, constants: Sequence[Any]) -> None:
    """Refuse a program that works on what belongs to the inside of a loop, which is over when it is used."""
    for value in constants:
        if isinstance(value, jax.core.Tracer):
            raise errors.ProgramError(
                f"the program {program} uses a value {value.dtype}{list(value.shape)} outside the loop or block that "
                f"computes it; hand it out first: rnn.output(h) inside and h = rnn() behind it, or as a result of the "
                f"function that layers.rnn was given"
            )
