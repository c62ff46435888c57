"""Annotations of loops and blocks: typed keys over a plain mapping."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tir.schedule.programs import elementwise
from tilewright import te
from tilewright.ir.build import const
from tilewright.ir.expr import Var
from tilewright.support.errors import UserError
from tilewright.tir.annotations import (
    ANCHOR,
    ANNOTATIONS,
    KEPT,
    LAYOUT,
    ORDERED,
    PHASES,
    PREFETCH,
    ROLLED,
    STAGE,
    TENSOR_INTRIN,
    Anchor,
    Annotation,
    Layout,
    Place,
    Prefetch,
    problems,
    without,
)
from tilewright.tir.schedule import Schedule, ScheduleError
from tilewright.tir.schedule.legality import require_legal
from tilewright.tir.script import parse_script, to_script
from tilewright.tir.stmt import Evaluate, For, LoopKind


def loop(annotations: dict[str, object] | None = None) -> For:
    return For(Var("i"), const(0), const(4), LoopKind.SERIAL, Evaluate(const(0)), None, annotations or {})


def test_a_key_reads_and_writes_plain_values() -> None:
    plain = loop({"mine": [1]})
    assert STAGE.of(plain) is None and not STAGE.is_on(plain)
    marked = STAGE.put(plain, 2)
    assert marked.annotations == {"mine": [1], "software_pipeline_stage": 2} and plain.annotations == {"mine": [1]}
    assert STAGE.of(marked) == 2 and STAGE.is_on(marked)
    assert STAGE.put(marked, 0).annotations["software_pipeline_stage"] == 0
    assert STAGE.drop(marked).annotations == plain.annotations
    assert without(ROLLED.put(marked, True), STAGE, ROLLED) == {"mine": [1]}
    assert STAGE.of(Evaluate(const(0))) is None and not STAGE.is_on(Evaluate(const(0)))


VALUES: list[tuple[Annotation[Any], Any, object]] = [
    (ANCHOR, Anchor.CONV2D, "conv2d"),
    (LAYOUT, Layout.NHWC, "NHWC"),
    (PHASES, (2, 3), (2, 3)),
    (KEPT, True, True),
    (TENSOR_INTRIN, "dot", "dot"),
    (ORDERED, ("A", "B"), ["A", "B"]),
    (PREFETCH, {"W": Prefetch(8, 8)}, {"W": 8}),
    (PREFETCH, {"W": Prefetch(8, 3)}, {"W": [8, 3]}),
    (PREFETCH, {"W": Prefetch(8, 0, 3, 64)}, {"W": [8, 0, 3, 64]}),
]


@pytest.mark.parametrize(("key", "value", "plain"), VALUES)
def test_values_are_plain_in_statements(key: Annotation[Any], value: Any, plain: object) -> None:
    """Scripts, hashes and symbols of kernels are made of them."""
    assert key.plain(value) == plain and type(key.plain(value)) is type(plain)
    assert key.read(plain) == value and type(key.read(plain)) is type(value)
    assert list(problems(key.entry(value), key.place)) == []


WRONG: list[tuple[Annotation[Any], object, str]] = [
    (ANCHOR, "copy", "'anchor' is one of matmul, conv2d, .*, not 'copy'"),
    (LAYOUT, 3, "'layout' is one of NCHW, NHWC, not 3"),
    (PHASES, (2,), "'phases' is two numbers, not"),
    (PHASES, (2, True), "'phases' is two numbers, not"),
    (KEPT, "yes", "'kept' is True or False, not 'yes'"),
    (STAGE, -1, "'software_pipeline_stage' is a number from 0 on, not -1"),
    (STAGE, True, "'software_pipeline_stage' is a number from 0 on, not True"),
    (TENSOR_INTRIN, 1, "'tensor_intrin' is a name, not 1"),
    (ORDERED, "AB", "'software_pipeline_buffers' is a list of names, not 'AB'"),
    (PREFETCH, {"W": [1, 2, 3]}, "'prefetch' is names of buffers with a number, two or four each"),
    (PREFETCH, {1: 2}, "'prefetch' is names of buffers"),
    (PREFETCH, 8, "'prefetch' is names of buffers"),
]


@pytest.mark.parametrize(("key", "plain", "message"), WRONG)
def test_values_of_other_types_are_refused(key: Annotation[Any], plain: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        key.read(plain)
    (problem,) = problems({key.name: plain, "mine": plain}, key.place)
    with pytest.raises(UserError, match=message):
        raise UserError(problem)


def test_schedules_check_known_annotations_and_keep_the_others() -> None:
    schedule = Schedule(elementwise((4, 4), 1))
    block = schedule.get_block("B0")
    inner = schedule.get_loops(block)[1]
    with pytest.raises(ScheduleError, match=r"loop .*: the annotation 'prefetch' is names of buffers"):
        schedule.annotate(inner, PREFETCH, 3)
    with pytest.raises(ScheduleError, match="block B0: the annotation 'prefetch' is for loops, not for a block"):
        schedule.annotate(block, "prefetch", {"A": 4})
    schedule.annotate(inner, PREFETCH, {"A": 4})
    schedule.annotate(inner, "mine", {"anything": [1, "x"]})
    assert PREFETCH.of(schedule.loop(inner)) == {"A": Prefetch(4, 4)}
    assert schedule.loop(inner).annotations["mine"] == {"anything": [1, "x"]}
    assert schedule.trace.instructions[-2].attributes == {"key": "prefetch", "value": {"A": 4}}
    schedule.unannotate(inner, PREFETCH)
    assert not PREFETCH.is_on(schedule.loop(inner))


def test_written_programs_are_checked_before_they_are_built() -> None:
    text = to_script(elementwise((4, 4), 1))
    require_legal(parse_script(text))  # type: ignore[arg-type]
    wrong = text.replace('with block("B0"):', 'with block("B0"):\n            annotations({"layout": "CHWN"})', 1)
    assert wrong != text
    with pytest.raises(ScheduleError, match="block B0: the annotation 'layout' is one of NCHW, NHWC, not 'CHWN'"):
        require_legal(parse_script(wrong))  # type: ignore[arg-type]


def test_computations_check_known_annotations() -> None:
    a = te.placeholder((4,), name="A")
    with pytest.raises(UserError, match=r"te.compute B: the annotation 'anchor' is one of"):
        te.compute((4,), lambda i: a[i], name="B", notes={"anchor": "copy"})


def test_every_annotation_says_what_it_is() -> None:
    assert len({key.name for key in ANNOTATIONS.values()}) == len(ANNOTATIONS) > 20
    for key in ANNOTATIONS.values():
        assert key.meaning and key.place in Place
        assert key.needs is None or ANNOTATIONS[key.needs.name] is key.needs
