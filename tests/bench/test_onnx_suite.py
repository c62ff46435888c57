"""The conformance command on a few cases: compiled values, verdicts, the table, the last line."""

from __future__ import annotations

import dataclasses
import json
import os
import time

import numpy as np
import pytest

from bench import onnx_suite
from bench.onnx_cases import Case, Outcome, load_cases, run_case, run_compiled


@pytest.fixture(scope="module")
def cases() -> dict[str, Case]:
    return {case.name: case for case in load_cases(("node",))}


CHOSEN = """
test_abs test_add_bcast test_argmax_keepdims_example test_averagepool_2d_ceil test_basic_conv_with_padding
test_bitcast_float32_to_int32 test_cast_FLOAT_to_FLOAT8E4M3FN test_concat_3d_axis_1 test_convtranspose_3d
test_cumsum_1d_exclusive test_dequantizelinear_int4 test_einsum_batch_matmul test_gather_elements_0 test_gelu_tanh_1
test_layer_normalization_2d_axis0 test_logsoftmax_axis_1 test_maxpool_3d_default test_qlinearconv
test_quantizelinear_e5m2 test_reduce_sum_keepdims_example test_resize_upsample_scales_linear test_slice
test_softmax_large_number test_where_example
""".split()


@pytest.mark.parametrize("name", CHOSEN)
def test_compiled_cases(cases, name):
    outcome = run_case(cases[name], run_compiled)
    assert (outcome.verdict, outcome.reason) == ("passed", "")


def test_refusals_carry_their_reason(cases):
    outcome = run_case(cases["test_image_decoder_decode_png_rgb"], run_compiled)
    assert outcome.verdict == "unsupported"
    assert "decode images before they go to the model" in outcome.reason


def test_random_results_must_be_zeros_and_ones(cases):
    case = cases["test_bernoulli"]
    (wanted,) = next(iter(case.data_sets()))[1]
    outcome = run_case(case, lambda module, inputs: [np.full_like(wanted, 0.5)])
    assert (outcome.verdict, outcome.reason) == ("failed", "numbers other than 0 and 1")
    assert run_case(case, lambda module, inputs: [np.ones_like(wanted)]).verdict == "passed"


def test_wrong_values_are_failures(cases):
    def wrong(module, inputs):
        return [np.zeros((3, 4, 5), np.float32)]

    outcome = run_case(cases["test_abs"], wrong)
    assert outcome.verdict == "failed"
    assert "instead of" in outcome.reason


def test_workers_that_die_or_hang_cost_one_case(cases, monkeypatch):
    ordinary = onnx_suite.run_case

    def odd(case, run):
        if case.name == "test_acos":
            os._exit(3)
        if case.name == "test_add":
            time.sleep(60)
        if case.name == "test_and2d":
            raise ValueError("unforeseen")
        return ordinary(case, run)

    monkeypatch.setattr(onnx_suite, "run_case", odd)
    chosen = [cases[name] for name in ("test_abs", "test_acos", "test_add", "test_and2d", "test_asin")]
    outcomes = onnx_suite.run_cases(chosen, jobs=2, timeout=5, interpreter=True)
    assert [item.verdict for item in outcomes] == ["passed", "failed", "failed", "failed", "passed"]
    assert [item.reason for item in outcomes[1:4]] == [
        "the process ended (3)",
        "not done after 5 s",
        "ValueError: unforeseen",
    ]


def test_the_command_ends_with_json(capsys, tmp_path):
    path = tmp_path / "suite.json"
    code = onnx_suite.main(["--kinds", "simple", "--interpreter", "--jobs", "1", "--json", str(path)])
    assert code == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {"passed", "failed", "unsupported", "total"} <= set(last)
    assert last["total"] == last["passed"] + last["unsupported"]
    assert json.loads(path.read_text())["total"] == last["total"]


def test_unknown_kinds_are_refused(capsys):
    assert onnx_suite.main(["--kinds", "magic"]) == 2
    assert "unknown kind 'magic'" in capsys.readouterr().err


def test_the_table_counts_by_operator():
    outcomes = [
        Outcome("a", "Add", "passed"),
        Outcome("b", "Add", "failed", "1 instead of 2"),
        Outcome("c", "Loop", "unsupported", "no end"),
    ]
    text = onnx_suite.render(outcomes, details=False)
    assert "Loop: 1 x unsupported: no end" in text
    assert "failed      b: 1 instead of 2" in onnx_suite.render(outcomes, details=True)
    counts = onnx_suite.summarize(outcomes, 1.0)
    assert [counts[verdict] for verdict in ("passed", "failed", "unsupported", "total")] == [1, 1, 1, 3]
    assert dataclasses.asdict(outcomes[0])["operator"] == "Add"
