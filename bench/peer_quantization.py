"""Benchmark models in eight bits as onnxruntime's own tool quantises them: what the peers of int8 models run.

The usual form has pairs of QuantizeLinear and DequantizeLinear (QDQ), unsigned bytes for activations, signed bytes by
channel for weights, ranges by their ends on the calibration data. OpenVINO reads the same file: it computes such pairs
in integers. `FORMS` has the others that the tool writes.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from bench import zoo


@dataclass(frozen=True, slots=True)
class Form:
    """How a file is quantised: what the tool is asked for, and in words."""

    text: str
    dynamic: bool = False
    pairs: bool = True
    """QuantizeLinear and DequantizeLinear around float operators; else operators on integers (QLinearConv)."""
    signed_activations: bool = False
    signed_weights: bool = True
    per_channel: bool = True
    reduced_range: bool = False


FORMS = {
    "qdq": Form("static, pairs, uint8 activations, int8 weights by channel"),
    "qdq_int8": Form("static, pairs, int8 activations and weights", signed_activations=True, per_channel=False),
    "qdq_reduced": Form("static, pairs, weights of 7 bits", reduced_range=True),
    "qoperator": Form("static, operators on integers (QLinearConv), weights by channel", pairs=False),
    "qoperator_uint8": Form(
        "static, operators on integers, uint8 weights", pairs=False, signed_weights=False, per_channel=False
    ),
    "dynamic": Form("dynamic, int8 weights by channel (MatMulInteger, DynamicQuantizeLSTM)", dynamic=True),
    "dynamic_uint8": Form(
        "dynamic, uint8 weights (ConvInteger too)", dynamic=True, signed_weights=False, per_channel=False
    ),
}
"""By the name that commands take."""
EXAMPLES = 4
"""Runs that ranges are taken from, ours and the peers'."""


def calibration(name: str, seed: int = 0) -> list[zoo.Arrays]:
    """The inputs that a model is calibrated on: none of them is the one that it is timed with."""
    return [zoo.inputs(name, seed + 1 + example) for example in range(EXAMPLES)]


def path(name: str, seed: int = 0, form: str = "qdq") -> Path:
    """The file of a quantised benchmark model beside that of the float model, made first if it is not there."""
    source = zoo.path(name, seed)
    file = source.with_name(f"{source.stem}-{form}.onnx")
    if not file.exists():
        with tempfile.TemporaryDirectory(dir=source.parent) as folder:
            os.replace(_quantized(source, calibration(name, seed), Path(folder), FORMS[form]), file)
    return file


class _Reader:
    """Calibration data one run at a time, None at the end."""

    def __init__(self, feeds: list[zoo.Arrays]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The inputs of the next run."""
        return next(self._feeds, None)


def _quantized(source: Path, feeds: list[zoo.Arrays], folder: Path, form: Form) -> Path:
    from onnxruntime import quantization
    from onnxruntime.quantization import shape_inference

    prepared, result = folder / "prepared.onnx", folder / "quantized.onnx"
    # Batch normalisation goes into weights first: the tool quantises what it finds.
    shape_inference.quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    signed, unsigned = quantization.QuantType.QInt8, quantization.QuantType.QUInt8
    weights = {
        "weight_type": signed if form.signed_weights else unsigned,
        "per_channel": form.per_channel,
        "reduce_range": form.reduced_range,
    }
    if form.dynamic:
        # Convolutions of signed weights are not among what onnxruntime runs.
        kinds = ["MatMul", "Gemm", "LSTM", *(["Conv"] if not form.signed_weights else [])]
        quantization.quantize_dynamic(onnx.load(prepared), result, op_types_to_quantize=kinds, **weights)
        return result
    quantization.quantize_static(
        onnx.load(prepared),
        result,
        _Reader(feeds),
        quant_format=quantization.QuantFormat.QDQ if form.pairs else quantization.QuantFormat.QOperator,
        activation_type=signed if form.signed_activations else unsigned,
        **weights,
    )
    return result
