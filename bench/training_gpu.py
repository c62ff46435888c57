"""Training steps on a GPU against PyTorch: `python -m bench.training_gpu`.

    python -m bench.training_gpu                              # ResNet-50 batch 32, BERT-base batch 16; all precisions
    python -m bench.training_gpu --only bert --precision float16 --small

`tw.train.Step(target="cuda")` against `torch.compile` (inductor, with CUDA graphs where it can) and eager mode, on the
same batches with SGD and momentum: float32, tf32 (products of float32 on tensor cores), and float16 with a scaled loss
(torch: autocast and GradScaler). Rounds take turns. Beside the times: the most memory of the device that each has used
in its first steps (torch's optimizer has no momentum before the second, and its CUDA graph is recorded then), and the
losses of the first two, which must agree: the first of them has no gradient in it, and is close.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from tilewright.cli.options import positive_int
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes, table

_WARM_UP = 3
_FIRST_STEPS = 3
"""Steps after which memory is what it stays."""
_RATE, _MOMENTUM = 0.001, 0.9
_MOST_ERROR = {"float32": 1e-3, "tf32": 1e-2, "float16": 5e-2}
"""Of the loss of the second step, against eager mode's."""
_MOST_FIRST_ERROR = {"float32": 1e-4, "tf32": 1e-3, "float16": 5e-3}
"""Of the loss of the first."""
PRECISIONS = tuple(_MOST_ERROR)


def resnet50(small: bool) -> tuple[Any, Any, Any]:
    """ResNet-50 of torchvision on 32 images."""
    import torch
    import torchvision

    size, batch = (64, 2) if small else (224, 32)
    return torchvision.models.resnet50(), torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))


def bert_base(small: bool) -> tuple[Any, Any, Any]:
    """Twelve layers of width 768 on 16 texts of 128 tokens, with scores of all tokens."""
    import torch

    from bench.torch_training_models import Encoder

    width, layers, heads, count, length, batch = (64, 1, 2, 100, 16, 2) if small else (768, 12, 12, 30522, 128, 16)
    drawn: Any = torch.randint(0, count, (2, batch, length))
    model = Encoder(width, layers, heads, count, length)
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
        if isinstance(part, torch.nn.MultiheadAttention):
            part.dropout = 0.0
    return model, drawn[0], drawn[1].flatten()


MODELS: dict[str, Callable[[bool], tuple[Any, Any, Any]]] = {"resnet50": resnet50, "bert-base": bert_base}


def most_allocated(again: bool = False) -> int:
    """The most bytes that were allocated of CUDA's pool, which is ours alone: torch has one of its own; from now on."""
    from cuda.bindings import driver

    _, pool = driver.cuDeviceGetDefaultMemPool(0)
    kind = driver.CUmemPool_attribute.CU_MEMPOOL_ATTR_USED_MEM_HIGH
    if again:
        driver.cuMemPoolSetAttribute(pool, kind, driver.cuuint64_t(0))
    return int(driver.cuMemPoolGetAttribute(pool, kind)[1])


def ours(case: tuple[Any, Any, Any], precision: str) -> tuple[Callable[[], float], int, list[float]]:
    """A compiled step, the most that it has allocated, and the losses of its first calls."""
    import torch

    import tilewright as tw

    model, x, labels = case
    gc.collect()
    torch.cuda.synchronize()
    before = most_allocated(again=True)
    with torch.no_grad():
        module = tw.frontend.from_torch(model.eval(), (x,))
    step = tw.train.Step(
        module, "cross_entropy", tw.train.SGD(_RATE, momentum=_MOMENTUM), target="cuda", precision=precision
    )
    batch, right = x.cuda(), labels.cuda()
    losses = [step(batch, right).loss for _ in range(_FIRST_STEPS)]
    return lambda: step(batch, right).loss, most_allocated() - before, losses


def theirs(case: tuple[Any, Any, Any], precision: str, compiled: bool) -> tuple[Callable[[], float], int, list[float]]:
    """PyTorch's step, the most that it has allocated, and the losses of its first calls."""
    import torch
    from torch import nn

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    model, x, labels = case
    model = model.cuda().train()
    x, labels = x.cuda(), labels.cuda()
    if x.ndim == 4:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=_RATE, momentum=_MOMENTUM, fused=True)
    half = precision == "float16"
    scaler = torch.amp.GradScaler(enabled=half)

    def loss_of(batch: Any, right: Any) -> Any:
        with torch.autocast("cuda", torch.float16, enabled=half):
            return nn.functional.cross_entropy(model(batch).float(), right)

    run: Any = torch.compile(loss_of, mode="reduce-overhead") if compiled else loss_of

    def step() -> float:
        optimizer.zero_grad()
        loss = run(x, labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return float(loss.detach())

    losses = [step() for _ in range(_FIRST_STEPS)]
    return step, int(torch.cuda.max_memory_allocated() - base), losses


def measured(name: str, precision: str, rounds: int, small: bool) -> dict[str, Any]:
    """One model in one precision."""
    import torch

    torch.manual_seed(0)
    torch._dynamo.reset()
    case = MODELS[name](small)
    ways = {
        "tilewright": ours(copy.deepcopy(case), precision),
        "torch.compile": theirs(copy.deepcopy(case), precision, compiled=True),
        "eager": theirs(copy.deepcopy(case), precision, compiled=False),
    }
    # The losses of the second step have gradients in them.
    for number, most in ((1, _MOST_FIRST_ERROR), (2, _MOST_ERROR)):
        losses = {way: found[number - 1] for way, (_, _, found) in ways.items()}
        worst = max(abs(loss - losses["eager"]) for loss in losses.values()) / abs(losses["eager"])
        if not worst < most[precision]:
            raise UserError(f"{name} in {precision}: the losses of step {number} are {losses}")
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(rounds + _WARM_UP):
        for way, (run, _, _) in ways.items():
            begin = time.perf_counter()
            run()
            if turn >= _WARM_UP:
                times[way].append(time.perf_counter() - begin)
    medians = {way: statistics.median(column) * 1e3 for way, column in times.items()}
    return {
        "name": name,
        "precision": precision,
        "ms": medians,
        "ratios": {way: round(medians[way] / medians["tilewright"], 3) for way in medians if way != "tilewright"},
        "memory": {way: memory for way, (_, memory, _) in ways.items()},
        "losses": {way: losses for way, (_, _, losses) in ways.items()},
    }


def _write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a file of results; rows of it that were not measured now stay, if they are of the same version of torch."""
    versions = harness.versions(["torch"])
    facts = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"versions": None}
    measured_now = {(row["name"], row["precision"]) for row in rows}
    earlier = facts["rows"] if facts["versions"] == versions else ()
    together = [*(row for row in earlier if (row["name"], row["precision"]) not in measured_now), *rows]
    together.sort(key=lambda row: (list(MODELS).index(row["name"]), list(PRECISIONS).index(row["precision"])))
    harness.write_json(path, {"versions": versions, "rows": together})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.training_gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--only", help=f"models whose names contain this text, of {', '.join(MODELS)}")
    parser.add_argument("--precision", default=",".join(PRECISIONS), help="separated by commas")
    parser.add_argument("--rounds", type=positive_int, default=20)
    parser.add_argument("--small", action="store_true", help="small models and inputs: does it run")
    parser.add_argument("--output", type=Path, default=harness.RESULTS_FOLDER / "training_gpu.json")
    options = parser.parse_args(arguments)
    chosen = [name for name in MODELS if options.only is None or options.only in name]
    if not chosen:
        raise UserError(f"no model is called {options.only!r}", hint=", ".join(MODELS))
    rows = []
    wanted = [(name, precision) for name in chosen for precision in options.precision.split(",")]
    for number, (name, precision) in enumerate(wanted, 1):
        harness.say(f"{number} of {len(wanted)}: {name}, {precision}")
        try:
            rows.append(measured(name, precision, options.rounds, options.small))
        except UserError as error:
            # One that does not run must not cost the others their turn on the device.
            harness.say(f"{name}, {precision}: {error}")
        else:
            harness.say(f"    {rows[-1]['ratios']}")
            _write(options.output, rows)
    lines = [
        (row["name"], row["precision"], *(f"{row['ms'][way]:.2f}" for way in row["ms"]),
         *(f"{row['ratios'][way]:.2f}x" for way in row["ratios"]),
         *(human_bytes(row["memory"][way]) for way in row["memory"]))
        for row in rows
    ]  # fmt: skip
    ways = ("tilewright", "torch.compile", "eager")
    heads = (*(f"{way} ms" for way in ways), "against compile", "against eager", *(f"{way} memory" for way in ways))
    print(table(("model", "precision", *heads), lines))
    return 0 if len(rows) == len(wanted) else 1


if __name__ == "__main__":
    sys.exit(main())
