"""Models on processors that are not here: compiled, linked, and run by an emulator."""

from __future__ import annotations

import subprocess
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
EMULATED = {"x86_64": "emulator-x86_64", "riscv64": "emulator-riscv64"}
"""What a test needs to run programs of an architecture."""


def run_emulated(
    model: bytes, target: str, inputs: list[np.ndarray], results: list[np.ndarray], folder: Path, cpu: str
) -> list[np.ndarray]:
    """What a model gives on a processor that an emulator plays; `results` have the shapes and types of the results."""
    arch = cpu.partition("-")[0]
    need(EMULATED[arch])
    need("linker")
    library = folder / "model.so"
    tw.Compilation(model, target, threads=1).export_library(library)
    sizes = [",".join(str(item.nbytes) for item in items) for items in (inputs, results)]
    (folder / "main.c").write_text(PROGRAM.replace("INPUT_BYTES", sizes[0], 1).replace("OUTPUT_BYTES", sizes[1], 1))
    compiler, emulator = find_tool(f"{arch}-linux-gnu-gcc"), find_tool(f"qemu-{arch}", f"qemu-{arch}-static")
    assert compiler is not None and emulator is not None
    command = [compiler, "-std=c11", "-Wall", "-Werror", str(folder / "main.c"), str(library), f"-I{folder}"]
    subprocess.run([*command, f"-Wl,-rpath,{folder}", "-o", str(folder / "program")], check=True)
    for number, item in enumerate(inputs):
        item.tofile(folder / f"{number}.bin")
    paths = [str(folder / f"{number}.bin") for number in range(len(inputs))]
    libc = subprocess.run([compiler, "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True).stdout
    system = Path(libc.strip()).resolve().parent.parent
    options = ["-cpu", cpu.partition("-")[2], "-L", str(system)]
    done = subprocess.run(
        [emulator, *options, str(folder / "program"), *paths, str(folder / "results.bin")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr}"
    data = (folder / "results.bin").read_bytes()
    found = []
    for item in results:
        found.append(np.frombuffer(data[: item.nbytes], item.dtype).reshape(item.shape))
        data = data[item.nbytes :]
    return found
