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
    words = ["--models", "dqn", "--trials", "6", "--rounds", "1", "--time", "60s", "--json", str(figures)]
    words += ["--database", str(database), "--reports", str(tmp_path / "pages")]
    # So few trials may find nothing better, and one round is noise.
    assert tune_models.main(words) in (0, 1)
    written = json.loads(figures.read_text())
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == written
    result = written["models"]["dqn"]
    assert result["trials"] == 6 and result["max_rel_err"] < 1e-4 and result["ratio"] > 0
    assert written["geomean_ratio"] == result["ratio"]
    assert "<svg" in (tmp_path / "pages" / "dqn-1t.html").read_text()
    with Database(database) as opened:
        assert opened.count() == 6
        answers = opened.answers(str(Target("native").replace(cores=1)))
    tune_models.main(words)
    with Database(database) as opened:
        assert opened.count() == 6
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "ship")
    assert tune_models.main(["--ship", "--database", str(database)]) == 0
    shipped._read.cache_clear()
    # Kernels and algorithms that are not as by default.
    kernels = {key: found for key, found in answers.items() if found and not is_graph_key(key)}
    wanted = {**kernels, **measured_answers(answers)}
    assert shipped.shipped_answers(Target("native").replace(cores=1)) == wanted


def test_what_counts_as_good() -> None:
    assert tune_models.is_good({"max_rel_err": 1e-6, "ratio": 1.2})
    assert not tune_models.is_good({"max_rel_err": 1e-3, "ratio": 1.2})
    assert not tune_models.is_good({"max_rel_err": 1e-6, "ratio": 0.9})


def test_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert tune_models.main(["--models", "nonsense"]) == 2
    assert "unknown model 'nonsense'" in capsys.readouterr().err
