"""Program inputs: the programs of a Trainer with their feeds, and the readers and input pipeline of `train`.

With the argument `feed_from`, a feed is a value that another program computes. A Chain computes these feeds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fluid import errors
from fluid.core import TEST, FeedSpec, Program, warn
from fluid.reader import reader_misuse
from fluid.reader.adapters import Minibatches, minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.buckets import Buckets
from fluid.reader.converter import Converter
from fluid.reader.data_frame import check_reader
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.runtime import CompiledStep, Request, Session, check_fetch
from fluid.runtime.compiled_step import bind
from fluid.runtime.prediction import ConstantFeeds, needed_feeds
from fluid.runtime.seeds import Draw
from fluid.trainer.programs.schedule import Schedule, ScheduleLike, Turns, schedule_of
from fluid.trainer.programs.training_program import ProgramFunction, TrainingProgram


class Link(NamedTuple):
    """A source of feeds: another program, whose computed values become feeds of a program.

    Attributes:
      step: the compiled step of the other program, in test mode.
      feeds: the names of the computed feeds, in the order of the results of `step`.
      chain: computes feeds of the other program from a third program; None if the minibatch holds all feeds of `step`.
    """

    step: CompiledStep
    feeds: tuple[str, ...]
    chain: Chain | None


class Chain:
    """A function that computes the feeds of a program from values of other programs, with the current parameters.

    The other programs run in test mode: their states do not change, and their values are computed again in each step.

    Attributes:
      reads: the argument `reads`.
    """

    def __init__(self, own: Sequence[str], links: Sequence[Link], reads: dict[str, FeedSpec]):
        self.reads = reads
        self._own = own
        self._links = links

    def __call__(self, feed: Mapping[str, Any], draw: Draw | None = None) -> dict[str, Any]:
        """Return the feed of the program: the arrays of a minibatch, and the values that other programs compute.

        The result has no entry for a feed that neither the minibatch nor another program provides.
        """
        computed: dict[str, Any] = {}
        for link in self._links:
            needed = feed if link.chain is None else {**feed, **link.chain(feed, draw)}
            values = link.step({name: needed[name] for name in link.step.request.feeds}, draw=draw).values
            computed.update(zip(link.feeds, values, strict=True))
        both = {**feed, **computed}
        return {name: both[name] for name in self._own if name in both}


class ProgramInput:
    """One program of a Trainer, with the feeds that its minibatches must hold.

    Attributes:
      name: the name of the program.
      declared: the argument `declared`.
      program: the argument `program`.
      chain: computes the feeds that come from other programs; None if there are none.
      others: names of feeds that only other programs read; minibatches may hold them too, and they are ignored.
    """

    def __init__(self, declared: TrainingProgram, program: Program, session: Session):
        self.name = program.name
        self.declared = declared
        self.program = program
        self.chain: Chain | None = None
        self.others: frozenset[str] = frozenset()
        self._session = session

    @property
    def reads(self) -> dict[str, FeedSpec]:
        """The feeds that the minibatches of this program must hold.

        The result has the feeds of this program that no other program computes, and the feeds that the other programs
        need for the feeds that they compute.
        """
        return self.program.feeds if self.chain is None else self.chain.reads

    @property
    def has_sequences(self) -> bool:
        """True if a feed holds sequences, whose rows have different lengths."""
        return any(spec.lod_level for spec in self.program.feeds.values())

    @property
    def is_shared(self) -> bool:
        """True if each step of this program runs on the devices of several processes."""
        mesh = self._session.engine.layout.mesh
        return mesh is not None and bool(mesh.is_multi_process)

    def divide(self, source: Minibatches) -> None:
        """Divide the rows of minibatches among processes, so that each process reads only the rows of its devices.

        With one device, minibatches stay in the compact format that the reader may return, such as row numbers. All
        processes read minibatches with sequences completely, because sequences are padded to the longest sequence in
        the minibatch of all processes.
        """
        layout = self._session.engine.layout
        if self.has_sequences or any(spec.lod_level or spec.shape[:1] != (None,) for spec in self.reads.values()):
            return
        if layout.mesh is None and self.reads:
            source.compact()
        elif self.is_shared:
            source.divide(layout.rows_here)

    def fed(self, feed: Mapping[str, Any], draw: Draw | None = None) -> Mapping[str, Any]:
        """Return the feed of a step: a minibatch, and values that other programs compute from current parameters."""
        return feed if self.chain is None else self.chain(feed, draw)

    def converter(
        self, order: FeedOrder, buckets: Buckets, only: Collection[str] | None = None, trains: bool = False
    ) -> Converter:
        """Return a Converter, which converts minibatches to the feeds in the attribute `reads`.

        Columns that only other programs read are ignored.
        """
        order = self.declared.feed_order if order is None else order
        # In a multi-process training, each process reads only its rows of a minibatch; placeholder rows replace the
        # other rows.
        trains = trains and not self.is_shared
        return Converter(self._session.engine, self.reads, order, buckets, only, self.others, trains)


ReadersLike = ReaderLike | Mapping[str, ReaderLike] | None
"""The argument `reader` of `Trainer.train`: one reader, or a dict of readers by program name."""

Source = Minibatches | Turns
"""The type of the data source of a training: the minibatches of one program, or of several programs in turn."""


class ProgramOrder(NamedTuple):
    """The order in which several programs are trained.

    Attributes:
      schedule: the Schedule that chooses the program of each step.
      epoch_of: the name of the program whose reader ends an epoch; None for the first program that has a reader.
    """

    schedule: Schedule
    epoch_of: str | None


def plan_of(
    programs: Sequence[Program], schedule: ScheduleLike, epoch_of: str | None, seed: int
) -> ProgramOrder | None:
    """Return the order in which the programs of a Trainer are trained; None for one program.

    Raises:
      ArgumentError: the schedule is invalid or never trains a program, or there is only one program.
      ArgumentTypeError: the schedule has another type.
      UnknownNameError: an argument names an unknown program.
    """
    names = [program.name for program in programs]
    if len(programs) == 1:
        if schedule is not None or epoch_of is not None:
            raise errors.ArgumentError(
                "schedule= and epoch_of= say how several programs take turns, and the Trainer has one; leave them out, "
                "or give it more: fluid.Trainer([(discriminator, optimizer_d), (generator, optimizer_g)], schedule=...)"
            )
        return None
    if epoch_of is not None and epoch_of not in names:
        raise errors.UnknownNameError(
            f"epoch_of={epoch_of!r}: there is no such program. {errors.nearest(str(epoch_of), names)}"
        )
    return ProgramOrder(schedule_of(schedule, names, seed), epoch_of)


def readers_of(inputs: Sequence[ProgramInput], given: ReadersLike, second: Any = None) -> tuple[ReaderLike | None, ...]:
    """Return the reader of each program of a training; None for a program without feeds and reader.

    Raises:
      ArgumentTypeError: a program has feeds and no reader, no program has a reader, or `given` consists of arrays.
      ArgumentError: no program uses the given reader; or the reader and the program have different Tables, which
        convert raw rows to feeds.
      UnknownNameError: a reader is given for an unknown program.
    """
    if len(inputs) == 1 and inputs[0].declared.reader is None:
        check_reader("train", given, inputs[0].program.table)
        return (check_data("train", inputs[0].reads, given, second),)
    found = {input.name: input.declared.reader for input in inputs}
    if isinstance(given, Mapping):
        for name, reader in given.items():
            if name not in found:
                raise errors.UnknownNameError(
                    f"train: a reader is given for {name!r}, which is no program. {errors.nearest(str(name), found)} "
                    f"{_corrected(inputs)}"
                )
            found[name] = reader
    elif given is not None:
        sharing = [input for input in inputs if found[input.name] is None and input.reads]
        if not sharing:
            raise errors.ArgumentError(
                "train: a reader is given, and each program that reads has one of its own; leave it out: "
                "trainer.train(num_epochs=...)"
            )
        check_data("train", sharing[0].reads, given, second)
        found |= {input.name: given for input in sharing}
    for input in inputs:
        if input.reads and found[input.name] is None:
            raise errors.ArgumentTypeError(
                f"train needs a reader for the program {input.name!r}, which reads {', '.join(input.reads)}. "
                f"{_corrected(inputs)}"
            )
    if all(reader is None for reader in found.values()):
        raise errors.ArgumentTypeError(
            f"train needs a reader, since an epoch ends with one, and no program has feeds; a reader of as many items "
            f"as its program shall have steps in an epoch will do: trainer.train({{{inputs[0].name!r}: range(1000)}})"
        )
    for input in inputs:
        check_reader("train", found[input.name], input.program.table)
    return tuple(found[input.name] for input in inputs)


def check_data(method: str, feeds: Any, reader: ReaderLike | None, second: Any = None) -> ReaderLike:
    """Check the argument `reader` of a method of Trainer, and return the reader.

    Raises:
      ArgumentTypeError: there is no reader, or there are arrays instead of a reader.
    """
    if reader is None:
        raise errors.ArgumentTypeError(f"{method} needs a reader: trainer.{method}(reader=train_reader)")
    if reader_misuse.is_data(second):
        epochs = ", num_epochs=10" if method == "train" else ""
        raise errors.ArgumentTypeError(
            f"{method} needs a reader of minibatches, found arrays, one for each feed; say which is which, and how "
            f"many rows make a minibatch: trainer.{method}(fluid.reader.arrays({reader_misuse.spelled(feeds)}, "
            f"batch_size=32{', shuffle=True' if method == 'train' else ''}){epochs})"
        )
    return reader


def source_of(
    inputs: Sequence[ProgramInput], readers: Sequence[ReaderLike | None], plan: ProgramOrder | None, first: int
) -> Source:
    """Return the source of the minibatches of a call of `train`.

    Raises:
      ArgumentError: an epoch would never end.
    """
    if plan is None:
        assert readers[0] is not None
        source = minibatches(readers[0])
        inputs[0].divide(source)
        return source
    passes = {id(reader): minibatches(reader) for reader in readers if reader is not None}
    sources = [None if reader is None else passes[id(reader)] for reader in readers]
    names = [input.name for input in inputs]
    if plan.schedule.by_epoch and None in sources:
        raise errors.ArgumentError(
            f'schedule="epoch": an epoch is a pass over the reader of its program, and {names[sources.index(None)]!r} '
            f"has none. {_corrected(inputs)}"
        )
    leading = next(i for i, source in enumerate(sources) if source is not None)
    if plan.epoch_of is not None:
        leading = names.index(plan.epoch_of)
        if sources[leading] is None:
            raise errors.ArgumentError(
                f"epoch_of={plan.epoch_of!r}: an epoch ends with the reader of that program, and it has none. "
                f"{_corrected(inputs)}"
            )
    return Turns(sources, plan.schedule, leading, first)


def pipeline_of(
    inputs: Sequence[ProgramInput], source: Source, order: FeedOrder, buckets: Sequence[Buckets]
) -> InputPipeline:
    """Return the InputPipeline, which reads the minibatches of a call of `train` and converts them to feeds.

    Raises:
      ArgumentError: `order` is set, and there are several programs.
    """
    if len(inputs) > 1 and order is not None:
        raise errors.ArgumentError(
            f"train(feed_order={order!r}): each of several programs has an order of its own; write "
            f"fluid.TrainingProgram({inputs[0].name}, optimizer, feed_order=...)"
        )
    converters = [input.converter(order, its, trains=True) for input, its in zip(inputs, buckets, strict=True)]
    return InputPipeline(source, converters, keeps_positions=True)


def warn_of_idle(inputs: Sequence[ProgramInput], source: Source) -> None:
    """Warn of programs that a call of `train` has not trained in any step, at the end of the call."""
    if not isinstance(source, Turns):
        return
    counts = source.counts
    idle = [repr(input.name) for input, count in zip(inputs, counts, strict=True) if not count]
    if idle and sum(counts):
        warn(
            f"{' and '.join(idle)} {'was' if len(idle) == 1 else 'were'} not trained in any of {sum(counts)} steps: "
            f"the schedule of the Trainer gave no step to {'it' if len(idle) == 1 else 'them'}"
        )


def _corrected(inputs: Sequence[ProgramInput]) -> str:
    readers = ", ".join(f"{input.name!r}: {input.name}_reader" for input in inputs)
    return f"Write trainer.train({{{readers}}}, num_epochs=...)"


def program_inputs_of(
    declared: Sequence[TrainingProgram], programs: Sequence[Program], session: Session
) -> list[ProgramInput]:
    """Return the ProgramInputs of a Trainer; a program with feeds from other programs has a Chain.

    Raises:
      UnknownNameError: `feed_from` names an unknown feed, program or value.
      ArgumentError: a value does not match its feed, or programs need each other's values in a cycle.
    """
    inputs = {p.name: ProgramInput(each, p, session) for each, p in zip(declared, programs, strict=True)}
    for name in inputs:
        _linked(name, inputs, session, ())
    feeds = frozenset(feed for program in programs for feed in program.feeds)
    for input in inputs.values():
        input.others = feeds - input.reads.keys()
    return list(inputs.values())


def program_input_called(
    program: str | ProgramFunction | None, inputs: Sequence[ProgramInput], method: str
) -> ProgramInput:
    """Return the ProgramInput with the given name or program function.

    Raises:
      ArgumentTypeError: `program` is None, and there are several programs.
      UnknownNameError: no program has this name or function.
    """
    names = [input.name for input in inputs]
    if program is None and len(inputs) == 1:
        return inputs[0]
    if program is None:
        raise errors.ArgumentTypeError(
            f"{method}: which of the programs {', '.join(map(repr, names))} is meant is not said; write "
            f"{method}(..., program={names[0]!r})"
        )
    found = next((m for m in inputs if program == m.name or program is m.declared.program_func), None)
    if found is None:
        shown = program if isinstance(program, str) else getattr(program, "__name__", repr(program))
        raise errors.UnknownNameError(f"{method}: there is no program {shown!r}. {errors.nearest(shown, names)}")
    return found


def _linked(name: str, inputs: Mapping[str, ProgramInput], session: Session, waiting: tuple[str, ...]) -> Chain | None:
    """Create the Chain of a program, which computes feeds of the program from values of other programs.

    The Chains of those programs are created first. The result is None for a program without `feed_from`.
    """
    input = inputs[name]
    if not input.declared.feed_from or input.chain is not None:
        return input.chain
    if name in waiting:
        raise errors.ArgumentError(
            f"feed_from: the programs {' -> '.join([*waiting, name])} wait for each other; one of them must read all "
            f"of its feeds"
        )
    program = input.program
    sources = _sources(input, inputs)
    links = []
    reads = {feed: spec for feed, spec in program.feeds.items() if feed not in input.declared.feed_from}
    for source, wanted in sources.items():
        other = inputs[source]
        chain = _linked(source, inputs, session, (*waiting, name))
        values = tuple(value for _, value in wanted)
        for feed, value in wanted:
            check_fetch(other.program, value)
            _check_fits(program, feed, other.program, value)
        needs = needed_feeds(session, other.program, values, ConstantFeeds({}, {}))
        chained = other.declared.feed_from or {}
        wants_chain = any(feed in chained for feed in needs)
        read = {n: s for n, s in other.reads.items() if n in needs or (wants_chain and n not in other.program.feeds)}
        _add(reads, read, program, other.program)
        step = bind(session.engine, other.program, Request(TEST, values, needs))
        links.append(Link(step, tuple(feed for feed, _ in wanted), chain if wants_chain else None))
    input.chain = Chain(tuple(program.feeds), links, reads)
    return input.chain


def _sources(input: ProgramInput, inputs: Mapping[str, ProgramInput]) -> dict[str, list[tuple[str, str]]]:
    """Return the pairs (feed name, value name) in `feed_from`, by the name of the program that computes the value.

    `feed_from` names values of other programs, which the program of `input` receives as feeds.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for feed, written in (input.declared.feed_from or {}).items():
        if feed not in input.program.feeds:
            raise errors.UnknownNameError(
                f"feed_from: the program {input.name} has no feed {feed!r}. {errors.nearest(feed, input.program.feeds)}"
            )
        source, slash, value = written.partition("/") if isinstance(written, str) else ("", "", "")
        if not slash or source not in inputs or source == input.name:
            others = [name for name in inputs if name != input.name]
            raise errors.UnknownNameError(
                f"feed_from={{{feed!r}: {written!r}}}: expected the name of another program and of one of its values, "
                f"as in {f'{others[0]}/output' if others else 'generator/image'!r}. {errors.nearest(source, others)}"
            )
        found.setdefault(source, []).append((feed, value))
    return found


def _add(reads: dict[str, FeedSpec], more: Mapping[str, FeedSpec], mine: Program, other: Program) -> None:
    """Add the feeds `more`, which `other` needs, to the feeds `reads` in minibatches of the program `mine`."""
    for name, spec in more.items():
        known = reads.setdefault(name, spec)
        if (known.shape, known.dtype, known.lod_level) != (spec.shape, spec.dtype, spec.lod_level):
            raise errors.ArgumentError(
                f"feed_from: {mine.name} and {other.name} read {name!r} from one minibatch, and declare it "
                f"as {known.dtype}{list(known.shape)} and {spec.dtype}{list(spec.shape)}; give one of them another name"
            )


def _check_fits(program: Program, feed: str, other: Program, value: str) -> None:
    """Raise ArgumentError if the value `value` of `other` differs in shape or dtype from the feed of `program`."""
    spec = program.feeds[feed]
    named = other.output_names or ()
    if value in named:
        found = other.outputs[list(named).index(value)]
    elif (name := other.aliases.get(value, value)) in other.values:
        found = other.values[name]
    else:
        return
    same_rank = len(found.shape) == len(spec.shape) or spec.lod_level
    fits = same_rank and all(a == b or None in (a, b) for a, b in zip(found.shape[1:], spec.shape[1:], strict=False))
    if not fits or jax.dtypes.canonicalize_dtype(found.dtype) != spec.held:
        raise errors.ArgumentError(
            f"feed_from={{{feed!r}: '{other.name}/{value}'}}: the value is {found}, and the feed is declared as "
            f"{spec.dtype}{list(spec.shape)} at {spec.site}; declare it as the value is: "
            f"fluid.layers.data({feed!r}, shape={list(found.shape[1:])}, dtype={found.dtype!r})"
        )
