"""Drawings of programs: all layers and edges are visible, and no element hides another element."""

import itertools
import json
import re
import time
from xml.etree import ElementTree

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspection import nets

import fluid
from fluid import layers
from fluid.inspection import drawing as graph
from fluid.inspection.drawing import Box, lay_out

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawing):
    return [text.text for text in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")]


def test_each_layer_box_shows_shape_and_parameters():
    shown = texts(fluid.draw(nets.digits))
    at = shown.index("conv2d_0")
    assert shown[at : at + 3] == ["conv2d_0", "float32[batch, 20, 6, 6]", "200 parameters"]
    assert {"image", "label", "loss", "accuracy", "batch_norm_0", "mean_0"} <= set(shown)


def test_loss_box_names_its_optimizer():
    shown = texts(fluid.draw(fluid.Trainer(nets.digits, fluid.optimizer.Adam(1e-3))))
    assert shown[shown.index("loss") + 1] == "minimised by Adam"
    assert shown.count("minimised by Adam") == 1


def test_scopes_loops_and_programs_are_frames():
    shown = texts(fluid.draw(nets.recurrent))
    assert "dynamic_rnn_0 × time" in shown and "repeat_0 × 3" in shown and "fc_0" in shown
    both = texts(fluid.draw(fluid.Session(nets.train_discriminator, nets.train_generator)))
    assert both.count("generator") == 2 and {"train_discriminator", "train_generator"} <= set(both)


def test_tooltips_show_source_lines_and_parameter_names():
    titles = [t.text for t in ElementTree.fromstring(fluid.draw(nets.digits).svg).iter(f"{SVG}title")]
    conv = next(title for title in titles if title.startswith("conv2d_0\n"))
    assert "conv2d_0.w_0" in conv and "nets.py:" in conv and conv.endswith("in digits")


def test_unused_layers_are_dashed():
    def program():
        x = layers.data("x", shape=[4])
        layers.fc(x, size=3, name="spare")
        return layers.fc(x, size=2)

    tree = ElementTree.fromstring(fluid.draw(program).svg)
    dashed = [group for group in tree.iter(f"{SVG}g") if group.find(f"{SVG}rect").get("stroke-dasharray")]
    assert [group.find(f"{SVG}text").text for group in dashed] == ["spare (fc)"]


def test_loop_carry_is_labelled_for_the_next_step():
    def program():
        x = layers.data("x", shape=[4])

        def step(state, _):
            new = layers.fc(state, size=4)
            return new, layers.reduce_sum(state)

        return layers.scan(step, x, jnp.zeros((3, 1)))[1]

    shown = texts(fluid.draw(program))
    assert shown[shown.index("fc_0") + 3] == "for the next step"


def test_names_are_escaped():
    def program():
        return layers.fc(layers.data("x", shape=[4]), size=2, name="a<b&c")

    assert "a<b&c (fc)" in texts(fluid.draw(program))


def test_drawings_share_no_ids_or_styles():
    svg = fluid.draw(nets.recurrent).svg
    assert not re.search(r'<style|\bid="|url\(#|class="', svg)


def test_the_file_refers_to_nothing_else():
    svg = fluid.draw(nets.recurrent).svg
    # The only URL is the XML namespace of SVG, which no viewer loads.
    assert re.findall(r"\w+://[^\s\"]*", svg) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"href|<script|<image|@import|url\(", svg)


def test_equal_programs_are_drawn_identically():
    first, second = (fluid.draw(nets.recurrent) for _ in range(2))
    assert first.svg == second.svg and first.dot == second.dot


def test_every_edge_is_a_line():
    def program():
        x = layers.data("x", shape=[4])
        hidden = layers.fc(x, size=4)
        return layers.fc([x, hidden], size=2)

    drawing = fluid.draw(program)
    assert len(list(ElementTree.fromstring(drawing.svg).iter(f"{SVG}path"))) == 4
    assert dot_edges(drawing) == [("x", "fc_0"), ("x", "fc_1"), ("fc_0", "fc_1"), ("fc_1", "output")]


STATEMENT = re.compile(
    r'digraph \{|node \[shape=box\]|subgraph cluster\d+ \{|label=(?P<frame>"([^"\\]|\\.)*")|\}'
    r'|(?P<node>\d+) \[label=(?P<label>"([^"\\]|\\.)*"), style=(solid|dashed)\]|(?P<source>\d+) -> (?P<target>\d+)'
)


def dot_statements(drawing):
    """Return a regular-expression match for each line of the drawing's DOT text; check that the braces match.

    Each line must have one statement of DOT.
    """
    lines = drawing.dot.splitlines()
    found = [STATEMENT.fullmatch(line) for line in lines]
    assert all(found), [line for line, statement in zip(lines, found, strict=True) if not statement]
    depths = list(itertools.accumulate(line.endswith("{") - (line == "}") for line in lines))
    assert depths[-1] == 0 and min(depths[:-1]) == 1
    return found


def dot_edges(drawing):
    """Return `(source, target)`, the names of two boxes, for each edge in the DOT text."""
    found = dot_statements(drawing)
    names = {s["node"]: json.loads(s["label"]).splitlines()[0] for s in found if s["node"]}
    return [(names[s["source"]], names[s["target"]]) for s in found if s["source"]]


def test_dot_has_the_same_boxes_frames_and_edges():
    drawing = fluid.draw(nets.recurrent)
    frames = [json.loads(statement["frame"]) for statement in dot_statements(drawing) if statement["frame"]]
    assert frames == ["dynamic_rnn_0 × time", "repeat_0 × 3"]
    assert ("words", "fc_0") in dot_edges(drawing) and ("mean_0", "output") in dot_edges(drawing)
    assert {name for edge in dot_edges(drawing) for name in edge} <= set(texts(drawing))
    assert len(dot_edges(drawing)) == len(list(ElementTree.fromstring(drawing.svg).iter(f"{SVG}path")))


def test_names_are_escaped_in_dot():
    def program():
        return layers.fc(layers.data("x", shape=[4]), size=2, name='a"b\\c')

    assert dot_edges(fluid.draw(program)) == [("x", 'a"b\\c (fc)'), ('a"b\\c (fc)', "output")]


def test_a_deep_net_is_drawn_at_once():
    def program():
        hidden = layers.data("x", shape=[2])
        for layer in range(200):
            hidden = layers.fc(hidden, size=1 + layer)
        return hidden

    start = time.perf_counter()
    shown = texts(fluid.draw(program))
    assert time.perf_counter() - start < 30  # tracing the program takes nearly all of the measured time
    assert {f"fc_{layer}" for layer in range(200)} <= set(shown)


def test_files_and_notebooks(tmp_path):
    drawing = fluid.draw(nets.digits)
    drawing.save(tmp_path / "net.svg")
    drawing.save(str(tmp_path / "net.dot"))
    assert (tmp_path / "net.svg").read_text(encoding="utf-8") == drawing.svg == drawing._repr_svg_()
    assert (tmp_path / "net.dot").read_text(encoding="utf-8") == drawing.dot
    assert repr(drawing).startswith("Drawing(") and len(repr(drawing)) < 120


def test_fixed_batch_size_needs_the_batch_size_argument():
    def program():
        x = layers.data("x", shape=[4])
        if x.shape[0] not in (3, 37, 41):
            raise ValueError("only three rows")
        return layers.fc(x, size=2)

    with pytest.raises(ValueError, match="three rows"):
        fluid.draw(program)
    assert "float32[3, 2]" in texts(fluid.draw(program, batch_size=3))


def overlap(first, second):
    """Return whether the interiors of two rectangles overlap."""
    across = min(first.right, second.right) - max(first.left, second.left)
    return across > 0.01 and min(first.bottom, second.bottom) - max(first.top, second.top) > 0.01


@st.composite
def programs(draw):
    """Generate the boxes of a drawing of a program: nested frames and layers; a layer may read earlier layers."""

    def boxes(depth):
        found = []
        for _ in range(draw(st.integers(1, 5))):
            if depth and draw(st.integers(0, 3)) == 0:
                title = draw(st.sampled_from(["a", "a frame with a long title"]))
                found.append(Box("scope", [title], inside=boxes(depth - 1)))
            else:
                lines = st.lists(st.sampled_from(["fc_0", "float32[batch, 20, 6, 6]"]), min_size=1, max_size=3)
                found.append(Box("layer", draw(lines)))
        return found

    root = Box("scope", [], inside=boxes(2))
    pairs = list(itertools.combinations(graph.layers([root]), 2))
    for source, target in draw(st.lists(st.sampled_from(pairs), max_size=16, unique=True)) if pairs else []:
        target.inputs.append(source)
    return root


@given(programs())
def test_no_box_hides_another(root):
    places, _ = lay_out(root)
    for frame in (box for box in root.walk() if box.inside):
        for box in frame.inside:
            assert places[frame].left < places[box].left and places[box].right < places[frame].right
            assert places[frame].top < places[box].top and places[box].bottom < places[frame].bottom
        for one, other in itertools.combinations(frame.inside, 2):
            assert not overlap(places[one], places[other])


@given(programs())
def test_edges_go_down_and_cross_no_box(root):
    places, lines = lay_out(root)
    boxes = graph.layers([root])
    for (source, target), points in zip(((s, t) for t in boxes for s in t.inputs), lines, strict=True):
        (x, y), *_, (last_x, last_y) = points
        assert y == places[source].bottom and places[source].left < x < places[source].right
        assert last_y == places[target].top and places[target].left < last_x < places[target].right
        for (x, y), (to_x, to_y) in itertools.pairwise(points):
            stretch = type(places[root])(min(x, to_x) - 1, y, max(x, to_x) + 1, to_y)
            assert to_y >= y and not any(overlap(stretch, places[box]) for box in boxes)


@given(programs())
def test_unrelated_edges_do_not_overlap(root):
    """Check that, in a drawing of a program, two edges overlap only if they begin or end at the same box."""
    _, lines = lay_out(root)
    upright = [
        (points[0], points[-1], x, y, to_y)
        for points in lines
        for (x, y), (to_x, to_y) in itertools.pairwise(points)
        if x == to_x and to_y > y
    ]
    for (start, end, x, y, to_y), (other_start, other_end, other_x, other_y, to) in itertools.combinations(upright, 2):
        if x == other_x and min(to_y, to) > max(y, other_y):
            assert start == other_start or end == other_end


@given(st.integers(1, 30))
def test_a_chain_is_a_straight_column(length):
    boxes = [Box("layer", ["x" * (1 + i % 5)]) for i in range(length)]
    for source, target in itertools.pairwise(boxes):
        target.inputs.append(source)
    _, lines = lay_out(Box("scope", [], inside=boxes))
    assert len({x for points in lines for x, _ in points}) <= 1


def test_a_skip_connection_passes_beside_the_layer():
    x, within, after = (Box("layer", [name]) for name in ("x", "fc", "add"))
    within.inputs, after.inputs = [x], [within, x]
    places, lines = lay_out(Box("scope", [], inside=[x, within, after]))
    assert max(x for x, _ in lines[2]) > places[within].right


def test_branches_stand_side_by_side():
    x, left, right, after = (Box("layer", [name]) for name in ("x", "a", "b", "concat"))
    left.inputs, right.inputs, after.inputs = [x], [x], [left, right]
    places, _ = lay_out(Box("scope", [], inside=[x, left, right, after]))
    assert places[left].top == places[right].top and places[left].right < places[right].left


def test_a_label_feed_stays_beside_the_chain():
    label, image, prediction, loss = (Box("layer", [name]) for name in ("label", "image", "fc", "loss"))
    prediction.inputs, loss.inputs = [image], [prediction, label]
    places, lines = lay_out(Box("scope", [], inside=[label, image, prediction, loss]))
    assert places[label].top == places[prediction].top and places[label].left > places[prediction].right
    assert len({x for points in lines[:2] for x, _ in points}) == 1


def test_text_fits_its_box():
    tree = ElementTree.fromstring(fluid.draw(nets.recurrent).svg)
    size = float(tree.get("font-size"))
    for group in tree.iter(f"{SVG}g"):
        width = float(group.find(f"{SVG}rect").get("width"))
        for text in group.iter(f"{SVG}text"):
            # In the widest of common monospace fonts, a character is 0.605 times as wide as the font size.
            assert len(text.text) * size * 0.605 < width
