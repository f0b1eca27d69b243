"""Conditional random fields: sequences of tags whose neighbours depend on each other."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, layer, wide
from fluid.layers.sequence.steps import alike, sequences, step_ids
from fluid.param_attr import to_attr

# Rows of the transitions: scores of the first tag, scores of the last, then those from each tag to each.
_START, _STOP, _FROM = 0, 1, 2


@layer
def linear_chain_crf(
    input: Any, label: Any, param_attr: Any = None, length: Any = None, name: str | None = None
) -> Any:
    """Cost of sequences of tags under a linear-chain conditional random field (Lafferty et al., 2001).

    A sequence scores the sum of the inputs of its tags, of the transitions between neighbours, and of its first and
    last tag. The cost is minus the logarithm of the share that the right one has among the exponentials of all.

    Args:
      input: a score for each tag: a SequenceBatch `[batch, time, tags]`, or such an array with `length`.
      label: the right tags, of an integer dtype: a SequenceBatch `[batch, time, 1]`, or an array `[batch, time]` or
        `[batch, time, 1]` with `length`.
      param_attr: ParamAttr of the transitions `[tags + 2, tags]`: row 0 scores the first tag, row 1 the last, row
        2 + i what follows tag i. Give it a name, to decode with the same by `crf_decoding`.
      length: of each row, integers `[batch]` or `[batch, 1]`, when the input is an array.
      name: instead of `linear_chain_crf_N`.

    Returns:
      The costs, minus log-likelihoods, `[batch, 1]`; 0 for an empty row.

    Raises:
      ArgumentTypeError: labels are no integers.
      ShapeError: labels or lengths do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8], lod_level=1)
      ...     tag = fluid.layers.data("tag", shape=[1], dtype="int64", lod_level=1)
      ...     scores = fluid.layers.fc(x, size=5)
      ...     return fluid.layers.linear_chain_crf(scores, tag, param_attr=fluid.ParamAttr(name="crfw"))
      >>> p = fluid.Program(program)
      >>> print(p.outputs[0], p.parameters["crfw"].shape)
      float32[batch, 1] (7, 5)
    """
    this = Layer("linear_chain_crf", name)
    batch = _emissions(this, input, length)
    tags = _tags(this, batch, input, label)
    moves = wide(_transitions(this, param_attr, batch))
    this.skip_outputs(3)
    cost = _log_total(batch, moves) - _score(batch, tags, moves)
    return this.output(jnp.where(batch.lengths > 0, cost, 0)[:, None])


@layer
def crf_decoding(input: Any, param_attr: Any, label: Any = None, length: Any = None, name: str | None = None) -> Any:
    """The best sequences of tags under a linear-chain conditional random field (Viterbi, 1967).

    Args:
      input: a score for each tag: a SequenceBatch `[batch, time, tags]`, or such an array with `length`.
      param_attr: ParamAttr, or name, of the transitions that `linear_chain_crf` learns.
      label: the right tags, as `linear_chain_crf` takes them, to find the hits.
      length: of each row, integers `[batch]` or `[batch, 1]`, when the input is an array.
      name: instead of `crf_decoding_N`.

    Returns:
      int32: a SequenceBatch `[batch, time, 1]`, or an array `[batch, time]` that is 0 behind the lengths. Tags; with a
      label 1 where the tag is right and 0 where it is not.

    Raises:
      ArgumentError: `param_attr` has no name.
      ArgumentTypeError: labels are no integers.
      ShapeError: labels or lengths do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     scores = fluid.layers.fc(fluid.layers.data("x", shape=[8], lod_level=1), size=5)
      ...     return fluid.layers.crf_decoding(scores, param_attr=fluid.ParamAttr(name="crfw"))
      >>> list(fluid.Program(program).parameters)
      ['fc_0.w_0', 'fc_0.b_0', 'crfw']
    """
    this = Layer("crf_decoding", name)
    attr = to_attr(param_attr)
    if attr is None or attr.name is None:
        raise errors.ArgumentError(
            f"{this.name} decodes with transitions that linear_chain_crf learns, found no name in "
            f"param_attr={param_attr!r}; "
            f'give both the same: param_attr=fluid.ParamAttr(name="crfw")'
        )
    batch = _emissions(this, input, length)
    right = None if label is None else _tags(this, batch, input, label)
    best = _best(batch, jax.lax.stop_gradient(wide(_transitions(this, attr, batch))))
    result = jnp.where(batch.mask, best if right is None else best == right, 0).astype(jnp.int32)
    return this.output(batch.with_data(result[..., None]) if isinstance(input, core.SequenceBatch) else result)


def _emissions(this: Layer, value: Any, length: Any) -> core.SequenceBatch:
    batch = sequences(this, value, length)
    if batch.data.ndim != 3 or not jnp.issubdtype(batch.dtype, jnp.floating):
        raise errors.ShapeError(
            f"{this.name}: input {describe(batch)} is no score for each tag of each step; expected floats "
            f"[batch, time, tags], as from layers.fc(x, size=tags)"
        )
    return batch


def _tags(this: Layer, batch: core.SequenceBatch, value: Any, label: Any) -> Any:
    """The right tags `[batch, time]`."""
    alike(this, value, label)
    shape = dense(label).shape
    if shape not in (batch.shape[:2], (*batch.shape[:2], 1)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(batch)} and label {describe(label)} do not fit; expected one tag for each "
            f'step, as from layers.data("tag", shape=[1], dtype="int64", lod_level=1)'
        )
    core.limit_feed(label, 0, batch.shape[2])
    return step_ids(this, batch.with_data(dense(label)), "label")


def _transitions(this: Layer, attr: Any, batch: core.SequenceBatch) -> Any:
    tags = batch.shape[2]
    return this.weight(attr, [tags + _FROM, tags], batch.dtype)


def _score(batch: core.SequenceBatch, tags: Any, moves: Any) -> Any:
    """The score of the given tags, `[batch]`."""
    steps = jnp.arange(tags.shape[1])
    row = jnp.where(steps == 0, _START, _FROM + jnp.roll(tags, 1, axis=1))
    inputs = jnp.take_along_axis(wide(batch), tags[..., None], axis=2)[..., 0]
    step = inputs + moves[row, tags] + jnp.where(steps == batch.lengths[:, None] - 1, moves[_STOP, tags], 0)
    # What is no tag gives what is not a number, so that it shows; feeds are checked before they get here.
    known = (tags >= 0) & (tags < batch.shape[2])
    return jnp.sum(jnp.where(batch.mask, jnp.where(known, step, jnp.nan), 0), axis=1)


def _log_total(batch: core.SequenceBatch, moves: Any) -> Any:
    """The logarithm of the sum of the exponentials of the scores of all sequences, `[batch]`."""

    # What a step needs for its gradient is a table of tags times tags for each row; it is cheaper made again than kept.
    @jax.checkpoint
    def step(total: Any, now: Any) -> tuple[Any, None]:
        scores, real = now
        moved = jax.nn.logsumexp(total[:, :, None] + moves[_FROM:], axis=1) + scores
        return jnp.where(real[:, None], moved, total), None

    first, rest = _steps(batch)
    total, _ = jax.lax.scan(step, moves[_START] + first, rest)
    return jax.nn.logsumexp(total + moves[_STOP], axis=1)


def _best(batch: core.SequenceBatch, moves: Any) -> Any:
    """The tags with the highest score, `[batch, time]`; behind the lengths, anything."""

    def forward(best: Any, now: Any) -> tuple[Any, Any]:
        scores, real = now
        reached = best[:, :, None] + moves[_FROM:]
        moved = jnp.max(reached, axis=1) + scores
        came = jnp.where(real[:, None], jnp.argmax(reached, axis=1), jnp.arange(moves.shape[1]))
        return jnp.where(real[:, None], moved, best), came

    def backward(tag: Any, came: Any) -> tuple[Any, Any]:
        return jnp.take_along_axis(came, tag[:, None], axis=1)[:, 0], tag

    first, rest = _steps(batch)
    best, came = jax.lax.scan(forward, moves[_START] + first, rest)
    tag, tags = jax.lax.scan(backward, jnp.argmax(best + moves[_STOP], axis=1), came, reverse=True)
    return jnp.concatenate([tag[None], tags]).T[:, : batch.shape[1]]


def _steps(batch: core.SequenceBatch) -> tuple[Any, tuple[Any, Any]]:
    """Scores of the first step `[batch, tags]`, and of the others, time first, with whether they are real."""
    scores = jnp.moveaxis(wide(batch), 1, 0)
    first = scores[0] if scores.shape[0] else jnp.zeros(scores.shape[1:], scores.dtype)
    return first, (scores[1:], batch.mask.T[1:])
