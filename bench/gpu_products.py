"""Products and convolutions on an NVIDIA GPU's tensor cores, one layer at a time, against cuDNN and cuBLAS.

    PYTHONPATH=src:. python3 -m bench.gpu_products [--layers PATTERN] [--precisions float16,tf32,float32] [--tiles N]

Layers of ResNet-18/50, MobileNet and BERT (batch 16 and 1) and square products, weights constant, with bias and ReLU in
the same kernel; the library runs without them, in the better layout. Everything timed is first compared with torch in
float32. Times are of CUDA graphs of many launches of the one layer. `--tiles` also tries other tiles than the default.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import tilewright.graph.ops
import tilewright.topi.library  # noqa: F401  (registers the computations)
from bench.gpu_kernels import TARGET, Built, Runner
from tilewright import te
from tilewright.arith.analyzer import Analyzer
from tilewright.codegen.c.kernels import emit_kernels
from tilewright.codegen.c.program import launches_of, nbytes
from tilewright.codegen.cuda.dialect import CudaDialect
from tilewright.graph.op import get_operator
from tilewright.ir.build import cast
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.ir.expr import PrimExpr, const_value
from tilewright.ir.types import tensor_type
from tilewright.runtime.cuda import compile_cuda
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.passes.split_host_device import split_host_device
from tilewright.tir.pipeline import lower
from tilewright.topi.registry import compute_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.strategy import schedule_gpu
from tilewright.topi.schedule.packing import packing_of

_TARGETS = {"float16": TARGET, "tf32": f"{TARGET} -mattr=+tf32", "float32": TARGET}
_TOLERANCES = {"float16": 1e-2, "tf32": 1e-2, "float32": 1e-5}
_QUESTIONS = ("group_tile", "warp_tile", "tile")


@dataclass(frozen=True)
class Layer:
    """A convolution (NHWC, square) of some images or, with `size` 0, a product of `images` rows."""

    name: str
    images: int
    size: int
    channels: int
    columns: int
    window: int = 1
    residual: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return (self.images, *((self.size, self.size) if self.size else ()), self.columns)

    @property
    def products(self) -> int:
        """Multiplications."""
        return self.images * max(1, self.size) ** 2 * self.columns * self.channels * self.window**2


def _conv(size: int, channels: int, columns: int, window: int = 1, images: int = 16, residual: bool = False) -> Layer:
    name = f"conv{images}/{window}x{window}_{channels}-{columns}@{size}"
    return Layer(name, images, size, channels, columns, window, residual)


def _gemm(group: str, rows: int, depth: int, columns: int, residual: bool = False) -> Layer:
    return Layer(f"{group}/{rows}x{depth}x{columns}", rows, 0, depth, columns, residual=residual)


LAYERS = [
    _gemm("square", 4096, 4096, 4096),
    _gemm("square", 2048, 2048, 2048),
    *(_gemm("bert16", 2048, *sizes) for sizes in ((768, 2304), (768, 768, True), (768, 3072), (3072, 768, True))),
    *(_gemm("bert1", 128, *sizes) for sizes in ((768, 2304), (768, 768, True), (768, 3072), (3072, 768, True))),
    *(_conv(*sizes, 3) for sizes in ((56, 64, 64), (28, 128, 128), (14, 256, 256), (7, 512, 512))),
    *(_conv(*sizes) for sizes in ((56, 256, 64), (28, 512, 128), (14, 1024, 256), (7, 2048, 512))),
    *(_conv(*sizes, residual=True) for sizes in ((56, 64, 256), (28, 128, 512), (14, 256, 1024), (7, 512, 2048))),
    *(_conv(*sizes) for sizes in ((56, 128, 128), (28, 256, 256), (14, 512, 512), (7, 1024, 1024))),
]


def function_of(layer: Layer, precision: str) -> PrimFunc:
    """The program of a layer: its result rounded, bias (and residual) added, ReLU."""
    kind = "float16" if precision == "float16" else "float32"
    window = (layer.window, layer.window) if layer.size else ()
    x = te.placeholder((*layer.shape[:-1], layer.channels), kind, "x")
    w = te.placeholder((*window, layer.channels, layer.columns), kind, "w")
    bias = te.placeholder((layer.columns,), kind, "bias")
    if layer.size:
        operator = get_operator("nn.conv2d")
        attributes = operator.attributes_class(
            padding=(layer.window // 2,) * 4, data_layout="NHWC", kernel_layout="HWIO"
        )
        result = operator.infer([tensor_type(item.shape, item.dtype) for item in (x, w)], attributes)
        (y,) = compute_operator("nn.conv2d", [x, w], attributes, result)
    else:
        k = te.reduce_axis((0, layer.channels), "k")

        def wide(item: PrimExpr) -> PrimExpr:
            return item if kind == "float32" else cast(item, FLOAT32)

        y = te.compute(layer.shape, lambda i, j: te.sum(wide(x[i, k]) * wide(w[k, j]), axis=k), "y")
    other = [te.placeholder(layer.shape, kind, "other")] if layer.residual else []

    def element(*i: PrimExpr) -> PrimExpr:
        value = y[i] if str(y.dtype) == kind else cast(y[i], DataType.of(kind))
        value = value + bias[i[-1]]
        for item in other:
            value = value + item[i]
        return te.maximum(value, te.const(0.0, kind))

    z = te.compute(layer.shape, element, "z")
    func = create_prim_func([x, w, bias, *other, z], "layer")
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2)})


@dataclass(frozen=True)
class Candidate:
    """A compiled layer: its kernels, workspaces in bytes, the order of the weights' axes, what was chosen."""

    built: Built
    workspaces: tuple[int, ...]
    axes: tuple[int, ...] | None
    chosen: str


def build(layer: Layer, precision: str, number: int) -> Candidate:
    """Compile a layer by the default tile (0), or by another one of the first question about tiles."""
    start = time.perf_counter()
    target = Target(_TARGETS[precision])
    choices = Choices()
    func = schedule_gpu(function_of(layer, precision), target, choices)
    if number:
        name = next(name for name in _QUESTIONS if choices.answers.get(name))
        others = [item for item in choices.asked[name].options if item and item != choices.answers[name]]
        choices = Choices(given={name: others[(number - 1) % len(others)]})
        func = schedule_gpu(function_of(layer, precision), target, choices)
    split = split_host_device(lower(func, target), target)
    launches = launches_of(split, lambda extent: const_value(extent) or 0)
    sizes = tuple(const_value(Analyzer().simplify(nbytes(buffer))) or 0 for buffer in split.workspaces)
    code = compile_cuda(emit_kernels(split.kernels, CudaDialect()), target.arch)
    chosen = ", ".join(f"{name} {choices.answers[name]}" for name in _QUESTIONS if choices.answers.get(name))
    packing = packing_of(func).get(1)
    axes = None
    if packing is not None:
        axes = tuple(int(step[0]) for step in packing.encode())
    return Candidate(Built((), launches, code, time.perf_counter() - start), sizes, axes, chosen)


class Bench:
    """Runs layers beside the vendor's libraries."""

    def __init__(self, precision: str) -> None:
        self.runner = Runner()
        self.torch = self.runner.torch
        self.precision = precision
        for backend in (self.torch.backends.cuda.matmul, self.torch.backends.cudnn):
            backend.allow_tf32 = precision == "tf32"

    def operands(self, layer: Layer) -> list[Any]:
        """Random operands in the order of the program's parameters, without the result."""
        torch = self.torch
        torch.manual_seed(0)
        kind = torch.float16 if self.precision == "float16" else torch.float32
        window = (layer.window, layer.window) if layer.size else ()
        shapes = [(*layer.shape[:-1], layer.channels), (*window, layer.channels, layer.columns), (layer.columns,)]
        shapes += [layer.shape] if layer.residual else []
        return [(torch.rand(*shape, device="cuda") - 0.5).to(kind) for shape in shapes]

    def library(self, layer: Layer, x: Any, w: Any) -> float:
        """Seconds of cuBLAS or cuDNN, in the better of two layouts."""
        torch = self.torch
        if not layer.size:
            turned = w.t().contiguous().t()
            return float(min(self.runner.seconds(lambda b=b: torch.matmul(x, b)) for b in (w, turned)))
        best = float("inf")
        for form in (torch.contiguous_format, torch.channels_last):
            a = x.permute(0, 3, 1, 2).contiguous(memory_format=form)
            b = w.permute(3, 2, 0, 1).contiguous(memory_format=form)

            def run(a: Any = a, b: Any = b) -> None:
                torch.nn.functional.conv2d(a, b, padding=layer.window // 2)

            best = min(best, self.runner.seconds(run))
        return best

    def wanted(self, layer: Layer, operands: list[Any]) -> Any:
        """The result in float32 (float64 where that is what is compared)."""
        torch = self.torch
        x, w, bias, *other = [item.double() if self.precision == "float32" else item.float() for item in operands]
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = False
        if layer.size:
            y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1), padding=layer.window // 2)
            y = y.permute(0, 2, 3, 1)
        else:
            y = x @ w
        for backend in (torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.allow_tf32 = self.precision == "tf32"
        return (y + bias + sum(other)).relu()

    def measure(self, layer: Layer, futures: list[Future[Candidate]]) -> dict[str, Any]:
        """All tiles of a layer, compared and timed."""
        torch = self.torch
        operands = self.operands(layer)
        peer = self.library(layer, operands[0], operands[1]) * 1e6
        wanted = self.wanted(layer, operands)
        scale = float(wanted.abs().max())
        result = torch.empty(layer.shape, device="cuda", dtype=operands[0].dtype)
        rows: list[dict[str, Any]] = []
        for future in futures:
            row: dict[str, Any] = {}
            try:
                made = future.result()
                row["chosen"] = made.chosen
                kernels = self.runner.load(made.built)
                x, w, *rest = operands
                packed = w if made.axes is None else w.permute(*made.axes).contiguous()
                spare = [torch.empty(size, device="cuda", dtype=torch.uint8) for size in made.workspaces]
                arguments = [x, packed, *rest, result, *spare]
                result.fill_(float("nan"))
                self.runner.launch(kernels, arguments)
                torch.cuda.synchronize()
                row["error"] = float((result.to(wanted.dtype) - wanted).abs().max()) / scale
                if not row["error"] <= _TOLERANCES[self.precision]:
                    raise RuntimeError(f"wrong by {row['error']}")
                row["us"] = self.runner.seconds(lambda k=kernels, a=arguments: self.runner.launch(k, a), 1.5e-3) * 1e6
            except Exception as problem:  # one bad configuration is a result, not the end of the run
                row["problem"] = f"{type(problem).__name__}: {str(problem)[:300]}"
            rows.append(row)
        timed = sorted((row for row in rows if "us" in row), key=lambda row: row["us"])
        first = rows[0]
        text = f"{layer.name:26} {self.precision:8} library {peer:8.2f}  default "
        if "us" in first:
            rate = 2e-6 * layer.products / first["us"]
            text += f"{first['us']:8.2f} us {rate:6.1f} TFLOP/s x{peer / first['us']:.2f}  {first['chosen']}"
        if timed and timed[0] is not first:
            text += f"  best {timed[0]['us']:.2f} {timed[0]['chosen']}"
        bad = [row["problem"] for row in rows if "problem" in row]
        print(text, f"({len(bad)} of {len(rows)} failed: {bad[0]})" if bad else "", flush=True)
        return {"name": layer.name, "precision": self.precision, "library_us": peer, "tiles": rows}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="*", help="names of layers, with wildcards, separated by commas")
    parser.add_argument("--precisions", default="float16,tf32,float32", help="of these three")
    parser.add_argument("--tiles", type=int, default=1, help="tiles to try for each layer")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting layers after so long")
    parser.add_argument("--out", default="", help="a JSON file for all results")
    args = parser.parse_args()
    start = time.perf_counter()
    patterns = args.layers.split(",")
    layers = [layer for layer in LAYERS if any(fnmatch.fnmatch(layer.name, pattern) for pattern in patterns)]
    results = []
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = [
            (layer, precision, [pool.submit(build, layer, precision, number) for number in range(args.tiles)])
            for precision in args.precisions.split(",")
            for layer in layers
        ]
        for layer, precision, futures in jobs:
            if time.perf_counter() - start > args.seconds:
                for future in futures:
                    future.cancel()
                continue
            results.append(Bench(precision).measure(layer, futures))
            if args.out:
                with open(args.out, "w") as file:
                    json.dump(results, file)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
