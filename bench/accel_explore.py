"""A configuration of the tensor processor for ResNet-18, found by search: `python -m bench.accel_explore`.

    python -m bench.accel_explore                    # within what the default configuration has
    python -m bench.accel_explore --save             # keep the front in bench/results/accel_explore.json and .svg

`tilewright accel explore` on the convolutions that ResNet-18 offloads: hardware and schedules together, for the fewest
cycles, bytes on chip and multipliers. Of the configuration that dominates the default one, cycles are counted by the
cycle model; `--hardware` runs its programs on its own hardware, as Verilator simulates it, bit for bit.
"""

from __future__ import annotations

import argparse

from bench import harness
from bench.accel_layers import LAYERS, Layer, checked, loaded, workload_text
from tilewright.accel.config import AccelConfig
from tilewright.accel.verilated import VerilatedMachine
from tilewright.cli.options import positive_int
from tilewright.tune.accel_explore import Budget, Effort, Point, explore
from tilewright.tune.accel_page import exploration_json, exploration_plot, exploration_table
from tilewright.tune.accel_workload import Workload

RESULTS = harness.RESULTS_FOLDER / "accel_explore.json"
PLOT = harness.RESULTS_FOLDER / "accel_explore.svg"


def on_hardware(point: Point) -> int:
    """Cycles of all programs of a configuration on its own hardware; their results are the reference's."""
    total = 0
    for name, shape in LAYERS.items():
        if shape.uses:
            layer = Layer(name, point.config)
            item = loaded(layer, layer.kernel(point.schedules[str(shape)]))
            machine = VerilatedMachine(point.config, item.program.dram_bytes)
            counters = checked(item, machine)
            machine.close()
            total += (counters.cycles or 0) * shape.uses
            harness.say(f"{name}: {counters.cycles} cycles on the hardware, {item.cycles} by the model")
    return total


def main() -> None:
    """Search, and print what nothing dominates."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--estimates", type=positive_int, default=250, help="configurations for the analytic model")
    parser.add_argument("--configurations", type=positive_int, default=12, help="configurations to compile for")
    parser.add_argument("--schedules", type=positive_int, default=2, help="schedules of a layer for each")
    parser.add_argument("--hardware", action="store_true", help="run what dominates the default on its own hardware")
    parser.add_argument("--save", action="store_true", help="keep the figures in bench/results")
    options = parser.parse_args()
    start = AccelConfig()
    effort = Effort(options.estimates, options.configurations, options.schedules)

    def say(point: Point) -> None:
        harness.say(f"{int(point.cycles)} cycles, {point.config.on_chip_bytes >> 10} KB: {point.config.to_text()}")

    found = explore(Workload.of_layers(workload_text()), start, Budget.of(start), effort, say)
    print(exploration_table(found))
    figures = exploration_json(found)
    if options.hardware and found.dominating:
        figures["hardware"] = on_hardware(found.dominating[0])
        print(f"{found.dominating[0].config.to_text()}: {figures['hardware']} cycles on its own hardware")
    if options.save:
        harness.write_json(RESULTS, figures)
        PLOT.write_text(exploration_plot(found, "ResNet-18's convolutions on accelerators of a bus of 8 bytes"))


if __name__ == "__main__":
    main()
