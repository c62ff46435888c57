"""`compile`: a model in, an `Executable` out. The compiler is loaded only if the cache does not have the result."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import import_module

from tilewright.backends.llvm import deploy
from tilewright.lower.model_cache import load_model
from tilewright.request import DatabaseLike, ModelLike, TargetLike, request
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.device.devices import choosing
from tilewright.support import trace


def compile(
    model: ModelLike,
    target: TargetLike = "native",
    threads: int | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    winograd: bool = True,
    infinities: bool = False,
    specialize: Sequence[Mapping[str, int]] = (),
    database: DatabaseLike = None,
    precision: str = "float32",
    unchecked: bool = False,
) -> Executable:
    """Compile a model for a target: `exe = tw.compile(mod); y = exe(x)`.

    `model` is a module from a frontend, or the path (or bytes) of an ONNX model. `threads` is how many threads
    the model runs on (None: every core this process may use); with one thread the kernels have no parallel code.
    `shapes` fixes input shapes when `model` is a file. `winograd=False` keeps 3 x 3 convolutions to the direct
    computation, whose rounding errors are a little smaller. `infinities=True` says that infinities and NaN among a
    model's values mean something: they then reach only what is computed from them, and convolutions are not rewritten
    to forms that multiply them by zero or subtract them from each other.
    `specialize=[{"batch": 1, "length": 128}, ...]` compiles a model with symbolic shapes for these sizes too: calls of
    such sizes run code made for them alone.
    `target` may be a device ("cuda", "opencl"; "cuda:1" is the second GPU): kernels then run there, and what the device
    cannot run on this CPU; `{"cuda": "", "host": "native"}` names both. A text that says which device ("cuda
    -arch=sm_90a") needs none here: the result can then be exported, and calls of it say what is missing.
    `database` holds measured schedules, which `tilewright tune` finds (None: the user's own, where there is one, and
    those that come with Tilewright; "shipped": these alone).
    `precision` is what float32 models are computed in: "float32"; "tf32", which lets tensor cores of NVIDIA GPUs round
    the operands of products; "float16" or "bfloat16", in which products and what lies between them are computed, with
    sums in float32. Inputs and results keep their types.
    `unchecked=True` leaves out the checks of data: an index out of range then reads or writes some other element (never
    outside the data), and what a division of whole numbers by zero gives is anything.
    """
    wanted = request(model, target, threads, shapes, winograd, infinities, specialize, database, precision, unchecked)
    if wanted.runs_here and wanted.key is not None:
        artifact = load_model(wanted.key)
        if artifact is not None:
            trace.LOGGER.info("took %r from the cache", artifact)
            with choosing(wanted.target.kind, wanted.device_index):
                return deploy.executable(artifact, threads, may_be_absent=wanted.names_device)
    start = time.perf_counter()
    compilation = import_module("tilewright.compiler").Compilation.of(wanted)
    result = compilation.executable()
    assert isinstance(result, Executable)
    trace.LOGGER.info("compiled %r for %s in %.2f s", result.model.name, wanted.target, time.perf_counter() - start)
    return result
