"""Runs in parts: what is missing, how parts are put together, and files that are not ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import gpu_parts
from tilewright.support.errors import UserError

BERT = (1, "fp16", "bert_small")
IMAGES = (16, "fp32", "dqn")


def _row(one: gpu_parts.Configuration, *peers: str, failed: dict[str, str] | None = None, **more: Any) -> gpu_parts.Row:
    batch, precision, model = one
    walls = {"tilewright": 10.0, **{peer: 20.0 + place for place, peer in enumerate(peers)}}
    row = {"model": model, "batch": batch, "precision": precision, "wall_us": walls, **more}
    return {**row, "peers_failed": failed} if failed else row


def test_nothing_is_there_at_first() -> None:
    assert gpu_parts.missing([], [BERT, IMAGES], ["compile"]) == {BERT: ["compile"], IMAGES: ["compile"]}
    assert gpu_parts.missing([], [BERT], []) == {BERT: []}  # the graph is missing


def test_what_was_timed_is_not_wanted_again() -> None:
    rows = [_row(BERT, "graph", "compile"), _row(IMAGES, "graph", "compile")]
    assert gpu_parts.missing(rows, [BERT, IMAGES], ["compile"]) == {IMAGES: []}  # one layout of the graph is missing
    assert gpu_parts.missing(rows, [BERT], ["compile", "autotune"]) == {BERT: ["autotune"]}
    assert gpu_parts.missing(rows, [BERT], []) == {}


@pytest.mark.parametrize(
    ("failure", "again"), [("no time left to compile it", True), (gpu_parts.TOO_SLOW, True), ("out of memory", False)]
)
def test_only_lack_of_time_is_tried_again(failure: str, again: bool) -> None:
    rows = [_row(BERT, "graph", failed={"compile": failure})]
    assert gpu_parts.missing(rows, [BERT], ["compile"]) == ({BERT: ["compile"]} if again else {})


def test_a_failure_of_ours_is_tried_again() -> None:
    rows = [_row(BERT, "graph", "compile", error="CompilerBug: no")]
    assert gpu_parts.missing(rows, [BERT], ["compile"]) == {BERT: ["compile"]}


def test_parts_with_other_peers_stand_side_by_side_and_the_quickest_peer_counts() -> None:
    first = _row(BERT, "graph", "compile", ratio=2.0)
    second = _row(BERT, "graph", "autotune", ratio=1.5)
    rows = gpu_parts.together(gpu_parts.together([], first), second)
    assert rows == [first, second]
    assert gpu_parts.ratios(rows) == {BERT: 1.5}
    newer = _row(BERT, "graph", "compile", ratio=3.0)
    assert gpu_parts.together(rows, newer) == [second, newer]
    every = _row(BERT, "graph", "compile", "autotune", ratio=1.7)
    assert gpu_parts.together(rows, every) == [every]


def test_lack_of_time_is_said_only_where_nothing_else_is_known() -> None:
    late = {"model": "bert_small", "batch": 1, "precision": "fp16", "error": gpu_parts.NO_TIME}
    known = _row(BERT, "graph")
    assert gpu_parts.together([], late) == [late]
    assert gpu_parts.together([known], late) == [known]
    assert gpu_parts.together([late], known) == [known]
    assert gpu_parts.missing([late], [BERT], []) == {BERT: []}


def test_rows_come_in_the_order_of_the_models() -> None:
    rows: list[gpu_parts.Row] = []
    for one in (IMAGES, (1, "fp16", "dqn"), BERT, (1, "fp32", "bert_small")):
        rows = gpu_parts.together(rows, _row(one, "graph"))
    assert [gpu_parts.configuration(row) for row in rows] == [
        (1, "fp32", "bert_small"),
        (1, "fp16", "dqn"),
        BERT,
        IMAGES,
    ]


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    assert gpu_parts.read(path, "H200") == []
    path.write_text(json.dumps({"device": "H200", "results": [_row(BERT, "graph")]}))
    assert gpu_parts.read(path, "H200") == [_row(BERT, "graph")]
    with pytest.raises(UserError, match="another GPU: H200"):
        gpu_parts.read(path, "A100")
    for text in ("{", "[1]", '{"device": "H200"}'):
        path.write_text(text)
        with pytest.raises(UserError, match="does not hold figures"):
            gpu_parts.read(path, "H200")
