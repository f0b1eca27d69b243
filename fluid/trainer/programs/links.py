"""Links between the programs of a Trainer: feeds of one program that another program computes, by `feed_from`."""

from collections.abc import Mapping, Sequence

import jax

from fluid import errors
from fluid.core import TEST, FeedSpec, Program
from fluid.runtime import Request, Session, check_fetch
from fluid.runtime.compiled_step import bind
from fluid.runtime.prediction import Constant, needed_feeds
from fluid.trainer.programs.chain import Chain, Link
from fluid.trainer.programs.member import Member
from fluid.trainer.programs.training_program import ProgramFunction, TrainingProgram


def members_of(declared: Sequence[TrainingProgram], programs: Sequence[Program], session: Session) -> list[Member]:
    """Return the members of a Trainer, with a Chain for each member whose feeds other programs compute.

    Args:
      declared: the TrainingPrograms of the user.
      programs: the discovered Program of each TrainingProgram.
      session: the session of the Trainer.

    Raises:
      UnknownNameError: `feed_from` names an unknown feed, program or value.
      ArgumentError: a value does not match its feed, or programs need each other's values in a cycle.
    """
    members = {p.name: Member(each, p, session) for each, p in zip(declared, programs, strict=True)}
    for name in members:
        _linked(name, members, session, ())
    feeds = frozenset(feed for program in programs for feed in program.feeds)
    for member in members.values():
        member.others = feeds - member.reads.keys()
    return list(members.values())


def member_called(program: str | ProgramFunction | None, members: Sequence[Member], method: str) -> Member:
    """Return the member with the given name or program function.

    Args:
      program: the name or the function of the program; None for the only member.
      members: all members of the Trainer.
      method: the calling method, for error messages.

    Raises:
      ArgumentTypeError: `program` is None, and there are several programs.
      UnknownNameError: no program has this name or function.
    """
    names = [member.name for member in members]
    if program is None and len(members) == 1:
        return members[0]
    if program is None:
        raise errors.ArgumentTypeError(
            f"{method}: which of the programs {', '.join(map(repr, names))} is meant is not said; write "
            f"{method}(..., program={names[0]!r})"
        )
    found = next((m for m in members if program == m.name or program is m.declared.program_func), None)
    if found is None:
        shown = program if isinstance(program, str) else getattr(program, "__name__", repr(program))
        raise errors.UnknownNameError(f"{method}: there is no program {shown!r}. {errors.nearest(shown, names)}")
    return found


def _linked(name: str, members: Mapping[str, Member], session: Session, waiting: tuple[str, ...]) -> Chain | None:
    """Return the chain of a member, created with the chains that it needs; None for a member without `feed_from`.

    Args:
      name: the name of the member.
      members: all members, by name.
      session: the session of the Trainer.
      waiting: the names of the members whose chains need this chain, to detect a cycle.
    """
    member = members[name]
    if not member.declared.feed_from or member.chain is not None:
        return member.chain
    if name in waiting:
        raise errors.ArgumentError(
            f"feed_from: the programs {' -> '.join([*waiting, name])} wait for each other; one of them must read all "
            f"of its feeds"
        )
    program = member.program
    sources = _sources(member, members)
    links = []
    reads = {feed: spec for feed, spec in program.feeds.items() if feed not in member.declared.feed_from}
    for source, wanted in sources.items():
        other = members[source]
        chain = _linked(source, members, session, (*waiting, name))
        values = tuple(value for _, value in wanted)
        for feed, value in wanted:
            check_fetch(other.program, value)
            _check_fits(program, feed, other.program, value)
        needs = needed_feeds(session, other.program, values, Constant({}, {}))
        chained = other.declared.feed_from or {}
        wants_chain = any(feed in chained for feed in needs)
        read = {n: s for n, s in other.reads.items() if n in needs or (wants_chain and n not in other.program.feeds)}
        _add(reads, read, program, other.program)
        step = bind(session.engine, other.program, Request(TEST, values, needs))
        links.append(Link(step, tuple(feed for feed, _ in wanted), chain if wants_chain else None))
    member.chain = Chain(tuple(program.feeds), links, reads)
    return member.chain


def _sources(member: Member, members: Mapping[str, Member]) -> dict[str, list[tuple[str, str]]]:
    """Return, by name of another program, the pairs of a feed of a member and the value that becomes this feed."""
    found: dict[str, list[tuple[str, str]]] = {}
    for feed, written in (member.declared.feed_from or {}).items():
        if feed not in member.program.feeds:
            raise errors.UnknownNameError(
                f"feed_from: the program {member.name} has no feed {feed!r}. "
                f"{errors.nearest(feed, member.program.feeds)}"
            )
        source, slash, value = written.partition("/") if isinstance(written, str) else ("", "", "")
        if not slash or source not in members or source == member.name:
            others = [name for name in members if name != member.name]
            raise errors.UnknownNameError(
                f"feed_from={{{feed!r}: {written!r}}}: expected the name of another program and of one of its values, "
                f"as in {f'{others[0]}/output' if others else 'generator/image'!r}. {errors.nearest(source, others)}"
            )
        found.setdefault(source, []).append((feed, value))
    return found


def _add(reads: dict[str, FeedSpec], more: Mapping[str, FeedSpec], mine: Program, other: Program) -> None:
    """Add to `reads`, the feeds in the minibatches of the program `mine`, the feeds `more` of the program `other`.

    Raises:
      ArgumentError: both programs declare a feed of one name, with another shape or dtype.
    """
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
