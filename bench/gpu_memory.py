"""Kernels that are not large products, on the GPU: against a copy of the same size in the same run, and against torch.

Elementwise stages, reductions, softmax and normalisation on 256 MB; the small ones of models (depthwise convolutions,
pooling, products of one row, attention, recurrent layers) at batch 1.

    python3 -m bench.gpu_memory [--cases softmax,sum] [--tune] [--json FILE]

Every kernel is checked against torch on random data before it is timed. `--tune` also times what the templates could
have chosen instead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tilewright.graph.ops
import tilewright.topi.library  # noqa: F401  (registers the computations)
from bench.cuda_kernels import CudaFunction, largest_error, present_target, seconds
from bench.harness import say
from tilewright.target import Target
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Answer, Choices
from tilewright.topi.schedule.gpu.strategy import schedule_gpu

_MOST_VARIANTS = 12
_COLD_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Case:
    """One operator at one size."""

    name: str
    operator: str
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    tolerance: float = 2e-5
    scale: float = 1.0
    """How large the random numbers of the second operand (weights) are."""
    cold: bool = False
    """Whether each run has weights of its own, as the layers of a model have: none come from the cache."""


def _rows(name: str, operator: str, rows: int, columns: int, dtype: str = "float32") -> Case:
    shapes: tuple[tuple[int, ...], ...] = ((rows, columns),)
    if operator == "nn.layer_norm":
        shapes = (*shapes, (columns,), (columns,))
    attributes: dict[str, Any] = {"axis": 1} if operator.startswith("nn.") else {"axes": (1,)}
    return Case(name, operator, shapes, attributes, dtype, 2e-5 if dtype == "float32" else 4e-3)


CASES = (
    Case("exp", "exp", ((8192, 8192),)),
    Case("add", "add", ((8192, 8192), (8192, 8192))),
    Case("add bias", "add", ((8192, 8192), (8192,))),
    Case("relu fp16", "nn.relu", ((8192, 16384),), {}, "float16", 1e-3),
    Case("transpose", "transpose", ((8192, 8192),), {"axes": (1, 0)}),
    Case("transpose nhwc", "transpose", ((16, 256, 128, 128),), {"axes": (0, 2, 3, 1)}),
    _rows("softmax 128", "nn.softmax", 524288, 128),
    _rows("softmax 1024", "nn.softmax", 65536, 1024),
    _rows("softmax 4096", "nn.softmax", 16384, 4096),
    _rows("softmax 32768", "nn.softmax", 2048, 32768),
    _rows("softmax 1000", "nn.softmax", 65536, 1000),
    _rows("softmax 1024 fp16", "nn.softmax", 131072, 1024, "float16"),
    _rows("layer norm 768", "nn.layer_norm", 87040, 768),
    _rows("layer norm 1024", "nn.layer_norm", 65536, 1024),
    _rows("layer norm 4096", "nn.layer_norm", 16384, 4096),
    _rows("layer norm 8192", "nn.layer_norm", 8192, 8192),
    _rows("sum rows 1024", "sum", 65536, 1024),
    _rows("sum rows 8192", "sum", 8192, 8192),
    _rows("sum rows 1M", "sum", 64, 1 << 20),
    _rows("max rows 4096", "max", 16384, 4096),
    Case("sum all", "sum", ((8192, 8192),), {"axes": (0, 1)}),
    Case("sum columns", "sum", ((8192, 8192),), {"axes": (0,)}),
    Case("sum few columns", "sum", ((262144, 256),), {"axes": (0,)}),
    Case("mean nhwc", "mean", ((64, 64, 64, 256),), {"axes": (1, 2)}),
)

_NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": (1, 1, 1, 1)}
_GATES = (("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))


def _depthwise(size: int, channels: int, stride: int) -> Case:
    attributes = {**_NHWC, "groups": channels, "strides": (stride, stride)}
    shapes = ((1, size, size, channels), (3, 3, 1, channels))
    return Case(f"depthwise {channels}@{size}/{stride}", "nn.conv2d", shapes, attributes)


def _attention(batch: int, tokens: int, heads: int, dtype: str = "float32", size: int = 64) -> Case:
    shape = (batch, tokens, heads, size)
    name = (
        f"attention {batch}x{heads}x{tokens}{'' if size == 64 else f'x{size}'}{'' if dtype == 'float32' else ' fp16'}"
    )
    tolerance = 2e-5 if dtype == "float32" else 4e-3
    return Case(name, "nn.attention", (shape, shape, shape), {"scale": size**-0.5}, dtype, tolerance)


_DECODE = ((2048, 16384), (8192, 2048), (2048, 3072), (2048, 2048))
"""Depth and columns of a Llama layer's products in a decode step."""


def _cold_dense(depth: int, columns: int, dtype: str) -> Case:
    shapes = ((1, depth), (columns, depth))
    name = f"dense cold 1x{depth}x{columns}{'' if dtype == 'float32' else ' fp16'}"
    tolerance = 2e-5 if dtype == "float32" else 4e-3
    return Case(name, "matmul", shapes, {"transpose_b": True}, dtype, tolerance, 0.02, cold=True)


def _lstm(steps: int, batch: int, size: int) -> Case:
    shapes = ((steps, batch, 4, size), (4, size, size), (batch, size), (batch, size))
    return Case(f"lstm {steps}x{batch}x{size}", "nn.lstm", shapes, {"activations": _GATES}, scale=size**-0.5)


SMALL = (
    *(_depthwise(*layer) for layer in ((112, 32, 1), (112, 64, 2), (56, 128, 1), (28, 256, 1), (14, 512, 1))),
    _depthwise(7, 1024, 1),
    Case(
        "max pool",
        "nn.max_pool2d",
        ((1, 112, 112, 64),),
        {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "layout": "NHWC"},
    ),
    Case("mean 7x7", "mean", ((1, 7, 7, 2048),), {"axes": (1, 2)}),
    Case("dense 1x2048x1000", "matmul", ((1, 2048), (2048, 1000)), scale=0.02),
    Case("dense 1x1300x2600", "matmul", ((1, 1300), (1300, 2600)), scale=0.02),
    Case("dense 1x768x768", "matmul", ((1, 768), (768, 768)), scale=0.02),
    Case("dense t 1x2048x1000", "matmul", ((1, 2048), (1000, 2048)), {"transpose_b": True}, scale=0.02),
    Case("dense t 1x650x10000", "matmul", ((1, 650), (10000, 650)), {"transpose_b": True}, scale=0.02),
    *(_cold_dense(*sizes, dtype) for dtype in ("float16", "float32") for sizes in _DECODE),
    Case("softmax 12x128x128", "nn.softmax", ((1536, 128),), {"axis": 1}),
    Case("layer norm 128x768", "nn.layer_norm", ((128, 768), (768,), (768,)), {"axis": 1}),
    Case("softmax 1x1000", "nn.softmax", ((1, 1000),), {"axis": 1}),
    _attention(1, 128, 12),
    _attention(16, 128, 12),
    _attention(1, 1024, 12),
    *(_attention(*sizes, 12, "float16") for sizes in ((1, 128), (16, 128), (1, 1024), (16, 1024))),
    _attention(4, 1000, 12, "float16", 80),
    _lstm(35, 1, 650),
    _lstm(35, 16, 650),
    _lstm(1, 1, 650),
)


def program(case: Case) -> PrimFunc:
    """The unscheduled program of a case."""
    inputs = [placeholder(shape, case.dtype, f"in{n}") for n, shape in enumerate(case.shapes)]
    return create_prim_func([*inputs, *apply_operator(case.operator, inputs, **case.attributes)], "kernel")


def _reference(case: Case) -> Callable[..., Any]:
    """What torch computes it with."""
    import torch

    attributes = case.attributes
    functions: dict[str, Callable[..., Any]] = {
        "exp": torch.exp,
        "add": torch.add,
        "nn.relu": torch.relu,
        "transpose": lambda x: x.permute(attributes["axes"]).contiguous(),
        "nn.softmax": lambda x: torch.softmax(x, 1),
        "nn.layer_norm": lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[1:], w, b),
        "sum": lambda x: torch.sum(x, attributes["axes"]),
        "mean": lambda x: torch.mean(x, attributes["axes"]),
        "max": lambda x: torch.amax(x, attributes["axes"]),
        "matmul": lambda a, b: a @ (b.T if attributes.get("transpose_b") else b),
        "nn.conv2d": lambda x, w: _torch_depthwise(x, w, attributes),
        "nn.max_pool2d": lambda x: torch.nn.functional.max_pool2d(
            x.permute(0, 3, 1, 2), attributes["kernel"], attributes["strides"], 1
        ).permute(0, 2, 3, 1),
        "nn.attention": lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        ).transpose(1, 2),
        "nn.lstm": _torch_lstm,
    }
    return functions[case.operator]


def _torch_depthwise(x: Any, w: Any, attributes: dict[str, Any]) -> Any:
    import torch

    taps = w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
    found = torch.nn.functional.conv2d(
        x.permute(0, 3, 1, 2), taps, None, attributes["strides"], 1, groups=attributes["groups"]
    )
    return found.permute(0, 2, 3, 1)


def _torch_lstm(data: Any, weights: Any, hidden: Any, cell: Any) -> Any:
    """The states of all steps, by plain operations: the same function as the operator."""
    import torch

    hiddens, cells = [hidden], [cell]
    for row in data:
        gates = row + torch.einsum("bk,gnk->bgn", hiddens[-1], weights)
        enter, leave, forget = (torch.sigmoid(gates[:, n]) for n in range(3))
        cells.append(forget * cells[-1] + enter * torch.tanh(gates[:, 3]))
        hiddens.append(leave * torch.tanh(cells[-1]))
    return torch.stack(hiddens), torch.stack(cells)


def _cudnn_lstm(data: Any, weights: Any, hidden: Any, cell: Any) -> Callable[[], Any]:
    """What torch has for it, with the product of the input left out as far as that goes (an input of one element)."""
    import torch

    steps, batch, _, size = data.shape
    layer = torch.nn.LSTM(1, size, device="cuda")
    values, state = torch.zeros(steps, batch, 1, device="cuda"), (hidden[None], cell[None])
    return lambda: layer(values, state)


def _variants(func: PrimFunc, target: Target, tune: bool) -> Iterator[tuple[dict[str, Answer], PrimFunc]]:
    """The default schedule, and those with other answers to the template's questions."""
    choices = Choices()
    yield {}, schedule_gpu(func, target, choices).func
    if not tune:
        return
    names = list(choices.asked)
    points = itertools.product(*[choices.asked[name].options for name in names])
    others = [dict(zip(names, point, strict=True)) for point in points]
    for given in [point for point in others if point != choices.answers][:_MOST_VARIANTS]:
        yield given, schedule_gpu(func, target, Choices(given)).func


def _into(function: CudaFunction, outputs: Sequence[Any]) -> Callable[..., Any]:
    return lambda *inputs: function(*inputs, *outputs)


def _call(inputs: Sequence[Any], function: Callable[..., Any]) -> Any:
    return function(*inputs)


def _cold(inputs: Sequence[Any]) -> Callable[[Callable[..., Any]], Any]:
    """Calls with copies of the weights in turn, together several times the cache."""
    first, weights = inputs
    size = weights.numel() * weights.element_size()
    turn = itertools.cycle([weights, *(weights.clone() for _ in range(-(-_COLD_BYTES // size)))])
    return lambda function: function(first, next(turn))


def measure(case: Case, copy: float, target: Target, tune: bool) -> list[dict[str, Any]]:
    """Figures of a case: bytes a second, as a part of a copy's, and torch's."""
    import torch

    func = program(case)
    torch.manual_seed(0)
    kind = getattr(torch, case.dtype)
    inputs = [torch.randn(shape, device="cuda").to(kind) for shape in case.shapes]
    if case.scale != 1.0:
        inputs[1] *= case.scale
    reference = _reference(case)
    wanted = reference(*inputs)
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    shapes = [buffer.static_shape or () for buffer in func.buffers[len(inputs) :]]
    outputs = [torch.full(shape, float("nan"), device="cuda", dtype=kind) for shape in shapes]
    repeats = 5 if case in CASES else 20
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))
    run = _cold(inputs) if case.cold else partial(_call, inputs)
    peer = seconds(_cudnn_lstm(*inputs) if case.operator == "nn.lstm" else partial(run, reference), repeats)
    rows: list[dict[str, Any]] = []
    for given, scheduled in _variants(func, target, tune):
        try:
            function = CudaFunction(scheduled, target)
            for output in outputs:
                output.fill_(float("nan"))
            function(*inputs, *outputs)
            torch.cuda.synchronize()
            error = largest_error(outputs, wanted)
            time = seconds(partial(run, _into(function, outputs)), repeats)
        except Exception as failure:  # one failure must not end the run
            traceback.print_exc()
            rows.append({"case": case.name, "given": given, "failed": str(failure)[:200]})
            continue
        rate = moved / time
        rows.append(
            {
                "case": case.name,
                "given": given,
                "us": round(time * 1e6, 2),
                "gb_per_s": round(rate / 1e9),
                "of_copy": round(rate / copy, 3),
                "torch_of_copy": round(moved / peer / copy, 3),
                "torch_us": round(peer * 1e6, 2),
                "error": error,
                "right": error <= case.tolerance,
                "kernels": len(function.launches),
            }
        )
        _show(rows[-1])
    return rows


def _show(row: dict[str, Any]) -> None:
    given = " ".join(f"{name}={value}" for name, value in row["given"].items())
    print(
        f"{row['case']:22} {row['us']:8.1f} us (torch {row['torch_us']:8.1f})  {row['gb_per_s']:5} GB/s",
        f"{row['of_copy']:6.1%} of a copy (torch {row['torch_of_copy']:6.1%})  {row['kernels']} kernels",
        f"{'' if row['right'] else 'WRONG '}{row['error']:.1e} {given}",
        flush=True,
    )


def copy_rate() -> float:
    """Bytes a second, read and written, of a copy of 256 MB."""
    import torch

    source = torch.randn(1 << 26, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / seconds(lambda: target.copy_(source), 10)


def main(arguments: list[str] | None = None) -> int:
    """Run the cases; gives 1 if any is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", help="words, comma-separated: only cases whose names begin with one of them")
    parser.add_argument("--tune", action="store_true", help="time other choices of the templates too")
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args(arguments)
    import torch

    target = present_target()
    copy = copy_rate()
    print(f"{torch.cuda.get_device_name()}: a copy of 256 MB moves {copy / 1e9:.0f} GB/s")
    words = options.cases.split(",") if options.cases else [""]
    rows: list[dict[str, Any]] = []
    for case in (*CASES, *SMALL):
        if any(case.name.startswith(word) for word in words):
            try:
                rows += measure(case, copy, target, options.tune)
            except Exception as failure:  # one failure must not end the run
                traceback.print_exc()
                rows.append({"case": case.name, "failed": str(failure)[:200]})
                say(f"{case.name} failed: {failure}")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"copy_gb_per_s": copy / 1e9, "rows": rows}, file, indent=1)
    return int(any(not row.get("right", False) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
