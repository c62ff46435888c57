"""Every command takes models of any format: they are run, measured, checked, inspected and tuned as ONNX models are."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.requirements import need_module
from tilewright.cli import check_own, own_runtimes
from tilewright.cli.main import main
from tilewright.frontend.formats import from_file
from tilewright.support.errors import UserError

Captured = pytest.CaptureFixture[str]
TREES = Path(__file__).resolve().parents[1] / "fixtures" / "boosting" / "xgboost_squared.json"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = need_module("torch")
    network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).eval()
    path: Path = tmp_path_factory.mktemp("program") / "net.pt2"
    torch.export.save(torch.export.export(network, (torch.randn(2, 6),)), path)
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["run", "MODEL"],
        ["inspect", "MODEL"],
        ["compile", "MODEL", "-o", "net.so", "--threads", "1"],
        ["bench", "MODEL", "--threads", "1", "--rounds", "1"],
        ["check", "MODEL"],
        ["convert", "MODEL", "-o", "net.onnx"],
    ],
    ids=lambda words: words[0],
)
def test_commands(words: list[str], program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([str(program) if word == "MODEL" else word for word in words]) == 0


def test_quantize(program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32))
    words = ["quantize", str(program), "--data", str(tmp_path / "data.npy"), "-o", str(tmp_path / "q.onnx")]
    assert main(words) == 0


def test_check_against_the_own_runtime(capsys: Captured) -> None:
    need_module("xgboost")
    assert main(["check", str(TREES), "--sizes", "batch=1,7"]) == 0
    shown = capsys.readouterr().out
    assert "batch=7" in shown and "ok" in shown and "converted" not in shown


def test_check_without_a_runtime(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_own, "RUNTIMES", {})
    assert main(["check", str(TREES)]) == 0
    assert "XGBoost has no runtime here: compared with onnxruntime" in capsys.readouterr().out


def test_why_there_is_no_runtime(capsys: Captured) -> None:
    assert main(["check", str(TREES.parents[1] / "caffe2" / "predict_net.pb"), "--shape", "data=2,3,8,8"]) == 0
    assert "Caffe2 has no runtime here (no release of it installs any more)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "package", "hint"),
    [
        ("torch-export", "torch", "tilewright[torch]"),
        ("torchscript", "torch", "tilewright[torch]"),
        ("xgboost", "xgboost", "tilewright[tune]"),
        ("lightgbm", "lightgbm", "pip install 'lightgbm'"),
        ("ncnn", "ncnn", "pip install 'ncnn'"),
        ("openvino", "openvino", "pip install 'openvino'"),
        ("paddle", "paddlepaddle", "pip install 'paddlepaddle'"),
        ("keras", "keras", "and a backend: tensorflow, torch or jax"),
        ("tensorflow", "tensorflow", "pip install 'tensorflow'"),
        ("caffe", "opencv-python-headless", "pip install 'opencv-python-headless<5'"),
    ],
)
def test_missing_runtimes_are_named(key: str, package: str, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(own_runtimes, "import_module", missing)
    with pytest.raises(UserError, match=f"needs the package '{package}") as caught:
        own_runtimes.RUNTIMES[key](TREES, {})
    assert hint in (caught.value.hint or "")


def test_caffe_nets_want_opencv_4_and_both_files(monkeypatch: pytest.MonkeyPatch) -> None:
    later = SimpleNamespace(dnn=SimpleNamespace())
    monkeypatch.setattr(own_runtimes, "import_module", lambda _: later)
    network = TREES.parents[1] / "caffe" / "network.prototxt"
    with pytest.raises(UserError, match="needs OpenCV 4"):
        own_runtimes.caffe(network, {})
    with pytest.raises(UserError, match="beside each other"):
        own_runtimes.caffe(TREES, {})


def test_what_opencv_cannot_read_or_run_is_said() -> None:
    def refuse(*_: Any) -> Any:
        raise RuntimeError("unknown layer")

    opencv = SimpleNamespace(dnn=SimpleNamespace(readNetFromCaffe=refuse), error=RuntimeError)
    with pytest.raises(UserError, match="OpenCV cannot read the Caffe net: unknown layer"):
        own_runtimes.opened_caffe(opencv, b"a", b"b")


def test_a_caffe_net_layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    net = SimpleNamespace(
        setInput=lambda value, name: given.update({name: value}),
        getUnconnectedOutLayersNames=lambda: ["prob"],
        getLayerNames=lambda: ["conv", "prob"],
        forward=lambda names: [given["data"] + number for number, _ in enumerate(names)],
    )
    opencv = SimpleNamespace(dnn=SimpleNamespace(readNetFromCaffe=lambda *_: net), error=RuntimeError)
    monkeypatch.setattr(own_runtimes, "import_module", lambda _: opencv)
    network, data = TREES.parents[1] / "caffe" / "network.prototxt", np.ones((1, 2), np.float32)
    run = own_runtimes.caffe(network, {"data": data})
    assert list(run.layers) == ["conv", "prob"] and np.array_equal(run.outputs[0], data + 1)

    def refuse(_: Any) -> Any:
        raise RuntimeError("sizes differ")

    net.forward = refuse
    with pytest.raises(UserError, match=r"OpenCV cannot run .*sizes differ"):
        own_runtimes.caffe(network, {"data": data})


def test_what_differs_is_named(capsys: Captured, monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    def wrong(path: Path, inputs: Any) -> own_runtimes.OwnRun:
        return own_runtimes.OwnRun([np.zeros((2, 3), np.float32)], {"0/linear": np.ones((2, 8), np.float32)})

    monkeypatch.setattr(check_own, "RUNTIMES", {"torch-export": wrong})
    assert main(["check", str(program)]) == 4
    assert "the first difference: layer '0/linear'" in capsys.readouterr().out
    monkeypatch.setattr(
        check_own, "RUNTIMES", {"torch-export": lambda *_: own_runtimes.OwnRun([np.zeros((2, 3), np.float32)])}
    )
    assert main(["check", str(program)]) == 4
    assert "the importer of PyTorch exported program is at fault" in capsys.readouterr().out
    values = {}
    monkeypatch.setattr(check_own, "evaluate", lambda module, *arguments: values["wrong"])
    values["wrong"] = np.zeros((2, 3), np.float32)
    assert main(["check", str(program)]) == 4
    assert "the compiled code is at fault" in capsys.readouterr().out
    assert from_file(program)["main"] is not None


def test_reduce_wants_onnx(program: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["reduce", str(program), "-o", str(tmp_path / "small.onnx")]) == 1
    assert "tilewright convert" in capsys.readouterr().err
