"""Processors as `--cpus` writes them: `x86-64-v3`, `armv8.2-a+dotprod+fp16`, one after the other in a library."""

from __future__ import annotations

from typing import Final

from tilewright.support.errors import UserError
from tilewright.target.target import Target

_ARM: Final = {
    "armv8-a": (),
    "armv8.1-a": ("lse", "rdm"),
    "armv8.2-a": ("lse", "rdm"),
    "armv8.4-a": ("lse", "rdm", "dotprod"),
    "armv8.6-a": ("lse", "rdm", "dotprod", "bf16", "i8mm"),
}
"""What versions of Arm's architecture have of what code is compiled for; LLVM knows processors, and not these names."""
_SPELT: Final = {"fp16": "fullfp16", "simd": "neon", "atomics": "lse"}
"""Features that compilers of C call otherwise than LLVM does."""


def processor_name(cpu: str, features: str) -> str:
    """What a level of a library is called: its processor, and the features that it has beside."""
    return "".join([cpu or "generic", *(word for word in features.split(",") if word.startswith("+"))])


def with_processor(target: Target, text: str) -> Target:
    """A target of the same system for another processor, given as a name and features with `+` before each."""
    where = f"cpus, '{text}'"
    name, *features = text.split("+")
    if not name or not all(features):
        raise UserError(f"'{text}' is not a processor", where=where, hint="write NAME, or NAME+FEATURE+FEATURE")
    if not target.capabilities.processor_levels:
        raise UserError(
            f"the target kind '{target.kind}' has no libraries with code for several processors",
            where=where,
            hint="leave cpus out, or name a CPU as the target",
        )
    if name in _ARM and target.arch == "aarch64":
        name, features = "generic", [*_ARM[name], *features]
    words = [target.kind, f"-mtriple={target.triple}", f"-mcpu={name}"]
    if features:
        words.append("-mattr=" + ",".join(f"+{_SPELT.get(feature, feature)}" for feature in features))
    return Target(" ".join(words))
