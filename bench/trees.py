"""Gradient-boosted trees: Tilewright against XGBoost's own predictors and treelite, on one row and on many.

    python -m bench.trees                          # 500 trees, batches of 1 and 1,000, one thread
    python -m bench.trees --trees 100 --batch 64 --threads 2 --rounds 8

The model is trained here, on data that is made here. All predict probabilities of the same float32 rows, which are in
memory; XGBoost by `inplace_predict` (which needs no matrix of its own) and by `predict`, treelite by its library
of inference (GTIL) and, where tl2cgen is installed, by the code that tl2cgen compiles. Ratios are those of pairs of
runs.
"""

from __future__ import annotations

import argparse
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from bench import harness
from bench.environments import REPOSITORY, variables
from bench.frontend_environments import BOOSTING
from tilewright.cli import measure, versus
from tilewright.support.text import table

FEATURES, ROWS, DEPTH = 28, 20_000, 6
TOLERANCE = 1e-5
RESULTS = harness.RESULTS_FOLDER / "trees.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.trees", description=__doc__)
    parser.add_argument("--trees", type=int, default=500)
    parser.add_argument("--batch", type=int, action="append", help="rows of a call (default: 1 and 1000)")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE", help="where the figures go")
    options = parser.parse_args(arguments)
    python = BOOSTING.python()
    if python != sys.executable:
        given = list(sys.argv[1:] if arguments is None else arguments)
        command = [python, "-m", "bench.trees", *given]
        return subprocess.run(command, cwd=REPOSITORY, env=variables(), check=False).returncode
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.ubj"
        rows = train(path, options.trees)
        for batch in options.batch or [1, 1000]:
            harness.say(f"a batch of {batch}")
            figures[str(batch)] = compared(path, rows[:batch].copy(), options.threads, options.rounds)
    settings = {"trees": options.trees, "depth": DEPTH, "features": FEATURES, "threads": options.threads}
    versions = harness.versions(["xgboost-cpu", "treelite", "tl2cgen"])
    record = {"machine": harness.machine(), "versions": versions, "settings": settings, "batches": figures}
    harness.write_json(options.json, record)
    print(render(figures))
    print(json.dumps({batch: row["ratios"] for batch, row in figures.items()}))
    return 0 if all(row["error"] <= TOLERANCE for row in figures.values()) else 1


def train(path: Path, trees: int) -> Any:
    """Write a classifier of so many trees; gives rows like those that it was trained on."""
    import xgboost

    random = np.random.default_rng(0)
    rows = random.standard_normal((ROWS, FEATURES)).astype(np.float32)
    noise = 0.3 * random.standard_normal(ROWS)
    labels = rows[:, 0] * rows[:, 1] + np.sin(2 * rows[:, 2]) + rows[:, 3] ** 2 + noise > 1
    options = {"objective": "binary:logistic", "max_depth": DEPTH, "eta": 0.1, "seed": 0}
    xgboost.train(options, xgboost.DMatrix(rows, labels), trees).save_model(path)
    return rows


def peers(path: Path, data: Any, threads: int) -> dict[str, Callable[[], Any]]:
    """The other predictors, each ready to be called on the rows."""
    import treelite
    import xgboost

    booster = xgboost.Booster({"nthread": threads}, model_file=path)
    model = treelite.frontend.load_xgboost_model(path)
    found: dict[str, Callable[[], Any]] = {
        "XGBoost, in place": functools.partial(booster.inplace_predict, data),
        "XGBoost": lambda: booster.predict(xgboost.DMatrix(data, nthread=threads)),
        "treelite": lambda: treelite.gtil.predict(model, data, nthread=threads),
    }
    if find_spec("tl2cgen") is not None:
        import tl2cgen  # type: ignore[import-not-found]

        library = path.with_name("treelite.so")
        tl2cgen.export_lib(model, toolchain="gcc", libpath=library, params={"parallel_comp": 16})
        predictor = tl2cgen.Predictor(library, nthread=threads)
        found["tl2cgen"] = lambda: predictor.predict(tl2cgen.DMatrix(data))
    return found


def compared(path: Path, data: Any, threads: int, rounds: int) -> dict[str, Any]:
    """Milliseconds, ratios and the largest difference, for the rows of one call."""
    executable = tw.compile(path, threads=threads, shapes={"data": data.shape})
    others = peers(path, data, threads)
    ours = measure.LocalSampler(lambda: executable(data))
    found = np.asarray(executable(data)).ravel()
    error = max(float(np.abs(found - np.asarray(call()).ravel()).max()) for call in others.values())
    samplers = {name: measure.LocalSampler(call) for name, call in others.items()}
    with harness.pinned(threads):
        standing = versus.against(lambda _: ours, samplers, rounds, threads=threads)
    times = {name: round(median, 4) for name, (median, _) in standing.times("Tilewright").items()}
    ratios = {name: round(item.ratio, 2) for name, item in standing.peers.items()}
    bounds = {name: [round(bound, 2) for bound in item.bounds] for name, item in standing.peers.items()}
    return {"ms": times, "ratios": ratios, "bounds": bounds, "error": error}


def render(figures: dict[str, dict[str, Any]]) -> str:
    """A line for each batch and predictor."""
    rows = []
    for batch, row in figures.items():
        for name, median in row["ms"].items():
            ratio = measure.format_ratio(row["ratios"][name], row["bounds"][name]) if name in row["ratios"] else ""
            rows.append([batch, name, measure.format_ms(median), ratio])
    return table(["rows", "", "median ms", "Tilewright is quicker by"], rows)


if __name__ == "__main__":
    sys.exit(main())
