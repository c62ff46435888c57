"""Products and convolutions in true fp32 on an NVIDIA GPU, one layer at a time, against cuDNN and cuBLAS.

    PYTHONPATH=src:. python3 -m bench.gpu_kernels [--layers PATTERN] [--configs N] [--seconds S] [--out results.json]

Every configuration that is timed is first compared with torch in float64. Times are of CUDA graphs of many launches of
the one layer, so that operands are in the second-level cache, for both sides. `--configs` tries so many tiles a layer,
the one that is chosen by default first; kernels are compiled in several processes.
"""

from __future__ import annotations

import argparse
import ctypes
import fnmatch
import json
import os
import statistics
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import tilewright.graph.ops
import tilewright.topi.library  # noqa: F401  (registers the computations)
from tilewright import te
from tilewright.codegen.c.kernels import emit_kernels
from tilewright.codegen.c.program import launches_of
from tilewright.codegen.cuda.dialect import CudaDialect
from tilewright.graph.op import get_operator
from tilewright.ir.expr import const_value
from tilewright.ir.types import tensor_type
from tilewright.runtime.artifact import LaunchInfo
from tilewright.runtime.cuda import compile_cuda
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.split_host_device import split_host_device
from tilewright.tir.pipeline import lower
from tilewright.topi.registry import compute_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.strategy import schedule_gpu
from tilewright.topi.schedule.packing import CONSTANTS

TARGET = "cuda -arch=sm_90a -num-cores=132 -l2-bytes=52428800 -shared-bytes=232448"


@dataclass(frozen=True)
class Layer:
    """A convolution (NHWC, square) or, with `size` 0, a matrix product of rows x depth and depth x columns."""

    name: str
    size: int
    channels: int
    columns: int
    window: int = 1
    stride: int = 1
    pad: int = 0
    count: int = 1
    rows: int = 0
    batch: int = 1

    @property
    def out(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * self.pad - self.window) // self.stride + 1

    @property
    def products(self) -> int:
        """Multiplications."""
        rows = self.rows if self.size == 0 else self.out * self.out
        return self.batch * rows * self.columns * self.channels * self.window**2


def conv(group: str, size: int, channels: int, columns: int, window: int, stride: int, count: int) -> Layer:
    """A convolution that keeps its size (over its stride)."""
    name = f"{group}/{window}x{window}s{stride}_{channels}-{columns}@{size}"
    return Layer(name, size, channels, columns, window, stride, window // 2, count)


def gemm(group: str, rows: int, depth: int, columns: int, count: int = 1, batch: int = 1) -> Layer:
    """A matrix product."""
    shape = f"{rows}x{depth}x{columns}" if batch == 1 else f"{batch}x{rows}x{depth}x{columns}"
    return Layer(f"{group}/gemm_{shape}", 0, depth, columns, rows=rows, count=count, batch=batch)


LAYERS = [
    conv("resnet18", 224, 3, 64, 7, 2, 1),
    conv("resnet18", 56, 64, 64, 3, 1, 4),
    conv("resnet18", 56, 64, 128, 3, 2, 1),
    conv("resnet18", 56, 64, 128, 1, 2, 1),
    conv("resnet18", 28, 128, 128, 3, 1, 3),
    conv("resnet18", 28, 128, 256, 3, 2, 1),
    conv("resnet18", 28, 128, 256, 1, 2, 1),
    conv("resnet18", 14, 256, 256, 3, 1, 3),
    conv("resnet18", 14, 256, 512, 3, 2, 1),
    conv("resnet18", 14, 256, 512, 1, 2, 1),
    conv("resnet18", 7, 512, 512, 3, 1, 3),
    conv("resnet50", 56, 64, 64, 1, 1, 1),
    conv("resnet50", 56, 64, 256, 1, 1, 4),
    conv("resnet50", 56, 256, 64, 1, 1, 2),
    conv("resnet50", 56, 256, 128, 1, 1, 1),
    conv("resnet50", 28, 128, 512, 1, 1, 4),
    conv("resnet50", 28, 512, 128, 1, 1, 3),
    conv("resnet50", 28, 512, 256, 1, 1, 1),
    conv("resnet50", 14, 256, 1024, 1, 1, 6),
    conv("resnet50", 14, 1024, 256, 1, 1, 5),
    conv("resnet50", 14, 1024, 512, 1, 1, 1),
    conv("resnet50", 7, 512, 2048, 1, 1, 3),
    conv("resnet50", 7, 2048, 512, 1, 1, 2),
    conv("mobilenet", 224, 3, 32, 3, 2, 1),
    conv("mobilenet", 112, 32, 64, 1, 1, 1),
    conv("mobilenet", 56, 64, 128, 1, 1, 1),
    conv("mobilenet", 56, 128, 128, 1, 1, 1),
    conv("mobilenet", 28, 128, 256, 1, 1, 1),
    conv("mobilenet", 28, 256, 256, 1, 1, 1),
    conv("mobilenet", 14, 256, 512, 1, 1, 1),
    conv("mobilenet", 14, 512, 512, 1, 1, 5),
    conv("mobilenet", 7, 512, 1024, 1, 1, 1),
    conv("mobilenet", 7, 1024, 1024, 1, 1, 1),
    gemm("bert", 128, 768, 768, 48),
    gemm("bert", 128, 768, 3072, 12),
    gemm("bert", 128, 3072, 768, 12),
    gemm("bert", 128, 64, 128, 12, 12),
    gemm("bert", 128, 128, 64, 12, 12),
    gemm("square", 1024, 1024, 1024),
    gemm("square", 4096, 4096, 4096),
]


def function_of(layer: Layer) -> PrimFunc:
    """The program of a layer: with bias and ReLU for convolutions, plain for matrix products."""
    f32 = "float32"
    if layer.size == 0:
        lead = (layer.batch,) if layer.batch > 1 else ()
        a = te.placeholder((*lead, layer.rows, layer.channels), f32, "a")
        b = te.placeholder((*lead, layer.channels, layer.columns), f32, "b")
        k = te.reduce_axis((0, layer.channels), "k")
        c = te.compute(
            (*lead, layer.rows, layer.columns),
            lambda *i: te.sum(a[(*i[:-1], k)] * b[(*i[:-2], k, i[-1])], axis=k),
            "c",
            {"anchor": "matmul"},
        )
        return create_prim_func([a, b, c], "gemm")
    operator = get_operator("nn.conv2d")
    attributes = operator.attributes_class(
        strides=(layer.stride,) * 2, padding=(layer.pad,) * 4, data_layout="NHWC", kernel_layout="HWIO"
    )
    x = te.placeholder((1, layer.size, layer.size, layer.channels), f32, "x")
    w = te.placeholder((layer.window, layer.window, layer.channels, layer.columns), f32, "w")
    bias = te.placeholder((layer.columns,), f32, "bias")
    kind = operator.infer([tensor_type(item.shape, item.dtype) for item in (x, w)], attributes)
    (y,) = compute_operator("nn.conv2d", [x, w], attributes, kind)
    z = te.compute(y.shape, lambda n, i, j, c: te.maximum(y[n, i, j, c] + bias[c], te.const(0.0, f32)), "z")
    func = create_prim_func([x, w, bias, z], "conv")
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2)})


def options_of(layer: Layer) -> list[tuple[int, ...]]:
    """The tiles to try, that of the model first."""
    choices = Choices()
    schedule_gpu(function_of(layer), Target(TARGET), choices)
    question = choices.asked.get("tile")
    return [] if question is None else [option for option in question.options if isinstance(option, tuple)]


@dataclass(frozen=True)
class Built:
    """One configuration, compiled."""

    tile: tuple[int, ...]
    launches: tuple[LaunchInfo, ...]
    code: bytes
    seconds: float


def build(layer: Layer, tile: tuple[int, ...]) -> Built:
    """Compile one configuration of a layer."""
    start = time.perf_counter()
    target = Target(TARGET)
    func = schedule_gpu(function_of(layer), target, Choices(given={"tile": tile} if tile else {}))
    split = split_host_device(lower(func, target), target)
    source = emit_kernels(split.kernels, CudaDialect())
    launches = launches_of(split, lambda extent: const_value(extent) or 0)
    if split.workspaces:
        raise RuntimeError("the kernels of a layer need a workspace")
    return Built(tile, launches, compile_cuda(source, target.arch), time.perf_counter() - start)


class Runner:
    """Runs kernels on torch's memory and stream."""

    def __init__(self) -> None:
        import torch
        from cuda.bindings import driver

        self.torch, self.driver = torch, driver
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        torch.zeros(1, device="cuda")

    def check(self, result: Any) -> Any:
        """The results of a driver call."""
        error, *values = result
        if int(error) != 0:
            raise RuntimeError(f"the driver failed: {error.name}")
        return values[0] if values else None

    def load(self, built: Built) -> list[tuple[Any, LaunchInfo]]:
        """The kernels of a configuration."""
        module = self.check(self.driver.cuModuleLoadData(built.code))
        kernels = []
        for launch in built.launches:
            function = self.check(self.driver.cuModuleGetFunction(module, launch.symbol.encode()))
            if launch.dynamic_bytes:
                most = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                self.check(self.driver.cuFuncSetAttribute(function, most, launch.dynamic_bytes))
            kernels.append((function, launch))
        return kernels

    def launch(self, kernels: list[tuple[Any, LaunchInfo]], tensors: list[Any]) -> None:
        """Start the kernels on torch's stream."""
        driver = self.driver
        stream = self.torch.cuda.current_stream().cuda_stream
        for function, info in kernels:
            values = [ctypes.c_uint64(tensors[number].data_ptr()) for number in info.args]
            addresses = (ctypes.c_void_p * len(values))(*[ctypes.addressof(value) for value in values])
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = info.grid
            config.blockDimX, config.blockDimY, config.blockDimZ = info.block
            config.sharedMemBytes = info.dynamic_bytes
            config.hStream = stream
            attributes = []
            if info.cluster != (1, 1, 1):
                attribute = driver.CUlaunchAttribute()
                attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
                dims = attribute.value.clusterDim
                dims.x, dims.y, dims.z = info.cluster
                attributes.append(attribute)
            config.attrs = attributes
            config.numAttrs = len(attributes)
            self.check(driver.cuLaunchKernelEx(config, function, ctypes.addressof(addresses), 0))

    def seconds(self, run: Any, most: float = 4e-3) -> float:
        """Seconds a run, by replays of a graph of several."""
        torch = self.torch
        run()
        torch.cuda.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        number = max(1, min(40, int(most / max(1e-6, begin.elapsed_time(end) * 1e-3))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(number):
                run()
        times = []
        for _ in range(5):
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3 / number)
        return statistics.median(times)

    def tensors(self, layer: Layer) -> tuple[list[Any], Any]:
        """The operands of a layer, its result last, and what the result should be."""
        torch = self.torch
        torch.manual_seed(0)

        def make(*shape: int) -> Any:
            return torch.rand(*shape, device="cuda") - 0.5

        if layer.size == 0:
            lead = (layer.batch,) if layer.batch > 1 else ()
            a, b = make(*lead, layer.rows, layer.channels), make(*lead, layer.channels, layer.columns)
            return [a, b, make(*lead, layer.rows, layer.columns)], (a.double() @ b.double())
        x = make(1, layer.size, layer.size, layer.channels)
        w = make(layer.window, layer.window, layer.channels, layer.columns)
        bias = make(layer.columns)
        wanted = torch.nn.functional.conv2d(
            x.permute(0, 3, 1, 2).double(),
            w.permute(3, 2, 0, 1).double(),
            bias.double(),
            stride=layer.stride,
            padding=layer.pad,
        ).relu()
        return [x, w, bias, make(1, layer.out, layer.out, layer.columns)], wanted.permute(0, 2, 3, 1).contiguous()

    def peer(self, layer: Layer, tensors: list[Any]) -> float:
        """Seconds of the vendor's library: the best of the layouts, without bias and ReLU."""
        torch = self.torch
        if layer.size == 0:
            return self.seconds(lambda: torch.matmul(tensors[0], tensors[1], out=tensors[2]))
        best = float("inf")
        for form in (torch.contiguous_format, torch.channels_last):
            x = tensors[0].permute(0, 3, 1, 2).contiguous(memory_format=form)
            w = tensors[1].permute(3, 2, 0, 1).contiguous(memory_format=form)

            def run(x: Any = x, w: Any = w) -> None:
                torch.nn.functional.conv2d(x, w, stride=layer.stride, padding=layer.pad)

            best = min(best, self.seconds(run))
        return best


def measure(runner: Runner, layer: Layer, futures: list[tuple[tuple[int, ...], Future[Built]]]) -> dict[str, Any]:
    """All configurations of a layer, timed."""
    tensors, wanted = runner.tensors(layer)
    peer = runner.peer(layer, tensors)
    scale = float(wanted.abs().max())
    rows: list[dict[str, Any]] = []
    for tile, future in futures:
        row: dict[str, Any] = {"tile": tile}
        try:
            built = future.result()
            kernels = runner.load(built)
            tensors[-1].fill_(float("nan"))
            runner.launch(kernels, tensors)
            runner.torch.cuda.synchronize()
            error = float((tensors[-1].double() - wanted).abs().max()) / scale
            row |= {"error": error, "build_s": round(built.seconds, 2), "shared": built.launches[0].shared_bytes}
            if not error <= 1e-5:
                raise RuntimeError(f"wrong by {error}")
            row["us"] = runner.seconds(lambda k=kernels: runner.launch(k, tensors)) * 1e6
        except Exception as problem:  # one bad configuration is a result, not the end of the run
            row["problem"] = f"{type(problem).__name__}: {str(problem)[:300]}"
        rows.append(row)
    timed = [row for row in rows if "us" in row]
    best = min(timed, key=lambda row: row["us"]) if timed else None
    first = rows[0].get("us") if rows else None
    result = {"name": layer.name, "count": layer.count, "peer_us": peer * 1e6, "default_us": first, "configs": rows}
    result["best_us"] = best["us"] if best else None
    text = f"{layer.name:38} peer {peer * 1e6:8.2f}"
    if best is not None:
        flops = 2e-6 * layer.products
        text += f"  default {first or float('nan'):8.2f}  best {best['us']:8.2f} us {flops / best['us']:6.2f} TFLOP/s"
        text += f"  x{peer * 1e6 / best['us']:.2f} of the peer  {best['tile']}"
    bad = [row for row in rows if "problem" in row]
    print(text, f"({len(bad)} of {len(rows)} failed: {bad[0]['problem']})" if bad else "", flush=True)
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="*", help="names of layers, with wildcards, separated by commas")
    parser.add_argument("--configs", type=int, default=1, help="tiles to try for each layer")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting layers after so long")
    parser.add_argument("--out", default="", help="a JSON file for all results")
    args = parser.parse_args()
    start = time.perf_counter()
    patterns = args.layers.split(",")
    layers = [layer for layer in LAYERS if any(fnmatch.fnmatch(layer.name, pattern) for pattern in patterns)]
    results = []
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = []
        for layer in layers:
            options = options_of(layer)
            # The best by the model, and some of the others.
            half = (args.configs + 1) // 2
            tiles = [*options[:half], *options[-(args.configs - half) :]] if args.configs > 1 else options[:1]
            tiles = list(dict.fromkeys(tiles)) or [()]
            jobs.append((layer, [(tile, pool.submit(build, layer, tile)) for tile in tiles]))
        runner = Runner()
        for layer, futures in jobs:
            if time.perf_counter() - start > args.seconds:
                for _, future in futures:
                    future.cancel()
                continue
            results.append(measure(runner, layer, futures))
            if args.out:
                with open(args.out, "w") as file:
                    json.dump(results, file)
    for group in dict.fromkeys(result["name"].split("/")[0] for result in results):
        own = [result for result in results if result["name"].startswith(f"{group}/")]
        sums = {
            key: sum(result["count"] * (result[key] or float("nan")) for result in own)
            for key in ("peer_us", "default_us", "best_us")
        }
        print(group, {key: round(value, 1) for key, value in sums.items()})
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
