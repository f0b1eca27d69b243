"""Decoders of PaddlePaddle's `contrib.decoder`: a cell with named states, and decoders for training and beam search."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fluid import errors
from fluid.static import layers
from fluid.static.layers.arrays import ArrayVariable
from fluid.static.tape.variable import Variable

__all__ = ["BeamSearchDecoder", "InitState", "StateCell", "TrainingDecoder"]


class InitState:
    """The initial value of one state of a StateCell.

    Args:
      init: the value, `[batch, ...]`.

    Raises:
      ArgumentError: there is neither `init`, nor `init_boot` with `shape`.

    Example:
      >>> import fluid.static as fluid
      >>> from fluid.static.contrib.decoder import InitState
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     context = fluid.layers.data("context", shape=[4])
      ...     InitState(init=context).value is context, InitState(shape=[-1, 3], init_boot=context).value.shape
      (True, (-1, 3))
    """

    def __init__(
        self,
        init: Variable | None = None,
        shape: Any = None,
        value: float = 0.0,
        init_boot: Variable | None = None,
        need_reorder: bool = False,
        dtype: Any = "float32",
    ):
        if init is None and (init_boot is None or shape is None):
            raise errors.ArgumentError(
                "InitState needs a value, or a shape and a variable with the batch size: InitState(init=context), "
                "InitState(shape=[-1, 32], init_boot=context)"
            )
        self.value = init
        self.need_reorder = need_reorder
        if init is None:
            self.value = layers.fill_constant_batch_size_like(init_boot, list(shape), dtype, value)


class StateCell:
    """A cell of a decoder: its inputs and states by name, and a function that computes the next states.

    Raises:
      ArgumentError: a state is not an InitState, or `out_state` is not the name of a state.

    Example:
      >>> import fluid.static as fluid
      >>> from fluid.static.contrib.decoder import InitState, StateCell, TrainingDecoder
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     context = fluid.layers.data("context", shape=[4])
      ...     words = fluid.layers.data("words", shape=[8], lod_level=1)
      ...     cell = StateCell(inputs={"x": None}, states={"h": InitState(init=context)}, out_state="h")
      ...     @cell.state_updater
      ...     def update(cell):
      ...         h, x = cell.get_state("h"), cell.get_input("x")
      ...         cell.set_state("h", fluid.layers.fc([h, x], size=4, act="tanh"))
      ...     decoder = TrainingDecoder(cell)
      ...     with decoder.block():
      ...         cell.compute_state(inputs={"x": decoder.step_input(words)})
      ...         cell.update_states()
      ...         decoder.output(cell.out_state())
      ...     decoder().shape
      (-1, 4)
    """

    def __init__(
        self,
        inputs: Mapping[str, Variable | None],
        states: Mapping[str, InitState],
        out_state: str,
        name: str | None = None,
    ):
        del name
        if out_state not in states or not all(isinstance(state, InitState) for state in states.values()):
            raise errors.ArgumentError(
                f"StateCell: found states={states!r} and out_state={out_state!r}; expected an InitState for each name, "
                f'and one of the names: StateCell(inputs={{"x": None}}, states={{"h": InitState(init=h)}}, '
                f'out_state="h")'
            )
        self.inputs = dict(inputs)
        self.states = dict(states)
        self._out = out_state
        self._updater: Callable[[StateCell], Any] | None = None
        self._decoder: _Decoder | None = None
        self._before: dict[str, Variable] = {}
        self._now: dict[str, Variable] = {}

    def enter(self, decoder: "_Decoder") -> None:
        """Attach the cell to a decoder, which passes the cell's states from step to step.

        Raises:
          ProgramError: the cell belongs to another decoder.
        """
        if self._decoder is not None:
            raise errors.ProgramError("a StateCell belongs to one decoder; make another StateCell for the second")
        self._decoder = decoder

    def get_state(self, state_name: str) -> Variable:
        """Return the current value of the state `state_name`; call this method inside the block of the decoder."""
        self._begin()
        return self._known("state", state_name, self._now)

    def get_input(self, input_name: str) -> Variable:
        """Return the current value of the input `input_name` of the cell."""
        return self._known("input", input_name, {n: v for n, v in self.inputs.items() if v is not None})

    def set_state(self, state_name: str, state_value: Variable) -> None:
        """Set the current value of the state `state_name` to the variable `state_value`."""
        self._begin()
        self._known("state", state_name, self._now)
        self._now[state_name] = state_value

    def state_updater(self, updater: Callable[["StateCell"], Any]) -> Callable[["StateCell"], Any]:
        """Register `updater`, the user's function that sets the next states by `set_state`; usable as a decorator."""
        self._updater = updater
        return updater

    def compute_state(self, inputs: Mapping[str, Variable]) -> None:
        """Compute the next states of the cell from the inputs of the current step.

        Raises:
          ProgramError: no function is decorated with `state_updater`.
        """
        self._begin()
        for name, value in inputs.items():
            self._known("input", name, self.inputs)
            self.inputs[name] = value
        if self._updater is None:
            raise errors.ProgramError(
                "StateCell: no function computes the next states; decorate one: @cell.state_updater"
            )
        self._updater(self)

    def update_states(self) -> None:
        """Pass the current states of the cell to the next step of the decoder."""
        self._begin()
        assert self._decoder is not None
        for name, before in self._before.items():
            self._decoder.keep(before, self._now[name])

    def out_state(self) -> Variable:
        """Return the current value of the state of this StateCell from which a decoder computes scores of words."""
        return self.get_state(self._out)

    def _begin(self) -> None:
        """Read the states of the previous step from the decoder, unless they were already read in this step."""
        if self._decoder is None:
            raise errors.ProgramError("a StateCell has states inside the block of a decoder: TrainingDecoder(cell)")
        if not self._now:
            self._before = {name: self._decoder.recall(state) for name, state in self.states.items()}
            self._now = dict(self._before)

    @staticmethod
    def _known(what: str, name: str, known: Mapping[str, Any]) -> Any:
        if name not in known:
            raise errors.UnknownNameError(f"StateCell has no {what} {name!r}. {errors.nearest(name, known)}")
        return known[name]


class _Decoder:
    """The base class of TrainingDecoder and BeamSearchDecoder, which run a StateCell, the cell of a decoder."""

    def __init__(self, state_cell: StateCell):
        self._cell = state_cell
        self._cell.enter(self)

    @property
    def state_cell(self) -> StateCell:
        return self._cell

    def recall(self, state: InitState) -> Variable:
        raise NotImplementedError

    def keep(self, before: Variable, value: Variable) -> None:
        raise NotImplementedError


class TrainingDecoder(_Decoder):
    """A decoder for training on complete target sentences; it runs a StateCell as a DynamicRNN.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.contrib.TrainingDecoder.__name__  # StateCell has an example
      'TrainingDecoder'
    """

    def __init__(self, state_cell: StateCell, name: str | None = None):
        super().__init__(state_cell)
        self.dynamic_rnn = layers.DynamicRNN(name)

    def block(self) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that records one step of the decoder: `with decoder.block():`."""
        return self.dynamic_rnn.block()

    def step_input(self, x: Variable) -> Variable:
        """Return the value of the sequence batch `x` at the current step."""
        return self.dynamic_rnn.step_input(x)

    def static_input(self, x: Variable) -> Variable:
        """Return the variable `x`, which every step reads unchanged."""
        return self.dynamic_rnn.static_input(x)

    def output(self, *outputs: Variable) -> None:
        """Declare the outputs of a decoding step; the decoder returns the values of these variables at all steps."""
        self.dynamic_rnn.output(*outputs)

    def __call__(self) -> Any:
        """Return the decoder's outputs at all steps: one variable, or a list if its block declares several outputs."""
        return self.dynamic_rnn()

    def recall(self, state: InitState) -> Variable:
        """Return the variable with the value of `state` from the previous step."""
        return self.dynamic_rnn.memory(init=state.value, need_reorder=state.need_reorder)

    def keep(self, before: Variable, value: Variable) -> None:
        """Set the value of a state for the next decoding step."""
        self.dynamic_rnn.update_memory(before, value)


class BeamSearchDecoder(_Decoder):
    """A decoder that generates sentences by beam search; it runs a StateCell in a While loop.

    Args:
      init_ids: the start ids of the sentences, a variable of shape `[1]` and `lod_level=2`.
      init_scores: the scores of `init_ids`, a variable of shape `[1]` and `lod_level=2`.
      input_var_dict: a dict from the name of a cell input to the variable that the input gets at every step. Inputs
        that are not in the dict get the embedding of the previous word.

    Example:
      >>> import fluid.static as fluid
      >>> from fluid.static.contrib.decoder import BeamSearchDecoder, InitState, StateCell
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     context = fluid.layers.data("context", shape=[4])
      ...     cell = StateCell(inputs={"x": None}, states={"h": InitState(init=context)}, out_state="h")
      ...     @cell.state_updater
      ...     def update(cell):
      ...         h, x = cell.get_state("h"), cell.get_input("x")
      ...         cell.set_state("h", fluid.layers.fc([h, x], size=4, act="tanh"))
      ...     ids = fluid.layers.data("ids", shape=[1], dtype="int64", lod_level=2)
      ...     scores = fluid.layers.data("scores", shape=[1], lod_level=2)
      ...     decoder = BeamSearchDecoder(cell, ids, scores, target_dict_dim=9, word_dim=8, topk_size=5, beam_size=2)
      ...     decoder.decode()
      ...     [variable.lod_level for variable in decoder()]
      [2, 2]
    """

    def __init__(
        self,
        state_cell: StateCell,
        init_ids: Variable,
        init_scores: Variable,
        target_dict_dim: int,
        word_dim: int,
        input_var_dict: Mapping[str, Variable] | None = None,
        topk_size: int = 50,
        sparse_emb: bool = True,
        max_len: int = 100,
        beam_size: int = 1,
        end_id: int = 1,
        name: str | None = None,
    ):
        del name
        super().__init__(state_cell)
        self._init = (init_ids, init_scores)
        self._sizes = [target_dict_dim, word_dim]
        self._inputs = dict(input_var_dict or {})
        self._topk = topk_size
        self._is_sparse = sparse_emb
        self._beam_size = beam_size
        self._end = end_id
        self._first = layers.zeros([1], "int64")
        self._counter = layers.zeros([1], "int64")
        self._max_len = layers.fill_constant([1], "int64", max_len)
        self._cond = layers.less_than(self._counter, self._max_len)
        self._arrays: dict[str, ArrayVariable] = {}
        self._found: dict[str, ArrayVariable] = {}
        self._kept: list[tuple[Variable, ArrayVariable]] = []

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Return a context manager that records one step of the decoder: `with decoder.block():`."""
        with layers.While(self._cond).block():
            yield
            layers.increment(self._counter)
            for value, array in self._kept:
                layers.array_write(value, self._counter, array=array)
            layers.logical_and(layers.less_than(self._counter, self._max_len), self._cond, out=self._cond)

    def early_stop(self) -> None:
        """End the beam search after the current step, for all sentences."""
        layers.fill_constant([1], "bool", 0, out=self._cond)

    def decode(self) -> None:
        """Record the standard beam search. For a custom search, record its step: `with decoder.block():`."""
        with self.block():
            ids = self.read_array(self._init[0], is_ids=True)
            scores = self.read_array(self._init[1], is_scores=True)
            words = layers.embedding(ids, size=self._sizes, is_sparse=self._is_sparse)
            inputs = dict.fromkeys(self._cell.inputs, words)
            for name, variable in self._inputs.items():
                before = self.read_array(variable)
                inputs[name] = layers.sequence_expand(before, scores)
                self.update_array(before, inputs[name])
            for name in self._cell.states:
                self._cell.set_state(name, layers.sequence_expand(self._cell.get_state(name), scores))
            self._cell.compute_state(inputs)
            out = layers.lod_reset(self._cell.out_state(), scores)
            found, candidates = layers.topk(layers.fc(out, size=self._sizes[0], act="softmax"), k=self._topk)
            totals = layers.elementwise_add(layers.log(found), layers.reshape(scores, [-1]), axis=0)
            selected = layers.beam_search(ids, scores, candidates, totals, self._beam_size, self._end)
            self._cell.update_states()
            for before, after in zip((ids, scores), selected, strict=True):
                self.update_array(before, after)
            layers.logical_and(self._cond, layers.logical_not(layers.is_empty(selected[0])), out=self._cond)

    def read_array(self, init: Variable, is_ids: bool = False, is_scores: bool = False) -> Variable:
        """Return the current value of a loop variable, which each step of the beam search updates for the next step."""
        with init.program.before_block():
            array = layers.array_write(init, self._first)
        for kind, chosen in (("ids", is_ids), ("scores", is_scores)):
            if chosen:
                self._found[kind] = array
        value = layers.array_read(array, self._counter)
        self._arrays[value.name] = array
        return value

    def update_array(self, array: Variable, value: Variable) -> None:
        """In a beam search, set the value that a variable has in the next step; `array` comes from `read_array`.

        Raises:
          ProgramError: `array` is not a result of `read_array`.
        """
        if array.name not in self._arrays:
            raise errors.ProgramError(
                f"BeamSearchDecoder.update_array({array!r}, ...): expected a result of decoder.read_array(init)"
            )
        self._kept.append((value, self._arrays[array.name]))

    def __call__(self) -> tuple[Variable, Variable]:
        """Return two variables: the ids and the scores of the generated sentences of each source sentence.

        Raises:
          ProgramError: the search is not recorded yet.
        """
        if len(self._found) < 2:
            raise errors.ProgramError("BeamSearchDecoder has no sentences yet; first decoder.decode()")
        return layers.beam_search_decode(self._found["ids"], self._found["scores"], self._beam_size, self._end)

    def recall(self, state: InitState) -> Variable:
        """Return the variable with the value of a decoder state before the current decoding step."""
        assert state.value is not None
        return self.read_array(state.value)

    def keep(self, before: Variable, value: Variable) -> None:
        """Set a decoder state to `value` for the next decoding step; `before` is the variable that `recall` gave."""
        self.update_array(before, value)
