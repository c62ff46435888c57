"""`compile`: a model in, an `Executable` out. The compiler is loaded only if the cache does not have the result."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Unpack

from tilewright.backends.llvm import deploy
from tilewright.lower.model_cache import load_model
from tilewright.options import CompileOptions, OptionFields, make_options
from tilewright.request import ModelLike, TargetLike, make_request
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.device.devices import choosing
from tilewright.support import trace
from tilewright.support.collecting import seldom_collecting

if TYPE_CHECKING:
    from tilewright.ir.function import IRModule
    from tilewright.quantization.data import CalibrationData
    from tilewright.quantization.options import QuantizeFields, QuantizeOptions
    from tilewright.quantization.quantizer import Metric, Quantized


def compile(
    model: ModelLike,
    target: TargetLike = "native",
    threads: int | None = None,
    *,
    options: CompileOptions | None = None,
    **changes: Unpack[OptionFields],
) -> Executable:
    """Compile a model for a target: `exe = tw.compile(mod); y = exe(x)`.

    `model` is a module from a frontend, or the path (or bytes) of an ONNX model. `target` may be a device ("cuda",
    "opencl"; "cuda:1" is the second GPU): kernels then run there, and what the device cannot run on this CPU;
    `{"cuda": "", "host": "native"}` names both, as `{"accel": AccelConfig(block_in=32), "host": "native"}` does. A
    text that says which device ("cuda -arch=sm_90a") needs none here: the result can then be exported, and calls of it
    say what is missing.

    The rest are options: keywords by the names of the fields of `CompileOptions`, where each is explained (`threads`,
    `shapes`, `winograd`, `infinities`, `specialize`, `database`, `precision`, `calibration`, `cpus`, `on_host`,
    `unchecked`, `state`), or such an object; keywords go before its fields.
    """
    wanted = make_request(model, target, make_options(options, threads, changes))
    if wanted.runs_here and wanted.key is not None and not wanted.options.cpus:
        artifact = load_model(wanted.key)
        if artifact is not None:
            trace.LOGGER.info("took %r from the cache", artifact)
            with choosing(wanted.target.kind, wanted.device_index):
                return deploy.executable(artifact, wanted.options.threads, may_be_absent=wanted.names_device)
    with seldom_collecting():
        from tilewright.compiler import Compilation

    start = time.perf_counter()
    result = Compilation.compiled(wanted)
    trace.LOGGER.info("compiled %r for %s in %.2f s", result.model.name, wanted.target, time.perf_counter() - start)
    return result


def quantize(
    model: ModelLike,
    calibration: CalibrationData,
    *,
    metric: Metric | None = None,
    options: QuantizeOptions | None = None,
    threads: int | None = None,
    resume: str | os.PathLike[str] | None = None,
    **changes: Unpack[QuantizeFields],
) -> Quantized:
    """Quantise a model with the ranges that its values have on calibration data.

    `calibration` is an array (examples along its first axis), a mapping of arrays by input, an iterator of the inputs
    of single runs, a .npz or .npy file, or a folder of these or of images. With `max_drop`, the layers that lose most
    stay in float32 until `metric` (default: minus the squared error relative to the float32 results) falls by no more
    than that. `resume` is a file that keeps what the search for them has measured: it goes on from there when it is
    started again. The rest are the fields of `QuantizeOptions`.
    """
    from tilewright.quantization.quantizer import quantize_model

    def compiled(module: IRModule) -> Executable:
        return compile(module, threads=threads)

    return quantize_model(model, calibration, compiled, metric=metric, options=options, resume=resume, **changes)
