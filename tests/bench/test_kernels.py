"""The kernel benchmark: peaks, tiny kernels through the whole road, messages, table and JSON."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from bench import kernel_cases, kernels
from bench.kernel_cases import Case
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tune.peak import Peak, arithmetic_peak, move_peak, read_peak

TINY = [
    kernel_cases.gemm("tiny_gemm", 5, 16, 8, 0.0),
    kernel_cases.integer_gemm("tiny_int8", 4, 8, 8, 0.0),
    kernel_cases.gemv("tiny_gemv", 16, 8, 0.0),
    kernel_cases.convolution("tiny_conv", 6, 4, 8, 3, goal=100.0),
    kernel_cases.convolution("tiny_depthwise", 6, 8, 8, 3, 2, groups=8),
    kernel_cases.convolution("tiny_winograd", 16, 16, 16, 3, winograd=True),
    kernel_cases.transposed_convolution("tiny_transposed", 3, 4, 4),
    kernel_cases.softmax("tiny_softmax", (4, 8)),
    kernel_cases.layer_norm("tiny_norm", 4, 8),
]


@pytest.fixture(autouse=True)
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_SLICE_SECONDS", 1e-3)
    monkeypatch.setattr(kernels, "_TURN_SECONDS", 0.1)
    monkeypatch.setattr(kernels, "_PAUSE_SECONDS", 0.0)


def target() -> Target:
    return Target("native").replace(cores=1)


def rate(peak: Peak) -> float:
    """The quickest of some calls: one alone may be interrupted."""

    def seconds() -> float:
        start = time.thread_time()
        peak.call()
        return time.thread_time() - start

    peak.call()
    return peak.work / max(min(seconds() for _ in range(20)), 1e-9)


def test_peaks_are_of_a_believable_size() -> None:
    machine = target()
    single = arithmetic_peak(machine, "float32")
    assert single is not None
    assert 1e9 < rate(single) < 1e12
    assert 1e7 < rate(read_peak(machine, 1 << 20)) < 1e13


@pytest.mark.parametrize(("read", "written"), [(1 << 16, 1 << 16), (1 << 16, 100), (1 << 14, 1 << 16), (64, 0)])
def test_moving_reads_and_writes_in_proportion(read: int, written: int) -> None:
    peak = move_peak(target(), read, written)
    assert peak.work == pytest.approx(read + written, rel=0.07, abs=1024)
    assert 1e7 < rate(peak) < 1e13


def test_no_kernel_passes_its_bound() -> None:
    """Arithmetic or memory, whichever takes longer, with the best algorithm."""

    def bound(case: Case, speed: float, constants: int = 1000) -> float:
        runner = kernels.Runner(case, lambda: None, [], 0.0, 1000 + constants, 500, constants)
        return kernels.highest_fraction(runner, 1.0, speed)

    case = Case("some", TINY[0].make, 2000.0)
    assert bound(case, 1e9) == 1.0
    # 2500 bytes at 0.5 a second take 5000 seconds, the arithmetic 2000.
    assert bound(case, 0.5) == pytest.approx(0.4)
    # Half the multiplications for four times the weights: worth it where bytes come quickly.
    other = Case("other", TINY[0].make, 2000.0, forms=((1.0, 1000), (0.5, 4000)))
    assert bound(other, 1e9) == pytest.approx(2.0)
    assert bound(other, 0.5) == pytest.approx(0.4)
    forms = kernel_cases.winograd_forms(8, 16, 32)
    assert (1.0, 4 * 9 * 16 * 32) in forms
    assert (36 * 4 / (9 * 64), 4 * 36 * 16 * 32) in forms
    # What is held against reading has nothing to multiply, and may have to write.
    assert bound(Case("read", TINY[0].make, 2000.0, "read"), 1.0) == pytest.approx(0.8)


def test_a_processor_without_the_instructions_has_no_such_peak() -> None:
    plain = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell")
    assert arithmetic_peak(plain, "int8") is None
    assert arithmetic_peak(plain, "float16") is None


@pytest.mark.parametrize("case", TINY, ids=lambda case: case.name)
def test_every_kind_of_kernel_is_built_and_right(case: Case) -> None:
    runner = kernels.build(case, target())
    assert runner.error <= case.tolerance
    assert runner.operators
    runner.call()


def test_rounds_with_neighbours_are_left_out_unless_all_have_them() -> None:
    def rounds(*seconds: float, alone: bool) -> list[kernels.Round]:
        return [kernels.Round(item, 1 / item, 1.0, 0.9 / item, 4.0, alone) for item in seconds]

    quiet, noisy = rounds(1.0, 1.0, 1.0, 1.0, 1.25, alone=True), rounds(2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 4.0, alone=False)
    assert kernels.believed(quiet + noisy) == quiet
    assert kernels.believed(quiet[:1] + noisy) == quiet[:1] + noisy
    runner = kernels.Runner(TINY[0], lambda: None, ["matmul"], 0.0, 64, rounds=noisy + quiet)
    figures = kernels.figures(runner)
    assert (figures["ms"], figures["fraction"], figures["fraction_of_all_rounds"]) == (1000.0, 1.0, 0.5)
    assert figures["rounds_alone"] == 5
    assert figures["bound_by_memory"]
    unreached = {**figures, "reached": False}
    assert "bound by memory" in kernels.render({"one": unreached})
    assert "below" in kernels.render({"one": {**unreached, "bound_by_memory": False}})
    assert figures["bound"] == 4.0
    assert not figures["at_its_bound"]
    assert "at its bound" in kernels.render({"one": {**unreached, "at_its_bound": True}})


class Watch:
    """A core that is shared for some looks, and ours from then on."""

    def __init__(self, shared: int) -> None:
        self.shared = shared
        self.looks = 0

    def look(self) -> float:
        self.looks += 1
        return float(self.looks)

    def was_alone(self, *looks: float) -> bool:
        return min(looks) > self.shared


def contest(case: Case) -> kernels.Contest:
    nothing = Peak("none", 1.0, lambda: None)
    return kernels.Contest(kernels.Runner(case, lambda: None, ["matmul"], 0.0), nothing, nothing)


def test_kernels_wait_in_turn_for_neighbours_to_leave() -> None:
    first, second = contest(TINY[0]), contest(TINY[0])
    kernels.take_turns([first, second], Watch(9), 3, 60.0)  # type: ignore[arg-type]
    assert [item.alone for item in first.runner.rounds] == [False] * 3 + [True] * 3
    # Of the second kernel's first rounds the last two had the core to themselves; it needs one more.
    assert [item.alone for item in second.runner.rounds] == [False, False, True, True, True]


def test_patience_ends() -> None:
    one = contest(TINY[0])
    kernels.take_turns([one], Watch(10**9), 2, 0.3)  # type: ignore[arg-type]
    assert [item.alone for item in one.runner.rounds] == [False] * 2
    kernels.take_turns([one], Watch(10**9), 2, 0.0)  # type: ignore[arg-type]
    assert len(one.runner.rounds) == 4


def test_figures_of_kernels() -> None:
    results, peaks = kernels.measure_cases(TINY[:1] + TINY[2:4], target(), rounds=2, patience=0.2)
    assert peaks["float32"] > 1
    gemm, gemv, conv = results.values()
    assert gemm["right"] and gemm["reached"] and gemm["goal"] == 0.0
    assert gemm["min_ms"] <= gemm["ms"]
    assert gemv["gb_per_s"] > 0
    assert not conv["reached"]
    text = kernels.render(results)
    # What the third, which has a goal beyond reach, is said to wait for depends on the machine's other work.
    assert any(state in text for state in ("below", "at its bound", "bound by memory"))
    assert "GB/s" in text


def test_kernels_the_processor_cannot_do_are_skipped_and_failures_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_single(machine: Target, dtype: str) -> Peak | None:
        return arithmetic_peak(machine, dtype) if dtype == "float32" else None

    def fail(case: Case, machine: Target) -> kernels.Runner:
        raise UserError("no schedule")

    monkeypatch.setattr(kernels, "arithmetic_peak", only_single)
    monkeypatch.setattr(kernels, "build", fail)
    results, _ = kernels.measure_cases(TINY[:2], target(), rounds=1, patience=0.2)
    assert results["tiny_int8"] == {"skipped": "this processor has no int8 arithmetic"}
    assert results["tiny_gemm"] == {"error": "no schedule"}
    assert kernels.is_right(results["tiny_int8"])
    assert not kernels.is_right(results["tiny_gemm"])
    text = kernels.render(results)
    assert "failed" in text
    assert "no int8 arithmetic" in text


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(kernels, "CASES", {case.name: case for case in TINY})
    path = tmp_path / "kernels.json"
    assert kernels.main(["--only", "softmax,conv", "--rounds", "1", "--patience", "0.01", "--json", str(path)]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(summary["kernels"]) == {"tiny_conv", "tiny_softmax"}
    assert summary["peak_gflops"] > 0
    assert json.loads(path.read_text()) == summary
    assert kernels.main(["--only", "quicksort"]) == 2
    assert "no kernel has a name with 'quicksort' in it: tiny_gemm" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        kernels.main(["--rounds", "0"])
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err


def test_the_list_covers_what_the_models_need() -> None:
    assert {case.unit for case in kernel_cases.CASES.values()} == {"float32", "float16", "int8", "int8 tiles", "read"}
    assert kernel_cases.CASES["sgemm_1024"].work == 2 * 1024**3
