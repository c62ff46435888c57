"""Choices of schedule templates, asked by name: the analytic answer by default, the tuner's when one is given.

A template asks `context.choose("tile_rows", (4, 7, 14), 7)` wherever it decides something that only changes speed. The
questions it asks, with their options, are the search space of its kernels; a mapping from names to answers is a point
of it. Later questions may depend on earlier answers: the space is whatever running the template asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tilewright.support.errors import CompilerBug

Answer = int | str | bool | tuple[int, ...]
"""What can be chosen: all of these survive JSON (a tuple as a list)."""

A = TypeVar("A", int, str, bool, tuple[int, ...])


@dataclass(frozen=True, slots=True)
class Question:
    """One choice: its name, its options in an order where neighbours are alike, and the analytic answer."""

    name: str
    options: tuple[Answer, ...]
    default: Answer

    @property
    def default_place(self) -> int:
        """The place of the analytic answer among the options."""
        return self.options.index(self.default)


@dataclass(slots=True)
class Choices:
    """Answers for one run of a template, and the questions that it asked.

    `answer` decides a question that `given` leaves open; by default that is the analytic answer.
    """

    given: Mapping[str, Answer] = field(default_factory=dict)
    answer: Callable[[Question], Answer] = field(default=lambda question: question.default)
    asked: dict[str, Question] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)

    def copy(self) -> Choices:
        """The same answers, and a list of its own of what was asked."""
        return Choices(self.given, self.answer, dict(self.asked), dict(self.answers))

    def take(self, other: Choices) -> None:
        """Go on from what a copy has been asked."""
        self.asked, self.answers = other.asked, other.answers

    def choose(self, name: str, options: Sequence[A], default: A) -> A:
        """The answer to a question. A given answer that is no option here (another shape's) is not taken."""
        question = Question(name, tuple(dict.fromkeys((*options, default))), default)
        if name in self.asked:
            raise CompilerBug(f"a schedule template asks '{name}' twice")
        self.asked[name] = question
        given = self.given.get(name)
        # The option itself, not what was given: 1.0 from a file is equal to 1, and is no size.
        matching = [option for option in question.options if option == given]
        chosen = matching[0] if matching else self.answer(question)
        self.answers[name] = chosen
        return chosen  # type: ignore[return-value]


def answers_to_json(answers: Mapping[str, Answer]) -> dict[str, int | str | bool | list[int]]:
    """Answers as plain data, in the order of their names."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in sorted(answers.items())}


def answers_from_json(data: Mapping[str, int | str | bool | list[int]]) -> dict[str, Answer]:
    """The answers that `answers_to_json` stored; a `TypeError` for data that it never gives."""
    if not isinstance(data, Mapping):
        raise TypeError(f"answers are a table by name, not {data!r}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
