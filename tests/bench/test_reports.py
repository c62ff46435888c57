"""The benchmarks of memory, compile time and parallel regions, and the charts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from bench import compile_time, figures, fork_join, harness, memory
from tests.requirements import need
from tilewright.support.errors import UserError


def test_memory_plan_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "memory.json"
    assert memory.main(["--models", "dqn", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    result = json.loads(lines[-1])["memory"]["dqn"]
    assert result["lower_bound_bytes"] <= result["workspace_bytes"] <= result["unshared_bytes"]
    assert any(line.startswith("DQN") for line in lines)
    assert json.loads(path.read_text())["memory"]["dqn"] == result


def test_a_plan_above_the_limit_is_said() -> None:
    plan: memory.Result = {
        "workspace_bytes": 300,
        "lower_bound_bytes": 200,
        "unshared_bytes": 400,
        "scratch_bytes": 0,
        "in_place": 0,
        "constant_bytes": 0,
        "ratio": 1.5,
    }
    assert "above" in memory.render({"dqn": plan})


def test_memory_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert memory.main(["--models", "vgg"]) == 2
    assert "unknown model 'vgg'" in capsys.readouterr().err


def test_compile_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "compile_time.json"
    assert compile_time.main(["--model", "dqn", "--repeat", "1", "--json", str(path)]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    # Which is quicker is not asked here: other tests may be running beside this one.
    assert min(summary["warm_s"], summary["cold_s"], summary["import_s"]) > 0
    assert {"split", "reorder", "compute_at", "decompose_reduction"} <= set(summary["primitives_ms"])
    assert json.loads(path.read_text()) == summary


def test_compile_time_messages(capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_time.main(["--model", "vgg"]) == 2
    assert "unknown model 'vgg': the models are resnet18" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"the measured process failed:\n.*no such thing"):
        compile_time._run(["-c", "import sys; sys.exit('no such thing')"])


def test_pinning_is_undone() -> None:
    need("affinity")
    cores = harness.cores_for(1)
    before = harness.cores_for(10_000)
    with harness.pinned(1):
        assert harness.cores_for(10_000) == cores
    assert harness.cores_for(10_000) == before


def sample_figures(folder: Path) -> None:
    machine = {"llvm_cpu": "test-cpu"}
    models = {
        "dqn": {"ours_ms": 1.0, "peers_ms": {"onnxruntime": 2.0, "torch": 0.5}},
        "dcgan": {"ours_ms": 1.0, "peers_ms": {"onnxruntime": 2.0}},
        "resnet18": {"ours_ms": None, "peers_ms": {}, "error": "no"},
    }
    kernels = {"gemm": {"fraction": 0.9, "goal": 0.8, "reached": True}, "other": {"skipped": "no such unit"}}
    harness.write_json(folder / "models-2t.json", {"models": models, "threads": 2, "machine": machine})
    harness.write_json(folder / "kernels.json", {"kernels": kernels, "peak_gflops": 10.0, "machine": machine})


def test_charts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    need("matplotlib")
    sample_figures(tmp_path)
    assert figures.main([str(tmp_path)]) == 0
    made = capsys.readouterr().out.split()
    assert [Path(name).name for name in made] == ["models-2t.png", "kernels.png"]
    assert all(Path(name).read_bytes().startswith(b"\x89PNG") for name in made)


def test_chart_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures.main([str(tmp_path)]) == 2
    assert f"no figures in {tmp_path}" in capsys.readouterr().err
    sample_figures(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert figures.main([str(tmp_path)]) == 2
    assert "matplotlib" in capsys.readouterr().err


def test_fork_join_has_a_figure_for_two_threads() -> None:
    found = fork_join.measure(2, repeat=1)
    assert found["at_once"] > 0
    assert found["after_pause"] >= 0
