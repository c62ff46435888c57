"""Int8 models of the sizes of MLPerf Tiny on emulated microcontrollers: `python -m bench.micro`.

Each model is compiled for each board, run in QEMU, and compared with the host byte by byte. Printed are the
instructions of a run (counted by QEMU: no cycles), those for each multiplication, how many times as many it takes
without the instructions of the DSP extension and of MVE (`plain`: the same processor and C compiler), the arena with
the least that any plan could take for these kernels in this order and with what the planner of TFLite-Micro takes
(`bench/micro_planner.py`), the weights, and what the program takes of flash. `--layers` prints the instructions of
each step, `--published` those of the network of CMSIS-NN's paper beside its figures. The exit code is 1 if a byte
differs, if an arena is more than 1.1 times its lower bound or larger than TFLite-Micro's, or if a processor with DSP
(MVE) is not 1.5 (6) times as quick with it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

import tilewright as tw
from bench import harness, micro_published
from bench.micro_models import MODELS
from bench.micro_planner import greedy_arena
from bench.micro_runner import run_micro, size_of
from tilewright.compiler import Compilation
from tilewright.support.text import human_bytes, table

BOARDS = ("cortex-m3", "cortex-m4", "cortex-m7", "cortex-m55", "rv32imac")
PLAIN = "-dsp,-mve"
LIMIT = 1.1
GAINS = {"cortex-m4": 1.5, "cortex-m7": 1.5, "cortex-m55": 6.0}
"""How many times as many instructions plain C takes, at least."""

Result = dict[str, object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.published:
        return _published(options)
    results = [
        measure(model, board, options.flags, layers=options.layers)
        for model in options.models.split(",")
        for board in options.boards.split(",")
    ]
    print(render(results))
    summary = {"micro": results, "flags": options.flags, "limit": LIMIT, "machine": harness.machine()}
    if options.json:
        harness.write_json(options.json, summary)
    print(json.dumps(summary))
    return 0 if all(map(is_good, results)) else 1


def _published(options: argparse.Namespace) -> int:
    """The layers of the paper's network, on a Cortex-M7 and on others that are asked for."""
    model = micro_published.cifar10()
    figures = {}
    for board in ("cortex-m7",) if options.boards == ",".join(BOARDS) else options.boards.split(","):
        compilation = Compilation(model.proto.SerializeToString(), target=board)
        with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
            folder = Path(work) / micro_published.NETWORK
            compilation.export_library(folder)
            steps = json.loads((folder / "model.json").read_text(encoding="utf-8"))["steps"]
            values = np.random.default_rng(1).integers(-128, 128, model.shape, np.int8)
            run = run_micro(folder, {"input": values}, options.flags)
        expected = np.asarray(tw.compile(model.proto.SerializeToString(), threads=1)(values))
        if not np.array_equal(run.outputs["output"], expected):
            harness.say(f"{board}: bytes DIFFER from the host's")
            return 1
        counts = [(_products(step), count) for step, count in zip(steps, run.instructions, strict=True)]
        print(f"{board}\n{micro_published.render(counts)}")
        figures[board] = counts
    if options.json:
        harness.write_json(options.json, {"published": figures, "machine": harness.machine()})
    return 0


def _products(step: Mapping[str, object]) -> int:
    """The multiplications of a step: those of convolutions and products of matrices."""
    multiplies = any(word in str(step["kernel"]) for word in ("conv2d", "matmul", "dense", "run_dot"))
    return int(str(step["flops"])) // 2 if multiplies else 0


def is_good(item: Result) -> bool:
    """Whether a result is right and as good as it should be."""
    gain = item["gain"]
    assert isinstance(gain, float)
    enough = gain >= GAINS.get(str(item["board"]), 1.0)
    in_memory = item["ratio"] <= LIMIT and item["arena_bytes"] <= item["tflm_arena_bytes"]  # type: ignore[operator]
    return bool(item["equal"] and enough and in_memory)


def measure(name: str, board: str, flags: str = "-O2", *, layers: bool = False) -> Result:
    """One model on one board."""
    plain = _instructions(name, f"{board} -mattr={PLAIN}", f"{flags} -DTW_PLAIN") if board in GAINS else None
    harness.say(f"{name}: on {board}")
    model = MODELS[name]()
    data = model.proto.SerializeToString()
    values = np.random.default_rng(1).integers(-128, 128, model.shape, np.int8)
    expected = np.asarray(tw.compile(data, threads=1)(values))
    compilation = Compilation(data, target=board)
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        folder = Path(work) / name
        compilation.export_library(folder)
        described = json.loads((folder / "model.json").read_text(encoding="utf-8"))
        run = run_micro(folder, {"input": values}, flags)
        size = size_of(folder, flags)
    if layers:
        for step, count in zip(described["steps"], run.instructions, strict=True):
            products = max(int(step["flops"]) // 2, 1)
            print(f"  {count:>12,}  {count / products:6.2f} a multiplication  {step['kernel']}")
    [plan] = compilation.lowered.plans
    return {
        "model": name,
        "board": board,
        "equal": bool(np.array_equal(run.outputs["output"], expected)),
        "distinct_outputs": len(np.unique(expected)),
        "instructions": run.total,
        "products": model.products,
        "plain_instructions": plain,
        "gain": 1.0 if plain is None else round(plain / run.total, 2),
        "arena_bytes": described["arena_bytes"],
        "lower_bound_bytes": plan.lower_bound,
        "tflm_arena_bytes": greedy_arena(model.lives),
        "ratio": round(plan.workspace_bytes / plan.lower_bound, 4) if plan.lower_bound else 1.0,
        "weight_bytes": described["weight_bytes"],
        "flash_bytes": size.flash,
    }


def _instructions(name: str, target: str, flags: str) -> int:
    """The instructions of one run of a model for a target."""
    model = MODELS[name]()
    with tempfile.TemporaryDirectory(prefix="tilewright-") as work:
        folder = Path(work) / name
        Compilation(model.proto.SerializeToString(), target=target).export_library(folder)
        return run_micro(folder, {"input": np.zeros(model.shape, np.int8)}, flags).total


def render(results: Sequence[Result]) -> str:
    """The table."""
    head = [
        "model",
        "board",
        "bytes",
        "instructions",
        "a product",
        "plain",
        "arena",
        "bound",
        "TFLM",
        "weights",
        "flash",
    ]
    rows = []
    for item in results:
        count, products = item["instructions"], item["products"]
        assert isinstance(count, int) and isinstance(products, int)
        sizes = [
            item[key] for key in ("arena_bytes", "lower_bound_bytes", "tflm_arena_bytes", "weight_bytes", "flash_bytes")
        ]
        rows.append(
            [
                str(item["model"]),
                str(item["board"]),
                "equal" if item["equal"] else "DIFFER",
                f"{count:,}",
                f"{count / products:.2f}",
                "" if item["plain_instructions"] is None else f"{item['gain']}x",
                *(human_bytes(size) for size in sizes if isinstance(size, int)),
            ]
        )
    return table(head, rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.micro", description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="names with commas between (default: all)")
    parser.add_argument("--boards", default=",".join(BOARDS), help="names with commas between (default: all)")
    parser.add_argument("--flags", default="-O2", help="how the C compiler optimises (default: -O2)")
    parser.add_argument("--layers", action="store_true", help="print the instructions of each step")
    parser.add_argument("--published", action="store_true", help="only the network of CMSIS-NN's paper, by layers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    return parser


if __name__ == "__main__":
    sys.exit(main())
