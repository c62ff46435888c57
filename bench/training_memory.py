"""What a step costs that may use less memory: `python -m bench.training --remat`.

BERT-small (four layers of width 512, eight heads, 128 tokens) with a classifier, batch 32 (`--batch`), is trained as it
is and at shares of the memory that its values take between kernels. Steps take turns; losses must be the same but for
rounding.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np

import tilewright as tw
from bench import harness
from tilewright.support.errors import UserError
from tilewright.support.text import human_bytes, table

_SHARES = (0.75, 0.5)
_MOST_ERROR = 1e-4


def classifier(small: bool, batch: int) -> tuple[Any, tuple[Any, Any]]:
    """BERT-small that says which of two classes a text has, and a batch for it."""
    import torch
    from torch import nn

    from bench.torch_training_models import Encoder

    class Classifier(nn.Module):
        def __init__(self, width: int, layers: int, heads: int, tokens: int, places: int) -> None:
            super().__init__()
            encoder = Encoder(width, layers, heads, tokens, places)
            self.table, self.place, self.layers = encoder.table, encoder.place, encoder.layers
            self.last = nn.Linear(width, 2)

        def forward(self, tokens: Any) -> Any:
            return self.last(self.layers(self.table(tokens) + self.place)[:, 0])

    torch.manual_seed(0)
    sizes = (64, 4, 2, 50, 32) if small else (512, 4, 8, 30522, 128)
    model = Classifier(*sizes).eval()
    tokens = torch.randint(0, sizes[3], (batch, sizes[4]))
    with torch.no_grad():
        module = tw.frontend.from_torch(model, (tokens,))
    return module, (tokens.numpy(), np.random.default_rng(0).integers(0, 2, batch))


def rematerialisation(options: argparse.Namespace) -> int:
    """Print memory and times of steps at several shares of the memory."""
    threads = int(options.threads.split(",")[0])
    module, batch = classifier(options.small, options.batch)

    def made(memory: float | str) -> tw.train.Step:
        return tw.train.Step(module, "cross_entropy", tw.train.SGD(0.01, momentum=0.9), threads=threads, memory=memory)

    with harness.pinned(threads):
        steps = {"all": made("1TiB"), **{str(share): made(share) for share in _SHARES}}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(options.rounds + 1):
            losses = {}
            for name, step in steps.items():
                begin = time.perf_counter()
                losses[name] = step(*batch).loss
                if turn:
                    times[name].append(time.perf_counter() - begin)
            if any(abs(loss - losses["all"]) > _MOST_ERROR * abs(losses["all"]) for loss in losses.values()):
                raise UserError(f"the losses of step {turn} differ: {losses}")
    rows: list[dict[str, Any]] = []
    for name, step in steps.items():
        report = step.memory_report
        assert report is not None
        ratio = statistics.median(mine / base for mine, base in zip(times[name], times["all"], strict=True))
        rows.append({
            "share": name, "planned": report.planned, "kept": report.kept, "lower_bound": report.lower_bound,
            "ms": statistics.median(times[name]) * 1e3, "time": round(ratio, 3),
        })  # fmt: skip
    lines = [
        (row["share"], human_bytes(row["planned"]), f"{row['planned'] / row['kept']:.2f}",
         f"{row['planned'] / row['lower_bound']:.3f}", f"{row['ms']:.0f}", f"{row['time']:.2f}x")
        for row in rows
    ]  # fmt: skip
    print(table(("share allowed", "planned", "of keeping all", "over its lower bound", "ms", "time"), lines))
    path = options.output or (None if options.small else harness.RESULTS_FOLDER / "training_memory.json")
    if path is not None:
        harness.write_json(
            path, {"machine": harness.machine(), "threads": threads, "batch": options.batch, "rows": rows}
        )
    return 0
