"""Typical mistakes of users: each gets an error or a warning of fluid that says what to write instead."""

import re

import pytest
from mistakes import THEMES
from mistakes.making import answer_to
from mistakes.page import PAGE, entry
from mistakes.theme import Logged

from fluid import errors

ANSWERS = {}  # what fluid said to a mistake in this process
MISTAKES = {f"{theme.title}: {mistake.title}": mistake for theme in THEMES for mistake in theme.mistakes}


def test_at_least_100_mistakes_have_unique_titles():
    assert len(MISTAKES) >= 100
    assert len(MISTAKES) == sum(len(theme.mistakes) for theme in THEMES)


@pytest.mark.parametrize("title", MISTAKES)
def test_each_mistake_is_answered(title, tmp_path):
    mistake = MISTAKES[title]
    answer = answer_to(mistake, tmp_path)
    assert answer is not None, "nothing was said"
    assert issubclass(answer.kind, mistake.answer), answer
    assert issubclass(answer.kind, errors.FluidError | errors.FluidWarning | Logged)
    missing = [word for word in mistake.says if word not in answer.text]
    assert mistake.says and not missing, answer.text
    ANSWERS[mistake] = answer


@pytest.mark.sample(0)
@pytest.mark.parametrize("title", MISTAKES)
def test_each_mistake_gets_the_message_of_the_page(title, tmp_path):
    """Check that the page has the whole message; `test_each_mistake_is_answered` checks its kind and its key words."""
    mistake = MISTAKES[title]
    answer = ANSWERS.get(mistake) or answer_to(mistake, tmp_path)
    assert entry(mistake, answer) in PAGE.read_text(encoding="utf-8"), (
        f"{PAGE} is out of date: `make mistakes` writes it anew"
    )


def test_page_lists_exactly_these_mistakes():
    text = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^### (.+)$", text, re.MULTILINE) == [m.title for t in THEMES for m in t.mistakes]
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [theme.title for theme in THEMES]
    assert f"\n{len(MISTAKES)} typical mistakes" in text
