"""Algorithms chosen in their model on a CPU: what graph passes decide by estimates, decided by measuring.

Which algorithm computes a convolution, and which operators share a kernel, are questions of the graph passes
(`graph/choices.py`). The model is compiled as the estimates say and with the alternatives, as many of them in one model
as concern different nodes; all of these run in turns, and a question's time is that of the kernels that compute its
nodes. What is clearly quicker is taken; the model so made then runs against the first one, and must be quicker, too:
in plain runs, in a clear majority of pairs.
The database keeps the answers, also those that are as estimated: tuning again asks only when the compiler has changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.compiler import Compilation
from tilewright.graph.choices import GraphQuestion, graph_answers, is_graph_key, stored_answer
from tilewright.lower.database import Database
from tilewright.lower.records import Selection
from tilewright.runtime.core.profiler import ProfileRow
from tilewright.support.errors import UnsupportedError
from tilewright.support.fingerprint import kernel_sources
from tilewright.support.text import plural
from tilewright.tune.in_graph import check_straight
from tilewright.tune.turns import Maker, Times, compare_in_turns, most_models, time_in_chunks

_CLEARLY = 0.98
"""What part of the estimated algorithm's time an alternative may take."""
_COMPILER = "compiler"
"""Under this name the database keeps, beside an answer, which compiler's kernels were measured."""

OnStep = Callable[[str], None]
"""Called with what is being done."""


@dataclass(frozen=True, slots=True)
class AlgorithmChoice:
    """A question with the seconds that its nodes took in one run, by the options that were tried, and the answer."""

    question: GraphQuestion
    seconds: Mapping[str, float]
    answer: str

    @property
    def is_as_estimated(self) -> bool:
        """Whether measuring changed nothing."""
        return self.answer == self.question.default


@dataclass(frozen=True, slots=True)
class Algorithms:
    """What choosing algorithms brought: the model's seconds as estimated, and as chosen."""

    choices: tuple[AlgorithmChoice, ...]
    estimated: float
    chosen: float
    trials: int
    seconds: float

    @property
    def changed(self) -> tuple[AlgorithmChoice, ...]:
        """The choices that are not as estimated, those that save most first."""
        found = [item for item in self.choices if not item.is_as_estimated]
        return tuple(sorted(found, key=lambda item: item.seconds[item.answer] - item.seconds[item.question.default]))


def choose_algorithms(
    compilation: Compilation, database: Database, *, seconds: float | None = None, on_step: OnStep = lambda text: None
) -> Algorithms | None:
    """Measure the alternatives to what graph passes decided by estimates; the database is told what is to be used.

    None where nothing is open: no such decisions, or all were measured before. `seconds` is about how long models run
    in one comparison. An `UnsupportedError` where a model's kernels cannot be tried in it.
    """
    began = time.monotonic()
    compiler = kernel_sources()[:12]
    known = compilation.request.answers
    done = {key for key, found in known.items() if found.get(_COMPILER) == compiler}
    if all(item.key in done for item in compilation.questions):
        return None
    if compilation.request.options.specialize:
        raise UnsupportedError("algorithms are tried in models of one size only: this one is specialized")
    check_straight(compilation.lowered)
    # What is asked again starts as estimated.
    kept = {key: found for key, found in known.items() if key in done or not is_graph_key(key)}

    def form(answers: Mapping[str, str]) -> Compilation:
        stored = {key: stored_answer(answer) for key, answer in answers.items()}
        # The imported module has the shapes already.
        options = replace(compilation.request.options, shapes=None)
        request = replace(compilation.request, model=compilation.imported, options=options, answers={**kept, **stored})
        return Compilation.of(request)

    first = present = form({})
    choices: list[AlgorithmChoice] = []
    estimated = chosen = 0.0
    trials = 0
    while questions := [item for item in present.questions if item.key not in done]:
        done.update(item.key for item in questions)
        tried = _combined(questions)
        on_step(f"trying {plural(len(tried) + 1, 'form')} of the model for {plural(len(questions), 'choice')}")
        answers = _changes(choices)
        others = [_maker(form, {**answers, **changes}) for changes in tried]
        parts = partial(_questions_of, questions)
        measured = time_in_chunks(present.executable(), others, most_models(present.lowered), parts, seconds)
        trials += measured.profiles
        choices += [_choice(item, tried, measured) for item in questions]
        estimated = chosen = measured.whole[0]
        # An algorithm may bring questions of its own, which are asked when it is chosen.
        present = form(_changes(choices))
    if _changes(choices):
        on_step("running the model as chosen")
        whole = compare_in_turns(first.executable(), present.executable(), seconds=seconds, until_clear=True)
        trials += len(whole.ratios)
        estimated = chosen = whole.first
        if whole.is_quicker:
            chosen = estimated / whole.ratio
        else:
            # All of it was noise, or too little to be told from it.
            choices = [replace(item, answer=item.question.default) for item in choices]
    _keep(choices, str(compilation.target), compiler, database)
    return Algorithms(tuple(choices), estimated, chosen, trials, time.monotonic() - began)


def _changes(choices: Iterable[AlgorithmChoice]) -> dict[str, str]:
    """The answers that are not as estimated."""
    return {item.question.key: item.answer for item in choices if not item.is_as_estimated}


def _keep(choices: Sequence[AlgorithmChoice], target: str, compiler: str, database: Database) -> None:
    """Tell the database what is to be used; where that is as estimated, estimates may get better."""
    changes = _changes(choices)
    database.select(
        Selection(key, target, {**(stored_answer(changes[key]) if key in changes else {}), _COMPILER: compiler})
        for key in [item.question.key for item in choices]
    )


def measured_answers(answers: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, str]]:
    """The answers to questions of graph passes that are not as estimated, without what says when to ask again."""
    return {key: stored_answer(answer) for key, answer in graph_answers(answers).items()}


def _combined(questions: Sequence[GraphQuestion]) -> list[dict[str, str]]:
    """All alternatives of all questions, in as few models as can be: one model has one change for a node."""
    pending = [(item, alternative) for item in questions for alternative in item.alternatives]
    models: list[dict[str, str]] = []
    while pending:
        answers: dict[str, str] = {}
        nodes: set[str] = set()
        later = []
        for item, alternative in pending:
            if nodes.isdisjoint(item.nodes):
                answers[item.key] = alternative
                nodes.update(item.nodes)
            else:
                later.append((item, alternative))
        models.append(answers)
        pending = later
    return models


def _questions_of(questions: Iterable[GraphQuestion], row: ProfileRow) -> list[str]:
    """The keys of the questions that a kernel call belongs to."""
    nodes = set(row.kernel.nodes)
    return [item.key for item in questions if not nodes.isdisjoint(item.nodes)]


def _maker(form: Callable[[Mapping[str, str]], Compilation], answers: Mapping[str, str]) -> Maker:
    """Compiles a form of the model when it is its turn."""
    return lambda: form(answers).executable()


def _choice(question: GraphQuestion, tried: Sequence[Mapping[str, str]], times: Times) -> AlgorithmChoice:
    """What is quickest by the times of the model as estimated, and of those that were tried."""
    key, default = question.key, question.default
    if key not in times.parts[0]:
        return AlgorithmChoice(question, {}, default)
    places = {
        answers[key]: place for place, answers in enumerate(tried, 1) if key in answers and key in times.parts[place]
    }
    seconds = {default: times.parts[0][key]} | {option: times.parts[place][key] for option, place in places.items()}
    best = min(places, key=lambda option: times.surely[places[option]][key], default=default)
    is_quicker = best != default and times.surely[places[best]][key] < seconds[default]
    if not is_quicker or seconds[best] >= seconds[default] * _CLEARLY:
        best = default
    return AlgorithmChoice(question, seconds, best)
