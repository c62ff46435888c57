"""The node suite of ONNX, imported and written again: some here, all by `python -m bench.onnx_round_trip`."""

from __future__ import annotations

from collections import Counter

from bench.onnx_cases import load_cases
from bench.onnx_round_trip import round_trip

_ALWAYS = ("_lstm_", "_gru_", "_loop", "_if", "_optional_get", "_sequence_insert", "_range_", "_cumprod_", "_tfidf")


def test_written_models_give_what_the_suite_expects() -> None:
    cases = load_cases(("node",))
    chosen = [case for n, case in enumerate(cases) if n % 20 == 0 or any(word in case.name for word in _ALWAYS)]
    outcomes = [round_trip(case) for case in chosen]
    counts = Counter(item.verdict for item in outcomes)
    assert not counts["failed"], [(item.name, item.reason) for item in outcomes if item.verdict == "failed"]
    assert counts["passed"] > 120
    # What is refused is refused by the importer.
    assert {item.operator for item in outcomes if item.verdict == "unsupported"} <= {"ImageDecoder"}
