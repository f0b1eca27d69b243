"""Beam search as in PaddlePaddle Fluid: `beam_search` in a While loop, and `beam_search_decode` after the loop.

In PaddlePaddle, the sequence lengths of a value say which rows continue which prefix (partial sentence), and ended rows
disappear. In this module, each source sentence has `beam_size` rows from the beginning of the loop. A loop variable of
the class Beams stores for each row the index of the prefix that the row continues, and whether the row is in use.
"""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors, layers
from fluid.layers.base import Layer, is_sequence
from fluid.layers.control.tensor_array import TensorArray
from fluid.layers.structured.beam import Beams, select, trace
from fluid.static import unique_name
from fluid.static.layers.arrays import ArrayVariable
from fluid.static.tape.calls import running
from fluid.static.tape.program import assigned, in_a_function, recorded
from fluid.static.tape.variable import Variable


class BeamVariable(Variable):
    """A variable with the state of a beam search: for each row, the prefix (partial sentence) that the row continues.

    Attributes:
      size: the width of the beam.
      kept: the variables that `beam_search` has returned.
      arrays: the tensor arrays into which the program writes the variables of `kept`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.beam.BeamVariable.__name__  # made by beam_search
      'BeamVariable'
    """

    size = 0
    kept: tuple[Variable, ...] = ()
    arrays: tuple[ArrayVariable, ...] = ()

    @property
    def structs(self) -> tuple[Any, ...]:
        """Return an empty tuple of shapes: the number of rows in a beam search is known only when its loop runs."""
        return ()

    @structs.setter
    def structs(self, both: tuple[Any, ...]) -> None:
        del both

    def written(self, array: ArrayVariable, i: Variable) -> None:
        """Record that the program writes a result of `beam_search` into the tensor array `array` at the index `i`."""
        self.arrays = (*self.arrays, array)
        self.program.apply(_Noted(self), (i,), into=[self])

    def start(self, sources: int) -> Beams:
        """Return the initial Beams (state of a beam search) for the given number of source sentences."""
        return Beams.start(sources, self.size, max((array.capacity for array in self.arrays), default=1))


def beam_search(
    pre_ids: Variable,
    pre_scores: Variable,
    ids: Variable | None,
    scores: Variable,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> Any:
    """Run one step of a beam search, in the block of a While: keep the best partial sentences of each source sentence.

    Args:
      pre_ids: integers `[rows, 1]`: the last id of each prefix (partial sentence).
      pre_scores: float32 `[rows, 1]`: the score of each prefix.
      ids: the ids of the candidates, integers `[rows, candidates]`; None for the ids 0, 1, 2 and so on.
      scores: float32 `[rows, candidates]`: log-probabilities of the prefixes extended by the candidates.

    Returns:
      `(selected_ids, selected_scores)`, each `[rows, 1]`; `return_parent_idx` adds the row indices, int32 `[rows]`.

    Raises:
      ProgramError: the call is not inside the block of a While.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.beam_search.__name__  # docs/static-details.md has a decoder
      'beam_search'
    """
    del level
    if in_a_function():
        raise errors.ProgramError(
            "this layers.beam_search is one step of a layers.While that is written down; inside a program function, "
            "search in one call: fluid.layers.beam_search(step, state, start_id, end_id, beam_size, max_length)"
        )
    program = scores.program
    block = next((b for b in program.present_block.open_blocks() if b.loop is not None), None)
    if block is None:
        raise errors.ProgramError(
            "layers.beam_search keeps the best prefixes in each turn of a loop, and stands outside of one; write it "
            "into the block of a layers.While, or search in one call of fluid.layers.beam_search in a program function"
        )
    if block.beam is None:
        block.beam = BeamVariable(program, unique_name.generate("beam"))
        block.beam.size = beam_size
        program.variables[block.beam.name] = block.beam
    chosen = [
        program.new_variable(unique_name.generate(f"beam_search_{kind}")) for kind in ("ids", "scores", "parents")
    ]
    step = _Step(block.beam, beam_size, end_id, is_accumulated, name)
    program.apply(step, (pre_ids, pre_scores, ids, scores), into=[*chosen, block.beam])
    block.beam.kept = (*block.beam.kept, *chosen[:2])
    return tuple(chosen if return_parent_idx else chosen[:2])


class _Noted:
    """A function that stores which partial sentence each row continues, for `beam_search_decode`."""

    def __init__(self, beams: BeamVariable):
        self._beams = beams

    def __call__(self, i: Any) -> Beams:
        beams = _present(self._beams)
        return Beams.start(1, 1, 1) if beams is None else beams.noted(i.reshape(()))


class _Step:
    """A function that computes one step of a beam search while a program runs."""

    def __init__(self, beams: BeamVariable, size: int, end_id: int, is_accumulated: bool, name: str | None):
        self._beams = beams
        self._size = size
        self._end = end_id
        self._is_accumulated = is_accumulated
        self._name = name

    def __call__(self, pre_ids: Any, pre_scores: Any, ids: Any, scores: Any) -> list[Any]:
        """Run one step of a beam search: select the prefixes (begun sentences) with the highest scores.

        Return for each prefix the last id, the score, and the index of the row that the prefix continues. The last item
        of the result is the new state of the search.
        """
        this = Layer("beam_search", self._name)
        beams = _present(self._beams)
        # The state of the search exists only while the program runs. While the program is recorded, JAX evaluates only
        # shapes, so the values of the state do not matter.
        if beams is None:
            beams = Beams.start(scores.shape[0], 1, 1)
            kept = select(pre_ids, pre_scores, pre_ids.reshape(-1, 1), pre_scores.reshape(-1, 1), beams.alive, 1, 0)
        else:
            totals = scores if self._is_accumulated else jnp.log(scores) + pre_scores.reshape(-1, 1)
            candidates = jnp.broadcast_to(jnp.arange(scores.shape[1]), scores.shape) if ids is None else ids
            kept = select(pre_ids, pre_scores, candidates, totals, beams.alive, self._size, self._end)
        after = Beams(kept.parent, kept.alive, beams.parents, beams.lives)
        return [this.output(kept.ids), this.output(kept.scores), this.output(kept.parent), after]


def beam_search_decode(
    ids: ArrayVariable, scores: ArrayVariable, beam_size: int, end_id: int, name: str | None = None
) -> tuple[Variable, Variable]:
    """Return the sentences that a beam search has generated.

    Raises:
      ProgramError: no results of `beam_search` were written into `ids`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.beam_search_decode.__name__  # docs/static-details.md has a decoder
      'beam_search_decode'
    """
    beams = next((v for v in ids.program.variables.values() if isinstance(v, BeamVariable) and ids in v.arrays), None)
    if beams is None:
        raise errors.ProgramError(
            f"layers.beam_search_decode: no search was written into {ids.name!r}; in the block of the While, write "
            f"layers.array_write(selected_ids, array=ids, i=counter)"
        )
    return ids.program.guarded().apply(_Sentences(beams, beam_size, end_id, name), (ids, scores))


class _Sentences:
    """A function that assembles complete sentences from the ids of all steps, after the loop of a beam search."""

    def __init__(self, beams: BeamVariable, size: int, end_id: int, name: str | None):
        self._beams = beams
        self._size = size
        self._end = end_id
        self._name = name

    def __call__(self, ids: TensorArray, scores: TensorArray) -> tuple[Any, Any]:
        """Return the results of a beam search: ids and scores of the generated sentences of each source sentence."""
        this = Layer("beam_search_decode", self._name)
        rows = ids.data.shape[1]
        beams = _present(self._beams) or Beams.start(rows // self._size, self._size, ids.data.shape[0])
        found = trace(ids.data, scores.data, ids.length, beams, self._size, self._end)
        return this.output(found[0]), this.output(found[1])


def sequence_expand(x: Variable, y: Variable, ref_level: int = -1, name: str | None = None) -> Any:
    """Repeat rows for each sequence, or for each candidate of a beam search; see `fluid.layers.sequence_expand`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.sequence_expand.__name__
      'sequence_expand'
    """
    return recorded(_expand)(_Here(y), x, y, ref_level=ref_level, name=name)


def lod_reset(x: Variable, y: Variable | None = None, target_lod: Any = None) -> Any:
    """Replace the sequence lengths of `x`; in the block of a beam search, where rows have no lengths, return a copy.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.lod_reset.__name__
      'lod_reset'
    """
    return recorded(_reset)(x, y, target_lod)


def is_empty(x: Variable, cond: Variable | None = None) -> Any:
    """Return whether a variable has no elements; for a result of `beam_search`, return whether all prefixes have ended.

    Returns:
      The variable with the result, bool `[1]`.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     empty = fluid.layers.is_empty(fluid.layers.ones([2], "float32"))
      >>> fluid.Executor().run(main, fetch_list=[empty])[0].tolist()
      [False]
    """
    if cond is None:
        return recorded(_empty)(_Here(x), x)
    return assigned(cond, _empty, _Here(x), x)


class _Here:
    """A reference to the loop in which a layer is recorded; through it, the layer finds the loop's beam search.

    JAX treats the reference as one pytree leaf.
    """

    def __init__(self, value: Any):
        blocks = value.program.present_block.open_blocks() if isinstance(value, Variable) else []
        self._loop = next((block for block in blocks if block.loop is not None), None)

    def beams(self) -> Beams | None:
        # The call of `beam_search` in the loop sets the attribute `beam` of the loop. Another layer in the loop may be
        # recorded before this call. So do not read `beam` before the program runs.
        return None if self._loop is None else _present(self._loop.beam)


def _present(variable: BeamVariable | None) -> Beams | None:
    environment = running()
    return None if variable is None or environment is None else environment.find(variable)


def _expand(here: _Here, x: Any, y: Any, ref_level: int, name: str | None) -> Any:
    if is_sequence(y):
        return layers.sequence_expand(x, y, ref_level, name)
    beams = here.beams()
    this = Layer("sequence_expand", name)
    if beams is None:
        return this.output(jax.tree.map(lambda v: v + 0, x))
    rows = beams.parent.shape[0]
    if x.shape[0] == rows:
        return this.output(jax.tree.map(lambda v: v[beams.parent], x))
    return this.output(jax.tree.map(lambda v: jnp.repeat(v, rows // x.shape[0], axis=0), x))


def _reset(x: Any, y: Any, target_lod: Any) -> Any:
    if y is None or is_sequence(y):
        return layers.lod_reset(x, y, target_lod)
    return layers.assign(x)


def _empty(here: _Here, x: Any) -> Any:
    beams = here.beams()
    size = (x.data if is_sequence(x) else x).size
    return Layer("is_empty").output(jnp.asarray(size == 0) if beams is None else ~jnp.any(beams.alive))
