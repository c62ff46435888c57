"""Random tests in pieces: shared by processes, and taken up again where they were stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz import accel_compiled, accel_mutations, pieces

RUN: list[pieces.Piece] = []


def work(piece: pieces.Piece) -> pieces.Tally:
    RUN.append(piece)
    tally = pieces.Tally()
    tally.counts.update(seeds=piece.count)
    if 7 in piece.seeds and piece.subject == "b":
        tally.failures.append("seed 7: wrong")
    return tally


def _options(*arguments: str) -> object:
    return pieces.parser("", 10, ["a", "b"], "things").parse_args(["--piece", "4", *arguments])


def test_what_is_done_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = tmp_path / "state.jsonl"
    RUN.clear()
    assert pieces.run(_options("--state", str(state)), work, ["accel"]) == 1  # type: ignore[arg-type]
    assert [(item.subject, item.first, item.count) for item in RUN] == [
        (subject, first, min(4, 10 - first)) for subject in "ab" for first in (0, 4, 8)
    ]
    lines = state.read_text().splitlines()
    # The last piece was cut off; one is of other sources.
    other = {**json.loads(lines[0]), "sources": "others"}
    state.write_text("\n".join([json.dumps(other), *lines[1:-1], lines[-1][:20]]))
    RUN.clear()
    capsys.readouterr()
    assert pieces.run(_options("--state", str(state)), work, ["accel"]) == 1  # type: ignore[arg-type]
    assert [(item.subject, item.first) for item in RUN] == [("a", 0), ("b", 8)]
    total = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert total["seeds"] == 20 and total["failures"] == 1


def test_records_have_the_machine_and_the_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "RESULTS", tmp_path)
    pieces.run(_options("--configs", "a", "--record", "a.json"), work, ["accel"])  # type: ignore[arg-type]
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["total"] == {"seeds": 10} and record["failures"] == [] and "cpu" in record["machine"]
    # A later run keeps what is known of another configuration, unless that is of other sources.
    pieces.run(_options("--configs", "b", "--record", "a.json"), work, ["accel"])  # type: ignore[arg-type]
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["total"] == {"seeds": 20} and record["failures"] == ["b, seed 7: wrong"]
    pieces.run(_options("--configs", "a", "--record", "a.json"), work, ["tune"])  # type: ignore[arg-type]
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["total"] == {"seeds": 10} and record["failures"] == []


@pytest.mark.parametrize("subject", ["few_tokens", "fast_bus"])
def test_compiled_streams_pass_the_checker(subject: str) -> None:
    tally = accel_compiled.work(pieces.Piece(subject, 0, 2))
    assert not tally.failures and tally.counts["streams"] == 10


def test_mutants_that_an_execution_shows_are_found() -> None:
    tally = accel_mutations.work(pieces.Piece("tiny", 0, 1))
    assert not tally.failures
    assert tally.counts["found"] > 80 and tally.counts["passed"] > 0
    # Most of what is found can be seen: the checker is not simply against everything.
    assert tally.counts["shown"] >= 0.8 * tally.counts["watched"] > 0
