"""Products and convolutions on an NVIDIA GPU, one layer at a time, against cuDNN and cuBLAS.

    PYTHONPATH=src:. python3 -m bench.gpu_products [--layers PATTERN] [--precisions float16,int8,float8] [--tiles N]

Layers of ResNet-18/50, MobileNet and BERT (batch 1 and 16) and square products (`bench.gpu_layers`), with bias and ReLU
in the same kernel; the library runs without them, in the better layout. 8-bit layers are scaled per column as well, and
integers quantised again; the libraries are `torch._int_mm` and `torch._scaled_mm`, for products alone. Everything
timed is first compared with torch, true float32 with float64, integers exactly. Times are of CUDA graphs of several
launches of the one layer. Weights come from memory, as they do in a model: launches take copies of them in turns, which
together are several times the second-level cache, for both sides. With `--cached` all operands stay in that cache.
`--tiles` tries so many tiles a layer: that of the model, then by turns the next best and some of the others; kernels
are compiled in several processes.
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from bench.cuda_kernels import CudaFunction, seconds
from bench.gpu_layers import LAYERS, Layer, function_of
from bench.harness import write_json
from tilewright.target import Target
from tilewright.tir.index_map import IndexMap
from tilewright.topi.schedule.choices import Answer, Choices, answers_to_json
from tilewright.topi.schedule.gpu.strategy import schedule_gpu
from tilewright.topi.schedule.packing import packing_of

_H200 = "cuda -arch=sm_90a -num-cores=132 -l2-bytes=52428800 -shared-bytes=232448"
_QUESTIONS = ("group_tile", "warp_tile", "tile")
_TIMED = 2e11
"""Products of the launches of one graph, where they are not 20."""
_COLD = 200_000_000
"""Bytes of copies of the weights that launches take in turns: four times the second-level cache."""
_MOST_COPIES = 200


@dataclass(frozen=True)
class Precision:
    """How exactly a layer is computed: the type of its operands, the target, the error that is allowed."""

    dtype: str
    target: str
    tolerance: float


PRECISIONS = {
    "float16": Precision("float16", _H200, 1e-2),
    "tf32": Precision("float32", f"{_H200} -mattr=+tf32", 1e-2),
    "float32": Precision("float32", _H200, 1e-5),
    "int8": Precision("int8", _H200, 0.0),
    "float8": Precision("float8_e4m3fn", _H200, 1e-2),
    "float8_e5m2": Precision("float8_e5m2", _H200, 1e-2),
}
_DEFAULT = ("float16", "tf32", "float32")


@dataclass(frozen=True)
class Candidate:
    """A compiled layer: its kernels, how the weights are arranged, what was chosen."""

    function: CudaFunction
    packing: IndexMap | None
    answers: dict[str, Answer]


def build(layer: Layer, precision: str, number: int) -> Candidate | None:
    """Compile a layer by the default tile (0) or by another answer to the question about tiles; None after the last."""
    target = Target(PRECISIONS[precision].target)
    program = function_of(layer, PRECISIONS[precision].dtype)
    choices = Choices()
    func = schedule_gpu(program, target, choices).func
    if number:
        name = next((name for name in _QUESTIONS if choices.answers.get(name)), None)
        options = choices.asked[name].options if name else ()
        others = [option for option in options if option and option != choices.answers[name or ""]]
        if name is None or number > len(others):
            return None
        # Options are ranked, the best first; those at the end are a sample of the rest.
        choices = Choices(given={name: others[number // 2] if number % 2 else others[-(number // 2)]})
        func = schedule_gpu(program, target, choices).func
    answers = {name: choices.answers[name] for name in _QUESTIONS if choices.answers.get(name)}
    return Candidate(CudaFunction(func, target), packing_of(func).get(1), answers)


class LayerOnGpu:
    """A layer with operands on the GPU, beside the vendor's libraries."""

    def __init__(self, layer: Layer, precision: str, is_cached: bool = False) -> None:
        import torch

        from bench.gpu_torch import allow_tf32

        self.layer = layer
        self.is_cached = is_cached
        self.torch = torch
        torch.manual_seed(0)
        dtype = getattr(torch, PRECISIONS[precision].dtype)
        self.is_byte = dtype.itemsize == 1
        self.operands = [(torch.rand(*shape, device="cuda") - 0.5).to(dtype) for shape in layer.operands]
        self.result = torch.empty(layer.result, device="cuda", dtype=dtype)
        if self.is_byte:
            self._make_bytes(dtype)
        torch.backends.cudnn.benchmark = True
        allow_tf32(False)
        exact = torch.float64 if precision in ("float32", "int8") else torch.float32
        self.wanted = self._reference([item.to(exact) for item in self.operands])
        allow_tf32(precision == "tf32")

    def _make_bytes(self, dtype: Any) -> None:
        """Operands of 8 bits, a scale and a bias for each column, and a result that is not one of these bytes."""
        torch, layer = self.torch, self.layer
        shapes = (*layer.operands[:2], *layer.operands[3:])
        is_float = dtype.is_floating_point
        if is_float:
            data = [torch.randn(*shape, device="cuda").to(dtype) for shape in shapes]
        else:
            data = [torch.randint(-128, 128, shape, device="cuda", dtype=dtype) for shape in shapes]
        spread = (layer.channels * layer.window**2) ** 0.5 * (1.0 if is_float else 128.0)
        scale, bias = ((torch.rand(layer.columns, device="cuda") + 0.5) for _ in range(2))
        self.operands = [*data[:2], scale / spread, bias, *data[2:]]
        self.result = torch.empty(layer.result, device="cuda", dtype=torch.float16 if is_float else dtype)

    def _reference(self, operands: Sequence[Any]) -> Any:
        x, w, *rest = operands
        scale = rest.pop(0) if self.is_byte else None
        if self.layer.size:
            y = self._convolution(x.permute(0, 3, 1, 2), w.permute(3, 2, 0, 1)).permute(0, 2, 3, 1)
        else:
            y = x @ w
        if scale is not None:
            # In the order and the type of the program, so that integers are the same ones.
            y = y.float() * scale.float()
            rest = [item.float() for item in rest]
        if self.layer.is_plain:
            return y
        y = sum(rest, start=y).relu()
        return y.round().clamp(max=127) if self.result.dtype == self.torch.int8 else y

    def _convolution(self, x: Any, w: Any) -> Any:
        layer = self.layer
        return self.torch.nn.functional.conv2d(x, w, stride=layer.stride, padding=layer.window // 2)

    def _microseconds(self, call: Callable[[Any], object], weights: Any) -> float:
        """The time of a call with weights, of which launches take copies in turns."""
        repeats = max(1, min(20, int(_TIMED / self.layer.products)))
        copies = 1 if self.is_cached else min(_MOST_COPIES, -(-_COLD // (weights.numel() * weights.element_size())))
        # A stride may say how the library is to see them: copies keep it.
        turns = cycle([weights, *(weights.clone(memory_format=self.torch.preserve_format) for _ in range(copies - 1))])
        return seconds(lambda: call(next(turns)), max(repeats, copies)) * 1e6

    def library(self) -> float | None:
        """Microseconds of cuBLAS or cuDNN, in the better of two layouts; None where they have no such product."""
        torch = self.torch
        x, w = self.operands[:2]
        if self.is_byte:
            return self._byte_library()
        calls: list[tuple[Callable[[Any], object], Any]] = []
        if self.layer.size:
            for form in (torch.contiguous_format, torch.channels_last):
                data = x.permute(0, 3, 1, 2).contiguous(memory_format=form)
                taps = w.permute(3, 2, 0, 1).contiguous(memory_format=form)
                calls.append((partial(self._convolution, data), taps))
        else:
            turned = w.transpose(-1, -2).contiguous().transpose(-1, -2)
            calls = [(partial(torch.matmul, x), factor) for factor in (w, turned)]
        return min(self._microseconds(call, weights) for call, weights in calls)

    def _byte_library(self) -> float | None:
        """Microseconds of torch's product of bytes, the second operand by columns; None where it has none."""
        torch = self.torch
        x, w = self.operands[:2]
        if self.layer.size or x.dtype == torch.float8_e5m2:
            return None
        turned = w.view(torch.uint8).t().contiguous().view(w.dtype).t()
        if not x.dtype.is_floating_point:
            return self._microseconds(partial(torch._int_mm, x), turned)
        one = torch.ones((), device="cuda")
        call = partial(torch._scaled_mm, x, scale_a=one, scale_b=one, out_dtype=torch.float16, use_fast_accum=True)
        return self._microseconds(call, turned)

    def error(self, made: Candidate) -> float:
        """The largest error of a candidate, relative to the largest result."""
        self.result.fill_(float("nan") if self.result.dtype.is_floating_point else -77)
        made.function(*self._arguments(made))
        self.torch.cuda.synchronize()
        difference = (self.result.to(self.wanted.dtype) - self.wanted).abs().max()
        return float(difference) / float(self.wanted.abs().max())

    def time(self, made: Candidate) -> float:
        """Microseconds of a candidate."""
        x, w, *rest = self._arguments(made)
        return self._microseconds(lambda weights: made.function(x, weights, *rest), w)

    def _arguments(self, made: Candidate) -> list[Any]:
        x, w, *rest = self.operands
        packed = w
        if made.packing is not None:
            plain = w.view(self.torch.uint8) if self.is_byte else w
            packed = self.torch.from_numpy(made.packing.rearrange(plain.cpu().numpy())).cuda().view(w.dtype)
        return [x, packed, *rest, self.result]


def measure(on_gpu: LayerOnGpu, precision: str, futures: Sequence[Future[Candidate | None]]) -> dict[str, Any]:
    """All candidates of a layer, compared and timed; the default is the first."""
    layer = on_gpu.layer
    rows: list[dict[str, Any]] = []
    peer = on_gpu.library()
    for future in futures:
        row: dict[str, Any] = {}
        try:
            made = future.result()
            if made is None:
                break
            row["answers"] = answers_to_json(made.answers)
            row["error"] = on_gpu.error(made)
            if not row["error"] <= PRECISIONS[precision].tolerance:
                raise RuntimeError(f"wrong by {row['error']}")
            row["us"] = on_gpu.time(made)
        except Exception as problem:  # one bad configuration is a result, not the end of the run
            row["problem"] = f"{type(problem).__name__}: {str(problem)[:300]}"
        rows.append(row)
    times = [row["us"] for row in rows if "us" in row]
    return {
        "name": layer.name,
        "precision": precision,
        "count": layer.count,
        "tflop": 2e-12 * layer.products,
        "library_us": peer,
        "default_us": rows[0].get("us"),
        "best_us": min(times, default=None),
        "tiles": rows,
    }


def summary(result: dict[str, Any]) -> str:
    """A layer in one line."""
    peer, first = result["library_us"], result["default_us"]
    text = f"{result['name']:30} {result['precision']:8} library " + ("     -  " if peer is None else f"{peer:8.2f}")
    if first is not None:
        chosen = result["tiles"][0]["answers"]
        ratio = "" if peer is None else f" x{peer / first:.2f}"
        text += f"  default {first:8.2f} us {1e6 * result['tflop'] / first:6.1f} TFLOP/s{ratio}  {chosen}"
    if result["best_us"] != first:
        best = next(row for row in result["tiles"] if row.get("us") == result["best_us"])
        text += f"  best {best['us']:.2f} {best['answers']}"
    bad = [row["problem"] for row in result["tiles"] if "problem" in row]
    return text + (f"  ({len(bad)} of {len(result['tiles'])} failed: {bad[0]})" if bad else "")


def sums(results: Sequence[dict[str, Any]]) -> list[str]:
    """For each network and precision a line with the time of all its layers, each as often as it has it."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for result in results:
        groups.setdefault((result["name"].split("/")[0], result["precision"]), []).append(result)
    lines = []
    for (group, precision), items in groups.items():
        totals = {}
        for key in ("library_us", "default_us", "best_us"):
            times = [float("nan") if item[key] is None else item[key] for item in items]
            totals[key] = round(sum(item["count"] * time for item, time in zip(items, times, strict=True)), 1)
        lines.append(f"{group} {precision} {totals}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="*", help="names of layers, with wildcards, separated by commas")
    parser.add_argument("--precisions", default=",".join(_DEFAULT), help=f"of {', '.join(PRECISIONS)}")
    parser.add_argument("--tiles", type=int, default=1, help="tiles to try for each layer")
    parser.add_argument("--cached", action="store_true", help="leave the weights in the second-level cache")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting layers after so long")
    parser.add_argument("--out", type=Path, help="a JSON file for all results")
    options = parser.parse_args(arguments)
    precisions = options.precisions.split(",")
    if unknown := [name for name in precisions if name not in PRECISIONS]:
        parser.error(f"there is no precision {unknown[0]}, but: {', '.join(PRECISIONS)}")
    patterns = options.layers.split(",")
    layers = [layer for layer in LAYERS if any(fnmatch.fnmatch(layer.name, pattern) for pattern in patterns)]
    start = time.perf_counter()
    results = []
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool:
        jobs = [
            (layer, precision, [pool.submit(build, layer, precision, number) for number in range(options.tiles)])
            for precision in precisions
            for layer in layers
        ]
        for layer, precision, futures in jobs:
            if time.perf_counter() - start > options.seconds:
                for future in futures:
                    future.cancel()
                continue
            results.append(measure(LayerOnGpu(layer, precision, options.cached), precision, futures))
            print(summary(results[-1]), flush=True)
            if options.out:
                write_json(options.out, results)
    print(*sums(results), f"{time.perf_counter() - start:.0f} s", sep="\n")


if __name__ == "__main__":
    main()
