"""Peers in processes of their own: what they answer, and what is said when they cannot."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

from bench.peers import ITSELF, PEERS, clock_for, process, wire
from tests.requirements import absent
from tilewright.support.errors import UserError

OTHERS = [name for name in PEERS if name not in ("onnxruntime", "torch.compile")]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """x[1, 2, 4, 4] -> max(x * 2, 0), as a depthwise convolution and a ReLU."""
    monkeypatch.setattr(process, "SCRATCH", tmp_path / "scratch")
    weight = onnx.numpy_helper.from_array(np.full((2, 1, 1, 1), 2, np.float32), "weight")
    nodes = [
        helper.make_node("Conv", ["x", "weight"], ["product"], group=2, kernel_shape=[1, 1]),
        helper.make_node("Relu", ["product"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 4, 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2, 4, 4])
    made = helper.make_model(
        helper.make_graph(nodes, "tiny", [x], [y], [weight]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    path = tmp_path / "tiny.onnx"
    onnx.save(made, path)
    return path


@pytest.fixture
def reference(model: Path) -> Iterator[process.PeerProcess]:
    worker = process.start(["onnxruntime"], 1)["onnxruntime"]
    yield worker
    worker.close()


def inputs() -> dict[str, np.ndarray]:
    return {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(1, 2, 4, 4)}


def expected() -> np.ndarray:
    return np.maximum(inputs()["x"] * 2, 0)


def test_a_peer_answers_and_is_timed(model: Path, reference: process.PeerProcess) -> None:
    [output] = reference.load(model, inputs())
    np.testing.assert_allclose(output, expected())
    samples = reference.sample(3)
    assert len(samples) == 3
    assert min(samples) > 0


def test_a_result_of_no_dimensions_has_none(tmp_path: Path, reference: process.PeerProcess) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]>'
    text = f"{head} s (float[1, 2, 4, 4] x) => (float y) {{ y = ReduceSum <keepdims = 0> (x) }}"
    onnx.save(onnx.parser.parse_model(text), tmp_path / "sum.onnx")
    [output] = reference.load(tmp_path / "sum.onnx", inputs())
    assert output.shape == ()


@pytest.mark.parametrize("name", OTHERS)
def test_every_installed_peer_agrees(model: Path, name: str) -> None:
    if name not in process.installed():
        absent("peers", f"{name} is not installed")
    worker = process.start([name], 1)[name]
    try:
        [output] = worker.load(model, inputs())
    finally:
        worker.close()
    np.testing.assert_allclose(output, expected(), rtol=1e-5, atol=1e-5)


def test_a_model_a_peer_cannot_run_is_a_reason_and_the_next_one_runs(
    tmp_path: Path, model: Path, reference: process.PeerProcess
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(process.PeerError, match=r"broken\.onnx"):
        reference.load(broken, inputs())
    with pytest.raises(process.PeerError, match="unexpected request 'time'"):
        reference.sample(1)
    assert reference.load(model, inputs())[0].shape == (1, 2, 4, 4)


def test_a_peer_that_dies_is_a_reason(model: Path, reference: process.PeerProcess) -> None:
    reference._command = [sys.executable, "-c", "import os; os._exit(7)"]
    with pytest.raises(process.PeerError, match="its process ended with code 7"):
        reference.load(model, inputs())


def test_a_peer_that_hangs_is_a_reason(
    model: Path, reference: process.PeerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LOAD_SECONDS", 0.2)
    reference._command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(process.PeerError, match="no answer within 0 s"):
        reference.load(model, inputs())


def test_what_runs_on_one_thread_is_timed_by_its_processor() -> None:
    assert clock_for(1) is time.process_time and clock_for(2) is time.perf_counter


def test_long_reasons_are_cut() -> None:
    assert process._one_line("two\n  words") == "two words"
    assert process._one_line("x" * 500).endswith("x...")


def test_choosing_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process.parse_peers("onnxruntime, onnxruntime") == ["onnxruntime"]
    assert process.parse_peers("") == []
    assert "onnxruntime" in process.parse_peers("all")
    assert set(ITSELF) <= set(process.installed()) and not set(ITSELF) & set(process.parse_peers("all"))
    assert process.parse_peers("tilewright,unchecked") == list(ITSELF)
    with pytest.raises(UserError, match="unknown peer 'abacus': the peers are onnxruntime, torch"):
        process.parse_peers("abacus")
    monkeypatch.setattr(process, "installed", dict)
    assert process.parse_peers("all") == []
    with pytest.raises(UserError, match="the peer 'mnn' is not installed"):
        process.parse_peers("mnn")


def test_messages_cross_the_wire_whole_or_not_at_all() -> None:
    stream = io.BytesIO()
    wire.send(stream, ("load", {"x": np.arange(3)}))
    content = stream.getvalue()
    back = wire.receive(io.BytesIO(content))
    assert isinstance(back, tuple)
    assert back[1]["x"].tolist() == [0, 1, 2]
    assert wire.receive(io.BytesIO(b"")) is None
    assert wire.receive(io.BytesIO(content[:-1])) is None
