"""Blocks that are repeated are drawn once, and nothing else is."""

from hypothesis import given
from hypothesis import strategies as st
from inspection import nets

import fluid
from fluid import layers
from fluid.inspection.graph import Graph, Group, Node, graph_of
from fluid.inspection.programs import look
from fluid.inspection.repeats import collapsed
from fluid.inspection.rows import rows_of
from fluid.inspection.trace import Sizes


def graph(function):
    programs = look(function, Sizes(16, 16, 16))
    return collapsed(graph_of(programs, rows_of(programs)))


def groups(item):
    """All groups in a group, at any depth."""
    for inner in item.items:
        if isinstance(inner, Group):
            yield inner
            yield from groups(inner)


def titles(found):
    return [group.title for group in groups(found.root)]


def edges(found):
    return [(source.lines[0], target.lines[0]) for source, target in found.edges]


def node(kind, **options):
    return Node("layer", [kind], structure=(kind,), **options)


def chain(kinds):
    """A graph in which each box reads the one before."""
    nodes = [node(kind) for kind in kinds]
    return Graph(Group("program", "", list(nodes)), list(zip(nodes, nodes[1:], strict=False)))


def unrolled(items):
    """The kinds of boxes that a drawing stands for, in order."""
    found = []
    for item in items:
        if isinstance(item, Group):
            times = int(item.title.removeprefix("× ")) if item.kind == "repeated" else 1
            found += unrolled(item.items) * times
        else:
            found.append(item.lines[0])
    return found


@given(st.lists(st.sampled_from("ab"), max_size=40))
def test_a_chain_means_the_same_as_before(kinds):
    found = collapsed(chain(kinds))
    assert unrolled(found.root.items) == kinds
    drawn = list(found.root.nodes())
    assert len(found.edges) <= max(0, len(drawn) - 1)
    assert {n for edge in found.edges for n in edge} <= set(drawn)


@given(st.integers(2, 9), st.integers(4, 6))
def test_a_chain_of_one_kind_of_block_is_one_block(times, period):
    kinds = [*map(str, range(period))] * times
    found = collapsed(chain(["first", *kinds, "last"]))
    assert titles(found) == [f"× {times}"]
    assert [n.lines[0] for n in found.root.nodes()] == ["first", *map(str, range(period)), "last"]
    assert edges(found) == list(zip(["first", *kinds[:period]], [*kinds[:period], "last"], strict=True))


def test_few_boxes_are_not_worth_it():
    assert not titles(collapsed(chain("xaaaay")))
    assert titles(collapsed(chain("xaaaaay"))) == ["× 5"]


def test_a_loop_of_python():
    found = graph(nets.residual)
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
    repeated = next(groups(found.root)).items[0]
    assert repeated.hover.startswith("fc_0, fc_2, fc_4, fc_6\n")


def test_blocks_end_where_the_block_before_them_ends():
    """The last two layers of the first block look like those of the blocks after it, but do not begin one of these."""

    def program():
        hidden = layers.fc(layers.data("x", shape=[8]), size=8)
        for block in range(4):
            within = layers.fc(hidden, size=16 if block == 0 else 8, act="relu")
            hidden = layers.tanh(layers.fc(layers.fc(within, size=4), size=8))
        return hidden

    found = graph(program)
    group = next(groups(found.root))
    assert group.title == "× 3" and [n.lines[0] for n in group.items] == ["fc_4", "fc_5", "fc_6", "tanh_1"]


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

    found = graph(program)
    assert titles(found) == ["stage_0 to stage_2: × 3", "× 4"]
    assert [n.lines[0] for n in found.root.nodes()] == [
        *("x", "mask", "fc_0", "fc_1", "add", "mul", "layer_norm_0", "fc_0", "output")
    ]
    assert edges(found).count(("mask", "mul")) == 1
    assert set(edges(found)) == {
        *(("x", "fc_0"), ("x", "add"), ("fc_0", "fc_1"), ("fc_1", "add"), ("add", "mul"), ("mask", "mul")),
        *(("mul", "layer_norm_0"), ("layer_norm_0", "fc_0"), ("fc_0", "output")),
    }


def test_twins_side_by_side_are_drawn_side_by_side():
    def tower(x):
        for _ in range(2):
            x = layers.tanh(layers.fc(x, size=8))
        return layers.softmax(layers.fc(x, size=4))

    def program():
        return layers.concat([tower(layers.data("x", shape=[8])), tower(layers.data("y", shape=[8]))], axis=1)

    assert not titles(graph(program))


def test_wires_that_skip_a_block_are_no_repetition():
    """Each block but the first reads what the first one made."""

    def program():
        x = layers.data("x", shape=[8])
        first = hidden = layers.relu(layers.fc(x, size=8))
        for block in range(4):
            hidden = layers.relu(layers.fc(hidden, size=8) + (first if block % 2 else hidden))
        return hidden

    found = graph(program)
    assert titles(found) == ["× 2"]
    assert len(next(groups(found.root)).items) == 6


def test_shared_layers_are_no_repetition_of_the_first():
    def program():
        x = layers.data("x", shape=[8])
        for _ in range(6):
            x = layers.fc(x, size=8, param_attr="w", bias_attr="b")
        return x

    found = graph(program)
    assert titles(found) == ["× 5"]
    assert [n.lines[2] for n in found.root.nodes() if n.kind == "layer"] == ["72 parameters", "shared parameters"]
