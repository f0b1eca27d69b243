"""The layer `generate`: continue sequences id by id, by the most probable next id or by sampling."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.core.rows import harmless
from fluid.layers.base import Layer, array_of, dense, describe, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.control.branch import strongly_typed
from fluid.layers.control.while_loop import check_carry, check_pair
from fluid.layers.structured.decoder import logits_of


@layer
def generate(
    step: Callable[[Any, Any], tuple[Any, Any]],
    prompt: Value,
    length: int,
    state: Any = None,
    temperature: Value | float = 1.0,
    top_k: int | None = None,
    top_p: Value | float | None = None,
    end_id: int | None = None,
    seed: int = 0,
    name: str | None = None,
) -> core.SequenceBatch:
    """Continue prompts with ids that a model predicts one after another.

    One call of `step` reads the prompts; then a loop appends one id to every row in each iteration. A row ends after
    `end_id`, or after `length` ids. The ids of a row depend on its prompt, but not on other rows or on padding. Drawn
    ids also depend on the index of the row in the batch, and on the number of ids before them. So with one seed,
    several calls, each with the text so far as the prompt, write the same text as one call.

    Args:
      step: called with ids and the state; returns scores of each next id, `[batch, time, vocabulary]`, and the new
        state. The ids are a SequenceBatch `[batch, time, 1]`: at first the prompts, then one id for each row, and none
        for a row that has ended. The scores are logits or log-probabilities; the result of a softmax is converted.
        `step` may call layers.
      prompt: integers: a SequenceBatch or an array, `[batch, time, 1]` or `[batch, time]`. A prompt without ids gets no
        more ids, and neither does a prompt of several ids that ends with `end_id`.
      length: the largest number of ids to write for a row.
      state: the state before the prompt: a pytree of arrays `[batch, ...]`, such as `attention_cache`.
      temperature: divides the scores: a number, or one for each row, `[batch]` or `[batch, 1]`. Below 1, probable ids
        become more probable. At 0, the id with the largest score is written.
      top_k: draw only from the `top_k` most probable ids.
      top_p: draw only from the fewest ids whose probabilities add up to `top_p`: a number above 0, or one for each row.
        With `top_k`, these are probabilities among the `top_k` ids.
      end_id: the id that ends a row.
      seed: if not 0, every run draws equal ids for equal prompts.
      name: name of the layer; by default `generate_N`; the drawn ids depend on the name.

    Returns:
      The ids without the prompts, a SequenceBatch `[batch, length, 1]`. The last id of a row that has ended is
      `end_id`. If the scores of a row are NaN, for example because an `attention_cache` is full, the row ends with the
      id -1.

    Raises:
      ArgumentError: a number is outside its limits, or `top_k` or `top_p` is given with `temperature=0`.
      ArgumentTypeError: the prompt holds no integers, or `step` does not return a pair.
      ShapeError: the prompt, the scores or `temperature` has other dimensions, there is no score for `end_id`, or
        `step` returns a state with another structure, shape or dtype.

    Example:
      >>> import fluid
      >>> def program():
      ...     prompt = fluid.layers.data("prompt", shape=[1], dtype="int64", lod_level=1)
      ...     cache = fluid.layers.attention_cache(prompt.shape[0], prompt.shape[1] + 20, num_heads=2, head_size=8)
      ...     def step(ids, cache):
      ...         x = fluid.layers.embedding(ids, size=[100, 16])
      ...         seen, cache = fluid.layers.multi_head_attention(x, num_heads=2, rotary=True, cache=cache)
      ...         return fluid.layers.dense(x + seen, size=100), cache
      ...     return fluid.layers.generate(step, prompt, 20, cache, temperature=0.8, top_k=10, end_id=0)
      >>> text, = fluid.Inferencer(program, params=fluid.Session(program).params()).infer({"prompt": [[5, 7], [9]]})
      >>> text.data.shape
      (2, 20, 1)
    """
    this = Layer("generate", name)
    prompts = _prompts(this, prompt)
    rows = prompts.shape[0]
    sampler = _sampler(this, rows, temperature, top_k, top_p, seed)
    end = None if end_id is None else core.whole_number(this.name, "end_id", end_id, least=0)
    state = jax.lax.stop_gradient(strongly_typed(state))
    body = core.Body(_CheckedStep(this, step, end), [prompts, state], "layers.generate")
    writing = _Writing(body, prompts.lengths, core.whole_number(this.name, "length", length), end, sampler)
    return this.output(writing.run(prompts, state))


def _prompts(this: Layer, prompt: Any) -> core.SequenceBatch:
    """Return the prompts as a SequenceBatch `[batch, time, 1]`."""
    ids = check_ids(this.name, prompt, "prompt")
    if isinstance(prompt, core.NestedSequenceBatch) or ids.ndim not in (2, 3) or ids.shape[2:] not in ((), (1,)):
        raise errors.ShapeError(
            f"{this.name}: prompt is {describe(prompt)}; expected ids [batch, time] or [batch, time, 1], as from "
            f'layers.data("prompt", shape=[1], dtype="int64", lod_level=1)'
        )
    if isinstance(prompt, core.SequenceBatch):
        # Return a prompt `[batch, time, 1]` as the same object, not as a copy. Layers recognise a feed by its object.
        # So an embedding of the prompt can record the valid range of ids, which the input pipeline then checks.
        return prompt if ids.ndim == 3 else prompt.with_data(ids[..., None])
    return core.SequenceBatch(ids.reshape(*ids.shape[:2], 1), jnp.full(ids.shape[:1], ids.shape[1], jnp.int32))


@dataclass(frozen=True, eq=False)
class _Sampler:
    """A selector of the next token id of each generated sequence, by largest score or by sampling.

    Attributes:
      key: a random key; None if every row gets the id with the largest score.
      temperature: float32, `[batch, 1]` or `[]`.
      top_k: draw only from the `top_k` most probable ids; None for no limit.
      top_p: float32, `[batch, 1]` or `[]`: draw only from the fewest ids whose probabilities add up to `top_p`; None
        for no limit.
    """

    key: Any = None
    temperature: Any = None
    top_k: int | None = None
    top_p: Any = None

    def __call__(self, scores: jax.Array, positions: jax.Array) -> jax.Array:
        """Return the next ids, `[batch]`.

        Args:
          scores: the scores of all ids, `[batch, ids]`.
          positions: the number of ids that each row has so far, prompt included, `[batch]`.
        """
        best = jnp.argmax(scores, axis=-1)
        if self.key is None:
            return best
        logits = scores / jnp.where(self.temperature > 0, self.temperature, 1)
        return jnp.where(jnp.ravel(self.temperature) > 0, self._drawn(logits, positions), best)

    def _drawn(self, logits: jax.Array, positions: jax.Array) -> jax.Array:
        # Use one random key for each row and position. So neither padding nor the number of calls of `generate` changes
        # the drawn ids.
        of_rows = jax.vmap(jax.random.fold_in, (None, 0))(self.key, jnp.arange(positions.shape[0]))
        keys = jax.vmap(jax.random.fold_in)(of_rows, positions)
        draw = jax.vmap(jax.random.categorical)
        if self.top_k is None and self.top_p is None:
            return draw(keys, logits)
        count = logits.shape[-1]
        logits, ids = jax.lax.top_k(logits, count if self.top_k is None else min(self.top_k, count))
        if self.top_p is not None:
            probabilities = jax.nn.softmax(logits)
            before = jnp.cumsum(probabilities, axis=-1) - probabilities
            logits = jnp.where(before < self.top_p, logits, -jnp.inf)
        return jnp.take_along_axis(ids, draw(keys, logits)[:, None], axis=1)[:, 0]


def _sampler(this: Layer, rows: int, temperature: Any, top_k: Any, top_p: Any, seed: int) -> _Sampler:
    """Check the arguments of `layers.generate` that select ids, and return a `_Sampler`, which selects the ids."""
    if isinstance(temperature, int | float) and temperature == 0:
        if top_k is not None or top_p is not None:
            name, value = ("top_k", top_k) if top_k is not None else ("top_p", top_p)
            raise errors.ArgumentError(
                f"{this.name}: {name}={value!r} beside temperature=0, which draws nothing; write temperature=1.0, or "
                f"leave {name} out"
            )
        return _Sampler()
    key = jax.random.key(seed) if seed else core.random_key(this.name)
    return _Sampler(
        key,
        _for_rows(this, "temperature", temperature, rows, "0.8"),
        None if top_k is None else core.whole_number(this.name, "top_k", top_k),
        None if top_p is None else _for_rows(this, "top_p", top_p, rows, "0.9", most=1.0),
    )


def _for_rows(this: Layer, argument: str, value: Any, rows: int, example: str, most: float = np.inf) -> jax.Array:
    """Check an argument of `generate`, and convert it to float32: `[]` for one number, `[batch, 1]` for one per row."""
    if isinstance(value, int | float) and not 0 < value <= most:
        limit = "a positive number" if most == np.inf else f"a number above 0, at most {most:g}"
        raise errors.ArgumentError(f"{this.name}: {argument}={value!r}; expected {limit}, as in {argument}={example}")
    array = array_of(this, value).astype(jnp.float32)
    if array.shape not in ((), (1,), (rows,), (rows, 1)):
        raise errors.ShapeError(
            f"{this.name}: {argument} is {describe(value)}; expected one number, or one for each row, [batch] or "
            f'[batch, 1], as from layers.data("{argument}", shape=[1])'
        )
    return array.reshape(-1, 1) if array.size != 1 else array.reshape(())


@dataclass(frozen=True, eq=False)
class _CheckedStep:
    """The user's step function for `generate`, wrapped in checks of its results.

    Attributes:
      this: the layer, for its name in error messages.
      step: the user's function.
      end: the id that ends a row; None if rows end only at the largest length.
    """

    this: Layer
    step: Callable[[Any, Any], Any]
    end: int | None

    def __call__(self, ids: core.SequenceBatch, state: Any) -> tuple[jax.Array, Any]:
        """Run the user's step; return the scores of each row's next id, float32 `[batch, ids]`, and the new state."""
        result = self.step(ids, state)
        found, new = check_pair(self.this, result, "generate", "lambda ids, state: (scores, state)")
        scores = wide(logits_of(found))
        if scores.ndim != 3 or scores.shape[:2] != ids.shape[:2] or scores.shape[2] <= (self.end or 0):
            raise errors.ShapeError(
                f"{self.this.name}: step(ids, state) returned scores {describe(found)} for ids {describe(ids)} and "
                f"end_id={self.end}; expected [batch, time, vocabulary], with end_id in the vocabulary, as from "
                f"layers.dense(x, size=vocabulary)"
            )
        last = jnp.maximum(ids.lengths - 1, 0)[:, None, None]
        scores = jnp.take_along_axis(scores, last, axis=1)[:, 0].astype(jnp.float32)
        return jax.lax.stop_gradient((scores, check_carry(self.this, "step", new, state)))


class _Carry(NamedTuple):
    """The carry of the loop that generates ids.

    Attributes:
      written: int32 `[]`: the number of ids generated so far for the longest row.
      last: `[batch]`: the last id of each row, generated or from the prompt.
      ids: `[batch, length]`: the generated ids, with zeros after the end of a row.
      lengths: int32 `[batch]`: the number of generated ids of each row.
      ended: bool `[batch]`: whether each row has ended.
      state: the user's state.
      program_states: the states of the program that `step` changes, by name.
    """

    written: jax.Array
    last: jax.Array
    ids: jax.Array
    lengths: jax.Array
    ended: jax.Array
    state: Any
    program_states: dict[str, Any]


@dataclass(frozen=True, eq=False)
class _Writing:
    """The constants and the loop of one call of `generate`.

    Attributes:
      body: the traced `_CheckedStep`.
      before: int32 `[batch]`: the lengths of the prompts.
      length: the largest number of ids to generate for a row.
      end: the id that ends a row; None if rows end only after `length` ids.
      sampler: the object that selects the next ids.
    """

    body: core.Body
    before: jax.Array
    length: int
    end: int | None
    sampler: _Sampler

    def run(self, prompts: core.SequenceBatch, state: Any) -> core.SequenceBatch:
        """Generate and return the ids that follow the prompts, a SequenceBatch `[batch, length, 1]`."""
        (scores, state), program_states = self.body(self.body.states(), jnp.int32(0), prompts, state)
        ids = dense(prompts)[..., 0]
        last = jnp.take_along_axis(ids, jnp.maximum(self.before - 1, 0)[:, None], axis=1)[:, 0]
        ended = self.before == 0
        if self.end is not None:
            ended |= (self.before > 1) & (last == self.end)
        empty = jnp.zeros([ids.shape[0], self.length], ids.dtype)
        start = _Carry(jnp.int32(0), last, empty, jnp.zeros_like(self.before), ended, state, program_states)
        first = self._written(start, scores)
        carry = jax.lax.while_loop(
            lambda c: (c.written < self.length) & ~harmless(jnp.all(c.ended)), self._continued, first
        )
        self.body.keep(carry.program_states)
        return core.SequenceBatch(carry.ids[..., None], carry.lengths)

    def _continued(self, carry: _Carry) -> _Carry:
        """Run one iteration of text generation: call the user's step function with the last ids, and append new ids."""
        now = core.SequenceBatch(carry.last[:, None, None], (~carry.ended).astype(jnp.int32))
        result, program_states = self.body(carry.program_states, carry.written, now, carry.state)
        scores, state = result
        return self._written(carry._replace(state=state, program_states=program_states), scores)

    def _written(self, carry: _Carry, scores: jax.Array) -> _Carry:
        """Select the next id of each generated sequence that has not ended, and append these ids.

        Args:
          scores: the scores of all ids, `[batch, ids]`.
        """
        lost = jnp.isnan(scores).any(axis=-1)
        chosen = self.sampler(scores, self.before + carry.written).astype(carry.ids.dtype)
        new = jnp.where(carry.ended, 0, jnp.where(lost, -1, chosen))
        ended = carry.ended | lost | (False if self.end is None else chosen == self.end)
        return carry._replace(
            written=carry.written + 1,
            last=chosen,
            ids=carry.ids.at[:, carry.written].set(new),
            lengths=carry.lengths + ~carry.ended,
            ended=ended,
        )
