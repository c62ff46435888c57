"""Models on processors that are not here: compiled, linked, and run by an emulator."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import tilewright as tw
from tests.requirements import find_tool, need

# Inputs are files, one after the other; results are written to the last file, one after the other.
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include "model.h"

int main(int argc, char** argv) {
  const size_t input_bytes[] = {INPUT_BYTES}, output_bytes[] = {OUTPUT_BYTES};
  void *inputs[MODEL_NUM_INPUTS], *outputs[MODEL_NUM_OUTPUTS];
  if (argc != MODEL_NUM_INPUTS + 2) return 20;
  for (int i = 0; i < MODEL_NUM_INPUTS; ++i) {
    FILE* file = fopen(argv[1 + i], "rb");
    inputs[i] = aligned_alloc(64, (input_bytes[i] + 63) / 64 * 64);
    if (!file || fread(inputs[i], 1, input_bytes[i], file) != input_bytes[i]) return 21;
    fclose(file);
  }
  for (int i = 0; i < MODEL_NUM_OUTPUTS; ++i) outputs[i] = aligned_alloc(64, (output_bytes[i] + 63) / 64 * 64);
  int32_t code = model_run(inputs, outputs, 0);
  if (code) return code;
  FILE* file = fopen(argv[argc - 1], "wb");
  for (int i = 0; i < MODEL_NUM_OUTPUTS; ++i) fwrite(outputs[i], 1, output_bytes[i], file);
  return fclose(file) ? 22 : 0;
}
"""


@dataclass(frozen=True)
class Machine:
    """What runs programs of an architecture here, and what compiles them."""

    requirement: str
    compiler: str
    emulator: str


MACHINES = {
    "x86_64": Machine("emulator-x86_64", "x86_64-linux-gnu-gcc", "qemu-x86_64"),
    "riscv64": Machine("emulator-riscv64", "riscv64-linux-gnu-gcc", "qemu-riscv64"),
    "arm": Machine("emulator-arm", "arm-linux-gnueabihf-gcc", "qemu-arm"),
}


def run_emulated(
    model: bytes, target: str, inputs: list[np.ndarray], results: list[np.ndarray], folder: Path, cpu: str
) -> list[np.ndarray]:
    """What a model gives on a processor that an emulator plays; `results` have the shapes and types of the results."""
    need_emulator(cpu)
    tw.Compilation(model, target, threads=1).export_library(folder / "model.so")
    return run_exported(inputs, results, folder, cpu)


def need_emulator(cpu: str) -> None:
    """Skip a test where programs for a processor, given as `x86_64-Haswell`, do not run or cannot be linked."""
    need(MACHINES[cpu.partition("-")[0]].requirement)
    need("linker")


def emulated(cpu: str, program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What a program for a processor does here."""
    arch, _, processor = cpu.partition("-")
    machine = MACHINES[arch]
    emulator = find_tool(machine.emulator, f"{machine.emulator}-static")
    compiler = find_tool(machine.compiler)
    assert compiler is not None and emulator is not None
    libc = subprocess.run([compiler, "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True).stdout
    system = Path(libc.strip()).resolve().parent.parent
    options = [*(["-cpu", processor] if processor else []), "-L", str(system)]
    for name, value in environment.items():
        options += ["-E", f"{name}={value}"]
    command = [emulator, *options, str(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def build_program(source: Path, cpu: str, *options: str) -> Path:
    """A program of C for a processor."""
    compiler = find_tool(MACHINES[cpu.partition("-")[0]].compiler)
    assert compiler is not None
    program = source.with_suffix("")
    command = [compiler, "-std=c11", "-Wall", "-Werror", str(source), *options, "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def run_exported(
    inputs: list[np.ndarray], results: list[np.ndarray], folder: Path, cpu: str, **environment: str
) -> list[np.ndarray]:
    """What the library `model.so` in a folder gives on a processor."""
    sizes = [",".join(str(item.nbytes) for item in items) for items in (inputs, results)]
    source = folder / "main.c"
    source.write_text(PROGRAM.replace("INPUT_BYTES", sizes[0], 1).replace("OUTPUT_BYTES", sizes[1], 1))
    program = build_program(source, cpu, str(folder / "model.so"), f"-I{folder}", f"-Wl,-rpath,{folder}")
    for number, item in enumerate(inputs):
        item.tofile(folder / f"{number}.bin")
    paths = [str(folder / f"{number}.bin") for number in range(len(inputs))]
    done = emulated(cpu, program, *paths, str(folder / "results.bin"), **environment)
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    data = (folder / "results.bin").read_bytes()
    found = []
    for item in results:
        found.append(np.frombuffer(data[: item.nbytes], item.dtype).reshape(item.shape))
        data = data[item.nbytes :]
    return found
