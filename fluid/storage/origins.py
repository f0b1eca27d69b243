"""Origins of arrays in files: whether an array belongs to the layer that would take it, or to another of that name."""

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fluid.core import Origin

_SHOWN = 5


def packed(origins: Mapping[str, Origin]) -> dict[str, dict[str, Any]]:
    """Origins by name, as JSON."""
    return {name: origin._asdict() for name, origin in origins.items()}


def unpacked(listing: Mapping[str, Mapping[str, Any]]) -> dict[str, Origin]:
    """Read what `packed` made.

    Raises:
      KeyError, TypeError, AttributeError: it is something else.

    Example:
      >>> unpacked(packed({"fc_0.w_0": Origin("fc", "net.py:3 in net")}))["fc_0.w_0"].site
      'net.py:3 in net'
    """
    return {
        name: Origin(str(of["kind"]), str(of["site"]), tuple(map(str, of["lines"])), of.get("place"))
        for name, of in listing.items()
    }


class Doubt(NamedTuple):
    """Why an array may not be what a program means.

    Attributes:
      text: which lines have made it, there and here.
      likely: names there of what may be meant instead, as far as something says so.
    """

    text: str
    likely: list[str]


def doubts(
    taken: Collection[str],
    here: Mapping[str, Origin],
    there: Mapping[str, Origin],
    found: Mapping[str, Any],
    unused: Collection[str],
) -> dict[str, Doubt]:
    """Find arrays that belong to other layers than those that would take them, although name and shape agree.

    Automatic names number the layers of a program. A part of a net that is built by itself therefore calls its first
    layer `fc_0`, which may be the name of another one in the file. Such an array is doubtful if the file has another
    one of the same kind and shape that the program leaves unused, and neither of these speaks for the one of that name:
    its layer comes after the same feeds and layers; or it alone was made by the same lines of the program functions.
    Lines are compared by their text, so that they may move; where functions are renamed or written anew, or where one
    line makes several layers, the place counts.

    Args:
      taken: names of the arrays that would be taken.
      here: origins in the program.
      there: origins in the file.
      found: all arrays of the file.
      unused: names in the file that the program does not have.
    """
    others: dict[Any, list[str]] = {}
    for name in unused:
        if name in there:
            others.setdefault(_sort_of(name, there[name], found[name]), []).append(name)
    wrong: dict[str, Doubt] = {}
    for name in taken:
        if name in here and name in there:
            alike = others.get(_sort_of(name, there[name], found[name]), [])
            likely = _better(here[name], there[name], {n: there[n] for n in alike}) if alike else None
            if likely is not None:
                wrong[name] = Doubt(_told(here[name], there[name], {n: there[n].site for n in likely}), likely)
    return wrong


def refusal(found: Mapping[str, Doubt], where: str) -> str:
    """The message for arrays that are doubtful, and what to do about it.

    Args:
      found: what `doubts` returned.
      where: what the arrays came from.
    """
    lines = [f"  {name}: {doubt.text}" for name, doubt in list(found.items())[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"  ... and {len(found) - _SHOWN} more")
    pairs = [(doubt.likely[0], name) for name, doubt in found.items() if len(doubt.likely) == 1][:2]
    renames = ", ".join(f'"{a}": "{b}", "{b}": "{a}"' for a, b in pairs) or '"NAME THERE": "NAME HERE"'
    return (
        f"{where}: these arrays have the names and shapes of parameters of the program, but seem to belong to other "
        f"layers:\n" + "\n".join(lines) + "\n"
        f"automatic names number the layers of each program from 0 on, so that those of a part that is built by itself "
        f'are others. Name the layers where they are defined, fc(..., name="hidden"), and train again; or say which is '
        f"which: rename={{{renames}}}; or, where the program was only written anew, take arrays by name and shape: "
        f"strict=False"
    )


def _told(here: Origin, there: Origin, likely: Mapping[str, str]) -> str:
    """Which lines have made an array, and the lines of what may be meant instead, by name."""
    made = f"made at {there.site} there, and at {here.site} here"
    if not likely:
        return f"{made}, where it comes after other feeds or layers"
    return f"{made}; what is meant may be {' or '.join(f'{name} ({site})' for name, site in list(likely.items())[:2])}"


def _sort_of(name: str, origin: Origin, array: Any) -> Any:
    """What two arrays have in common that could be taken for each other: all but the number in the name."""
    kind = re.escape(origin.kind)
    parts = re.fullmatch(rf"((?:.*/)?){kind}_\d+([./].+)", name)
    return (name if parts is None else (parts[1], origin.kind, parts[2])), tuple(array.shape), str(array.dtype)


def _better(mine: Origin, same_name: Origin, others: Mapping[str, Origin]) -> list[str] | None:
    """Which of the others are what a program seems to mean instead of the array of the name that it uses.

    The list is empty where it is some other one, but nothing says which; None stands for no doubt.

    Args:
      mine: the origin in the program.
      same_name: the origin of the array of that name.
      others: origins of those that it could be instead.
    """
    before = same_name.lines
    lines = {name: _common(mine.lines, other.lines) for name, other in others.items()}
    agreeing = _common(mine.lines, before)
    if not agreeing and not any(lines.values()):  # what was copied into a function of another name
        lines = {name: _common(_texts(mine.lines), _texts(other.lines)) for name, other in others.items()}
        agreeing = _common(_texts(mine.lines), _texts(before))
    longest = max(lines.values())
    closer = [name for name, count in lines.items() if count == longest > agreeing]
    same_place = None in (mine.place, same_name.place) or mine.place == same_name.place
    # Changed a little, a line may read as another one did. What the function does not call at all has not just changed.
    if closer and not (same_place and _still_runs(mine.lines, before, agreeing)):
        return closer
    if same_place or agreeing > longest:
        return None
    return [name for name, count in lines.items() if count == longest and others[name].place == mine.place]


def _common(first: tuple[str, ...], second: tuple[str, ...]) -> int:
    """How many lines, from the innermost on, are the same."""
    count = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        count += 1
    return count


def _texts(lines: tuple[str, ...]) -> tuple[str, ...]:
    """The lines without the functions they are in."""
    return tuple(line.partition(":")[2] for line in lines)


def _still_runs(lines: tuple[str, ...], before: tuple[str, ...], level: int) -> bool:
    """Whether the function whose line differs first is one of those that run now."""
    functions = {line.partition(":")[0] for line in lines[level:]}
    return level >= len(before) or before[level].partition(":")[0] in functions
