"""`precision="int8"` and its like: what they ask `quantize` for, with calibration data and without.

    tw.compile("resnet18.onnx", precision="int8", calibration=images)

`REQUESTS` is the whole table: a precision of few bits is added there, and to `PRECISIONS` of `options.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.function import IRModule
from tilewright.quantization.data import CalibrationData
from tilewright.quantization.options import QuantizeOptions
from tilewright.quantization.quantizer import quantize_model, quantize_without_data
from tilewright.quantization.running import CompileModule
from tilewright.support.errors import UserError


@dataclass(frozen=True, slots=True)
class PrecisionRequest:
    """How a precision is quantised: with calibration data, and without (None: not at all)."""

    with_data: QuantizeOptions
    without_data: QuantizeOptions | None


REQUESTS: dict[str, PrecisionRequest] = {
    # Ranges of activations come from the data; without it, from each run, which matrix products alone can do.
    "int8": PrecisionRequest(QuantizeOptions(), QuantizeOptions(scheme="dynamic")),
    # The layers that lose most stay in float32: which they are, only data tells.
    "mixed": PrecisionRequest(QuantizeOptions(max_drop=1e-3), None),
    "int4_weights": PrecisionRequest(
        QuantizeOptions(scheme="weights", weight_bits=4, group=32, rounding="learned"),
        QuantizeOptions(scheme="weights", weight_bits=4, group=32),
    ),
}
"""By the name of the precision."""


def in_precision(
    module: IRModule, precision: str, calibration: CalibrationData | None, compile_module: CompileModule
) -> IRModule:
    """A float32 model quantised as a precision asks for; `compile_module` makes what calibration runs."""
    request = REQUESTS[precision]
    if calibration is not None:
        return quantize_model(module, calibration, compile_module, options=request.with_data).module
    if request.without_data is None:
        raise UserError(
            f"precision {precision!r} needs calibration data",
            hint="calibration= arrays of inputs, or the path of a file; --calibration on the command line",
        )
    return quantize_without_data(module, request.without_data)
