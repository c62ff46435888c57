"""The ten models on a GPU: Tilewright against PyTorch, checked against float64 and timed in interleaved rounds.

    python3 -m bench.gpu                                   # everything: ten models, batch 1 and 16, three precisions
    python3 -m bench.gpu --models resnet18,dqn --precisions fp32 --batch 1 --no-compile --rounds 5
    python3 -m bench.gpu --batch 1 --precisions fp32 --ahead 12     # compile in 12 processes first, then time
    python3 -m bench.gpu --ahead 16 --limit 500 --resume   # in parts: each run adds what is missing
    python3 -m bench.gpu --models llama_prefill,llama_decode --precisions fp16     # a stack with state (`gpu_llama.py`)

PyTorch runs in its strongest form (`gpu_torch.py`): idiomatic modules as CUDA graphs of its operators (in the model's
layout, and in channels_last where there are images) and of its compiler's frozen kernels (its default mode and
`max-autotune`; it chooses layouts itself). Times: `wall` is from the start of a run until the GPU is done, with inputs
and results on the GPU; `events` is by the GPU's clock, runs in a row. Ours is timed twice: with its arrays in place as
torch's graphs have theirs, which is what ratios are of, and through the public call with torch tensors.

Prints a table, writes the figures as JSON into `bench/results/` after each model, and ends with one line of JSON. The
exit code is 1 when a model failed, or its outputs are off by more than the tolerance of its precision.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import torch

import tilewright as tw
from bench import batches, gpu_ahead, gpu_llama, gpu_parts, gpu_torch, harness, zoo
from bench.gpu_ahead import GRAPH, OURS, PRECISIONS
from bench.models import geometric_mean, parse_models
from tilewright.cli.measure import max_relative_error
from tilewright.cli.options import positive_int
from tilewright.runtime.core.state import DeviceState
from tilewright.runtime.device.model import BoundRun, DeviceRunner
from tilewright.support.errors import TilewrightError, UnsupportedError, UserError
from tilewright.support.text import table

TOLERANCES = {"fp32": 1e-4, "tf32": 8e-3, "fp16": 2e-2}
PUBLIC = f"{OURS} call"
"""Ours through the public call."""
_RUNS_A_ROUND = 10
Result = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        names = _models(options.models)
        precisions = _choices(options.precisions, TOLERANCES, "precision")
        batches = [int(text) for text in options.batch.split(",")]
        modes = _choices(options.modes, gpu_torch.COMPILED.values(), "mode") if options.compile else []
        compiled = [way for way, mode in gpu_torch.COMPILED.items() if mode in modes]
        path = options.json or harness.RESULTS_FOLDER / "gpu.json"
        results = gpu_parts.read(path, torch.cuda.get_device_name()) if options.resume else []
    except (UserError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    started = time.perf_counter()
    configurations = [
        one for one in itertools.product(batches, precisions, names) if one[0] == 1 or one[2] not in gpu_llama.TITLES
    ]
    wanted = gpu_parts.missing(results, configurations, compiled)
    if options.resume:
        harness.say(f"{len(configurations) - len(wanted)} of {len(configurations)} configurations are there already")
    hopeless: dict[gpu_ahead.Program, str] = {}
    if options.ahead:
        hopeless = gpu_ahead.prepare_all(gpu_ahead.programs(wanted), options.ahead, options.ahead_limit)
    for (batch, precision, name), ways in wanted.items():
        left = options.limit - (time.perf_counter() - started)
        if left <= 0:
            result: Result = {"model": name, "batch": batch, "precision": precision, "error": gpu_parts.NO_TIME}
        else:
            result = (
                measure_stack(name, precision, ways, options, left)
                if name in gpu_llama.TITLES
                else measure_model(name, batch, precision, ways, options, left, hopeless)
            )
            harness.say(_line(result))
        results = gpu_parts.together(results, result)
        # Peers may take minutes to get ready: what is known is kept whatever happens to the rest.
        harness.write_json(path, summary(results))
    print(_table(results))
    print(json.dumps(summary(results)))
    return 0 if all(_is_good(item) for item in results) else 1


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """All figures, and how much quicker Tilewright is in each precision and batch."""
    ratios: dict[str, list[float]] = {}
    for (batch, precision, _), ratio in gpu_parts.ratios(results).items():
        ratios.setdefault(f"{precision} batch {batch}", []).append(ratio)
    return {
        "device": torch.cuda.get_device_name(),
        "machine": harness.machine(),
        "results": results,
        "geomean_ratio": {kind: geometric_mean(found) for kind, found in ratios.items()},
        "ratio_means": "wall time of the quickest torch / wall time of tilewright: above 1, tilewright is quicker",
        "versions": harness.versions(["tilewright", "numpy", "torch", "cuda-bindings"]),
    }


def measure_model(
    name: str,
    batch: int,
    precision: str,
    compiled: Sequence[str],
    options: argparse.Namespace,
    left: float,
    hopeless: Mapping[gpu_ahead.Program, str] = MappingProxyType({}),
) -> Result:
    """Compile, check and time one model in one precision. A failure is a result, not the end.

    `compiled` are the ways of torch.compile to be timed. `hopeless` says why programs of peers could not be compiled
    ahead: they are not tried again.
    """
    half = precision == "fp16"
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    result: Result = {"model": name, "batch": batch, "precision": precision, "date": date}
    model, inputs = batches.model(name, batch, False), batches.inputs(name, batch, False)
    expected = gpu_torch.reference(model, inputs)
    start = time.perf_counter()
    calls: dict[str, gpu_torch.Call] = {}
    ours: BoundRun | None = None
    try:
        executable = _compile(model, precision, options.database)
        result["compile_s"] = round(time.perf_counter() - start, 2)
        outputs = [np.asarray(array, np.float64) for array in executable.run(inputs)]
        result["max_rel_err"] = max_relative_error(outputs, expected)
        ours = _bound(executable, [inputs[info.name] for info in executable.input_info])
        calls[OURS] = ours.start
        calls[PUBLIC] = _public(executable, inputs)
        result["kernels"] = sum(map(len, ours.calls()))
    except TilewrightError as error:
        result["error"] = f"{type(error).__name__}: {error}"[:400]
    failures = {
        program.peer: why
        for program, why in hopeless.items()
        if (program.model, program.batch, program.precision) == (name, batch, precision) and program.way != OURS
    }
    if half:
        # Ours computes a float32 model in half precision; theirs is one of half precision throughout.
        model, inputs = batches.model(name, batch, True), batches.inputs(name, batch, True)
    errors: dict[str, float] = {}
    layouts = gpu_ahead.layouts(name)
    calls.update(_peers(model, inputs, precision, layouts, compiled, expected, options, left, failures, errors))
    result["peer_rel_err"] = errors
    return _timed(result, calls, ours, failures, options)


def measure_stack(
    name: str,
    precision: str,
    compiled: Sequence[str],
    options: argparse.Namespace,
    left: float,
    config: gpu_llama.Config = gpu_llama.Config(),  # noqa: B008  (frozen)
) -> Result:
    """The same of a Llama-like stack, whose caches are state; one sequence."""
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    result: Result = {"model": name, "batch": 1, "precision": precision, "date": date}
    given = gpu_llama.inputs(name, config)
    expected = gpu_llama.reference(gpu_llama.stack(name, config), given, "cuda")
    half = precision == "fp16"

    def convert(value: Any) -> Any:
        return value.half() if half else value

    calls: dict[str, gpu_torch.Call] = {}
    ours: BoundRun | None = None
    start = time.perf_counter()
    try:
        states, places = convert(given[0]), given[1]
        module = convert(gpu_llama.stack(name, config))
        database = {} if options.database is None else {"database": options.database}
        executable = gpu_llama.compiled(module, (states, places), "cuda", PRECISIONS[precision], **database)
        result["compile_s"] = round(time.perf_counter() - start, 2)
        outputs = [executable(states, places).double().numpy()]
        result["max_rel_err"] = max_relative_error(outputs, expected)
        ours = _bound(executable, [states.numpy(), places.numpy()])
        calls[OURS] = ours.start
        tensors = (states.cuda(), places.cuda())
        calls[PUBLIC] = lambda: executable(*tensors)
        result["kernels"] = sum(map(len, ours.calls()))
    except TilewrightError as error:
        result["error"] = f"{type(error).__name__}: {error}"[:400]
    errors: dict[str, float] = {}
    failures: dict[str, str] = {}
    for label, (module, tensors_of) in gpu_llama.variants(name, config, convert).items():
        on_gpu = [tensor.cuda() for tensor in tensors_of]
        ready = gpu_torch.TorchModel(module.cuda(), on_gpu, precision == "tf32")
        found = _ready_peers(ready, label, compiled, precision, expected, options, left, failures, errors)
        calls.update(found)
    result["peer_rel_err"] = errors
    return _timed(result, calls, ours, failures, options)


def _timed(
    result: Result,
    calls: Mapping[str, gpu_torch.Call],
    ours: BoundRun | None,
    failures: Mapping[str, str],
    options: argparse.Namespace,
) -> Result:
    """A result with the times of all calls, in turns."""
    walls: dict[str, list[float]] = {peer: [] for peer in calls}
    ways = list(calls.items())
    for number in range(options.rounds):
        # A GPU at the limit of its power is slower after heavy work: ways take turns in being the first.
        first = number % len(ways)
        order = [*ways[first:], *ways[:first]]
        for peer, call in order[:: -1 if number % 2 else 1]:
            walls[peer] += gpu_torch.wall_seconds(call, _RUNS_A_ROUND)
    result["wall_us"] = {peer: round(statistics.median(times) * 1e6, 1) for peer, times in walls.items()}
    result["events_us"] = {
        peer: round(min(gpu_torch.event_seconds(call, 20) for _ in range(3)) * 1e6, 1)
        for peer, call in calls.items()
        if peer not in (OURS, PUBLIC)
    }
    if ours is not None:
        result["events_us"][OURS] = round(min(ours.measure(5)) * 1e6, 1)
    if failures:
        result["peers_failed"] = dict(failures)
    times = {peer: wall for peer, wall in result["wall_us"].items() if peer not in (OURS, PUBLIC)}
    if times and OURS in calls:
        result["best_peer"] = min(times, key=lambda peer: times[peer])
        result["ratio"] = round(times[result["best_peer"]] / result["wall_us"][OURS], 4)
    return result


def _compile(model: onnx.ModelProto, precision: str, database: Path | None) -> tw.Executable:
    return tw.compile(model.SerializeToString(), target="cuda", database=database, precision=PRECISIONS[precision])


def _bound(executable: tw.Executable, arrays: Sequence[np.ndarray]) -> BoundRun:
    """A run with its arrays on the GPU, state included, of a model that the GPU computes alone."""
    assert executable.artifact.device is not None
    on_host = [kernel for kernel in executable.artifact.device.kernels if kernel.on_host]
    if on_host:
        why = on_host[0].on_host.partition("\n")[0]
        raise UnsupportedError(f"the host computes {len(on_host)} of the kernels, {on_host[0].symbol} first: {why}")
    runner = executable.runner
    assert isinstance(runner, (DeviceRunner, DeviceState))
    return runner.bound(runner.admit(list(arrays)))


def _public(executable: tw.Executable, inputs: zoo.Arrays) -> gpu_torch.Call:
    """The public call, with tensors on the GPU; results stay there."""
    tensors = [torch.from_numpy(inputs[info.name]).cuda() for info in executable.input_info]
    return lambda: executable(*tensors)


def _peers(
    model: onnx.ModelProto,
    inputs: zoo.Arrays,
    precision: str,
    layouts: Sequence[str],
    compiled: Sequence[str],
    expected: Sequence[np.ndarray],
    options: argparse.Namespace,
    left: float,
    failures: dict[str, str],
    errors: dict[str, float],
) -> dict[str, gpu_torch.Call]:
    """PyTorch in all ways that were asked for; what fails, or gives other results, is said in `failures`.

    What is in there already is not tried. `errors` gets the maximum relative error of each.
    """
    found: dict[str, gpu_torch.Call] = {}
    for layout in layouts:
        ready = gpu_torch.TorchModel.of_onnx(model, inputs, bool(layout), precision == "tf32")
        ways = () if layout else compiled
        found.update(_ready_peers(ready, layout, ways, precision, expected, options, left, failures, errors))
    return found


def _ready_peers(
    ready: gpu_torch.TorchModel,
    label: str,
    compiled: Sequence[str],
    precision: str,
    expected: Sequence[np.ndarray],
    options: argparse.Namespace,
    left: float,
    failures: dict[str, str],
    errors: dict[str, float],
) -> dict[str, gpu_torch.Call]:
    """One module of PyTorch's as a graph of its operators, and compiled."""
    found: dict[str, gpu_torch.Call] = {}
    ways: dict[str, Callable[[gpu_torch.TorchModel], gpu_torch.Call]] = {GRAPH: lambda ready: ready.graph()}
    for way in compiled:
        mode = gpu_torch.COMPILED[way]
        ways[way] = lambda ready, mode=mode: ready.compiled(mode)  # type: ignore[misc]
    for way, prepare in ways.items():
        peer = gpu_ahead.Program("", 0, precision, way, label).peer
        if peer in failures:
            continue
        try:
            with gpu_torch.at_most(int(min(options.patience, left))):
                call = prepare(ready)
            error = errors[peer] = max_relative_error(list(gpu_torch.outputs_of(call)), list(expected))
            if error > 5 * TOLERANCES[precision]:
                failures[peer] = f"its outputs are wrong: max relative error {error:.1e}"
            else:
                found[peer] = call
        except gpu_torch.TooLong:
            failures[peer] = gpu_parts.TOO_SLOW
        except (RuntimeError, ValueError) as problem:
            failures[peer] = str(problem)[:200]
    return found


def _models(text: str) -> list[str]:
    """The models in a comma-separated list, stacks among them."""
    stacks = [name for name in text.split(",") if name in gpu_llama.TITLES]
    others = ",".join(name for name in text.split(",") if name not in gpu_llama.TITLES)
    return [*(parse_models(others) if others else []), *stacks]


def _choices(text: str, known: Collection[str], what: str) -> list[str]:
    wanted = text.split(",")
    for word in wanted:
        if word not in known:
            raise UserError(f"there is no {what} '{word}'", hint=f"there are {', '.join(known)}")
    return wanted


def _is_good(result: Result) -> bool:
    return "error" not in result and result["max_rel_err"] <= TOLERANCES[result["precision"]]


def _line(result: Result) -> str:
    head = f"{result['model']} {result['precision']} batch {result['batch']}"
    if "error" in result:
        return f"{head}: failed: {result['error']}; {result.get('wall_us')}"
    return f"{head}: {result['wall_us']} us, ratio {result.get('ratio')}, error {result['max_rel_err']:.1e}"


def _table(results: Sequence[Result]) -> str:
    header = (
        "model",
        "batch",
        "precision",
        "wall us",
        "exe(x) us",
        "events us",
        "best torch",
        "its wall us",
        "ratio",
        "max rel err",
    )
    rows = []
    for item in results:
        title = gpu_llama.TITLES.get(item["model"]) or zoo.spec(item["model"]).title
        first = (title, str(item["batch"]), item["precision"])
        if "error" in item:
            rows.append((*first, "failed", *["-"] * 6))
            continue
        best = item.get("best_peer", "-")
        rows.append(
            (
                *first,
                f"{item['wall_us'][OURS]:.1f}",
                f"{item['wall_us'][PUBLIC]:.1f}" if PUBLIC in item["wall_us"] else "-",
                f"{item['events_us'][OURS]:.1f}",
                best,
                f"{item['wall_us'][best]:.1f}" if best != "-" else "-",
                f"{item['ratio']:.2f}x" if "ratio" in item else "-",
                f"{item['max_rel_err']:.1e}" + ("" if _is_good(item) else " WRONG"),
            )
        )
    return table(header, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.gpu", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", default="all", help="names with commas between them, or all")
    parser.add_argument("--precisions", default="fp32,tf32,fp16", help="of fp32, tf32 and fp16")
    parser.add_argument("--batch", default="1,16", help="batch sizes")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    parser.add_argument("--modes", default=",".join(gpu_torch.COMPILED.values()), help="of torch.compile")
    parser.add_argument("--rounds", type=positive_int, default=10, help=f"rounds of {_RUNS_A_ROUND} runs of each")
    parser.add_argument("--patience", type=int, default=120, help="seconds that a peer may take to get ready")
    parser.add_argument("--limit", type=float, default=3600, help="seconds after which no other model is begun")
    parser.add_argument("--ahead", type=int, default=0, metavar="N", help="first compile everything in N processes")
    parser.add_argument("--ahead-limit", type=float, default=3600, help="seconds that this may take")
    parser.add_argument("--resume", action="store_true", help="add to the figures of earlier runs what they lack")
    parser.add_argument("--database", type=Path, help="measured schedules")
    parser.add_argument("--json", type=Path, help="where the figures go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
