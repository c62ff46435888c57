"""Charts of the figures in `bench/results/`: `python -m bench.figures [FOLDER]`.

Makes `models-<threads>t.png` (how many times quicker than each peer), `kernels.png` (fraction of the peak) and
`tuning.png` (what searches find in how many trials) from the JSON files of the same names. Needs matplotlib
(`pip install tilewright[bench]`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import harness, zoo
from tilewright.support.errors import MissingDependencyError, UserError

_COLORS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
_OURS = "#1b3a5c"


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw every chart for which there are figures; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    folder = Path(given[0]) if given else harness.RESULTS_FOLDER
    try:
        made = draw_all(folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for path in made:
        print(path)
    return 0


def draw_all(folder: Path) -> list[Path]:
    """The charts of a folder of figures."""
    sources = [*sorted(folder.glob("models-*t.json")), *(folder / f"{name}.json" for name in _DRAWN)]
    sources = [source for source in sources if source.exists()]
    if not sources:
        raise UserError(
            f"no figures in {folder}", hint="run `python -m bench.models` or `python -m bench.kernels` first"
        )
    drawing = pyplot()
    made = []
    for source in sources:
        data = json.loads(source.read_text(encoding="utf-8"))
        figure = _DRAWN.get(source.stem, draw_models)(drawing, data)
        path = source.with_suffix(".png")
        figure.savefig(path, dpi=120, bbox_inches="tight")
        drawing.close(figure)
        made.append(path)
    return made


def draw_models(pyplot: Any, data: dict[str, Any]) -> Any:
    """Grouped bars: each peer's time over ours, a model a group; the line at 1 is our own time."""
    results = {name: result for name, result in data["models"].items() if result.get("peers_ms")}
    rivals = list(dict.fromkeys(rival for result in results.values() for rival in result["peers_ms"]))
    figure, axes = pyplot.subplots(figsize=(max(6.0, 1.1 * len(results)), 3.8))
    width = 0.8 / max(len(rivals), 1)
    for place, rival in enumerate(rivals):
        # A bar stands on our own time, up or down; a peer that could not run the model has none.
        heights = [
            result["peers_ms"].get(rival, result["ours_ms"]) / result["ours_ms"] - 1 for result in results.values()
        ]
        left = [group - 0.4 + width * (place + 0.5) for group in range(len(results))]
        axes.bar(left, heights, width, bottom=1.0, label=rival, color=_COLORS[place % len(_COLORS)])
    axes.axhline(1.0, color=_OURS, linewidth=1.2)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_xticks(range(len(results)), [_title(name) for name in results], rotation=25, ha="right")
    axes.set_ylabel("peer's time / Tilewright's time")
    threads = data["threads"]
    axes.set_title(
        f"{data['machine']['llvm_cpu']}, {threads} thread{'s' if threads != 1 else ''}: above 1x, we are quicker"
    )
    axes.legend(ncols=len(rivals), fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.32), frameon=False)
    return figure


def draw_kernels(pyplot: Any, data: dict[str, Any]) -> Any:
    """Horizontal bars: the fraction of the peak that each kernel reaches, with its goal as a mark."""
    results = {name: result for name, result in data["kernels"].items() if "fraction" in result}
    figure, axes = pyplot.subplots(figsize=(7, 0.24 * len(results) + 1))
    places = range(len(results), 0, -1)
    colors = [_OURS if result.get("reached", True) else _COLORS[1] for result in results.values()]
    axes.barh(places, [result["fraction"] for result in results.values()], color=colors)
    for place, result in zip(places, results.values(), strict=True):
        if "goal" in result:
            axes.plot([result["goal"]] * 2, [place - 0.4, place + 0.4], color="black", linewidth=1.5)
    axes.axvline(1.0, color="grey", linewidth=0.8, linestyle="dotted")
    axes.set_yticks(places, list(results), fontsize="small")
    axes.set_xlabel("fraction of the measured peak of one core (mark: goal)")
    axes.set_title(f"{data['machine']['llvm_cpu']}, {data['peak_gflops']:g} GFLOP/s in float32")
    return figure


def draw_searches(pyplot: Any, data: dict[str, Any]) -> Any:
    """Curves: the best speed-up so far in parts of the best that any search found, the mean over tasks and seeds."""
    figure, axes = pyplot.subplots(figsize=(7, 4))
    tops = {
        task: max(steps[-1][1] for found in searches.values() for steps in found)
        for task, searches in data["tasks"].items()
    }
    for place, name in enumerate(data["searches"]):
        curves = [
            [value / tops[task] for value in _every_trial(steps, data["trials"])]
            for task, searches in data["tasks"].items()
            for steps in searches[name]
        ]
        mean = [sum(values) / len(values) for values in zip(*curves, strict=True)]
        axes.plot(range(1, len(mean) + 1), mean, label=name, color=_COLORS[place % len(_COLORS)])
    axes.set_xlabel("trials")
    axes.set_ylabel("best so far / best of all")
    axes.set_ylim(0.6, 1.01)
    axes.set_title(f"{len(data['tasks'])} kernels, {data['seeds']} seeds, {data['machine']['llvm_cpu']}, one core")
    axes.legend(fontsize="small", loc="lower right")
    return figure


def _every_trial(steps: Sequence[tuple[int, float]], trials: int) -> list[float]:
    """The best so far after each trial, from the trials at which it rose."""
    ends = [trial for trial, _ in steps[1:]] + [trials + 1]
    return [value for (trial, value), end in zip(steps, ends, strict=True) for _ in range(trial, end)]


_DRAWN = {"kernels": draw_kernels, "tuning": draw_searches}


def _title(name: str) -> str:
    return zoo.SPECS[name].title if name in zoo.SPECS else name


def pyplot() -> Any:
    """Matplotlib's drawing interface, for files."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError.for_extra("matplotlib", "bench", "drawing charts") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot as drawing

    return drawing


if __name__ == "__main__":
    sys.exit(main())
