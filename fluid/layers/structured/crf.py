"""Conditional random fields: models of sequences of tags in which each tag depends on its neighbours."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, describe, layer, wide
from fluid.layers.sequence.step_selection import alike, sequences, step_ids
from fluid.param_attr import ParamSetting, to_attr

# Row indices of the transitions `[tags + 2, tags]`. Row 0 scores each tag as the first tag of a sequence, row 1 as the
# last tag. Row 2 + i scores the tags that follow tag i.
_START = 0
_STOP = 1
_FROM = 2


@layer
def linear_chain_crf(
    input: Value,
    label: Value,
    param_attr: ParamSetting = None,
    length: Value | None = None,
    name: str | None = None,
) -> jax.Array:
    """Compute the cost of sequences of tags under a linear-chain conditional random field (Lafferty et al., 2001).

    The score of a sequence of tags is a sum: the inputs for its tags, the transitions between neighbouring tags, and
    the scores of its first and last tag. The probability of a sequence is the softmax over the scores of all sequences.
    The cost is minus the logarithm of the probability of the right sequence.

    Args:
      input: a score for each tag: a SequenceBatch `[batch, time, tags]`, or an array of this shape with `length`.
      label: the right tags, of an integer dtype: a SequenceBatch `[batch, time, 1]`, or an array `[batch, time]` or
        `[batch, time, 1]` with `length`.
      param_attr: ParamAttr of the transitions `[tags + 2, tags]`: row 0 scores the first tag, row 1 the last tag, row 2
        + i the tags that follow tag i. Give the parameter a name, so that `crf_decoding` can use it.
      length: the length of each row, integers `[batch]` or `[batch, 1]`, if the input is an array.
      name: name of the layer; by default `linear_chain_crf_N`.

    Returns:
      The costs, minus log-likelihoods, `[batch, 1]`; 0 for an empty row.

    Raises:
      ArgumentTypeError: labels are not integers.
      ShapeError: the shapes of labels or lengths do not match the input.

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
    instead = "leave out that activation: fc(x, size=tags) makes scores"
    core.expect("scores", "layers.linear_chain_crf", input, instead)
    transitions = wide(_transitions(this, param_attr, batch))
    this.skip_outputs(3)
    cost = _log_partition(batch, transitions) - _path_score(batch, tags, transitions)
    result = this.output(jnp.where(batch.lengths > 0, cost, 0)[:, None])
    attr = to_attr(param_attr)
    this.frame.note(result, transitions=(this.name, attr and attr.name, batch.shape[2]))
    return result


@layer
def crf_decoding(
    input: Value,
    param_attr: ParamSetting,
    label: Value | None = None,
    length: Value | None = None,
    name: str | None = None,
) -> Any:
    """Return the best sequences of tags under a linear-chain conditional random field (Viterbi, 1967).

    Args:
      input: a score for each tag: a SequenceBatch `[batch, time, tags]`, or an array of this shape with `length`.
      param_attr: ParamAttr, or name, of the transitions that `linear_chain_crf` learns.
      label: the right tags to compare with the decoded tags, in the shape of `label` of `linear_chain_crf`.
      length: the length of each row, integers `[batch]` or `[batch, 1]`, if the input is an array.
      name: name of the layer; by default `crf_decoding_N`.

    Returns:
      The tags; or with a label, 1 if a tag is right and 0 if it is not. Both are int32: a SequenceBatch
      `[batch, time, 1]`, or an array `[batch, time]` that is 0 after the end of each row.

    Raises:
      ArgumentError: `param_attr` has no name.
      ArgumentTypeError: labels are not integers.
      ShapeError: the shapes of labels or lengths do not match the input.

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
            f'param_attr={param_attr!r}; give both the same: param_attr=fluid.ParamAttr(name="crfw")'
        )
    batch = _emissions(this, input, length)
    _check_learnt(this, attr.name, batch.shape[2])
    right = None if label is None else _tags(this, batch, input, label)
    best = _viterbi(batch, jax.lax.stop_gradient(wide(_transitions(this, attr, batch))))
    result = jnp.where(batch.mask, best if right is None else best == right, 0).astype(jnp.int32)
    return this.output(batch.with_data(result[..., None]) if isinstance(input, core.SequenceBatch) else result)


def _check_learnt(this: Layer, name: str, tags: int) -> None:
    """Warn if the program trains CRF transitions, but `crf_decoding` reads other, untrained transitions."""
    facts = (this.frame.fact(value, "transitions") for value in this.frame.made.values.values())
    learnt = {other: layer for layer, other, count in filter(None, facts) if count == tags}
    if learnt and name not in learnt:
        other, layer = next(iter(learnt.items()))
        said = "without a name" if other is None else repr(other)
        core.doubt(
            f"{this.name} decodes with the transitions {name!r}, which nothing trains: {layer} learns transitions "
            f"{said}; give both the same: param_attr=fluid.ParamAttr(name={name if other is None else other!r})"
        )


def _emissions(this: Layer, value: Any, length: Any) -> core.SequenceBatch:
    """Check the input of a CRF layer, and return the score of each tag at each step, `[batch, time, tags]`."""
    batch = sequences(this, value, length)
    if batch.data.ndim != 3 or not jnp.issubdtype(batch.dtype, jnp.floating):
        raise errors.ShapeError(
            f"{this.name}: input {describe(batch)} is no score for each tag of each step; expected floats "
            f"[batch, time, tags], as from layers.fc(x, size=tags)"
        )
    return batch


def _tags(this: Layer, batch: core.SequenceBatch, value: Any, label: Any) -> Any:
    """Check that `label` has one tag for each step of the scores, and return the tags, `[batch, time]`."""
    alike(this, value, label)
    shape = dense(label).shape
    if shape not in (batch.shape[:2], (*batch.shape[:2], 1)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(batch)} and label {describe(label)} do not fit; expected one tag for each "
            f'step, as from layers.data("tag", shape=[1], dtype="int64", lod_level=1)'
        )
    core.limit_feed(label, 0, batch.shape[2])
    return step_ids(this, batch.with_data(dense(label)), "label")


def _transitions(this: Layer, attr: ParamSetting, batch: core.SequenceBatch) -> jax.Array:
    """Return the CRF's transition scores, a parameter `[tags + 2, tags]`."""
    tags = batch.shape[2]
    return this.weight(attr, [tags + _FROM, tags], batch.dtype)


def _path_score(batch: core.SequenceBatch, tags: jax.Array, transitions: jax.Array) -> jax.Array:
    """Return the score of one sequence of tags for each row.

    Args:
      batch: the score of each tag at each step, `[batch, time, tags]`.
      tags: `[batch, time]`.
      transitions: `[tags + 2, tags]`.

    Returns:
      `[batch]`.
    """
    steps = jnp.arange(tags.shape[1])
    is_last = steps == batch.lengths[:, None] - 1
    before = jnp.where(steps == 0, _START, _FROM + jnp.roll(tags, 1, axis=1))
    emitted = jnp.take_along_axis(wide(batch), tags[..., None], axis=2)[..., 0]
    scores = emitted + transitions[before, tags] + jnp.where(is_last, transitions[_STOP, tags], 0)
    # An integer that is not a tag gives NaN, so that the mistake becomes visible. For fed tags, an earlier check raises
    # an error.
    known = (tags >= 0) & (tags < batch.shape[2])
    return jnp.sum(jnp.where(batch.mask, jnp.where(known, scores, jnp.nan), 0), axis=1)


def _log_partition(batch: core.SequenceBatch, transitions: jax.Array) -> jax.Array:
    """Compute, for a CRF, the logarithm of the sum of `exp(score)` over all sequences of tags (forward algorithm).

    Args:
      batch: the score of each tag at each step, `[batch, time, tags]`.
      transitions: the scores of pairs of successive tags, with the scores of start and end, `[tags + 2, tags]`.

    Returns:
      `[batch]`.
    """

    # The gradient of a step needs a table `[tags, tags]` for each row. Recomputing the table in the backward pass is
    # cheaper than storing it in the forward pass.
    @jax.checkpoint
    def step(total: Any, now: Any) -> tuple[Any, None]:
        scores, real = now
        new = jax.nn.logsumexp(total[:, :, None] + transitions[_FROM:], axis=1) + scores
        return jnp.where(real[:, None], new, total), None

    first, rest = _time_first(batch)
    total, _ = jax.lax.scan(step, transitions[_START] + first, rest)
    return jax.nn.logsumexp(total + transitions[_STOP], axis=1)


def _viterbi(batch: core.SequenceBatch, transitions: jax.Array) -> jax.Array:
    """Return the sequences of tags with the highest score (Viterbi, 1967).

    Args:
      batch: the score of each tag at each step, `[batch, time, tags]`.
      transitions: `[tags + 2, tags]`.

    Returns:
      Tags `[batch, time]`; tags after the end of a row are meaningless.
    """

    def forward(best: Any, now: Any) -> tuple[Any, Any]:
        scores, real = now
        reached = best[:, :, None] + transitions[_FROM:]
        new = jnp.max(reached, axis=1) + scores
        came_from = jnp.where(real[:, None], jnp.argmax(reached, axis=1), jnp.arange(transitions.shape[1]))
        return jnp.where(real[:, None], new, best), came_from

    def backward(tag: Any, came_from: Any) -> tuple[Any, Any]:
        return jnp.take_along_axis(came_from, tag[:, None], axis=1)[:, 0], tag

    first, rest = _time_first(batch)
    best, came_from = jax.lax.scan(forward, transitions[_START] + first, rest)
    last_tag = jnp.argmax(best + transitions[_STOP], axis=1)
    first_tag, tags = jax.lax.scan(backward, last_tag, came_from, reverse=True)
    return jnp.concatenate([first_tag[None], tags]).T[:, : batch.shape[1]]


def _time_first(batch: core.SequenceBatch) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Split scores `[batch, time, tags]` into the first step and the later steps, with time as the first dimension.

    Returns:
      The scores of the first step, `[batch, tags]`; and a pair for the later steps: the scores,
      `[time - 1, batch, tags]`, and a mask that is true before the end of a row, bool `[time - 1, batch]`.
    """
    scores = jnp.moveaxis(wide(batch), 1, 0)
    first = scores[0] if scores.shape[0] else jnp.zeros(scores.shape[1:], scores.dtype)
    return first, (scores[1:], batch.mask.T[1:])
