"""A configuration of the tensor processor for ResNet-18, found by search: `python -m bench.accel_explore`.

    python -m bench.accel_explore                    # within what the default configuration has
    python -m bench.accel_explore --save             # keep the front in bench/results/accel_explore.json and .svg
    python -m bench.accel_explore --known --hardware --save   # run what was found on its hardware, without a search

`tilewright accel explore` on the convolutions that ResNet-18 offloads: hardware and schedules together, for the fewest
cycles, bytes on chip and multipliers. Of the configuration that dominates the default one, cycles are counted by the
cycle model; `--hardware` runs its programs on its own hardware, as Verilator simulates it, bit for bit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from bench import harness
from bench.accel_layers import LAYERS, Layer, checked, loaded, workload_text
from tilewright.accel.config import AccelConfig
from tilewright.accel.verilated import VerilatedMachine
from tilewright.cli.options import positive_int
from tilewright.tune.accel_explore import Budget, Effort, Exploration, Point, explore
from tilewright.tune.accel_page import exploration_json, exploration_plot, exploration_table
from tilewright.tune.accel_workload import Workload

RESULTS = harness.RESULTS_FOLDER / "accel_explore.json"
PLOT = harness.RESULTS_FOLDER / "accel_explore.svg"


def on_hardware(config: AccelConfig, schedules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Cycles of all programs of a configuration on its own hardware; their results are the reference's."""
    total, layers = 0, {}
    for name, shape in LAYERS.items():
        if shape.uses:
            layer = Layer(name, config)
            answers = {
                key: tuple(value) if isinstance(value, list) else value for key, value in schedules[str(shape)].items()
            }
            item = loaded(layer, layer.kernel(answers))
            machine = VerilatedMachine(config, item.program.dram_bytes)
            cycles = checked(item, machine).cycles
            machine.close()
            assert cycles is not None
            layers[name] = cycles
            total += cycles * shape.uses
            harness.say(f"{name}: {cycles} cycles on the hardware, {item.cycles} by the model")
    return {"config": config.to_text(), "cycles": total, "layers": layers}


def searched(effort: Effort) -> Exploration:
    """A search within what the default configuration has."""
    start = AccelConfig()

    def say(point: Point) -> None:
        harness.say(f"{int(point.cycles)} cycles, {point.config.on_chip_bytes >> 10} KB: {point.config.to_text()}")

    return explore(Workload.of_layers(workload_text()), start, Budget.of(start), effort, say)


def main() -> None:
    """Search, and print what nothing dominates."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--estimates", type=positive_int, default=250, help="configurations for the analytic model")
    parser.add_argument("--configurations", type=positive_int, default=12, help="configurations to compile for")
    parser.add_argument("--schedules", type=positive_int, default=2, help="schedules of a layer for each")
    parser.add_argument("--known", action="store_true", help="what was found before, without a search")
    parser.add_argument("--hardware", action="store_true", help="run what dominates the default on its own hardware")
    parser.add_argument("--save", action="store_true", help="keep the figures in bench/results")
    options = parser.parse_args()
    found = None
    if options.known:
        figures = json.loads(RESULTS.read_text())
    else:
        found = searched(Effort(options.estimates, options.configurations, options.schedules))
        print(exploration_table(found))
        figures = exploration_json(found)
    if options.hardware and figures["dominating"]:
        best = figures["dominating"][0]
        (point,) = (point for point in figures["front"] if point["config"] == best)
        figures["hardware"] = on_hardware(AccelConfig.from_text(best), point["schedules"])
        print(f"{best}: {figures['hardware']['cycles']} cycles on its own hardware, {point['cycles']} by the model")
        print(f"the default configuration: {figures['start']['cycles']} by the model, which is exact")
    if options.save:
        harness.write_json(RESULTS, figures)
    if options.save and found is not None:
        PLOT.write_text(exploration_plot(found, "ResNet-18's convolutions on accelerators of a bus of 8 bytes"))


if __name__ == "__main__":
    main()
