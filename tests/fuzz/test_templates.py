"""Schedule templates on odd sizes, for many cores: a sample of `make fuzz-templates`, and shapes that once failed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.fuzz import templates
from tests.fuzz.template_families import FAMILIES, Draft, draw
from tests.fuzz.templates import Case
from tilewright.support.errors import CompilerBug
from tilewright.topi.schedule.cpu import strategy

X86 = "llvm -mcpu=emeraldrapids -mtriple=x86_64-linux-gnu"
FIRST = 4000
"""The first seed of the sample."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_scheduled_for_many_cores(family: str) -> None:
    number = FIRST + list(FAMILIES).index(family)
    threads = templates.THREADS[number % len(templates.THREADS)]
    target = ("native", X86)[number // 2 % 2]
    assert templates.run_many([Case(number, family, target, threads, "float32", "lower")]) == []


@pytest.mark.parametrize("family", ["attention", "winograd", "reduction", "integer_product"])
def test_more_threads_than_cores_compute_the_same(family: str) -> None:
    assert templates.run_many([Case(FIRST + 1, family, "native", 64, "float32", "run")]) == []


def _attention(heads: int, tokens: int, size: int) -> onnx.ModelProto:
    draft = Draft(np.random.default_rng(0))
    names = [draft.input(1, heads, tokens, size, name=name) for name in "xyz"]
    scores = draft.node("MatMul", names[0], draft.node("Transpose", names[1], perm=[0, 1, 3, 2]))
    scores = draft.node("Add", scores, draft.weight(1, heads, tokens, tokens))
    return draft.model(draft.node("MatMul", draft.node("Softmax", scores, axis=-1), names[2]))


def _convolution(channels: int, groups: int, size: int) -> onnx.ModelProto:
    draft = Draft(np.random.default_rng(0))
    data, weight = draft.input(1, channels, size, size), draft.weight(channels, channels // groups, 3, 3)
    return draft.model(draft.node("Relu", draft.node("Conv", data, weight, group=groups, pads=[1, 1, 1, 1])))


@pytest.mark.parametrize("threads", [16, 64])
@pytest.mark.parametrize(
    "model",
    [_attention(24, 49, 32), _attention(12, 50, 64), _convolution(104, 13, 28)],
    ids=["windows of Swin", "tokens of ViT-B/32", "groups of RegNet"],
)
def test_shapes_whose_rows_end_inside_tiles(model: onnx.ModelProto, threads: int) -> None:
    """Blocks of rows that are not whole tiles; tiles that go on in the next line of an image."""
    templates.lower_all(model, X86, threads)


def test_heads_that_share_padded_values() -> None:
    """Twenty-four heads of queries on twelve of values, seven keys of eight elements, on eight threads."""
    assert templates.run_many([Case(4457, "attention", X86, 8, "float32", "lower")]) == []


def test_a_template_that_fails_is_a_failure_of_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    def template(context: object) -> None:
        raise CompilerBug("this template fails")

    monkeypatch.setattr(strategy, "_schedule", template)
    for step in ("lower", "compile", "run"):
        [(case, text)] = templates.run_many([Case(0, "softmax", "native", 4, "float32", step)])
        assert case.step == step and "this template fails" in text


def test_a_wrong_result_is_a_failure_of_the_campaign(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [np.full((1,), 3.0, np.float32)]
    monkeypatch.setattr(templates.small_models, "onnxruntime_outputs", lambda model, inputs: wrong)
    [(_, text)] = templates.run_many([Case(0, "softmax", "native", 4, "float32", "run")])
    assert "AssertionError: shape" in text


def test_cases_are_repeatable_and_various() -> None:
    assert templates.make(7) == templates.make(7)
    models = [draw("dense", seed)[0].SerializeToString() for seed in (1, 1, 2)]
    assert models[0] == models[1] != models[2]
    cases = [templates.make(seed) for seed in range(200)]
    assert {case.family for case in cases} == set(FAMILIES)
    assert {case.threads for case in cases} == set(templates.THREADS)
    assert {case.target for case in cases} == set(templates.CPUS)
    assert {case.step for case in cases} == {"lower", "plain", "compile", "run"}
