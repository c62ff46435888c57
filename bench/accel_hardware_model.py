"""A whole int8 model on the hardware of the tensor processor, simulated: `python -m bench.accel_hardware_model`.

    python -m bench.accel_hardware_model                       # ResNet-18 on the default core, cycle by cycle (minutes)
    python -m bench.accel_hardware_model --machine functional  # the same on the functional simulator (seconds)
    python -m bench.accel_hardware_model --model mobilenet_v1 --config block_in:32,block_out:32 --save

The model is quantised in fixed point and compiled for this CPU alone, and for the processor with this CPU as its host.
All numbers are integers with a defined rounding, so the answers must be the same bits; the command fails if they are
not. The table has the cycles that the simulated hardware counts for each kernel. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from bench import harness, zoo
from tilewright.accel.config import AccelConfig
from tilewright.runtime.device.timeline import Timeline
from tilewright.support.text import table
from tilewright.target import Target

RESULTS = Path(__file__).parent / "results" / "accel_hardware_model.json"
MACHINES = {"functional": 0, "registers": 1, "hardware": 2}
"""The numbers of the devices."""
MEGAHERTZ = 100.0


def quantized(name: str) -> Any:
    """The model in fixed point, calibrated on a random input."""
    return tw.quantize(zoo.build(name), [zoo.inputs(name, 0)], arithmetic="fixed_point", threads=1).module


def measured(name: str, config: AccelConfig, machine: str) -> tuple[dict[str, Any], Timeline]:
    """Compile and run a model, and compare its answers."""
    module, inputs = quantized(name), list(zoo.inputs(name, 1).values())
    expected = tw.compile(module)(*inputs)
    target = f"accel:{MACHINES[machine]} -config={config.to_text()}"
    exe = tw.compile(module, target=target)
    began = time.process_time()
    timeline = exe.timeline(*inputs)
    seconds = (time.process_time() - began) / 2
    results = exe(*inputs)
    pairs = zip(_arrays(results), _arrays(expected), strict=True)
    kernels = [span for span in timeline.spans if span.place != "host"]
    figures = {
        "model": name,
        "on": machine,
        "config": config.to_text(),
        "latency": config.memory_latency,
        "equal": all(np.array_equal(one, other) for one, other in pairs),
        "distinct": len(np.unique(_arrays(expected)[0])),
        "kernels_on_chip": len(kernels),
        "kernels_on_host": len(timeline.spans) - len(kernels),
        "cycles": timeline.cycles,
        "milliseconds": timeline.cycles / MEGAHERTZ / 1e3,
        "seconds_of_simulation": seconds,
        "cycles_a_second": timeline.cycles / seconds,
    }
    return figures, timeline


def _arrays(results: Any) -> list[np.ndarray]:
    return [np.asarray(item) for item in (results if isinstance(results, (list, tuple)) else [results])]


def main() -> int:
    """Run the model; 1 if an answer is another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet18", help="a model of bench.zoo")
    parser.add_argument("--config", default="default", help="a configuration, as in targets")
    parser.add_argument("--machine", choices=tuple(MACHINES), default="hardware", help="what runs the programs")
    parser.add_argument("--save", action="store_true", help=f"keep the figures in {RESULTS.name}")
    options = parser.parse_args()
    config = AccelConfig.from_text(Target(f"accel -config={options.config}").arch)
    figures, timeline = measured(options.model, config, options.machine)
    spans = [span for span in timeline.spans if span.place != "host"]
    rows = [(str(number), span.name, str(span.cycles or "")) for number, span in enumerate(spans)]
    print(table(("kernel", "name", "cycles"), rows))
    same = "the same bits as on the CPU" if figures["equal"] else "OTHER RESULTS than on the CPU"
    print(f"{options.model} on {options.machine}: {same}; {timeline.cycles / 1e6:.3f} M cycles on chip")
    if options.save:
        kernels = [{"name": span.name, "cycles": span.cycles} for span in spans]
        harness.write_json(RESULTS, {"machine": harness.machine(), **figures, "kernels": kernels})
    print(json.dumps(figures))
    return 0 if figures["equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
