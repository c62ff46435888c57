"""ResNet-18's convolutions on the tensor processor: `python -m bench.accel`.

    python -m bench.accel                              # eleven layers, two virtual threads against one
    python -m bench.accel --only C3,C5 --config wide.json --check
    python -m bench.accel --tune 24 --hardware --save  # 24 schedules of each layer, and the hardware's simulation

For each layer the program's cycles by the cycle model of the hardware (`tune/accel_cycles.py`) at the configuration's
memory latency and bus, against the array's products and the words of the bus that no schedule avoids: with the default
schedule; with the best of N that the tuner tries (`--tune N`); without virtual threads (`alone`: loads, products and
stores take turns); and with results by ALU instructions instead of EPI (`without EPI`, `bench/accel_ablation.py`).
`--check` runs each program on the functional simulator and compares it with the operator's reference, bit for bit.
`--hardware` runs them on the hardware as Verilator simulates it, compares cycles with the model's and results with the
reference's, and times both. `--save` writes `bench/results/accel.json` and the roofline. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench import harness
from bench.accel_ablation import without_epi
from bench.accel_layers import LAYERS, Layer, Loaded, checked, loaded, run_seconds
from tilewright.accel.config import AccelConfig
from tilewright.accel.functional import FunctionalMachine
from tilewright.accel.verilated import VerilatedMachine
from tilewright.backends.accel.driver import CLOCK_HZ
from tilewright.cli.options import positive_int
from tilewright.lower.database import Database
from tilewright.lower.kernel import make_kernel
from tilewright.support.svg import Axis, Series, plot
from tilewright.support.text import table
from tilewright.target import Target
from tilewright.topi.schedule.choices import Answer
from tilewright.tune.accel_explore import best_schedule
from tilewright.tune.accel_measure import CycleMeasurer
from tilewright.tune.accel_workload import Part, target_of
from tilewright.tune.task import Task
from tilewright.tune.tuner import TuneOptions, tune

RESULTS = harness.RESULTS_FOLDER / "accel.json"
ROOFLINE = harness.RESULTS_FOLDER / "accel_roofline.svg"
PUBLISHED_HIDING = (0.70, 0.88)
"""Utilisation of the array without and with latency hiding, as published for these layers."""
_SCHEDULES_ALONE = 3
_SECONDS = 0.5
"""How long the simulated hardware is timed, at least."""
_MODEL_RUNS = 5
"""Runs of the cycle model for one of the hardware."""


def tuned(layers: list[Layer], trials: int) -> dict[str, dict[str, Answer]]:
    """The answers of the best of some schedules of each layer, by the tuner."""
    tasks = [Task(make_kernel(layer.program(), layer.name), target_of(layer.config)) for layer in layers]
    best: dict[str, dict[str, Answer]] = {}
    with tempfile.TemporaryDirectory() as folder, Database(Path(folder) / "records.db") as database:
        for layer, task in zip(layers, tasks, strict=True):
            with CycleMeasurer() as measurer:
                options = TuneOptions(trials=trials, search="bayesian", confirm=0)
                report = tune([task], database, options, measurer=measurer)
            best[layer.name] = dict(report.tasks[0].best)
            harness.say(f"{layer.name}: {report.trials} schedules, {report.tasks[0].gain:.3f}x")
    return best


def _best_alone(layer: Layer) -> Loaded:
    """The best of a few schedules without virtual threads."""
    best = best_schedule(Part(layer.name, layer.program()), layer.config, _SCHEDULES_ALONE, threads=1)
    assert best is not None
    return loaded(layer, layer.kernel(best[1]))


@dataclass(frozen=True, slots=True)
class Case:
    """A layer as it was compiled in several ways."""

    layer: Layer
    default: Loaded
    best: Loaded
    alone: Loaded
    without_epi: Loaded

    def figures(self) -> dict[str, float]:
        """What the model says."""
        products, words = self.layer.bound()
        return {
            "products": products,
            "words": words,
            "default": self.default.cycles,
            "cycles": self.best.cycles,
            "instructions": len(self.best.program.instructions),
            "utilization": products / self.best.cycles,
            "of_bound": max(products, words) / self.best.cycles,
            "alone": self.alone.cycles,
            "without_epi": self.without_epi.cycles,
        }

    def on_hardware(self) -> dict[str, float]:
        """Cycles of the simulated hardware, how far the model is from them, and how much quicker it is."""
        config = self.layer.config
        machine = VerilatedMachine(config, max(item.program.dram_bytes for item in self.all))
        alone, ablated, best = (checked(item, machine).cycles for item in (self.alone, self.without_epi, self.best))
        seconds, model_seconds = seconds_of_both(self.best, machine)
        machine.close()
        assert best is not None and alone is not None and ablated is not None
        pairs = ((self.best, best), (self.alone, alone), (self.without_epi, ablated))
        products, words = self.layer.bound()
        return {
            "hardware": best,
            "hardware_alone": alone,
            "hardware_without_epi": ablated,
            "of_bound_on_hardware": max(products, words) / best,
            "error": max(abs(item.cycles / cycles - 1) for item, cycles in pairs),
            "cycles_a_second": best / seconds,
            "model_seconds": model_seconds,
            "quicker": seconds / model_seconds,
        }

    @property
    def all(self) -> tuple[Loaded, ...]:
        """All programs."""
        return self.default, self.best, self.alone, self.without_epi


def seconds_of_both(item: Loaded, machine: VerilatedMachine) -> tuple[float, float]:
    """The least seconds of the processor for a run, by the simulated hardware and by the cycle model, in turns."""
    hardware, model = [run_seconds(item, machine)], []
    while len(hardware) < 2 or sum(hardware) < _SECONDS:
        model += [item.counted()[1] for _ in range(_MODEL_RUNS)]
        hardware.append(run_seconds(item, machine))
    return min(hardware), min(model)


def _case(layer: Layer, answers: dict[str, Answer]) -> Case:
    default, best = (loaded(layer, layer.kernel(choices)) for choices in ({}, answers))
    ablated = loaded(layer, without_epi(layer, answers), plain=True)
    return Case(layer, default, best, _best_alone(layer), ablated)


def _totals(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """All convolutions that ResNet-18 offloads."""

    def total(name: str) -> float:
        return sum(item[name] * LAYERS[layer].uses for layer, item in figures.items())

    names = ("products", "default", "cycles", "alone", "without_epi", "hardware", "hardware_alone")
    return {name: total(name) for name in names if all(name in item for item in figures.values())}


def waits_gone(without: float, with_hiding: float) -> float:
    """Of the cycles in which the array does not multiply, the share that latency hiding takes away."""
    return 1 - (1 - with_hiding) / (1 - without)


def _summary(figures: dict[str, dict[str, float]], totals: dict[str, float]) -> list[str]:
    products, cycles = totals["products"], totals["cycles"]
    without, with_hiding = products / totals["alone"], products / cycles
    before, after = PUBLISHED_HIDING
    gone = waits_gone(without, with_hiding)
    published = f"(published: {after - before:+.0%}, {after / before:.3f}x)"
    return [
        f"ResNet-18's offloaded convolutions: {cycles / 1e6:.2f} M cycles, {products / 1e6:.2f} M of them products",
        f"tuned against default schedules: {totals['default'] / 1e6:.3f} M -> {cycles / 1e6:.3f} M cycles",
        f"latency hiding: the array multiplies in {without:.1%} of cycles without, {with_hiding:.1%} with it",
        f"that is {with_hiding - without:+.1%}, {with_hiding / without:.3f}x {published}",
        f"of the cycles in which the array waited {gone:.0%} are gone (published: {waits_gone(before, after):.0%})",
        f"EPI: {totals['without_epi'] / 1e6:.2f} M cycles with results by ALU, {totals['without_epi'] / cycles:.2f}x",
        *_model_lines(figures),
    ]


def _model_lines(figures: dict[str, dict[str, float]]) -> list[str]:
    if not all("hardware" in item for item in figures.values()):
        return []
    errors, quicker = ([item[name] for item in figures.values()] for name in ("error", "quicker"))
    return [f"cycle model: off by {max(errors):.2%} at most, {min(quicker):.0f} to {max(quicker):.0f} times as quick"]


def roofline(config: AccelConfig, figures: dict[str, dict[str, float]]) -> str:
    """Arithmetic a second over arithmetic a byte, with and without latency hiding, under what array and bus allow."""
    giga = 2 * config.multipliers * CLOCK_HZ / 1e9
    bandwidth = config.bus_bytes * CLOCK_HZ / 1e9
    operations = {name: 2 * config.multipliers * item["products"] for name, item in figures.items()}
    intensity = {name: operations[name] / (item["words"] * config.bus_bytes) for name, item in figures.items()}
    low, high = min(intensity.values()) / 2, max(intensity.values()) * 1.5
    roof = [(low, min(giga, low * bandwidth)), (giga / bandwidth, giga), (high, giga)]

    def points(name: str) -> list[tuple[float, float]]:
        return [
            (intensity[layer], operations[layer] / (item[name] / CLOCK_HZ) / 1e9) for layer, item in figures.items()
        ]

    series = [
        Series("array and bus", roof, line=True, marks=False),
        Series("latency hidden", points("cycles"), list(figures)),
        Series("one thread alone", points("alone"), list(figures)),
    ]
    title = f"ResNet-18's convolutions, {config.multipliers} multipliers, {config.bus_bytes} B a cycle, 100 MHz"
    across = Axis("operations a byte that must be moved", logarithmic=True)
    return plot(title, across, Axis("GOPS", logarithmic=True), series)


def _table(figures: dict[str, dict[str, float]]) -> str:
    on_hardware = all("hardware" in item for item in figures.values())
    titles = ["layer", "products", "words", "default", "best", *(["hardware"] if on_hardware else [])]
    titles += ["array", "of bound", "alone", "array", "without EPI"]
    rows = []
    for name, item in figures.items():
        row = [name, *(f"{item[column]:.0f}" for column in ("products", "words", "default", "cycles"))]
        row += [f"{item['hardware']:.0f}"] if on_hardware else []
        row += [f"{item['utilization']:.1%}", f"{item['of_bound']:.1%}", f"{item['alone']:.0f}"]
        rows.append([*row, f"{item['products'] / item['alone']:.1%}", f"{item['without_epi']:.0f}"])
    return table(titles, rows)


def main() -> None:
    """Measure the layers and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="layers, such as C3,C5")
    parser.add_argument("--config", default="default", help="a configuration, as in targets")
    parser.add_argument("--tune", type=positive_int, help="schedules that the tuner tries for each layer")
    parser.add_argument("--check", action="store_true", help="compare results with the reference, bit for bit")
    parser.add_argument("--hardware", action="store_true", help="run on the simulated hardware too (Verilator)")
    parser.add_argument("--save", action="store_true", help="keep figures and roofline in bench/results")
    options = parser.parse_args()
    config = AccelConfig.from_text(Target(f"accel -config={options.config}").arch)
    names = options.only.split(",") if options.only else list(LAYERS)
    layers = [Layer(name, config) for name in names]
    answers = tuned(layers, options.tune) if options.tune else {}
    figures: dict[str, dict[str, float]] = {}
    for layer in layers:
        case = _case(layer, answers.get(layer.name, {}))
        if options.check:
            for item in case.all:
                checked(item, FunctionalMachine(config, item.program.dram_bytes))
        figures[layer.name] = {**case.figures(), **(case.on_hardware() if options.hardware else {})}
        harness.say(f"{layer.name}: {case.best.cycles} cycles")
    print(_table(figures))
    totals = _totals(figures)
    if set(LAYERS) == set(names):
        print("\n".join(_summary(figures, totals)))
    heading = {"config": config.to_text(), "latency": config.memory_latency, "bus_bytes": config.bus_bytes}
    result = {**heading, "tuned": options.tune or 0, "answers": answers, "totals": totals, "layers": figures}
    if options.save:
        RESULTS.write_text(json.dumps(result) + "\n")
        ROOFLINE.write_text(roofline(config, figures))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
