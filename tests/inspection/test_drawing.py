"""The drawing: what is in it, and that nothing in it hides anything else."""

import itertools
import re
from xml.etree import ElementTree

import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspection import nets

import fluid
from fluid import layers
from fluid.inspection.layout import Box, lay_out

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawing):
    return [text.text for text in ElementTree.fromstring(drawing.svg).iter(f"{SVG}text")]


def test_every_layer_is_a_box_with_its_shape_and_parameters():
    shown = texts(fluid.draw(nets.digits))
    at = shown.index("conv2d_0")
    assert shown[at : at + 3] == ["conv2d_0", "float32[batch, 20, 6, 6]", "200 parameters"]
    assert {"image", "label", "loss", "accuracy", "batch_norm_0", "mean_0"} <= set(shown)


def test_the_loss_says_what_minimises_it():
    shown = texts(fluid.draw(fluid.Trainer(nets.digits, fluid.optimizer.Adam(1e-3))))
    assert shown[shown.index("loss") + 1] == "minimised by Adam"
    assert shown.count("minimised by Adam") == 1


def test_scopes_loops_and_programs_are_frames():
    shown = texts(fluid.draw(nets.recurrent))
    assert "dynamic_rnn_0 × time" in shown and "repeat_0 × 3" in shown and "fc_0" in shown
    both = texts(fluid.draw(fluid.Session(nets.train_discriminator, nets.train_generator)))
    assert both.count("generator") == 2 and {"train_discriminator", "train_generator"} <= set(both)


def test_lines_of_the_program_and_names_show_while_the_pointer_rests():
    titles = [t.text for t in ElementTree.fromstring(fluid.draw(nets.digits).svg).iter(f"{SVG}title")]
    conv = next(title for title in titles if title.startswith("conv2d_0\n"))
    assert "conv2d_0.w_0" in conv and "nets.py:" in conv and conv.endswith("in digits")


def test_what_is_not_used_is_dashed():
    def program():
        x = layers.data("x", shape=[4])
        layers.fc(x, size=3, name="spare")
        return layers.fc(x, size=2)

    tree = ElementTree.fromstring(fluid.draw(program).svg)
    dashed = [group for group in tree.iter(f"{SVG}g") if group.find(f"{SVG}rect").get("stroke-dasharray")]
    assert [group.find(f"{SVG}text").text for group in dashed] == ["spare (fc)"]


def test_what_a_loop_hands_to_its_next_step_says_so():
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


def test_drawings_on_one_page_do_not_meet():
    svg = fluid.draw(nets.recurrent).svg
    assert not re.search(r'<style|\bid="|url\(#|class="', svg)


def test_files_and_notebooks(tmp_path):
    drawing = fluid.draw(nets.digits)
    drawing.save(tmp_path / "net.svg")
    assert (tmp_path / "net.svg").read_text(encoding="utf-8") == drawing.svg == drawing._repr_svg_()
    assert repr(drawing).startswith("Drawing(") and len(repr(drawing)) < 120


def test_a_program_for_one_batch_size():
    def program():
        x = layers.data("x", shape=[4])
        if x.shape[0] not in (3, 37, 41):
            raise ValueError("only three rows")
        return layers.fc(x, size=2)

    with pytest.raises(ValueError, match="three rows"):
        fluid.draw(program)
    assert "float32[3, 2]" in texts(fluid.draw(program, batch_size=3))


def area(box, margin=0.0):
    return box.x - margin, box.y - margin, box.x + box.width + margin, box.y + box.height + margin


def overlap(first, second):
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def check_layout(root, lines):
    """Nothing overlaps, frames hold what is in them, lines go down and through no box."""
    boxes = [box for box in root.walk() if not box.inside]
    for frame in root.walk():
        for inner in frame.inside:
            outside = area(frame, 0.01)
            assert outside[0] <= inner.x and outside[1] <= inner.y
            assert inner.x + inner.width <= outside[2] and inner.y + inner.height <= outside[3]
        for one, other in itertools.combinations(frame.inside, 2):
            assert not overlap(area(one, -0.01), area(other, -0.01))
    for line in lines:
        for (x, y), (next_x, next_y) in itertools.pairwise(line.points):
            assert next_y >= y - 0.01
            if abs(next_x - x) < 0.5:
                stretch = (x - 1, y + 0.01, x + 1, next_y - 0.01)
                assert not any(overlap(stretch, area(box, -0.5)) for box in boxes)
            else:  # curves stay between two ranks
                stretch = (min(x, next_x), y + 0.01, max(x, next_x), next_y - 0.01)
                assert not any(overlap(stretch, area(box, -0.5)) for box in boxes)


@st.composite
def layouts(draw):
    """Boxes in frames in frames, with edges from earlier to later ones."""
    sizes = st.tuples(st.integers(20, 200), st.integers(15, 60))

    def items(depth):
        count = draw(st.integers(1, 5))
        found = []
        for _ in range(count):
            if depth and draw(st.integers(0, 3)) == 0:
                found.append(Box(draw(st.integers(0, 150)), 20, items(depth - 1)))
            else:
                found.append(Box(*draw(sizes)))
        return found

    root = Box(0, 0, items(2))
    boxes = [box for box in root.walk() if not box.inside and box is not root]
    pairs = list(itertools.combinations(boxes, 2))
    chosen = draw(st.lists(st.sampled_from(pairs), max_size=12, unique=True)) if pairs else []
    return root, chosen


@given(layouts())
def test_nothing_hides_anything(layout):
    root, edges = layout
    check_layout(root, lay_out(root, edges))


@given(layouts())
def test_every_edge_is_drawn_from_box_to_box(layout):
    root, edges = layout
    lines = lay_out(root, edges)
    starts = {line.points[0] for line in lines}
    ends = {line.points[-1] for line in lines}
    for source, target in edges:
        assert any(
            abs(y - source.y - source.height) < 0.01 and source.x <= x <= source.x + source.width for x, y in starts
        )
        assert any(abs(y - target.y) < 0.01 and target.x <= x <= target.x + target.width for x, y in ends)
    # Lines that end on the border of a frame go on from there.
    broken = [line.points[-1] for line in lines if not line.arrow]
    assert all(any(abs(x - sx) < 0.01 and abs(y - sy) < 0.01 for sx, sy in starts) for x, y in broken)


@given(st.integers(1, 30))
def test_a_chain_is_one_straight_column(length):
    boxes = [Box(50 + 13 * (i % 5), 30) for i in range(length)]
    root = Box(0, 0, boxes)
    lines = lay_out(root, list(itertools.pairwise(boxes)))
    centres = [box.x + box.width / 2 for box in boxes]
    assert max(centres) - min(centres) < 0.01
    assert all(len({round(x, 2) for x, _ in line.points}) == 1 for line in lines)


def test_text_fits_its_box():
    tree = ElementTree.fromstring(fluid.draw(nets.recurrent).svg)
    for group in tree.iter(f"{SVG}g"):
        width = float(group.find(f"{SVG}rect").get("width"))
        for text in group.iter(f"{SVG}text"):
            assert len(text.text) * float(text.get("font-size")) * 0.605 < width  # the widest of common monospace fonts
