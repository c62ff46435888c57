"""The measuring helpers and the benchmark command's options, messages and table."""

from __future__ import annotations

import json
import sys
from importlib.util import cache_from_source
from pathlib import Path

import numpy as np
import pytest

from bench import docs, harness, models
from tilewright.cli import measure, peers
from tilewright.support.errors import UserError


def test_relative_error_is_against_the_largest_expected_value() -> None:
    expected = [np.array([1.0, -4.0], np.float32)]
    assert measure.max_relative_error([np.array([1.0, -3.0], np.float32)], expected) == 0.25
    assert measure.max_relative_error(expected, expected) == 0.0
    assert measure.max_relative_error([np.array([1.0, np.nan])], expected) == float("inf")
    assert measure.max_relative_error([np.zeros((2, 1))], expected) == float("inf")
    assert measure.max_relative_error([], expected) == float("inf")
    assert measure.max_relative_error([np.zeros(0)], [np.zeros(0)]) == 0.0


def test_json_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "figures.json"
    harness.write_json(path, {"a": 1})
    assert json.loads(path.read_text()) == {"a": 1}
    with pytest.raises(TypeError):
        harness.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in path.parent.iterdir()] == ["figures.json"]


def test_machine_and_versions() -> None:
    assert harness.machine()["cores"] == harness.all_threads()
    assert harness.machine_line()
    assert "numpy" in harness.versions(["numpy", "no-such-package"])
    assert "no-such-package" not in harness.versions(["numpy", "no-such-package"])


def test_milliseconds_read_well() -> None:
    assert [measure.format_ms(value) for value in (0.07123, 3.14159, 128.04)] == ["0.0712", "3.14", "128.0"]


def test_options() -> None:
    assert models.parse_threads("3") == 3
    assert models.parse_threads("all") == harness.all_threads()
    assert models.parse_models("dqn, resnet18") == ["dqn", "resnet18"]
    assert len(models.parse_models("all")) == 10
    assert peers.parse_peers("onnxruntime,onnxruntime") == ["onnxruntime"]
    assert peers.parse_peers("") == []


def test_option_messages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match="'0' is not a number of threads"):
        models.parse_threads("0")
    with pytest.raises(UserError, match="unknown model 'vgg': the models are resnet18"):
        models.parse_models("vgg")
    with pytest.raises(UserError, match="unknown peer 'abacus': the peers are onnxruntime"):
        peers.parse_peers("abacus")
    assert models.main(["--models", "vgg"]) == 2
    assert "unknown model 'vgg'" in capsys.readouterr().err


def test_table_shows_failures_and_wrong_answers() -> None:
    good: models.Result = {
        "ours_ms": 2.0,
        "ours_min_ms": 1.5,
        "peers_ms": {"onnxruntime": 3.0},
        "ratio": 1.5,
        "gflops": 10.0,
        "max_rel_err": 1e-6,
    }
    text = models.render(
        {"dqn": good, "dcgan": {**good, "max_rel_err": 0.5}, "resnet18": {"error": "no"}}, ["onnxruntime"]
    )
    lines = text.splitlines()
    assert "onnxruntime ms" in lines[0]
    dqn, dcgan, resnet = lines[2:5]
    assert "1.50x" in dqn
    assert "WRONG" not in dqn
    assert "WRONG" in dcgan
    assert "failed" in resnet


def test_notes_below_the_table_say_why_and_where() -> None:
    result: models.Result = {
        "ours_ms": 2.0,
        "ours_min_ms": 2.0,
        "peers_ms": {"onnxruntime": 1.0},
        "peers_failed": {"ncnn": "no such layer"},
        "best_peer": "onnxruntime",
        "ratio": 0.5,
        "gflops": 1.0,
        "max_rel_err": 0.0,
    }
    level = {**result, "ratio": 0.99, "between": [0.97, 1.01]}
    near = {**result, "ratio": 0.96, "between": [0.95, 0.97]}
    given = {"dqn": result, "dcgan": {**result, "ratio": 2.0}, "resnet18": level, "resnet50": near}
    text = models.render(given, ["onnxruntime", "ncnn"])
    assert "n/a" in text.splitlines()[2]
    assert "n/a: ncnn on dqn: no such layer" in text
    assert "behind: onnxruntime is quicker on dqn: 0.50x" in text
    assert "level: onnxruntime is as quick on resnet18: 0.99x (0.97-1.01)" in text
    assert "behind: onnxruntime is quicker on resnet50: 0.96x (0.95-0.97)" in text
    assert "0.99x (0.97-1.01)" in text.splitlines()[4]
    assert "on dqn" not in "\n".join(models.notes({"dqn": {**result, "best_peer": "tilewright", "peers_failed": {}}}))
    assert "quicker on dcgan" not in text
    assert "quickest peer: 0.99x" in text
    assert models.geometric_mean([]) is None


def test_documentation_check_finds_broken_links_and_failing_tutorials(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tutorials = tmp_path / "docs" / "tutorials"
    tutorials.mkdir(parents=True)
    links = (
        "[good](docs/page.md#a-part-of-it) [web](https://example.org/x) [bad](docs/none.md) [bad](docs/page.md#part)"
    )
    (tmp_path / "README.md").write_text(f"{links}\n")
    (tmp_path / "docs" / "page.md").write_text("# A part, of `it`\n```text\n[not a link](nowhere.md)\n# part\n```\n")
    (tutorials / "1_first.md").write_text("```python\nprint(1)\n```\n")
    (tutorials / "2_second.md").write_text(
        "Text.\n```python\nx = 1\n```\nMore.\n```python\nassert x == 2, 'two'\n```\n"
    )
    (tutorials / "3_prose.md").write_text("No code.\n")
    assert docs.main([str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "README.md: the link to 'docs/none.md' leads nowhere" in captured.err
    assert "README.md: the link to 'docs/page.md#part' leads nowhere" in captured.err
    assert "2_second.md failed" in captured.err
    assert "documentation: 3 problems" in captured.out


def test_bytecode_is_written_where_python_itself_may_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "module.py").write_text("x = 1\n", encoding="utf-8")
    harness.write_bytecode(tmp_path)
    assert Path(cache_from_source(str(tmp_path / "module.py"))).exists()
