"""Decisions of graph passes that only change speed, asked as questions: an estimate answers, or what was measured.

    algorithm = choices.choose([convolution], ("direct", "winograd2", "winograd4"), estimate)

A question is known by the computation that it is about (operators, sizes, types; not the names of nodes), so an answer
that was measured in one model is good for every model with the same computation. Without answers graphs are what the
estimates say. Which questions a graph asked, and for which of the user's nodes, is what the tuner tries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature

from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.expr import Call, GraphExpr
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.rewrite import known_sizes
from tilewright.graph.likely_sizes import likely_size
from tilewright.support.errors import CompilerBug

_PREFIX = "graph:"
_ANSWER = "algorithm"
"""The name of the answer among those that a database keeps for a question."""


@dataclass(frozen=True, slots=True)
class GraphQuestion:
    """One choice: the computation that it is about, its options, the estimate's answer, and the nodes concerned."""

    key: str
    options: tuple[str, ...]
    default: str
    nodes: tuple[str, ...]

    @property
    def alternatives(self) -> tuple[str, ...]:
        """The options other than the estimate's."""
        return tuple(option for option in self.options if option != self.default)

    @property
    def label(self) -> str:
        """The computation, for people."""
        return question_label(self.key)


@dataclass(eq=False, slots=True)
class GraphChoices:
    """Answers for one run of the graph passes, by the questions' keys, and the questions that were asked."""

    given: Mapping[str, str] = field(default_factory=dict)
    asked: dict[str, GraphQuestion] = field(default_factory=dict)
    likely: Mapping[str, int] = field(default_factory=dict)
    """Likely sizes of symbols, by their names: what is asked of open sizes is asked of these."""

    def choose(self, calls: Sequence[Call], options: Sequence[str], default: str) -> str:
        """The answer to a question about calls; a given answer that is no option (any more) is not taken.

        Questions about calls that belong to no node of the user's are answered, but not kept: what they cost could not
        be told from the rest of the model.
        """
        key = _PREFIX + " -> ".join(_text_of(call, self.likely) for call in calls)
        nodes = tuple(dict.fromkeys(str(call.span) for call in calls if call.span is not None))
        if len(options) > 1 and all(call.span is not None for call in calls):
            question = GraphQuestion(key, tuple(options), default, nodes)
            known = self.asked.setdefault(key, question)
            if (known.options, known.default) != (question.options, default):
                raise CompilerBug(f"the question {key!r} is asked with different options")
            self.asked[key] = replace(known, nodes=tuple(dict.fromkeys((*known.nodes, *nodes))))
        given = self.given.get(key, default)
        return given if given in options else default


def is_graph_key(key: str) -> bool:
    """Whether a database's key is that of a question of graph passes: other keys are those of kernels."""
    return key.startswith(_PREFIX)


def question_label(key: str) -> str:
    """The computation that a question is about, for people: all of them have channels last."""
    words = key.removeprefix(_PREFIX).split()
    return " ".join(word for word in words if "_layout=" not in word)


def graph_answers(answers: Mapping[str, Mapping[str, object]]) -> dict[str, str]:
    """The answers to questions of graph passes among all that a database knows."""
    found = {key: items.get(_ANSWER) for key, items in answers.items() if is_graph_key(key)}
    return {key: answer for key, answer in found.items() if isinstance(answer, str)}


def stored_answer(answer: str) -> dict[str, str]:
    """An answer as a database keeps it."""
    return {_ANSWER: answer}


def _text_of(call: Call, likely: Mapping[str, int]) -> str:
    """The computation of a call: its operator, the type and sizes of what it reads, and its attributes."""
    assert isinstance(call.callee, Operator)
    sizes = [_sizes_text(item, likely) for item in call.args]
    attributes = call.attributes
    given = {} if attributes is None else dict(zip(attributes.fields, attributes.field_values(), strict=True))
    usual = signature(call.callee.attributes_class).parameters
    told = [f"{name}={_short(value)}" for name, value in given.items() if value != usual[name].default]
    return " ".join((call.callee.name, str(call.args[0].tensor_type.dtype), *sizes, *told))


def _sizes_text(item: GraphExpr, likely: Mapping[str, int]) -> str:
    """The sizes of a tensor: open ones are known to be that, and for what they are likely to be."""
    sizes = known_sizes(item)
    return "?" if sizes is None else "x".join(_size_text(size, likely) for size in sizes)


def _size_text(size: Size, likely: Mapping[str, int]) -> str:
    if isinstance(size, int):
        return str(size)
    number = likely_size(size, likely)
    return "?" if number is None else f"?{number}"


def _short(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)
