"""Text and HTML for people: formatted numbers and tables."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fluid
from fluid._util.text import counted, described, html_table, scaled, text_table

UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}


@given(st.integers(0, 10**17))
def test_scaled_numbers_are_right_to_three_digits(count):
    number, _, unit = scaled(count).partition(" ")
    assert float(number) * UNITS[unit] == pytest.approx(count, rel=0.0051)
    assert len(number.replace(".", "")) <= 3 and "e" not in number


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_scaled_numbers_keep_their_order(one, other):
    def value(count):
        number, _, unit = scaled(count).partition(" ")
        return float(number) * UNITS[unit]

    assert (value(one) - value(other)) * (one - other) >= 0


def test_counted_nouns_have_singular_and_plural():
    assert [counted(n, "array") for n in (0, 1, 2000)] == ["0 arrays", "1 array", "2,000 arrays"]


cells = st.lists(st.tuples(*[st.text(st.characters(blacklist_categories=["C", "Z"]), min_size=1)] * 3), min_size=1)


@given(cells)
def test_columns_of_text_are_aligned(rows):
    lines = text_table(rows, right=[1]).splitlines()
    assert len(lines) == len(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for line, (first, second, third) in zip(lines, rows, strict=True):
        assert line == f"{first.ljust(widths[0])}  {second.rjust(widths[1])}  {third}"


class Cells(HTMLParser):
    """An HTML parser that collects the texts of the cells of a table."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag in ("td", "th"):
            self.found.append("")

    def handle_data(self, data):
        self.found[-1] += data


@given(cells)
def test_html_holds_the_same_cells(rows):
    parser = Cells()
    parser.feed(html_table(rows, header=("a", "b", "<c>"), titles=['"x"'] * len(rows)))
    assert parser.found == ["a", "b", "<c>", *(cell for row in rows for cell in row)]


def test_objects_in_words():
    assert described(fluid.optimizer.SGD(0.1, accumulate_steps=2)) == "SGD(learning_rate=0.1, accumulate_steps=2)"
    assert described(object()) == "object" and described([1, "a", None]) == "[1, 'a', None]"

    def schedule(rate, parts):
        return lambda step: rate * len(parts) + step

    optimizer = fluid.optimizer.SGD(schedule(0.5, [1, 2]))
    name = "test_objects_in_words.<locals>.schedule.<locals>.<lambda>"
    assert described(optimizer) == f"SGD(learning_rate={name}(parts=[1, 2], rate=0.5))"
    assert described(optimizer, depth=1) == f"SGD(learning_rate={name}(parts=[...], rate=0.5))"
    assert described(optimizer, depth=0) == "SGD(learning_rate=test_objects_in_words(...))"
