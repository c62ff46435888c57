"""The house rules as counts: what each finds is nothing, but for exceptions that shrink until there are none."""

from __future__ import annotations

import ast

import pytest

from tests import house
from tests.source_tree import find_cycles

MOST_LINES = 244_200


@pytest.mark.parametrize("rule", house.RULES)
def test_only_known_exceptions_break_a_rule(rule: str) -> None:
    allowed = house.exceptions().get(rule, {})
    new = [str(item) for item in house.findings(rule) if house.counts(rule).get(item.key, 0) > allowed.get(item.key, 0)]
    assert not new, f"{rule} (see tests/house.py):\n  " + "\n  ".join(new)


@pytest.mark.parametrize("rule", house.RULES)
def test_every_exception_is_still_needed(rule: str) -> None:
    needed = house.counts(rule)
    mended = [
        f"{key}: {count} excepted, {needed.get(key, 0)} needed"
        for key, count in house.exceptions().get(rule, {}).items()
        if count > needed.get(key, 0)
    ]
    assert not mended, f"{rule}: `python -m tests.house --accept` takes over what was mended:\n  " + "\n  ".join(mended)


def test_exceptions_are_of_known_rules() -> None:
    assert set(house.exceptions()) <= set(house.RULES)


def test_the_package_does_not_grow() -> None:
    lines = house.package_lines()
    assert lines <= MOST_LINES, f"the package has {lines} lines"
    assert lines > MOST_LINES - 10_000, f"the package has shrunk to {lines} lines: lower the ceiling"


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ('target.kind == "cuda"', True),
        ('"rocm" != self.target.kind', True),
        ('kind in ("webgpu", "vulkan")', True),
        ('dialect.name == "OpenCL"', True),
        ('target.kind in frozenset(["metal"])', True),
        ('{"cuda": 1, "opencl": 2}[target.kind]', True),
        ('match target.kind:\n    case "cuda":\n        pass', True),
        ('node.kind == "reduce"', False),
        ("target.kind in BACKENDS", False),
        ('language == "CUDA"', False),
        ("target.has_tensor_cores", False),
    ],
)
def test_what_a_test_of_a_back_end_is(text: str, counts: bool) -> None:
    assert any(house._is_back_end_test(node) for node in ast.walk(ast.parse(text))) is counts


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ('block.annotations.get("anchor")', True),
        ('loop.annotations["pragma"] = 1', True),
        ("PREFETCH in loop.annotations", True),
        ("loop.annotations.get(stmt.ROLLED, 0)", True),
        ("LAYOUT.of(block)", False),
        ("block.annotations.get(name)", False),
        ("dict(loop.annotations)", False),
        ('{"a": 1}.get("a")', False),
    ],
)
def test_what_an_annotation_by_string_is(text: str, counts: bool) -> None:
    assert any(house._is_annotation_by_name(node) for node in ast.walk(ast.parse(text))) is counts


def test_the_cycle_finder_finds_one_short_cycle_for_each_knot() -> None:
    assert find_cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert find_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]
    assert find_cycles({"a": {"b"}, "b": {"c", "a"}, "c": {"a"}, "d": {"e"}, "e": {"d", "a"}}) == [
        ["a", "b", "a"],
        ["d", "e", "d"],
    ]


def test_passes_are_found_in_both_folders() -> None:
    assert {"canonicalize", "fuse", "plan_memory"} <= set(house.passes_of("graph"))
    assert {"lower_blocks", "vectorize_loops", "split_host_device"} <= set(house.passes_of("tir"))
    assert not {"rewriting", "accesses", "combine_threads"} & set(house.passes_of("tir"))
