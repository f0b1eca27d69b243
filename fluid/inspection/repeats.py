"""Repeated blocks of a program, each drawn once."""

import itertools
import math
from collections.abc import Sequence

from fluid.inspection.graph import Box, layers

# Fewer boxes than this are not worth the thought that a reader spends on an abbreviation.
_WORTHWHILE = 4


def collapse(root: Box) -> None:
    """Replace neighbouring blocks of equal structure, at any depth, by one block in a frame with their number.

    Each of the blocks reads a result of the block before.
    """
    for frame in [box for box in root.walk() if box.inside]:
        frame.inside = _collapsed(frame.inside, root)


def _collapsed(boxes: list[Box], root: Box) -> list[Box]:
    """Return neighbouring boxes with repeated blocks replaced; `root` is the frame of everything."""
    start, period, times = _longest_run(boxes)
    if not times:
        return boxes
    end = start + times * period
    _merge([layers(boxes[i : i + period]) for i in range(start, end, period)], root)
    shown, title, first = boxes[start : start + period], f"× {times}", boxes[start]
    if period == 1 and first.kind == "scope":
        shown, title = first.inside, f"{first.lines[0]} to {boxes[end - 1].lines[0]}: {title}"
    repeated = Box("loop", [title], inside=_collapsed(shown, root))
    return [*_collapsed(boxes[:start], root), repeated, *_collapsed(boxes[end:], root)]


def _longest_run(boxes: list[Box]) -> tuple[int, int, int]:
    """Return start, length and number of the blocks that save most layers; three zeros if no blocks are worthwhile."""
    keys = [_structure(box) for box in boxes]
    counts = [0, *itertools.accumulate(len(layers([box])) for box in boxes)]
    best = (_WORTHWHILE, -math.inf, 0, 0, 0)
    for period in range(1, len(boxes) // 2 + 1):
        for start in range(len(boxes) - 2 * period + 1):
            second = start + period
            if counts[-1] - counts[second] < best[0] or keys[start:second] != keys[second : second + period]:
                continue
            handed = _handed([boxes[i : i + period] for i in range(start, len(boxes), period)])
            # Of runs that save as much, blocks that hand over fewest values end where the user's blocks end. Boxes
            # before a run often look like the end of a block, so then the last run.
            saved = len(handed) * (counts[second] - counts[start])
            best = max(best, (saved, -sum(handed), start, period, len(handed) + 1))
    return best[2:]


def _handed(blocks: Sequence[list[Box]]) -> list[int]:
    """Return how many values each block hands to the next, as long as blocks repeat the first one."""
    pattern, before = _pattern(blocks[0])
    handed: list[int] = []
    following: dict[Box, Box] = {}
    for last, block in itertools.pairwise(blocks):
        again, outside = _pattern(block)
        common = set(outside).intersection(layers(last))
        # The first block may read anything in place of results of a block before it.
        alike = not handed or all(b in (a, following.get(a)) for a, b in zip(before, outside, strict=False))
        if again != pattern or not common or not alike:
            break
        handed.append(len(common))
        following |= zip(layers(last), layers(block), strict=True)
        before = outside
    return handed


def _pattern(block: list[Box]) -> tuple[object, list[Box]]:
    """Return a value that is equal for blocks of equal structure and wiring, and the layers that a block reads."""
    inner = layers(block)
    numbers = {layer: number for number, layer in enumerate(inner)}
    wiring = [[numbers.setdefault(source, -len(numbers)) for source in layer.inputs] for layer in inner]
    return ([_structure(box) for box in block], wiring), list(numbers)[len(inner) :]


def _structure(box: Box) -> object:
    """Return a value that is equal for boxes that look the same, whatever they are called."""
    if box.inside:
        times = box.lines[0].rpartition("×")[2] if box.kind == "loop" else ""
        return times, [_structure(inner) for inner in box.inside]
    return box.structure or object()


def _merge(blocks: Sequence[Sequence[Box]], root: Box) -> None:
    """Let the first block stand for all, and drop the edges from one block to another."""
    turns = {box: turn for turn, block in enumerate(blocks) for box in block}
    shown = {box: same[0] for same in zip(*blocks, strict=True) for box in same}
    for same in zip(*blocks, strict=True):
        same[0].hover = ", ".join(box.lines[0] for box in same) + f"\n{same[0].hover}"
        same[0].inputs = [s for box in same for s in box.inputs if turns.get(s, turns[box]) == turns[box]]
    for layer in layers([root]):
        layer.inputs = list(dict.fromkeys(shown.get(source, source) for source in layer.inputs))
