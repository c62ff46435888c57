"""The runtimes of formats other than ONNX, which say what a model of theirs should give.

A runtime is a function from a model file and the inputs to what it gives: the outputs, and the values of layers by
their own names where it tells them. A format without one is checked by onnxruntime on the converted model, and
`NO_RUNTIME` says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.cli.litert import LiteRt
from tilewright.frontend.companions import caffe_pair, ncnn_pair
from tilewright.frontend.formats import load_model
from tilewright.frontend.paddle.files import program_path
from tilewright.support.errors import MissingDependencyError, UserError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class OwnRun:
    """What a runtime gives for a model of its own format."""

    outputs: list[Any]
    layers: Mapping[str, Array] = field(default_factory=dict)
    """Values inside the model by the names of its layers, in the order in which they are computed."""


Runtime = Callable[[Path, Mapping[str, Array]], OwnRun]


def _package(module: str, model: str, package: str, extra: str = "", beside: str = "") -> Any:
    """The module of a runtime, or an error that says what to install: an extra of ours, or a package by its name."""
    try:
        return import_module(module)
    except ImportError as error:
        purpose = f"checking {model}"
        if extra:
            raise MissingDependencyError.for_extra(package, extra, purpose) from error
        raise MissingDependencyError(
            f"{purpose} needs the package '{package}', which is not installed", hint=f"pip install '{package}'{beside}"
        ) from error


def _flat(results: Any) -> list[Any]:
    """The tensors of PyTorch in a result, in order."""
    if isinstance(results, (list, tuple)):
        return [item for part in results for item in _flat(part)]
    if isinstance(results, dict):
        return [item for part in results.values() for item in _flat(part)]
    return [results.detach().numpy()]


def torch_export(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """An exported program in PyTorch; inputs are in the order of the program."""
    torch = _package("torch", "a PyTorch program", "torch", "torch")
    with torch.no_grad():
        program = torch.export.load(path.open("rb"))
        return OwnRun(_flat(program.module()(*(torch.from_numpy(np.array(value)) for value in inputs.values()))))


def torchscript(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A TorchScript archive in PyTorch."""
    torch = _package("torch", "a PyTorch program", "torch", "torch")
    with torch.no_grad():
        script = torch.jit.load(path.open("rb")).eval()
        return OwnRun(_flat(script(*(torch.from_numpy(np.array(value)) for value in inputs.values()))))


def xgboost(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A booster of XGBoost."""
    runtime = _package("xgboost", "an XGBoost model", "xgboost", "tune")
    booster = runtime.Booster()
    booster.load_model(bytearray(path.read_bytes()))
    return OwnRun([booster.inplace_predict(inputs["data"])])


def lightgbm(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A booster of LightGBM."""
    runtime = _package("lightgbm", "a LightGBM model", "lightgbm")
    booster = runtime.Booster(model_str=path.read_text())
    return OwnRun([np.asarray(booster.predict(inputs["data"]))])


def ncnn(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """An ncnn model, in floats of 32 bits, with the values of all its blobs."""
    runtime = _package("ncnn", "an ncnn model", "ncnn")
    layers, weights = ncnn_pair(path)
    if layers is None or weights is None or layers.suffix != ".param":
        raise UserError(f"checking {path} needs its .param and .bin files beside each other")
    net = runtime.Net()
    for name in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_storage"):
        setattr(net.opt, f"use_{name}", False)
    if net.load_param(str(layers)) or net.load_model(str(weights)):
        raise UserError(f"ncnn cannot read {layers} with {weights}")
    extractor = net.create_extractor()
    extractor.set_light_mode(False)  # values are kept once they were read
    for name, value in inputs.items():
        extractor.input(name, runtime.Mat(np.ascontiguousarray(value)).clone())
    names = [blob.name for blob in net.blobs() if blob.name and blob.producer >= 0 and blob.name not in inputs]
    found = {name: np.array(extractor.extract(name)[1]) for name in names}
    return OwnRun([found[name] for name in net.output_names()], found)


def caffe(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A Caffe net in OpenCV, the reader of Caffe's files that still installs, with the values of its layers."""
    runtime = _package("cv2", "a Caffe net", "opencv-python-headless<5")
    text, weights = caffe_pair(path)
    if text is None or weights is None:
        raise UserError(f"checking {path} needs its .prototxt and .caffemodel files beside each other")
    net = opened_caffe(runtime, text.read_bytes(), weights.read_bytes())
    for name, value in inputs.items():
        net.setInput(np.ascontiguousarray(value), name)
    outputs = sorted(net.getUnconnectedOutLayersNames())
    names = [name for name in net.getLayerNames() if name not in inputs]
    try:
        found = dict(zip(names, map(np.array, net.forward(names)), strict=True))
    except runtime.error as error:
        raise UserError(f"OpenCV cannot run {text}: {error}") from error
    return OwnRun([found[name] for name in outputs], found)


def opened_caffe(runtime: Any, text: bytes, weights: bytes) -> Any:
    """A net of OpenCV, which does not read all layers that Caffe has; from version 5 on it reads no Caffe nets."""
    if not hasattr(runtime.dnn, "readNetFromCaffe"):
        raise MissingDependencyError(
            "checking a Caffe net needs OpenCV 4: later ones do not read Caffe's files",
            hint="pip install 'opencv-python-headless<5'",
        )
    try:
        return runtime.dnn.readNetFromCaffe(np.frombuffer(text, np.uint8), np.frombuffer(weights, np.uint8))
    except runtime.error as error:
        raise UserError(f"OpenCV cannot read the Caffe net: {error}") from error


def tflite(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A TFLite model in LiteRT's reference kernels."""
    model = LiteRt(path, inputs, reference=True)
    return OwnRun(list(model.run()), model.layers())


def paddle(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A program in PaddlePaddle's predictor, without its passes."""
    runtime = _package("paddle", "a PaddlePaddle model", "paddlepaddle")
    program = program_path(path)
    parameters = program.with_suffix(".pdiparams")
    config = runtime.inference.Config(str(program), str(parameters) if parameters.exists() else "")
    if program.name == "__model__":
        config = runtime.inference.Config(str(program.parent))
    config.disable_glog_info()
    config.switch_ir_optim(False)
    predictor = runtime.inference.create_predictor(config)
    for name, value in inputs.items():
        predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(value))
    predictor.run()
    return OwnRun([predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()])


def openvino(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A model in OpenVINO's CPU plugin, in float32."""
    runtime = _package("openvino", "an OpenVINO model", "openvino")
    core = runtime.Core()
    model = core.compile_model(str(path.with_suffix(".xml")), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    given = [
        inputs[next((name for name in item.names if name in inputs), item.node.friendly_name)] for item in model.inputs
    ]
    results = model(given)
    return OwnRun([np.array(results[item]) for item in model.outputs])


def keras(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A model of Keras, with the values of its layers; the backend is the one that Keras is set up for."""
    backends = ", and a backend: tensorflow, torch or jax"
    runtime = _package("keras", "a Keras model", "keras", beside=backends)
    model = runtime.models.load_model(path, compile=False)
    values = list(inputs.values())
    given = values if len(values) > 1 else values[0]
    outputs = [runtime.ops.convert_to_numpy(item) for item in runtime.tree.flatten(model(given))]
    single = [layer for layer in model.layers if len(layer._inbound_nodes) == 1 and hasattr(layer.output, "shape")]
    inside = runtime.Model(model.inputs, [layer.output for layer in single])(given) if single else []
    found = runtime.tree.flatten(inside)
    names = [layer.name for layer in single]
    return OwnRun(outputs, dict(zip(names, map(runtime.ops.convert_to_numpy, found), strict=True)))


def tensorflow(path: Path, inputs: Mapping[str, Array]) -> OwnRun:
    """A SavedModel by its default signature, or a GraphDef, in TensorFlow."""
    runtime = _package("tensorflow", "a TensorFlow model", "tensorflow")
    names = load_model(path).attributes["output_names"]
    assert isinstance(names, tuple)
    if path.is_dir():
        signatures = runtime.saved_model.load(str(path)).signatures
        key = "serving_default" if "serving_default" in signatures else min(signatures)
        results = signatures[key](**{name: runtime.constant(value) for name, value in inputs.items()})
        return OwnRun([np.asarray(results[name]) for name in names])
    old = runtime.compat.v1
    if path.suffix == ".meta":
        raise UserError(f"{path}: a meta graph is not checked", hint="freeze it, or export it as a SavedModel")
    graph = old.GraphDef.FromString(path.read_bytes())
    with old.Graph().as_default(), old.Session() as session:
        old.import_graph_def(graph, name="")
        fed = {f"{name}:0": value for name, value in inputs.items()}
        return OwnRun(session.run([f"{name}:0" for name in names], fed))


RUNTIMES: dict[str, Runtime] = {
    "torch-export": torch_export,
    "torchscript": torchscript,
    "tensorflow": tensorflow,
    "xgboost": xgboost,
    "lightgbm": lightgbm,
    "ncnn": ncnn,
    "tflite": tflite,
    "openvino": openvino,
    "paddle": paddle,
    "keras": keras,
    "caffe": caffe,
}
"""The runtimes by the keys of formats."""
NO_RUNTIME: dict[str, str] = {
    "caffe2": "no release of it installs any more",
    "cntk": "no release of it installs any more",
    "mxnet": "its last release wants an older numpy",
    "coreml": "it runs on macOS alone",
    "darknet": "it is no Python package",
    "stablehlo": "JAX runs its own exports alone",
}
"""Why a format is compared with onnxruntime."""
