"""Short names of machines that models are deployed on: `aarch64`, `windows-x86-64`, `android-arm64`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Platform:
    """What a short name stands for: options of the target kind `llvm`, and a few words for people."""

    meaning: str
    options: tuple[str, ...]


def _platform(meaning: str, triple: str, cpu: str, features: str = "") -> Platform:
    options = (f"-mtriple={triple}", f"-mcpu={cpu}")
    return Platform(meaning, (*options, f"-mattr={features}") if features else options)


def _x86_levels() -> dict[str, Platform]:
    names = {
        "x86-64": "every 64-bit PC",
        "x86-64-v2": "PCs since about 2009 (SSE4.2)",
        "x86-64-v3": "PCs since about 2013 (AVX2, FMA)",
        "x86-64-v4": "servers and PCs with AVX-512",
    }
    return {name: _platform(f"Linux on {meaning}", "x86_64-linux-gnu", name) for name, meaning in names.items()}


PLATFORMS: Final[dict[str, Platform]] = {
    **_x86_levels(),
    "aarch64": _platform("Linux on 64-bit Arm", "aarch64-linux-gnu", "generic"),
    "armv7": _platform(
        "Linux on 32-bit Arm with NEON and hard floats: Raspberry Pi 2 and later", "armv7-linux-gnueabihf", "cortex-a7"
    ),
    "riscv64": _platform("Linux on 64-bit RISC-V", "riscv64-linux-gnu", "generic-rv64"),
    "riscv64-v": _platform(
        "Linux on 64-bit RISC-V with vectors of at least 128 bits", "riscv64-linux-gnu", "generic-rv64", "+v"
    ),
    "musl-x86-64": _platform("Linux with musl (Alpine) on x86-64", "x86_64-linux-musl", "x86-64-v2"),
    "musl-aarch64": _platform("Linux with musl (Alpine) on 64-bit Arm", "aarch64-linux-musl", "generic"),
    "windows-x86-64": _platform("Windows 10 and later: a DLL", "x86_64-pc-windows-msvc", "x86-64-v2"),
    "windows-arm64": _platform("Windows on 64-bit Arm: a DLL", "aarch64-pc-windows-msvc", "generic"),
    "macos-arm64": _platform("macOS 11 and later on Apple's processors: a dylib", "arm64-apple-macosx11.0", "apple-m1"),
    "macos-x86-64": _platform("macOS 11 and later on Intel's: a dylib", "x86_64-apple-macosx11.0", "x86-64-v2"),
    "android-arm64": _platform("Android 9 and later: a folder jniLibs", "aarch64-linux-android28", "generic"),
    "android-x86-64": _platform("Android's emulator: a folder jniLibs", "x86_64-linux-android28", "x86-64-v2"),
}
"""Machines by their short names. Options that a target's text has beside the name go before these."""
