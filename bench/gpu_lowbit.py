"""Kernels of few bits on a GPU, each checked and timed: `python -m bench.gpu_lowbit`.

    python3 -m bench.gpu_lowbit                                # on the NVIDIA GPU that is here
    python -m bench.gpu_lowbit --target opencl --small         # whether they are right, on PoCL
    python3 -m bench.gpu_lowbit --only "4-bit*,W1A1*" --json lowbit.json

Products of bytes by dot-product instructions and by tensor cores, 8-bit floats, weights of 4 and 8 bits with rows of
halves, and bit-serial products and convolutions. Results are compared with the operators' numpy references (the first
and last rows): integers exactly. Kernels that read their constants once are held against a copy: the rate of a large
one, and on CUDA the time of one that moves as many bytes. Others are given in operations a second. On CUDA, times are
of replayed graphs by the GPU's clock, of kernels that start before those in front of them are done or do not, whichever
is quicker (models find out as well); what is read once lies in so many places that no cache holds it; the copy is
torch's `copy_` or its addition of a number, whichever is quicker; torch's own products run in turns with ours. Ends
with one line of JSON; the exit code is 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.topi.library
from bench import harness
from bench.cuda_kernels import CudaFunction, seconds
from bench.lowbit_cases import CASES, ROWS, SMALL, Array, Case
from tilewright import te
from tilewright.graph.ir.op import get_operator
from tilewright.graph.ops.packed import HALVES, SEVERAL_ROWS, pack_codes, unpack_codes
from tilewright.graph.passes.packed_weights import run_length
from tilewright.request import model_targets
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.gpu.strategy import schedule_gpu
from tilewright.topi.schedule.packing import packing_of

_COLD_BYTES = 256 << 20
"""Of constants that are read in turns: more than caches hold."""
_LAUNCHES = 20
_COPY_BYTES = {False: 1 << 30, True: 1 << 22}
Row = dict[str, Any]


def for_target(case: Case, target: Target) -> Case:
    """The case as the graph pass would have it: few rows on tensor cores meet runs of codes, which lie by halves."""
    if case.operator != "packed.matmul" or case.rows > SEVERAL_ROWS:
        return case
    bits, group = int(str(case.attributes["bits"])), int(str(case.attributes["group"]))
    run = run_length(target, bits, group)

    def by_halves() -> list[Array]:
        rows, words, *others = case.operands()
        return [rows, pack_codes(unpack_codes(words, bits, 0), bits, 0, HALVES), *others]

    return replace(case, attributes={**case.attributes, "run": run}, operands=by_halves) if run else case


def scheduled(case: Case, operands: list[Array], target: Target) -> tuple[PrimFunc, list[str]]:
    """The scheduled program of a case, and its templates."""
    inputs = [te.placeholder(item.shape, item.dtype.name, f"in{number}") for number, item in enumerate(operands)]
    func = create_prim_func([*inputs, *apply_operator(case.operator, inputs, **case.attributes)], "kernel")
    constants = func.replace(attributes={**func.attributes, CONSTANTS: tuple(range(1, len(operands)))})
    result = schedule_gpu(constants, target)
    return result.func, [item.name for item in result.templates]


def arranged(func: PrimFunc, operands: list[Array]) -> list[Array]:
    """Operands as the schedule wants its constants."""
    packing = packing_of(func)
    return [
        np.ascontiguousarray(packing[number].rearrange(item)) if number in packing else item
        for number, item in enumerate(operands)
    ]


def largest_error(case: Case, operands: list[Array], result: Array) -> float:
    """The largest error of the first and the last rows, relative to the largest result there."""
    operator = get_operator(case.operator)
    attributes = operator.attributes_class(**case.attributes)
    few = "matmul" in case.operator or "dense" in case.operator
    worst = 0.0
    for rows in (slice(0, ROWS), slice(-ROWS, None)) if few else (slice(None),):
        given = [item[rows] if number in case.by_rows else item for number, item in enumerate(operands)]
        expected = np.asarray(operator.reference(given, attributes), np.float64)
        difference = np.abs(np.asarray(result[rows], np.float64) - expected).max()
        worst = max(worst, float(difference / max(1e-30, np.abs(expected).max())))
    return worst


class OnCuda:
    """A case on an NVIDIA GPU, beside torch."""

    def __init__(self, case: Case, func: PrimFunc, target: Target, operands: list[Array], result: Array) -> None:
        import torch

        self._torch, self._result = torch, result
        self.function = CudaFunction(func, target)
        rows, *constants = (self._tensor(item) for item in arranged(func, operands))
        size = sum(item.nbytes for item in constants)
        copies = max(1, -(-_COLD_BYTES // size)) if case.is_streamed else 1
        self._sets = [(rows, *([item.clone() for item in constants] if n else constants)) for n in range(copies)]
        self._output = self._tensor(result)

    def _tensor(self, array: Array) -> Any:
        """Its bytes: kernels take addresses."""
        return self._torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8).copy()).cuda()

    def run(self) -> Array:
        """The result of one launch."""
        self.function(*self._sets[0], self._output)
        self._torch.cuda.synchronize()
        return self._output.cpu().numpy().view(self._result.dtype).reshape(self._result.shape)

    def time(self) -> float:
        """Seconds of a launch."""

        def call() -> None:
            for operands in self._sets:
                self.function(*operands, self._output)

        times = []
        for self.function.early in (False, True):
            times.append(seconds(call, max(1, _LAUNCHES // len(self._sets)), 2) / len(self._sets))
        return min(times)

    @staticmethod
    def time_peer(call: Callable[[], object]) -> float:
        """Seconds of a call of torch's."""
        return seconds(call, _LAUNCHES, 2)

    @staticmethod
    def copy_time(size: int) -> float:
        """Seconds of a copy of so many bytes that no cache holds, on average."""
        import torch

        count = max(1, size // 4)
        pairs = [[torch.zeros(count, device="cuda") for _ in range(2)] for _ in range(-(-_COLD_BYTES // size))]
        forms: tuple[Callable[[Any, Any], object], ...] = (
            lambda source, target: target.copy_(source),
            lambda source, target: torch.add(source, 1.0, out=target),
        )

        def call(form: Callable[[Any, Any], object]) -> None:
            for pair in pairs:
                form(*pair)

        return min(seconds(partial(call, form), max(1, _LAUNCHES // len(pairs)), 3) for form in forms) / len(pairs)


class Elsewhere:
    """A case on any other device."""

    def __init__(self, case: Case, func: PrimFunc, target: Target, operands: list[Array], result: Array) -> None:
        self._module = tw.build(func, target=target)
        self._arguments = [*arranged(func, operands), result]

    def run(self) -> Array:
        """The result of one launch."""
        self._module(*self._arguments)
        return self._arguments[-1]

    def time(self) -> float:
        """Seconds of a launch."""
        return float(self._module.time_evaluator("kernel", number=1, repeat=3)(*self._arguments).median)


def copy_rate(target: Target, is_small: bool) -> float:
    """Bytes a second that a device copies, read and written."""
    if target.kind == "cuda":
        return 2 * _COPY_BYTES[is_small] / OnCuda.copy_time(_COPY_BYTES[is_small])
    count = _COPY_BYTES[is_small] // 4
    source = te.placeholder((count,), name="source")
    func = create_prim_func([source, te.compute((count,), lambda i: source[i], name="target")], "kernel")
    module = tw.build(schedule_gpu(func, target).func, target=target)
    arrays = [np.ones(count, np.float32), np.zeros(count, np.float32)]
    return float(8 * count / module.time_evaluator("kernel", number=1, repeat=3)(*arrays).median)


def measure(case: Case, target: Target, rounds: int, rate: float) -> Row:
    """One kernel: whether it is right, and its time beside torch's."""
    case = for_target(case, target)
    operands = case.operands()
    func, templates = scheduled(case, operands, target)
    output = func.buffers[len(operands)]
    result = np.full(output.static_shape or (), 77, output.dtype.numpy())
    here = (OnCuda if target.kind == "cuda" else Elsewhere)(case, func, target, operands, result)
    row: Row = {"name": case.name, "templates": templates, "error": largest_error(case, operands, here.run())}
    row["right"] = bool(row["error"] <= case.tolerance)
    calls = case.peers(operands) if isinstance(here, OnCuda) else {}
    times: dict[str, list[float]] = {"ours": [], **{name: [] for name in calls}}
    for _ in range(rounds):
        times["ours"].append(here.time())
        for name, call in calls.items():
            times[name].append(OnCuda.time_peer(call))
    best = {name: statistics.median(found) for name, found in times.items()}
    row["us"] = best.pop("ours") * 1e6
    row["peers_us"] = {name: value * 1e6 for name, value in best.items()}
    row["tera_operations"] = case.operations / row["us"] * 1e-6
    if case.is_streamed:
        moved = sum(item.nbytes for item in operands) + result.nbytes
        row["of_copy"] = moved / (row["us"] * 1e-6) / rate
        if isinstance(here, OnCuda):
            # Half is read, half written, in whole lines of memory.
            row["of_copy_as_large"] = OnCuda.copy_time(-(-moved // 256) * 128) / (row["us"] * 1e-6)
    return row


def _text(row: Row) -> tuple[str, ...]:
    if "problem" in row:
        return row["name"], "failed", "", "", "", str(row["problem"]).splitlines()[-1][:60]
    share = f"{row['of_copy']:.2f} of copy" if "of_copy" in row else f"{row['tera_operations']:.3g} T/s"
    share += f", {row['of_copy_as_large']:.2f} of one as large" if "of_copy_as_large" in row else ""
    peers = ", ".join(f"{name} {value:.1f}" for name, value in row["peers_us"].items())
    right = "yes" if row["right"] else f"off by {row['error']:.1e}"
    return row["name"], right, f"{row['us']:.1f}", share, peers, "+".join(row["templates"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench.gpu_lowbit", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="cuda", help="the device's target")
    parser.add_argument("--only", default="*", help="names of kernels, with wildcards, separated by commas")
    parser.add_argument("--small", action="store_true", help="sizes for devices that are made of a CPU")
    parser.add_argument("--rounds", type=int, default=3, help="turns of ours and torch's")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args(arguments)
    target, _ = model_targets(options.target)
    patterns = options.only.split(",")
    rate = copy_rate(target, options.small)
    harness.say(f"{target}: copies {rate / 1e9:.1f} GB/s")
    rows: list[Row] = []
    for case in SMALL if options.small else CASES:
        if not any(fnmatch.fnmatch(case.name, pattern) for pattern in patterns):
            continue
        if case.needs and not getattr(target, case.needs):
            continue
        try:
            rows.append(measure(case, target, options.rounds, rate))
        except Exception:  # One kernel that fails is a result, not the end of the run.
            rows.append({"name": case.name, "right": False, "problem": traceback.format_exc()})
            harness.say(rows[-1]["problem"])
        harness.say("  ".join(_text(rows[-1])))
    print(table(("kernel", "right", "us", "speed", "torch us", "templates"), [_text(row) for row in rows]))
    figures = {"target": str(target), "copy_bytes_per_second": rate, "kernels": rows}
    if options.json:
        harness.write_json(options.json, {**figures, "machine": harness.machine()})
    print(json.dumps(figures))
    return 0 if all(row["right"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
