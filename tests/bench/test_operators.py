"""The operator benchmark: every case is a valid model, both sides take turns, figures are written, errors are told."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from bench import operators
from bench.operator_cases import Case, floats
from bench.operator_table import CASES, FAMILIES
from bench.peers import onnxruntime_peer
from tilewright.options import CompileOptions
from tilewright.support.errors import UnsupportedError


class StandIn:
    """An executable that answers as onnxruntime does, times `factor`."""

    def __init__(self, path: str, factor: float) -> None:
        self.path, self.factor = Path(path), np.float32(factor)

    def run(self, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [output * self.factor for output in onnxruntime_peer.load(self.path, 1, inputs, self.path.parent)()]


def stand_in(factor: float) -> SimpleNamespace:
    def compile_stand_in(path: str, target: str, *, options: CompileOptions) -> StandIn:
        if "relu" in path:
            raise UnsupportedError("operator Relu is not supported")
        return StandIn(path, factor)

    return SimpleNamespace(frontend=SimpleNamespace(from_onnx=str), compile=compile_stand_in)


@pytest.mark.parametrize("case", CASES.values(), ids=lambda case: case.name)
def test_every_case_is_a_valid_model(case: Case) -> None:
    model = onnx.shape_inference.infer_shapes(case.model(), check_type=True, strict_mode=True)
    assert len(model.graph.output) == case.outputs
    assert all(item.type.tensor_type.elem_type for item in model.graph.output)


def test_families_and_names_choose_cases() -> None:
    assert [case.name for case in operators.choose_cases("softplus")] == ["softplus"]
    assert {case.family for case in operators.choose_cases("pool,small")} == {"pool", "small"}
    assert {case.family for case in operators.choose_cases("")} == set(FAMILIES)


def test_a_case_has_the_same_inputs_every_time() -> None:
    first, second = (Case("a", "x", "Relu", {"x": floats(4)}).arrays()["x"] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_turns_are_taken_and_the_middle_ratio_counts() -> None:
    class Clock:
        def __init__(self, milliseconds: float) -> None:
            self.milliseconds = milliseconds

        def sample(self, count: int) -> list[float]:
            return [self.milliseconds] * count

    pairs = operators.take_turns(Clock(1.0), Clock(3.0), 0.0)
    assert len(pairs) >= 8
    assert set(pairs) == {(1.0, 3.0)}


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.5, 1)])
def test_the_command_prints_a_table_and_json(
    factor: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operators, "tw", stand_in(factor))
    path = tmp_path / "figures.json"
    arguments = ["--only", "small_matmul,small_sum", "--seconds", "0", "--json", str(path)]
    assert operators.main(arguments) == code
    lines = capsys.readouterr().out.splitlines()
    summary = json.loads(lines[-1])
    assert summary == json.loads(path.read_text())
    assert set(summary["operators"]) == {"small_matmul", "small_sum"}
    assert summary["operators"]["small_sum"]["ratio"] > 0
    assert any(line.startswith("small_sum") and line.endswith("WRONG") is (code == 1) for line in lines)


def test_what_does_not_compile_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(operators, "tw", stand_in(1.0))
    code = operators.main(["--only", "small_relu", "--seconds", "0", "--json", str(tmp_path / "f.json")])
    assert code == 1
    assert "failed: small_relu: operator Relu is not supported" in capsys.readouterr().out


def test_words_that_fit_nothing_and_unknown_peers_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert operators.main(["--only", "nothing-has-this"]) == 2
    assert "no case's name or family contains" in capsys.readouterr().err
    assert operators.main(["--against", "nobody"]) == 2
    assert "unknown peer" in capsys.readouterr().err
