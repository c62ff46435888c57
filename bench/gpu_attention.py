"""Attention in float16 on the GPU against the quickest backend of torch's scaled_dot_product_attention, in one run.

    python3 -m bench.gpu_attention [--cases decode,causal] [--tiles 4] [--json FILE]

Prefill of 1k to 16k tokens, causal and not, heads of 64, 128 and 256; steps of decoding against caches of 1k to 16k
keys, 32 heads of queries that share 8 of keys and values. Results are compared with float64 for some queries of all
heads. Replayed graphs of ours and of each backend take turns. `--tiles` also times tiles that are not the default.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import tilewright.graph.ops
import tilewright.topi.library  # noqa: F401  (registers the computations)
from bench.cuda_kernels import CudaFunction, largest_error, present_target
from bench.harness import say
from tilewright.graph.ops.attention import ANY_DIAGONAL
from tilewright.target import Target
from tilewright.te.language import placeholder
from tilewright.te.program import create_prim_func
from tilewright.tir.function import PrimFunc
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Answer, Choices
from tilewright.topi.schedule.gpu.strategy import schedule_gpu

_CHECKED = 64
"""Queries that are compared with float64."""
_ROUNDS = 7
_BACKENDS = ("FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION")


@dataclass(frozen=True, slots=True)
class Case:
    """One attention."""

    kind: str
    batch: int
    queries: int
    keys: int
    heads: int
    shared: int
    """Heads of keys and values."""
    width: int
    window: int = 0
    """Keys that a query of a sliding window sees."""

    @property
    def name(self) -> str:
        """How tables call it."""
        heads = f"{self.heads}/{self.shared}" if self.heads != self.shared else str(self.heads)
        length = f"{self.queries}" if self.queries == self.keys else f"{self.queries}->{self.keys}"
        return f"{self.kind} {self.batch}x{length} {heads}x{self.width}"

    @property
    def diagonals(self) -> tuple[int, int]:
        """The keys that queries see, from and to which distance."""
        if self.kind not in ("causal", "window"):
            return -ANY_DIAGONAL, ANY_DIAGONAL
        return (1 - self.window if self.window else -ANY_DIAGONAL), 0

    @property
    def seen(self) -> float:
        """The part of all pairs of queries and keys that is computed."""
        return self.window / self.keys if self.window else 0.5 if self.kind == "causal" else 1.0


def _cases() -> list[Case]:
    prefill = [
        Case(kind, 16384 // tokens, tokens, tokens, 2048 // width, 2048 // width, width)
        for width in (64, 128, 256)
        for tokens in (1024, 4096, 16384)
        for kind in ("full", "causal")
    ]
    odd = [Case("full", 4, 1000, 1000, 12, 12, width) for width in (80, 96)]
    llama = [Case("causal", 1, 512, 512, 32, 8, 64), Case("window", 1, 8192, 8192, 16, 16, 128, 1024)]
    decode = [
        Case("decode", batch, 1, keys, 32, 8, width)
        for batch in (1, 8)
        for width in (64, 128)
        for keys in (1024, 4096, 16384)
    ]
    return [*decode, *llama, *odd, *prefill]


def program(case: Case) -> PrimFunc:
    """The unscheduled program of a case; caches have heads before places."""
    by_head = case.kind == "decode"
    of_keys = (case.shared, case.keys) if by_head else (case.keys, case.shared)
    shapes = [(case.batch, case.queries, case.heads, case.width), *[(case.batch, *of_keys, case.width)] * 2]
    inputs = [placeholder(shape, "float16", f"in{n}") for n, shape in enumerate(shapes)]
    first, last = case.diagonals
    results = apply_operator(
        "nn.attention",
        inputs,
        scale=case.width**-0.5,
        keys_by_head=by_head,
        values_by_head=by_head,
        first=first,
        last=last,
    )
    return create_prim_func([*inputs, *results], "attention")


def compiled(case: Case, target: Target, given: dict[str, Answer]) -> tuple[dict[str, Answer], CudaFunction | str]:
    """The answers of a schedule, and its code or what went wrong."""
    choices = Choices(given)
    try:
        function = CudaFunction(schedule_gpu(program(case), target, choices).func, target)
        return dict(choices.answers), function
    except Exception as failure:  # one failure must not end the run
        return dict(choices.answers), str(failure)[:300]


def _others(case: Case, target: Target, count: int) -> list[dict[str, Answer]]:
    """Answers that are not the default, evenly from all options."""
    if count == 0:
        return []
    choices = Choices()
    schedule_gpu(program(case), target, choices)
    name = next((name for name in choices.asked if name.startswith("attention")), None)
    if name is None:
        return []
    options = [option for option in choices.asked[name].options if option != choices.answers[name]]
    return [{name: option} for option in options[:: max(1, len(options) // count)][:count]]


def _torch_call(case: Case, tensors: list[Any], backend: str) -> Callable[[], Any]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    query, key, value = tensors
    kind = getattr(SDPBackend, backend)
    mask = None
    if case.window:
        places = torch.arange(case.keys, device="cuda")
        distance = places - places[:, None]
        mask = (distance <= 0) & (distance > -case.window)

    def call() -> Any:
        with sdpa_kernel(kind):
            return torch.nn.functional.scaled_dot_product_attention(
                query, key, value, mask, is_causal=case.kind == "causal", enable_gqa=case.heads != case.shared
            )

    return call


def _wanted(case: Case, tensors: list[Any], rows: Any) -> Any:
    """The results of some queries in float64: (batch, heads, queries, width)."""
    import torch

    query, key, value = tensors
    often = case.heads // case.shared
    first, last = case.diagonals
    distance = torch.arange(case.keys, device="cuda") - rows[:, None]
    hidden = (distance < first) | (distance > last)
    found = []
    for head in range(case.heads):
        scores = query[:, head, rows].double() @ key[:, head // often].double().transpose(-1, -2) * case.width**-0.5
        weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), -1)
        found.append(weights @ value[:, head // often].double())
    return torch.stack(found, 1)


def _interleaved(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The least seconds of each call, by graphs of some calls that are replayed in turn."""
    import torch

    torch_cuda: Any = torch.cuda
    graphs: dict[str, Any] = {}
    for name, call in calls.items():
        with torch.cuda.stream(torch_cuda.Stream()):
            call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(repeats):
                call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(_ROUNDS):
        for name, graph in graphs.items():
            start, end = torch_cuda.Event(enable_timing=True), torch_cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            best[name] = min(best[name], start.elapsed_time(end) / 1e3 / repeats)
    return best


def measure(case: Case, variants: list[tuple[dict[str, Answer], CudaFunction | str]]) -> list[dict[str, Any]]:
    """Figures of a case: ours with each schedule, and torch's quickest backend."""
    import torch

    torch.manual_seed(0)
    shape, caches = (case.batch, case.heads, case.queries, case.width), (case.batch, case.shared, case.keys, case.width)
    # Torch's own order where sequences are whole; caches have heads before places.
    heads_last = case.kind != "decode"

    def random(sizes: tuple[int, ...]) -> Any:
        b, h, n, w = sizes
        if heads_last:
            return torch.randn(b, n, h, w, device="cuda").half().transpose(1, 2)
        return torch.randn(b, h, n, w, device="cuda").half()

    tensors = [random(shape), random(caches), random(caches)]
    rows = torch.randint(0, case.queries, (min(_CHECKED, case.queries),), device="cuda")
    wanted = _wanted(case, tensors, rows)
    calls: dict[str, Callable[[], Any]] = {}
    errors: dict[str, float] = {}
    for backend in _BACKENDS:
        call = _torch_call(case, tensors, backend)
        try:
            errors[backend] = largest_error([call()[:, :, rows]], [wanted])
        except RuntimeError:
            continue
        calls[backend] = call
    output = torch.empty(case.batch, case.queries, case.heads, case.width, device="cuda", dtype=torch.float16)
    ours = [tensors[0].transpose(1, 2).contiguous()]
    ours += [item.transpose(1, 2) if heads_last else item for item in tensors[1:]]
    failed: list[dict[str, Any]] = []
    answers: dict[str, dict[str, Answer]] = {}
    for number, (given, function) in enumerate(variants):
        if isinstance(function, str):
            failed.append({"case": case.name, "given": given, "failed": function})
            continue
        name = f"ours {number}"
        output.fill_(float("nan"))
        function(*ours, output)
        torch.cuda.synchronize()
        errors[name] = largest_error([output.transpose(1, 2)[:, :, rows]], [wanted])
        calls[name], answers[name] = partial(function, *ours, output), given
    work = 4 * case.batch * case.heads * case.queries * case.keys * case.width * case.seen
    read = 4 * case.batch * case.shared * case.keys * case.width
    times = _interleaved(calls, max(1, min(20, int(1e-3 / (work / 3e14 + read / 3e12)))))
    peer = min((name for name in times if name in _BACKENDS), key=lambda name: times[name])
    return failed + [
        {
            "case": case.name,
            "given": {name: list(answer) for name, answer in answers[name].items() if isinstance(answer, tuple)},
            "us": round(times[name] * 1e6, 2),
            "tflop_per_s": round(work / times[name] / 1e12, 1),
            "gb_per_s": round(read / times[name] / 1e9),
            "torch_us": round(times[peer] * 1e6, 2),
            "torch_backend": peer,
            "ratio": round(times[peer] / times[name], 3),
            "error": errors[name],
            "torch_error": errors[peer],
        }
        for name in answers
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure all cases; gives 1 if any is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="words, one of which the names of cases contain")
    parser.add_argument("--tiles", type=int, default=0, help="how many other tiles to time")
    parser.add_argument("--json", default="", help="write the figures to this file")
    options = parser.parse_args(arguments)
    import torch

    target = present_target()
    words = [word for word in options.cases.split(",") if word]
    cases = [case for case in _cases() if not words or any(word in case.name for word in words)]
    jobs = [(case, given) for case in cases for given in ({}, *_others(case, target, options.tiles))]
    with ProcessPoolExecutor(max(1, min(12, os.cpu_count() or 1)), get_context("spawn")) as pool:
        found = [pool.submit(compiled, case, target, given) for case, given in jobs]
        table: list[dict[str, Any]] = []
        for case in cases:
            variants = [future.result() for (owner, _), future in zip(jobs, found, strict=True) if owner is case]
            rows = measure(case, variants)
            table += rows
            for row in rows:
                say(_line(row))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": torch.cuda.get_device_name(), "target": str(target), "rows": table}, file, indent=1)
    wrong = [row for row in table if "failed" in row or not row["error"] <= max(4e-3, 2 * row["torch_error"])]
    say(f"{len(table)} rows, {len(wrong)} wrong")
    return 1 if wrong else 0


def _line(row: dict[str, Any]) -> str:
    if "failed" in row:
        return f"{row['case']:34} {row['given']}: failed: {row['failed']}"
    return (
        f"{row['case']:34} {row['us']:9.2f} us {row['tflop_per_s']:6.1f} TFLOP/s {row['gb_per_s']:5} GB/s"
        f"  torch {row['torch_us']:9.2f} us {row['torch_backend'].split('_')[0].lower():9} {row['ratio']:6.3f}x"
        f"  error {row['error']:.1e} / {row['torch_error']:.1e}  {row['given']}"
    )


if __name__ == "__main__":
    raise SystemExit(main())
