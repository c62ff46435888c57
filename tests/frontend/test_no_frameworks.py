"""Importing needs none of the frameworks: files are read where no framework can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.requirements import need_module
from tilewright.frontend.builtin_formats import FORMATS

TESTS = Path(__file__).resolve().parents[1]
FRAMEWORKS = (
    "ai_edge_litert caffe caffe2 cntk coremltools cv2 flax flatbuffers jax jaxlib keras lightgbm mxnet ncnn "
    "onnxruntime openvino paddle safetensors gguf sklearn tensorflow tflite_runtime torch treelite xgboost".split()
)
MODELS = {
    "keras": "fixtures/keras/functions.h5",
    "tensorflow": "fixtures/tensorflow/network",
    "tflite": "frontend/tflite/models/*.tflite",
    "stablehlo": "frontend/stablehlo/fixtures/mlp.mlirbc",
    "xgboost": "fixtures/boosting/xgboost_logistic.ubj",
    "lightgbm": "fixtures/boosting/lightgbm_binary.txt",
    "darknet": "fixtures/darknet/tiny.cfg",
    "openvino": "fixtures/openvino/branch.xml",
    "paddle": "fixtures/paddle/network_old.pdmodel",
    "caffe": "fixtures/caffe/network.prototxt",
    "caffe2": "fixtures/caffe2/predict_net.pb",
    "mxnet": "fixtures/mxnet/network-symbol.json",
    "ncnn": "fixtures/ncnn/network.param",
    "coreml": "fixtures/coreml/small.mlmodel",
    "cntk": "fixtures/cntk/image.dnn",
}
WEIGHTS = {"gguf": "fixtures/weights/blocks.gguf", "safetensors": "fixtures/weights/plain.safetensors"}
OWN_PACKAGES = {"onnx", "torch-export", "torchscript"}
"""What is read by the format's own package."""
READ = """
import sys
from pathlib import Path
for name in sys.argv[2].split():
    sys.modules[name] = None  # an import of it fails
import tilewright as tw
from tilewright.frontend import read_weights
from tilewright.frontend.formats import identify
for word in sys.argv[3:]:
    key, pattern = word.split("=")
    path = sorted(Path(sys.argv[1]).glob(pattern))[0]
    assert identify(path).key == key, (identify(path).key, key)
    if key in ("gguf", "safetensors"):
        assert len(read_weights(path))
    else:
        assert "main" in tw.load_model(path)
    print(key)
"""


def test_files_are_read_where_no_framework_can_be_imported() -> None:
    files = {**MODELS, **WEIGHTS}
    assert {*files, *OWN_PACKAGES} == {item.key for item in FORMATS}, "each format has a file here"
    for item in FORMATS:
        if item.key in files:
            for package in item.missing():
                need_module(package)
    words = [f"{key}={pattern}" for key, pattern in files.items()]
    done = subprocess.run(
        [sys.executable, "-c", READ, str(TESTS), " ".join(FRAMEWORKS), *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == list(files), done.stderr
