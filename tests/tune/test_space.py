"""Spaces: found by running templates, points of the same meaning are one."""

from __future__ import annotations

from random import Random

import pytest

from tests.tune.toy import ToySpace
from tilewright.support.errors import CompilerBug
from tilewright.topi.schedule.choices import Choices, Question, answers_from_json, answers_to_json
from tilewright.tune.space import key_of


def test_the_default_point_and_its_questions() -> None:
    space = ToySpace()
    assert space.default == {"rows": 1, "columns": 4, "inside": False}
    assert set(space.questions) == {"rows", "columns", "inside"}
    assert space.size() == 6 * 6 * 2


def test_questions_that_other_answers_lead_to_are_learned() -> None:
    space = ToySpace()
    assert space.canonical({"inside": True})["depth"] == 1
    assert "depth" in space.questions
    assert space.size() == 6 * 6 * 2 * 3


def test_points_of_the_same_meaning_are_one() -> None:
    space = ToySpace()
    assert key_of(space.canonical({"inside": False, "depth": 4})) == key_of(space.canonical({}))
    assert space.canonical({"rows": 999})["rows"] == 1


def test_moves_stay_in_the_space() -> None:
    space, random = ToySpace(), Random(0)
    space.canonical({"inside": True})
    for _ in range(50):
        first, second = space.random(random), space.random(random)
        for point in (first, space.mutate(first, random), space.cross(first, second, random)):
            assert all(answer in space.questions[name].options for name, answer in point.items())
        changed = space.mutate(first, random)
        assert sum(changed[name] != first[name] for name in first) == 1


def test_neighbours_and_grid() -> None:
    space = ToySpace()
    neighbours = list(space.neighbours(space.default))
    assert len(neighbours) == 5 + 5 + 1
    assert len({key_of(point) for point in space.grid()}) == space.size()


def test_asking_twice_is_a_bug() -> None:
    choices = Choices()
    choices.choose("x", (1, 2), 1)
    with pytest.raises(CompilerBug, match="asks 'x' twice"):
        choices.choose("x", (1, 2), 1)


def test_the_default_is_an_option() -> None:
    choices = Choices({"x": 7})
    assert choices.choose("x", (1, 2), 7) == 7
    assert choices.asked["x"] == Question("x", (1, 2, 7), 7)


def test_open_questions_go_to_the_given_function() -> None:
    choices = Choices({"x": 2}, lambda question: question.options[-1])
    assert choices.choose("x", (1, 2, 3), 1) == 2
    assert choices.choose("y", ("a", "b"), "a") == "b"
    assert choices.answers == {"x": 2, "y": "b"}


def test_answers_survive_json() -> None:
    answers = {"tile": (4, 2), "order": "rows", "stay": True, "depth": 8}
    assert answers_from_json(answers_to_json(answers)) == answers
