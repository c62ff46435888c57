"""The search space of one kernel: points are answers to the questions that its schedule template asks.

The space is found by running the template: it starts with the questions of the default answers, and grows when a point
leads to new ones. A point holds answers to known questions only; what a template does not ask for that point is dropped
when it is run (`canonical`), so that two points that mean the same schedule are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random

from tilewright.lower.schedules import schedule_kernel, use_schedule
from tilewright.support import settings
from tilewright.support.errors import CompilerBug
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.errors import ScheduleError
from tilewright.tir.schedule.remembered import ScheduleTree
from tilewright.topi.schedule.choices import Answer, Choices, Question

Point = Mapping[str, Answer]
Key = tuple[tuple[str, Answer], ...]


def key_of(point: Point) -> Key:
    """A point as something to compare and to look up."""
    return tuple(sorted(point.items()))


class Space:
    """All schedules that a kernel's template can make for a target."""

    has_plainer = True
    """Whether the default may be a plainer schedule, where the template fails."""

    def __init__(self, func: PrimFunc, target: Target) -> None:
        self.func = func
        self.target = target
        self.questions: dict[str, Question] = {}
        self._tree = ScheduleTree(func)
        self._canonical: dict[Key, dict[str, Answer]] = {}
        self.default = self.canonical({})

    def schedule(self, choices: Choices) -> PrimFunc:
        """Run the template with these choices."""
        return schedule_kernel(self.func, self.target, choices, self._tree.schedule()).func

    def canonical(self, point: Point) -> dict[str, Answer]:
        """The point as the template takes it: every question it asks answered, nothing else. Learns new questions."""
        if key_of(point) not in self._canonical:
            self.program(point)
        return self._canonical[key_of(point)]

    def program(self, point: Point) -> PrimFunc:
        """The program of a point; afterwards its canonical form is known."""
        choices = Choices(point)
        try:
            func = self.schedule(choices)
        except (ScheduleError, CompilerBug):
            if point or not self.has_plainer or settings.STRICT_TEMPLATES.get():
                raise
            # The default is what a model gets, which is a plainer schedule here. Other points may still do.
            self._learn(choices)
            self._canonical[key_of(point)] = {}
            return use_schedule(self.func, self.target, {}, lambda func: func).result
        self._learn(choices)
        known = dict(choices.answers)
        self._canonical[key_of(point)] = self._canonical[key_of(known)] = known
        return func

    def _learn(self, choices: Choices) -> None:
        for name, question in choices.asked.items():
            seen = self.questions.get(name)
            if seen is None:
                self.questions[name] = question
            elif seen.options != question.options:
                # Options may depend on other answers: the space knows them all.
                merged = tuple(dict.fromkeys((*seen.options, *question.options)))
                self.questions[name] = Question(name, merged, seen.default)

    @property
    def open_questions(self) -> list[Question]:
        """The questions with more than one option."""
        return [question for question in self.questions.values() if len(question.options) > 1]

    def size(self) -> int:
        """The number of points, as far as the questions are known."""
        total = 1
        for question in self.questions.values():
            total *= len(question.options)
        return total

    def random(self, random: Random) -> dict[str, Answer]:
        """A point drawn evenly from the known questions."""
        return {question.name: random.choice(question.options) for question in self.questions.values()}

    def mutate(self, point: Point, random: Random) -> dict[str, Answer]:
        """A point that differs in one answer: a neighbouring option half of the time, any other one else."""
        changed = {name: point.get(name, question.default) for name, question in self.questions.items()}
        questions = self.open_questions
        if questions:
            question = random.choice(questions)
            changed[question.name] = _other(question, changed[question.name], random)
        return changed

    def cross(self, first: Point, second: Point, random: Random) -> dict[str, Answer]:
        """A point with some answers of one and some of the other."""
        return {
            name: random.choice((first, second)).get(name, question.default)
            for name, question in self.questions.items()
        }

    def neighbours(self, point: Point) -> Iterator[dict[str, Answer]]:
        """All points that differ in one answer."""
        for question in self.open_questions:
            for option in question.options:
                if option != point.get(question.name, question.default):
                    yield {**point, question.name: option}

    def grid(self) -> Iterator[dict[str, Answer]]:
        """All points in a fixed order, the last question fastest."""
        questions = list(self.questions.values())

        def rest(number: int) -> Iterator[dict[str, Answer]]:
            if number == len(questions):
                yield {}
                return
            for option in questions[number].options:
                for tail in rest(number + 1):
                    yield {questions[number].name: option, **tail}

        yield from rest(0)


def _other(question: Question, current: Answer, random: Random) -> Answer:
    options = question.options
    place = options.index(current) if current in options else question.default_place
    if random.random() < 0.5:
        near = [n for n in (place - 1, place + 1) if 0 <= n < len(options)]
        return options[random.choice(near)]
    return random.choice([option for option in options if option != current])
