"""Floor 5: importers of framework models into the graph IR."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.frontend.boosting import from_lightgbm, from_xgboost
    from tilewright.frontend.caffe import from_caffe
    from tilewright.frontend.caffe2 import from_caffe2
    from tilewright.frontend.cntk import from_cntk
    from tilewright.frontend.coreml import from_coreml
    from tilewright.frontend.darknet import from_darknet
    from tilewright.frontend.format import Format
    from tilewright.frontend.formats import from_file, known_formats, register_format
    from tilewright.frontend.keras import from_keras
    from tilewright.frontend.mxnet import from_mxnet
    from tilewright.frontend.ncnn import from_ncnn
    from tilewright.frontend.onnx import from_onnx
    from tilewright.frontend.openvino import from_openvino
    from tilewright.frontend.paddle import from_paddle
    from tilewright.frontend.sklearn import from_sklearn
    from tilewright.frontend.stablehlo import from_jax, from_stablehlo
    from tilewright.frontend.tensorflow import from_tensorflow
    from tilewright.frontend.tflite import from_tflite
    from tilewright.frontend.torch import from_torch
    from tilewright.frontend.weights import read_weights

__all__ = [
    "Format",
    "from_caffe",
    "from_caffe2",
    "from_cntk",
    "from_coreml",
    "from_darknet",
    "from_file",
    "from_jax",
    "from_keras",
    "from_lightgbm",
    "from_mxnet",
    "from_ncnn",
    "from_onnx",
    "from_openvino",
    "from_paddle",
    "from_sklearn",
    "from_stablehlo",
    "from_tensorflow",
    "from_tflite",
    "from_torch",
    "from_xgboost",
    "known_formats",
    "read_weights",
    "register_format",
]

_HOMES = {
    "Format": "tilewright.frontend.format",
    "from_caffe": "tilewright.frontend.caffe",
    "from_caffe2": "tilewright.frontend.caffe2",
    "from_cntk": "tilewright.frontend.cntk",
    "from_coreml": "tilewright.frontend.coreml",
    "from_darknet": "tilewright.frontend.darknet",
    "from_file": "tilewright.frontend.formats",
    "from_jax": "tilewright.frontend.stablehlo",
    "from_keras": "tilewright.frontend.keras",
    "from_lightgbm": "tilewright.frontend.boosting",
    "from_mxnet": "tilewright.frontend.mxnet",
    "from_ncnn": "tilewright.frontend.ncnn",
    "from_onnx": "tilewright.frontend.onnx",
    "from_openvino": "tilewright.frontend.openvino",
    "from_paddle": "tilewright.frontend.paddle",
    "from_sklearn": "tilewright.frontend.sklearn",
    "from_stablehlo": "tilewright.frontend.stablehlo",
    "from_tensorflow": "tilewright.frontend.tensorflow",
    "from_tflite": "tilewright.frontend.tflite",
    "from_torch": "tilewright.frontend.torch",
    "from_xgboost": "tilewright.frontend.boosting",
    "known_formats": "tilewright.frontend.formats",
    "read_weights": "tilewright.frontend.weights",
    "register_format": "tilewright.frontend.formats",
}
"""Where each importer lives: loaded at first use, so that importing the package stays quick."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
