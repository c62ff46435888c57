"""Models for microcontrollers, built by the Makefile of their example and run in QEMU."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.core.dtypes import storage_dtype

Array = npt.NDArray[Any]
_SECONDS = 600


@dataclass(frozen=True)
class MicroRun:
    """What a model gave on an emulated board."""

    outputs: dict[str, Array]
    instructions: list[int]
    """Of each step: exact on RISC-V, in units of 32 to 50 (ticks of the clock) on Cortex-M."""

    @property
    def total(self) -> int:
        """The instructions of all steps."""
        return sum(self.instructions)


@dataclass(frozen=True)
class MicroSize:
    """What a program takes."""

    flash: int
    ram: int


def run_micro(folder: Path, inputs: Mapping[str, Array], flags: str = "-O2") -> MicroRun:
    """Run a model's example in QEMU on inputs, by the names that the model has for them."""
    example = folder / "example"
    tensors = json.loads((folder / "model.json").read_text(encoding="utf-8"))["parameters"]
    given = [item for item in tensors if not item["is_output"]]
    for number, item in enumerate(given):
        array = np.ascontiguousarray(inputs[item["name"]], storage_dtype(item["dtype"]))
        if array.shape != tuple(item["shape"]):
            raise ValueError(f"'{item['name']}' has the shape {array.shape}, expected {item['shape']}")
        array.tofile(example / f"input_{number}.bin")
    said = make_example(example, "run", flags)
    outputs = {
        item["name"]: np.fromfile(example / f"output_{number}.bin", storage_dtype(item["dtype"])).reshape(item["shape"])
        for number, item in enumerate(item for item in tensors if item["is_output"])
    }
    return MicroRun(outputs, step_counts(said))


def step_counts(said: str) -> list[int]:
    """The instructions of each step, of what a program has printed."""
    return [int(count) for count in re.findall(r"^\s*step \d+ (\d+)$", said, re.MULTILINE)]


def size_of(folder: Path, flags: str = "-O2") -> MicroSize:
    """What the example of a model takes, inputs and outputs of the program included, without its stack."""
    last = make_example(folder / "example", "size", flags).strip().splitlines()[-1].split()
    text, data, bss = map(int, last[:3])
    return MicroSize(text + data, data + bss)


def make_example(example: Path, goal: str, flags: str) -> str:
    """What the Makefile of an example prints for a goal, with these options of the C compiler."""
    command = ["make", "--no-print-directory", "-C", str(example), goal, f"CFLAGS={flags}"]
    # A make around this one would have a say in it, and warn that it is not asked.
    around = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS, check=False, stdin=subprocess.DEVNULL, env=around
    )
    if done.returncode:
        raise RuntimeError(f"make {goal} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    # QEMU writes what programs print to its standard error.
    return done.stdout + done.stderr
