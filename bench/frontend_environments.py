"""The environments of `bench.frontends`: for each family of frameworks one, made when a suite first needs it."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.environments import REPOSITORY, Environment


@dataclass(frozen=True)
class Home:
    """Where a suite runs: an environment, and variables that the framework reads."""

    environment: Environment
    variables: dict[str, str] = field(default_factory=dict)


def _home(name: str, modules: tuple[str, ...], *requirements: str, **variables: str) -> Home:
    folder = REPOSITORY / f".venv-frontend-{name}"
    return Home(Environment(folder, modules, (requirements or modules,)), variables)


HERE = _home("here", ("onnx", "onnxruntime"))
HOMES: dict[str, Home] = {
    "boosting": _home("boosting", ("xgboost", "lightgbm", "treelite", "tl2cgen"), "xgboost-cpu", "lightgbm", "treelite", "tl2cgen"),
    "jax": _home("jax", ("jax",)),
    "keras": _home("keras", ("keras", "jax", "h5py"), KERAS_BACKEND="jax"),
    "opencv": _home("opencv", ("cv2", "google.protobuf"), "opencv-python-headless", "protobuf"),
    "tflite": _home("tflite", ("ai_edge_litert",), "ai-edge-litert"),
    "ncnn": _home("ncnn", ("ncnn",)),
    "openvino": _home("openvino", ("onnx", "openvino")),
    "tensorflow": _home("tensorflow", ("tensorflow",)),
    "paddle": _home("paddle", ("paddle",), "paddlepaddle"),
}
