"""Repeated blocks: a drawing shows equal consecutive blocks once, and keeps all other layers."""

import itertools

from hypothesis import given
from hypothesis import strategies as st
from inspection import nets

import fluid
from fluid import layers
from fluid.inspection.drawing import Box, boxes_of, collapse
from fluid.inspection.drawing import layers as layers_in
from fluid.inspection.inspected import inspect
from fluid.inspection.partition import Sizes
from fluid.inspection.summary_table import rows_of


def boxes(function):
    programs = inspect(function, Sizes(16, 16, 16))
    root = boxes_of(programs, rows_of(programs))
    collapse(root)
    return root


def frames(root):
    """Yield all frames (boxes that contain boxes) inside a box of a program drawing, outer frames first."""
    for box in root.inside:
        if box.inside:
            yield box
            yield from frames(box)


def titles(root):
    return [frame.lines[0] for frame in frames(root)]


def names(root):
    return [layer.lines[0] for layer in layers_in([root])]


def edges(root):
    return [(source.lines[0], target.lines[0]) for target in layers_in([root]) for source in target.inputs]


def chain(kinds):
    """Return the drawing of a net: a chain with one layer for each name in `kinds`; repeated blocks are drawn once."""
    found = [Box("layer", [kind], structure=(kind,)) for kind in kinds]
    for source, target in itertools.pairwise(found):
        target.inputs.append(source)
    root = Box("scope", [], inside=found)
    collapse(root)
    return root


def unrolled(inside):
    """Return the kinds of layers in a drawing, in order; the layers of a repeated block appear repeatedly."""
    found = []
    for box in inside:
        found += unrolled(box.inside) * int(box.lines[0].removeprefix("× ")) if box.inside else [box.lines[0]]
    return found


@given(st.lists(st.sampled_from("ab"), max_size=40))
def test_a_chain_means_the_same_as_before(kinds):
    found = chain(kinds)
    assert unrolled(found.inside) == kinds
    drawn = layers_in(found.inside)
    assert len(edges(found)) <= max(0, len(drawn) - 1)
    assert {source for layer in drawn for source in layer.inputs} <= set(drawn)


@given(st.integers(2, 9), st.integers(4, 6))
def test_a_chain_of_equal_blocks_is_drawn_once(times, period):
    kinds = [*map(str, range(period))] * times
    found = chain(["first", *kinds, "last"])
    assert titles(found) == [f"× {times}"]
    assert names(found) == ["first", *map(str, range(period)), "last"]
    assert edges(found) == list(zip(["first", *kinds[:period]], [*kinds[:period], "last"], strict=True))


def test_short_repetitions_are_not_folded():
    assert not titles(chain("xaaaay"))
    assert titles(chain("xaaaaay")) == ["× 5"]


def test_a_loop_of_python():
    found = boxes(nets.residual)
    assert titles(found) == ["× 4"]
    assert edges(found) == [
        ("x", "fc_0"),
        ("fc_0", "fc_1"),
        ("fc_1", "add"),
        ("x", "add"),
        ("add", "relu_0"),
        ("relu_0", "fc_8"),
        ("fc_8", "output"),
    ]
    repeated = next(frames(found)).inside[0]
    assert repeated.hover.startswith("fc_0, fc_2, fc_4, fc_6\n")


def test_blocks_end_where_the_block_before_them_ends():
    """Check that a drawing of a program marks three blocks as repeated, and not the first block, which differs.

    The last two layers of the first block equal layers of the other blocks, but no repeated block begins there.
    """

    def program():
        hidden = layers.fc(layers.data("x", shape=[8]), size=8)
        for block in range(4):
            within = layers.fc(hidden, size=16 if block == 0 else 8, act="relu")
            hidden = layers.tanh(layers.fc(layers.fc(within, size=4), size=8))
        return hidden

    found = boxes(program)
    assert titles(found) == ["× 3"] and names(next(frames(found))) == ["fc_4", "fc_5", "fc_6", "tanh_1"]


def test_blocks_in_name_scopes_and_in_blocks():
    def program():
        x = layers.data("x", shape=[8])
        mask = layers.data("mask", shape=[8])
        for stage in range(3):
            with fluid.name_scope(f"stage_{stage}"):
                for _ in range(4):
                    x = x + layers.fc(layers.fc(x, size=8, act="relu"), size=8)
                x = layers.layer_norm(x * mask)
        return layers.fc(x, size=2)

    found = boxes(program)
    assert titles(found) == ["stage_0 to stage_2: × 3", "× 4"]
    assert names(found) == [*("x", "mask", "fc_0", "fc_1", "add", "mul", "layer_norm_0", "fc_0", "output")]
    assert edges(found).count(("mask", "mul")) == 1
    assert set(edges(found)) == {
        *(("x", "fc_0"), ("x", "add"), ("fc_0", "fc_1"), ("fc_1", "add"), ("add", "mul"), ("mask", "mul")),
        *(("mul", "layer_norm_0"), ("layer_norm_0", "fc_0"), ("fc_0", "output")),
    }


def test_parallel_twins_are_drawn_separately():
    def tower(x):
        for _ in range(2):
            x = layers.tanh(layers.fc(x, size=8))
        return layers.softmax(layers.fc(x, size=4))

    def program():
        return layers.concat([tower(layers.data("x", shape=[8])), tower(layers.data("y", shape=[8]))], axis=1)

    assert not titles(boxes(program))


def test_wires_that_skip_a_block_are_no_repetition():
    """Check that a drawing folds no blocks with unequal inputs: every second block also adds the first value."""

    def program():
        x = layers.data("x", shape=[8])
        first = hidden = layers.relu(layers.fc(x, size=8))
        for block in range(4):
            hidden = layers.relu(layers.fc(hidden, size=8) + (first if block % 2 else hidden))
        return hidden

    assert not titles(boxes(program))


def test_blocks_that_share_an_outside_value_are_folded():
    def program():
        x = layers.data("x", shape=[8])
        outside = layers.fc(x, size=8)
        hidden = layers.fc(x, size=8)
        for _ in range(4):
            hidden = layers.tanh(layers.fc(hidden, size=8) * outside)
        return hidden

    found = boxes(program)
    assert titles(found) == ["× 4"]
    assert set(edges(found)) == {
        *(("x", "fc_0"), ("x", "fc_1"), ("fc_1", "fc_2"), ("fc_0", "mul"), ("fc_2", "mul")),
        *(("mul", "tanh_0"), ("tanh_0", "output")),
    }


def test_shared_layers_are_no_repetition_of_the_first():
    def program():
        x = layers.data("x", shape=[8])
        for _ in range(6):
            x = layers.fc(x, size=8, param_attr="w", bias_attr="b")
        return x

    found = boxes(program)
    assert titles(found) == ["× 5"]
    assert [box.lines[2] for box in layers_in([found]) if box.kind == "layer"] == ["72 parameters", "shared parameters"]
