"""Fingerprints of this package's own sources, for cache keys: changed code never meets what older code made."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from tilewright.support.version import VERSION

KERNEL_PACKAGES = (
    "arith",
    "backends",
    "codegen",
    "graph",
    "ir",
    "lower",
    "runtime",
    "support",
    "target",
    "te",
    "tir",
    "topi",
)
"""The packages that make a kernel's code: all that `lower/kernel.py` loads."""
_ROOT = Path(__file__).resolve().parent.parent


@cache
def source_fingerprint(*packages: str) -> str:
    """A hash of the sources of packages and files of Tilewright (`tir`, `backends/llvm/toolchain.py`, ...).

    Without arguments, of all its sources.
    """
    digest = hashlib.sha256()
    for place in [_ROOT / package for package in packages] or [_ROOT]:
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            content = path.read_bytes()
            digest.update(f"{path.relative_to(_ROOT).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def environment_fingerprint(prefixes: Sequence[str]) -> str:
    """A text of the environment variables whose names begin so, for compilers inside this process that read them."""
    found = sorted((name, value) for name, value in os.environ.items() if name.startswith(tuple(prefixes)))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16] if found else ""


@cache
def packages_fingerprint(*names: str) -> str:
    """The versions of Python and of installed packages; those that are not installed are left out."""
    versions = [f"Python {sys.implementation.cache_tag}"]
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return ", ".join(versions)


def compiler_name() -> str:
    """What made a kernel: the version of Tilewright, and a fingerprint of the sources that kernels depend on."""
    return f"{VERSION}+{source_fingerprint(*KERNEL_PACKAGES)[:12]}"
