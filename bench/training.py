"""Times training steps against torch: `python -m bench.training`.

Each model is trained by `tw.train.Step` and by torch (eager, and through `torch.compile` with its own back end), with
SGD and momentum, on the same batches. Rounds of all take turns, so that what else the machine does meets all alike; the
table has medians, and ratios of the medians of rounds. Needs torch; models of torchvision need that too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.support.text import table

Run = Callable[[], object]


def small_cnn(torch: Any) -> tuple[Any, tuple[int, ...], int]:
    """Three convolutions with batch normalisation, 32 images of 32 x 32."""
    nn = torch.nn
    layers: list[Any] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)), (32, 3, 32, 32), 10


def perceptron(torch: Any) -> tuple[Any, tuple[int, ...], int]:
    """Three dense layers, 64 rows."""
    nn = torch.nn
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return nn.Sequential(*layers), (64, 256), 10


def of_torchvision(name: str) -> Callable[[Any], tuple[Any, tuple[int, ...], int]]:
    """A model of torchvision on 8 images of 224 x 224."""

    def make(torch: Any) -> tuple[Any, tuple[int, ...], int]:
        import torchvision

        return getattr(torchvision.models, name)(), (8, 3, 224, 224), 1000

    return make


MODELS: dict[str, Callable[[Any], tuple[Any, tuple[int, ...], int]]] = {
    "perceptron": perceptron,
    "small_cnn": small_cnn,
    "resnet18": of_torchvision("resnet18"),
    "mobilenet_v2": of_torchvision("mobilenet_v2"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__)
    parser.add_argument("--models", default="perceptron,small_cnn", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--threads", type=int, default=1, help="threads of all (default: 1)")
    parser.add_argument("--rounds", type=int, default=15, help="rounds that take turns (default: 15)")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too, which needs a C++ compiler")
    parser.add_argument("--output", type=Path, metavar="FILE.json", help="write the figures")
    options = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(options.threads)
    rows, figures = [], {}
    for name in options.models.split(","):
        runs = contestants(torch, name, options.threads, options.compiled)
        times = measured(runs, options.rounds)
        medians = {who: statistics.median(values) for who, values in times.items()}
        ratios = {
            who: statistics.median(theirs / ours for ours, theirs in zip(times["tilewright"], values, strict=True))
            for who, values in times.items()
        }
        figures[name] = {"seconds": medians, "ratios": ratios}
        cells = (f"{medians[who] * 1e3:.2f} ms ({ratios[who]:.2f}x)" for who in runs)
        rows.append((name, *cells))
        print(f"{name}: done", file=sys.stderr, flush=True)
    print(table(("model", *runs), rows))
    if options.output is not None:
        options.output.write_text(json.dumps({"threads": options.threads, "models": figures}, indent=1) + "\n")
    return 0


def contestants(torch: Any, name: str, threads: int, compiled: bool) -> dict[str, Run]:
    """What runs one step of a model, by who does it; all start from the same weights."""
    torch.manual_seed(0)
    model, shape, classes = MODELS[name](torch)
    x, y = torch.randn(*shape), torch.randint(0, classes, shape[:1])
    with torch.no_grad():
        module = tw.frontend.from_torch(model.eval(), (x,))
    step = tw.train.Step(module, "cross_entropy", tw.train.SGD(0.01, momentum=0.9), threads=threads)
    images, labels = x.numpy(), np.asarray(y)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)

    def trained(forward: Any) -> Run:
        def run() -> None:
            loss = torch.nn.functional.cross_entropy(forward(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return run

    runs: dict[str, Run] = {"tilewright": lambda: step(images, labels), "torch eager": trained(model)}
    if compiled:
        runs["torch.compile"] = trained(torch.compile(model))
    return runs


def measured(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Seconds of each, one call a round, after two to warm up."""
    times: dict[str, list[float]] = {who: [] for who in runs}
    for turn in range(rounds + 2):
        for who, run in runs.items():
            start = time.perf_counter()
            run()
            if turn >= 2:
                times[who].append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    sys.exit(main())
