"""Tuning the benchmark models: a small one for real, resumed, and written as shipped records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import tune_models
from tilewright.graph.choices import is_graph_key
from tilewright.lower import shipped
from tilewright.lower.database import Database
from tilewright.target import Target
from tilewright.tune.algorithms import measured_answers


@pytest.mark.slow
def test_a_model_is_tuned_once_and_shipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, database = tmp_path / "tuned.json", tmp_path / "tuned.db"
    words = ["--models", "dqn", "--trials", "3", "--compare-time", "0.3s", "--time", "60s", "--json", str(figures)]
    words += ["--database", str(database), "--reports", str(tmp_path / "pages")]
    # In so short a time a machine may be slow for one of them only.
    assert tune_models.main(words) in (0, 1)
    written = json.loads(figures.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == written
    result = written["models"]["dqn"]
    assert result["trials"] == 3 and result["max_rel_err"] < 1e-4
    assert 0 < result["between"][0] <= result["ratio"] <= result["between"][1] and result["room"] >= 1.0
    assert written["geomean_ratio"] == result["ratio"]
    assert "<svg" in (tmp_path / "pages" / "dqn-1t.html").read_text()
    with Database(database) as opened:
        assert opened.count() == 3
    tune_models.main([*words, "--choose"])
    with Database(database) as opened:
        assert opened.count() == 3, "nothing new was measured"
        answers = opened.answers(str(Target("native").replace(cores=1)))
    assert "choosing" in capsys.readouterr().err
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "ship")
    assert tune_models.main(["--ship", "--database", str(database)]) == 0
    shipped._read.cache_clear()
    # Kernels and algorithms that are not as by default.
    kernels = {key: found for key, found in answers.items() if found and not is_graph_key(key)}
    wanted = {**kernels, **measured_answers(answers)}
    assert shipped.shipped_answers(Target("native").replace(cores=1)) == wanted


def test_what_counts_as_good() -> None:
    right = {"max_rel_err": 1e-6, "ratio": 0.99}
    assert tune_models.is_good({**right, "between": [0.98, 1.01]}), "it may be as quick"
    assert not tune_models.is_good({**right, "between": [0.98, 0.995]})
    assert not tune_models.is_good({"max_rel_err": 1e-3, "ratio": 1.2, "between": [1.1, 1.3]})
    assert not tune_models.is_good(right), "older figures have no bounds"


def test_the_table_has_bounds_and_room_where_there_are_any() -> None:
    known = {"trials": 3, "minutes": 1.0, "untuned_ms": 2.0, "tuned_ms": 1.0, "ratio": 2.0, "kernels": 1.9}
    older, newer = known, {**known, "between": [1.9, 2.1], "room": None}
    lines = tune_models.render({"a": older, "b": newer, "c": {**newer, "room": 1.25}}).splitlines()[2:]
    assert [line.split()[6:8] for line in lines] == [
        ["2.000-2.000", "-"],
        ["1.900-2.100", "-"],
        ["1.900-2.100", "1.25"],
    ]


def test_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune_models.main(["--models", "nonsense"]) == 2
    assert "unknown model 'nonsense'" in capsys.readouterr().err
