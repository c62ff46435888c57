"""Fingerprints of this package's own sources, for cache keys: changed code never meets what older code made."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from tilewright.support.version import VERSION

KERNEL_PACKAGES = ("arith", "codegen", "ir", "lower", "target", "te", "tir", "topi")
"""The packages that make a kernel's code."""
_ROOT = Path(__file__).resolve().parent.parent


@cache
def source_fingerprint(*packages: str) -> str:
    """A hash of the sources of packages of Tilewright (`tir`, `codegen`, ...); of all its sources without arguments."""
    digest = hashlib.sha256()
    for folder in [_ROOT / package for package in packages] or [_ROOT]:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(_ROOT).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def compiler_name() -> str:
    """What made a kernel: the version of Tilewright, and a fingerprint of the sources that kernels depend on."""
    return f"{VERSION}+{source_fingerprint(*KERNEL_PACKAGES)[:12]}"
