"""Fuzzing of the schedule templates: `python -m tests.fuzz.templates --count 2000 --seed 0 [--family attention]`.

Every case is a small model of some family, of odd sizes, for a target and a number of threads. Most are scheduled and
lowered only, for whatever target; some are compiled to an object; those for this machine may run and are compared with
onnxruntime. A template that fails raises (TILEWRIGHT_STRICT_TEMPLATES), as does one whose program cannot be lowered, or
leaves its buffers once it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx

from tests.fuzz.lowered_bounds import refuse_lowered_outside
from tests.fuzz.template_families import FAMILIES, draw
from tests.integration import small_models
from tilewright.backends.device import device_kernels, device_source
from tilewright.backends.host import lower_planned
from tilewright.compiler import Compilation
from tilewright.frontend import from_onnx
from tilewright.ir.expr import const_value
from tilewright.lower.kernel import compile_kernel
from tilewright.lower.schedules import schedule_kernel
from tilewright.support import settings
from tilewright.support.errors import UnsupportedError
from tilewright.tir.passes.split_host_device import MOST_BLOCKS_ACROSS
from tilewright.topi.schedule.cpu.plain import schedule_plain_cpu
from tilewright.topi.schedule.gpu.plain import schedule_plain_gpu

THREADS = (1, 2, 3, 4, 8, 16, 32, 64)
CPUS = (
    "native",
    "llvm -mcpu=haswell -mtriple=x86_64-linux-gnu",
    "llvm -mcpu=skylake-avx512 -mtriple=x86_64-linux-gnu",
    "llvm -mcpu=cascadelake -mtriple=x86_64-linux-gnu",
    "llvm -mcpu=emeraldrapids -mtriple=x86_64-linux-gnu",
    "llvm -mcpu=neoverse-n1 -mtriple=aarch64-linux-gnu",
)
"""This machine; AVX2, AVX-512, AVX-512 with dot products, with tiles (AMX); Arm."""
DEVICES = (
    "cuda -arch=sm_90a -num-cores=132",
    "cuda -arch=sm_75",
    "opencl",
    "vulkan",
    "webgpu",
)
PRECISIONS = ("float32", "float32", "float32", "float16", "bfloat16")
_COMPILED, _RUN, _PLAIN = 0.1, 0.25, 0.05
"""The shares of cases for other CPUs that are compiled, of those for this one that run, of all with plain schedules."""


@dataclass(frozen=True, slots=True)
class Case:
    """One model for one target."""

    seed: int
    family: str
    target: str
    threads: int
    precision: str
    step: str
    """How far it goes: `lower` (`plain`: with the schedule of kernels whose template failed), `compile` or `run`."""

    def __str__(self) -> str:
        how = f"{self.threads} threads, {self.precision}, {self.step}"
        return f"seed {self.seed}: {self.family} for '{self.target}', {how}"


def make(seed: int, family: str | None = None, devices: bool = False) -> Case:
    """The case of a seed."""
    random = np.random.default_rng([seed, 1])
    names = tuple(FAMILIES)
    drawn = family or names[seed % len(names)]
    target = str(random.choice(DEVICES if devices else CPUS))
    threads, precision = int(random.choice(THREADS)), str(random.choice(PRECISIONS))
    chance = random.random()
    step = "lower"
    if target == "native" and chance < _RUN:
        step = "run"
    elif not devices and chance < _COMPILED:
        step = "compile"
    elif chance > 1 - _PLAIN:
        step = "plain"
    return Case(seed, drawn, target, threads, precision, step)


def run(case: Case) -> None:
    """Take a case as far as it goes; raises where something is wrong."""
    model, inputs = draw(case.family, case.seed)
    if case.step in ("lower", "plain"):
        lower_all(model, case.target, case.threads, case.precision, plain=case.step == "plain")
        return
    compilation = Compilation(from_onnx(model), case.target, case.threads, precision=case.precision)
    # A kernel that the cache has would not be scheduled.
    with settings.STRICT_TEMPLATES.override(True), settings.CACHE.override(False):
        if case.step == "run":
            _compare(compilation, model, inputs, case.precision)
            return
        for kernel in compilation.kernels:
            compile_kernel(kernel, compilation.target, planned=True)


def lower_all(
    model: onnx.ModelProto, target: str, threads: int, precision: str = "float32", *, plain: bool = False
) -> None:
    """Schedule and lower all kernels of a model."""
    compilation = Compilation(from_onnx(model), target, threads, precision=precision)
    schedule_plain = schedule_plain_cpu if compilation.target.is_cpu else schedule_plain_gpu
    for kernel in compilation.kernels:
        if plain:
            scheduled = schedule_plain(kernel.func, compilation.target)
        else:
            scheduled = schedule_kernel(kernel.func, compilation.target).func
        if compilation.target.is_cpu:
            refuse_lowered_outside(lower_planned(scheduled, compilation.target))
            continue
        try:
            split = device_kernels(scheduled, compilation.target)
            device_source(split.kernels, compilation.target)
        except UnsupportedError:
            # The host computes what the device cannot.
            continue
        for item in split.kernels:
            _, *across = [const_value(extent) for extent in item.launched]
            assert all(extent is not None and extent <= MOST_BLOCKS_ACROSS for extent in across)


def _compare(compilation: Compilation, model: onnx.ModelProto, inputs: dict[str, np.ndarray], precision: str) -> None:
    [expected, *_] = small_models.onnxruntime_outputs(model, inputs)
    executable = compilation.executable()
    found = executable(*[inputs[info.name] for info in executable.input_info])
    first = np.asarray(found[0] if isinstance(found, (tuple, list)) else found)
    assert first.shape == expected.shape, f"shape {first.shape}, not {expected.shape}"
    tolerance = {"float32": 3e-4, "float16": 3e-2, "bfloat16": 2e-1}[precision]
    if precision != "float32" and expected.dtype.kind in "iu":
        # Which of two almost equal elements is the larger may differ.
        return
    if _is_quantized(model):
        # Half-way cases may round either way: at most a step of the quantisation.
        tolerance = max(tolerance, 0.051)
    difference = np.abs(first.astype(np.float64) - expected.astype(np.float64))
    allowed = tolerance * np.maximum(1.0, np.abs(expected.astype(np.float64)))
    wrong = int((difference > allowed).sum())
    assert not wrong, f"{wrong} of {expected.size} elements differ, by up to {difference.max()}"


def _is_quantized(model: onnx.ModelProto) -> bool:
    return any(node.op_type == "QLinearConv" for node in model.graph.node)


def run_many(cases: Iterable[Case], report: bool = False) -> list[tuple[Case, str]]:
    """Run cases; gives those that failed, with what was said."""
    failures = []
    for case in cases:
        try:
            run(case)
        except Exception as error:
            text = traceback.format_exc() if not str(error) else f"{type(error).__name__}: {error}"
            failures.append((case, text))
            if report:
                print(f"{case}\n  {text.splitlines()[0][:400]}", flush=True)
    return failures


def main() -> int:
    """Run many random cases; the exit code says whether all were right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--family", choices=list(FAMILIES), help="one family alone")
    parser.add_argument("--devices", action="store_true", help="targets that are devices, instead of CPUs")
    options = parser.parse_args()
    os.environ["TILEWRIGHT_DATABASE"] = "none"
    begin, failed = time.monotonic(), []
    for start in range(options.seed, options.seed + options.count, 100):
        seeds = range(start, min(start + 100, options.seed + options.count))
        failures = run_many((make(seed, options.family, options.devices) for seed in seeds), report=True)
        failed.extend(case.seed for case, _ in failures)
        done, passed = seeds[-1] + 1 - options.seed, time.monotonic() - begin
        print(f"{done} cases, {len(failed)} failures, {passed:.0f} s", file=sys.stderr, flush=True)
    print(json.dumps({"cases": options.count, "first_seed": options.seed, "failures": failed}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
