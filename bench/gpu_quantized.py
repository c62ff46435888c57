"""Models in eight bits on a GPU against the same models in half precision, both ours, timed in interleaved rounds.

    python3 -m bench.gpu_quantized                                        # ResNet-50 int8 and BERT-base float8
    python3 -m bench.gpu_quantized --models resnet50:int8,mobilenet_v2:int8 --batch 1,16

For int8, models are quantised by `tw.quantize` on inputs of other seeds than those they are checked with, at batch 1;
what it made is kept beside the models. float8 is `tw.compile(..., precision="float8")`. Results are compared with those
of float64: `snr` is their signal-to-noise ratio in decibels.
Times: `wall` is from the start of a run until the GPU is done, with inputs and results on the GPU; `events` is by the
GPU's clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from bench import batches, gpu_torch, harness, zoo
from tilewright.onnx_writer import to_onnx
from tilewright.runtime.device.model import BoundRun, DeviceRunner
from tilewright.support.text import table

_DEFAULT = "resnet50:int8,bert_base:float8"
_EXAMPLES = 4
_RUNS_A_ROUND = 10
Result = dict[str, Any]


def quantized_path(name: str) -> Path:
    """Where a model of 8-bit integers is kept."""
    return zoo.CACHE_FOLDER / f"{name}-int8.onnx"


def quantized_model(name: str, batch: int) -> onnx.ModelProto:
    """A model of 8-bit integers for a batch; it is quantised where it is not kept yet."""
    path = quantized_path(name)
    if not path.exists():
        rows = [zoo.inputs(name, 100 + seed) for seed in range(_EXAMPLES)]
        examples = [[row[key] for key in row] for row in rows]
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(to_onnx(tw.quantize(zoo.build(name), examples).module), str(path))
    model = onnx.load(str(path))
    return batches.with_batch(model, name, batch)


def compiled(name: str, batch: int, precision: str) -> tw.Executable:
    """A model in half precision, or in eight bits."""
    if precision == "int8":
        return tw.compile(quantized_model(name, batch).SerializeToString(), target="cuda")
    return tw.compile(batches.model(name, batch, False).SerializeToString(), target="cuda", precision=precision)


def bound(executable: tw.Executable, inputs: zoo.Arrays) -> BoundRun:
    """A run with its arrays on the GPU."""
    runner = executable.runner
    assert isinstance(runner, DeviceRunner)
    values = runner.admit([inputs[info.name] for info in executable.input_info])
    return runner.prepare(values).bound(values)


def signal_to_noise(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Decibels of results over their errors."""
    signal = sum(float((wanted**2).sum()) for wanted in expected)
    noise = sum(float(((found - wanted) ** 2).sum()) for found, wanted in zip(results, expected, strict=True))
    return round(10 * float(np.log10(signal / max(noise, 1e-300))), 1)


def measure(name: str, batch: int, precision: str, rounds: int) -> Result:
    """One model in half precision and in eight bits."""
    inputs = batches.inputs(name, batch, False)
    expected = gpu_torch.reference(batches.model(name, batch, False), inputs)
    result: Result = {"model": name, "batch": batch, "precision": precision}
    result["date"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    runs: dict[str, BoundRun] = {}
    for kind in ("float16", precision):
        executable = compiled(name, batch, kind)
        outputs = [np.asarray(array, np.float64) for array in executable.run(inputs)]
        runs[kind] = bound(executable, inputs)
        result[f"{kind}_snr"] = signal_to_noise(outputs, expected)
        result[f"{kind}_kernels"] = sum(map(len, runs[kind].calls()))
    walls: dict[str, list[float]] = {kind: [] for kind in runs}
    for _ in range(rounds):
        for kind, run in runs.items():
            walls[kind] += gpu_torch.wall_seconds(run.start, _RUNS_A_ROUND)
    for kind, run in runs.items():
        result[f"{kind}_wall_us"] = round(statistics.median(walls[kind]) * 1e6, 1)
        result[f"{kind}_events_us"] = round(min(run.measure(5)) * 1e6, 1)
    result["ratio"] = round(result["float16_wall_us"] / result[f"{precision}_wall_us"], 3)
    return result


def _table(results: Sequence[Result]) -> str:
    header = ("model", "batch", "precision", "wall us", "events us", "float16 wall us", "events us", "ratio", "snr dB")
    rows = []
    for item in results:
        kind = item["precision"]
        times = [item[f"{kind}_wall_us"], item[f"{kind}_events_us"], item["float16_wall_us"], item["float16_events_us"]]
        texts = (f"{time:.1f}" for time in times)
        rows.append(
            (item["model"], str(item["batch"]), kind, *texts, f"{item['ratio']:.2f}x", str(item[f"{kind}_snr"]))
        )
    return table(header, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="bench.gpu_quantized", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", default=_DEFAULT, help="model:precision, with commas between")
    parser.add_argument("--batch", default="1,16", help="batch sizes")
    parser.add_argument("--rounds", type=int, default=10, help=f"rounds of {_RUNS_A_ROUND} runs of each")
    parser.add_argument("--json", type=Path, default=harness.RESULTS_FOLDER / "gpu_quantized.json")
    options = parser.parse_args(arguments)
    import torch

    results: list[Result] = []
    for text in options.models.split(","):
        name, _, precision = text.partition(":")
        for batch in map(int, options.batch.split(",")):
            results.append(measure(name, batch, precision or "int8", options.rounds))
            harness.say(str(results[-1]))
            versions = harness.versions(["tilewright", "numpy", "torch", "cuda-bindings"])
            figures = {"device": torch.cuda.get_device_name(), "machine": harness.machine(), "results": results}
            harness.write_json(options.json, {**figures, "versions": versions})
    print(_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
