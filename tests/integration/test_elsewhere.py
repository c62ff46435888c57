"""Models for machines and devices that are not here: compiled, exported, printed as assembly that assembles."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path

import pytest

import tilewright as tw
from tests.integration import small_models
from tests.requirements import CLANGS, need, need_tool
from tilewright.backends.cuda import driver as cuda_driver
from tilewright.runtime.device.devices import Driver
from tilewright.runtime.device.program import Device
from tilewright.support.errors import UserError

# The target, and what an assembler must be told.
MACHINES = {
    "llvm -mtriple=thumbv7m-none-eabi -mcpu=cortex-m3": ["--target=thumbv7m-none-eabi", "-mcpu=cortex-m3"],
    "llvm -mtriple=thumbv7em-none-eabi -mcpu=cortex-m4": ["--target=thumbv7em-none-eabi", "-mcpu=cortex-m4"],
    "llvm -mtriple=thumbv8.1m.main-none-eabi -mcpu=cortex-m55": [
        "--target=thumbv8.1m.main-none-eabi",
        "-mcpu=cortex-m55",
    ],
    "llvm -mtriple=riscv64-linux-gnu": ["--target=riscv64-linux-gnu", "-march=rv64gc"],
    "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1": ["--target=aarch64-linux-gnu", "-mcpu=neoverse-n1"],
    "llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512": ["--target=x86_64-linux-gnu"],
}


@pytest.fixture(scope="module")
def model() -> bytes:
    return bytes(small_models.classifier().SerializeToString())


@pytest.mark.parametrize("target", MACHINES)
def test_assembly_of_all_kernels_assembles_as_one_file(model: bytes, tmp_path: Path, target: str) -> None:
    assembler = need_tool("clang", *CLANGS)
    compilation = tw.Compilation(model, target=target, threads=1)
    texts = [compilation.assembly(kernel) for kernel in compilation.kernels]
    assert len(texts) > 1
    (tmp_path / "all.s").write_text("\n".join(texts))
    command = [assembler, *MACHINES[target], "-c", str(tmp_path / "all.s"), "-o", str(tmp_path / "all.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:2000]


def test_riscv_without_features_has_a_default_that_works(model: bytes, tmp_path: Path) -> None:
    need("linker")
    tw.Compilation(model, "llvm -mtriple=riscv64-linux-gnu", threads=1).export_library(tmp_path / "net.so")
    header = (tmp_path / "net.so").read_bytes()[:64]
    assert int.from_bytes(header[18:20], "little") == 243
    assert int.from_bytes(header[48:52], "little") & 6 == 4, "floats are passed in registers of double precision"


def _no_device(kind: str) -> Device:
    raise UserError(f"no {kind} here", hint="install one")


def test_a_model_for_a_named_device_is_exported_without_it(
    model: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_driver, "DRIVER", Driver(lambda index: _no_device("cuda")))
    need("nvrtc")
    exe = tw.compile(model, target="cuda -arch=sm_90a", threads=1)
    exe.export_library(tmp_path / "net.so")
    assert (tmp_path / "net.h").exists()
    x = small_models.image()
    for run in (
        lambda: exe(x),
        lambda: exe.run({"image": x}),
        lambda: exe.profile(x),
        lambda: exe.time_evaluator()(x),
        lambda: copy.deepcopy(exe)(x),
        lambda: exe.to_device(x),
        lambda: tw.load(tmp_path / "net.so"),
        lambda: tw.compile(model, target="cuda"),
        lambda: tw.compile(model, target={"cuda": "", "host": "native"}),
    ):
        with pytest.raises(UserError, match="no cuda here") as caught:
            run()
        assert caught.value.hint == "install one"
    again = tw.compile(model, target={"cuda": "cuda -arch=sm_90a", "host": "native"}, threads=1)
    again.export_library(tmp_path / "again.so")
