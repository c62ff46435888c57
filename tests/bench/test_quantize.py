"""The accuracy command: rows that are kept, how they add up, and what must hold."""

from __future__ import annotations

from pathlib import Path

from bench import quantize, zoo
from bench.quantize import Store, render, summarize


def answer(way: str, fold: int, right: int, note: str = "", broken: str = "") -> dict[str, object]:
    return {
        "network": "mnist_cnn",
        "fold": fold,
        "way": way,
        "right": right,
        "images": 1000,
        "note": note,
        "broken": broken,
    }


def model(ours: float, theirs: float) -> dict[str, object]:
    return {
        "model": "dqn",
        "ours": {"a": 30.0, "b": ours},
        "theirs": {"a": 29.0, "b": theirs},
        "result_ours": 33.0,
        "result_theirs": 32.0,
    }


def test_folds_add_up() -> None:
    rows = [
        answer("float32", 0, 980),
        answer("float32", 1, 970),
        answer("int8", 0, 978, "30 dB"),
        answer("int8", 1, 970),
        answer("int3 weights", 0, 900),
    ]
    summary = summarize([*rows, {"network": "mnist_cnn", "fold": 0, "way": "end"}])
    ways = summary["networks"]["mnist_cnn"]
    assert (ways["int8"]["accuracy"], round(ways["int8"]["points"], 3)) == (97.4, -0.1)
    # A way of one fold is compared with float32 on that fold.
    assert (ways["int3 weights"]["images"], round(ways["int3 weights"]["points"], 3)) == (1000, -8.0)
    assert all(summary["checks"].values())
    assert "30 dB" in render(summary)


def test_folds_and_models_that_end_in_any_order_are_shown_in_one() -> None:
    rows = [answer("float32", 1, 970, "second"), answer("float32", 0, 980, "first"), answer("int8", 0, 978)]
    models = [model(30.0, 29.0) | {"model": name} for name in ("dqn", "resnet18")]
    summary = summarize([*rows, *models])
    assert summary["networks"]["mnist_cnn"]["float32"]["notes"] == ["first", "second"]
    assert summary == summarize([*rows[::-1], *models[::-1]])
    assert list(summary["models"]) == [name for name in zoo.names() if name in ("dqn", "resnet18")]


def test_what_does_not_hold_is_said() -> None:
    rows = [answer("float32", 0, 980), answer("int8", 0, 974), answer("W3A8 mixed", 0, 970, broken="fell too far")]
    checks = summarize([*rows, model(20.0, 25.0)])["checks"]
    assert [name for name, held in checks.items() if not held] == [
        "mnist_cnn: int8 within 0.5 points",
        "mnist_cnn: max_drop kept",
        "dqn: no noisier than onnxruntime",
    ]
    assert "FAILED" in render(summarize(rows))
    assert all(summarize([model(25.0, 25.5)])["checks"].values())


def test_rows_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "folder" / "rows.jsonl")
    store.add(answer("int8", 0, 5))
    assert Store(store.path).rows == [answer("int8", 0, 5)]


def test_results_belong_to_sources(tmp_path: Path, monkeypatch) -> None:
    for folder in ("src/tilewright/quantization", "bench"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(quantize, "REPOSITORY", tmp_path)
    before = quantize._source_key()
    (tmp_path / "bench" / "quantize_fold.py").write_text("pass\n")
    assert quantize._source_key() != before
