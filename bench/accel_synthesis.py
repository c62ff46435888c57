"""What the accelerator's hardware takes of an FPGA: `python -m bench.accel_synthesis`.

    python -m bench.accel_synthesis                          # three configurations, minutes each
    python -m bench.accel_synthesis --configs 4x4            # one of them
    python -m bench.accel_synthesis --config mine.json       # a configuration of a file
    python -m bench.accel_synthesis --save                   # keep the counts in bench/results/accel_synthesis.json

The Verilog of each is synthesised by yosys for Xilinx' 7 series (`synth_xilinx -flatten`): look-up tables, registers,
multipliers (DSP48E1), memory blocks (RAMB18, RAMB36) and memory of look-up tables. Nothing is placed or routed.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench import harness
from tilewright.accel.config import AccelConfig
from tilewright.accel.hardware.verilog import TOP, verilog
from tilewright.support.errors import MissingDependencyError
from tilewright.support.text import table

RESULTS: Final = harness.RESULTS_FOLDER / "accel_synthesis.json"
TARGET: Final = "synth_xilinx -family xc7 -flatten"
CONFIGS: Final[Mapping[str, AccelConfig]] = {
    "4x4": AccelConfig(
        block_in=4,
        block_out=4,
        uop_bytes=4 << 10,
        inp_bytes=4 << 10,
        wgt_bytes=8 << 10,
        acc_bytes=16 << 10,
        out_bytes=4 << 10,
        par_entries=32,
        bus_bytes=4,
    ),
    "8x8": AccelConfig(
        block_in=8,
        block_out=8,
        uop_bytes=8 << 10,
        inp_bytes=8 << 10,
        wgt_bytes=32 << 10,
        acc_bytes=32 << 10,
        out_bytes=8 << 10,
        par_entries=64,
    ),
    "16x16": AccelConfig(),
}
"""Two small ones and the default; a file has any other (`--config`)."""
COUNTS: Final[Mapping[str, str]] = {
    "LUT": r"LUT\d",
    "FF": r"FD\w+",
    "DSP48E1": r"DSP48E1",
    "RAMB36": r"RAMB36\w+",
    "RAMB18": r"RAMB18\w+",
    "LUT memory": r"RAM\d+\w",
    "cells": r"\w+",
}


def synthesise(config: AccelConfig) -> dict[str, Any]:
    """Counts of cells by kind, with the seconds of the processor that it took."""
    yosys = shutil.which("yosys")
    if yosys is None:
        raise MissingDependencyError("the synthesis report needs yosys", hint="on Debian: apt-get install yosys")
    with tempfile.TemporaryDirectory() as folder:
        source, report = Path(folder) / "core.v", Path(folder) / "stat.txt"
        source.write_text(verilog(config))
        script = f"read_verilog {source}; {TARGET} -top {TOP}; tee -o {report} stat"
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run([yosys, "-q", "-p", script], check=True)
        seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        cells = {name: int(count) for name, count in re.findall(r"^     (\w+) +(\d+)$", report.read_text(), re.M)}
    counts = {
        name: sum(count for cell, count in cells.items() if re.fullmatch(pattern, cell))
        for name, pattern in COUNTS.items()
    }
    return {**counts, "seconds": round(seconds), "by cell": cells}


def save(name: str, config: AccelConfig, counts: dict[str, Any]) -> None:
    """Keep the counts of one core beside those of others that the same version of yosys gave."""
    version = subprocess.run(["yosys", "-V"], capture_output=True, text=True, check=True).stdout.strip()
    heading = {"tool": version, "target": TARGET}
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    cores = known["cores"] if heading.items() <= known.items() else {}
    harness.write_json(RESULTS, {**heading, "cores": {**cores, name: {"config": config.to_json(), **counts}}})


def main() -> int:
    """Print the table; with --save keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", default=",".join(CONFIGS), help="names of configurations, with commas between")
    parser.add_argument("--config", help="a file with a configuration, in the place of those")
    parser.add_argument("--save", action="store_true", help=f"keep the table in {RESULTS.name}")
    arguments = parser.parse_args()
    if arguments.config:
        chosen = {arguments.config: AccelConfig.read(arguments.config)}
    else:
        chosen = {name: CONFIGS[name] for name in arguments.configs.split(",")}
    found = {}
    for name, config in chosen.items():
        harness.say(f"synthesising {name}")
        found[name] = synthesise(config)
        if arguments.save:
            save(name, config, found[name])
    rows = [
        [
            name,
            str(chosen[name].multipliers),
            str(chosen[name].on_chip_bytes >> 10),
            *(str(item[key]) for key in COUNTS),
        ]
        for name, item in found.items()
    ]
    print(table(["core", "products", "KB on chip", *COUNTS], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
