"""The benchmark command from end to end, with a stand-in compiler: table, JSON, exit codes, failures kept apart."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench import demo, models, zoo
from bench.peers import process
from tests.cli.test_versus import Timed, standing
from tests.tune.weather import Weather
from tilewright.cli import peers, versus
from tilewright.options import CompileOptions
from tilewright.support.errors import UserError


class StandIn:
    """An executable that answers as onnxruntime does, times `factor`."""

    def __init__(self, path: str, factor: float) -> None:
        self.path = Path(path)
        self.factor = np.float32(factor)

    def run(self, inputs: zoo.Arrays) -> list[np.ndarray]:
        return [output * self.factor for output in peers.onnxruntime(self.path, 1, inputs)()]


def stand_in_compiler(factor: float) -> SimpleNamespace:
    def compile_stand_in(path: str, target: str, *, options: CompileOptions) -> StandIn:
        assert (target, options.threads) == ("native", 1)
        if "dcgan" in path:
            raise UserError("operator Foo is not supported", where="node /main/Foo")
        return StandIn(path, factor)

    return SimpleNamespace(frontend=SimpleNamespace(from_onnx=str), compile=compile_stand_in)


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str], str]:
    code = models.main(arguments)
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err


def test_the_last_line_is_json_with_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "tw", stand_in_compiler(1.0))
    monkeypatch.setattr(models, "elsewhere", lambda model: model)
    path = tmp_path / "figures.json"
    code, lines, _ = run(["--models", "dqn", "--rounds", "2", "--json", str(path)], capsys)
    assert code == 0
    summary = json.loads(lines[-1])
    figures = summary["models"]["dqn"]
    assert figures["max_rel_err"] == 0.0
    assert figures["ours_min_ms"] <= figures["ours_ms"]
    assert figures["peers_ms"]["onnxruntime"] > 0
    low, high = figures["between"]
    assert 0 < low <= figures["ratio"] <= high and figures["pairs"]["onnxruntime"] >= 2
    assert any(f"x ({low:.2f}-{high:.2f})" in line for line in lines)
    assert json.loads(path.read_text()) == summary
    assert any(line.startswith("DQN") for line in lines)


def test_a_wrong_answer_is_an_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "tw", stand_in_compiler(1.01))
    code, lines, _ = run(["--models", "dqn", "--rounds", "1", "--json", str(tmp_path / "f.json")], capsys)
    assert code == 1
    assert 0.009 < json.loads(lines[-1])["models"]["dqn"]["max_rel_err"] < 0.011


def test_one_model_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "tw", stand_in_compiler(1.0))
    options = ["--models", "dcgan,dqn", "--against", "", "--rounds", "1", "--json", str(tmp_path / "f.json")]
    code, lines, errors = run(options, capsys)
    assert code == 1
    summary = json.loads(lines[-1])
    assert "operator Foo is not supported" in summary["models"]["dcgan"]["error"]
    assert "ratio" not in summary["models"]["dqn"]
    assert "dcgan: failed: operator Foo" in errors


def test_a_peer_that_fails_or_is_wrong_does_not_count(tmp_path: Path) -> None:
    class Stand:
        def __init__(self, name: str, answer: object) -> None:
            self.name = name
            self.answer = answer

        def load(self, path: Path, inputs: zoo.Arrays) -> list[np.ndarray]:
            if isinstance(self.answer, str):
                raise process.PeerError(self.answer)
            return [np.float32([self.answer])]

    failures: dict[str, str] = {}
    expected = [np.float32([1])]
    stands = [Stand("torch", 1.0), Stand("ncnn", "no layer"), Stand("mnn", 2.0), Stand("openvino", np.nan)]
    able = [stand.name for stand in stands if models.can_run(stand, tmp_path, {}, expected, failures)]
    assert able == ["torch"]
    assert failures == {
        "ncnn": "no layer",
        "mnn": "its outputs are wrong: max relative error 1.0e+00",
        "openvino": "its outputs are wrong: max relative error inf",
    }


def test_demo_helpers() -> None:
    assert demo.top_classes(np.array([[0.1, 3.0, -1.0, 2.0]])) == [1, 3, 0]


def test_models_are_chosen_by_name_or_by_set() -> None:
    assert models.parse_models("all") == zoo.names()
    assert models.parse_models("more") == zoo.more_names()
    assert models.parse_models("dqn, swin") == ["dqn", "swin"]
    with pytest.raises(UserError, match="unknown model 'resnet'"):
        models.parse_models("resnet")


def test_figures_have_the_ratio_of_pairs_with_its_bounds() -> None:
    found = standing(0, 1.2)
    result = models.figures(found, 2.0)
    comparison = found.peers["peer"]
    assert result["best_peer"] == "peer" and result["ratio"] == round(comparison.ratio, 4)
    low, high = result["between"]
    assert low < result["ratio"] < high and result["between"] == result["peers_between"]["peer"]
    assert result["peers_ms"]["peer"] / result["ours_ms"] == pytest.approx(comparison.ratio, abs=1e-3)
    assert result["peers_min_ms"]["peer"] <= result["peers_ms"]["peer"]
    assert result["pairs"]["peer"] == len(comparison.ratios) and result["pairs"].keys() == {"peer", "slow"}
    assert result["gflops"] == pytest.approx(2.0 / np.median(found.ours) * 1e3, abs=0.01)


def test_ours_in_its_own_place_is_no_peer_to_be_ahead_of() -> None:
    weather = Weather(0)
    peers = {"tilewright": Timed(weather, 0.003), "slow": Timed(weather, 2 * 0.003)}
    found = versus.against(lambda place: Timed(weather, 0.003), peers, 2, clock=lambda: weather.now)
    assert models.figures(found, 1.0)["best_peer"] == "slow"
    del peers["slow"]
    found = versus.against(lambda place: Timed(weather, 0.003), peers, 2, clock=lambda: weather.now)
    assert models.figures(found, 1.0)["best_peer"] == "tilewright"


@pytest.mark.parametrize("pause", ["-5", "nan", "inf", "soon"])
def test_pauses_are_times(pause: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        models.main(["--pause", pause])
    assert "no number of milliseconds" in capsys.readouterr().err
