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
from typing import Final

from tilewright.support.version import VERSION

NOT_IN_KERNELS: Final = {
    "__init__.py": "names of the package",
    "__main__.py": "starts the command line",
    "cli": "asks for compilations",
    "compiler.py": "hands programs over, each of which is part of its kernel's name",
    "front.py": "takes models from the cache",
    "frontend": "makes graphs",
    "lower/tuned": "records: the choices that they make are part of the key",
    "onnx_writer": "writes graphs",
    "options.py": "what they decide is in the programs and in the target",
    "py.typed": "empty",
    "quantization": "makes graphs",
    "request.py": "what it decides is in the programs and in the target",
    "rpc": "carries what is compiled",
    "torch_backend.py": "makes graphs",
    "tune": "makes choices, which are part of the key",
}
"""Files and folders of Tilewright that decide nothing of a kernel's bytes, and why. All others may, new ones too."""
_ROOT = Path(__file__).resolve().parent.parent


@cache
def source_fingerprint(*places: str, without: tuple[str, ...] = ()) -> str:
    """A hash of files and folders of Tilewright, tables of data among them; of all where none are named."""
    digest = hashlib.sha256()
    left_out = tuple(f"{place}/" for place in without)
    for place in places or [""]:
        for path in sorted(_files(str(_ROOT / place))):
            name = path[len(str(_ROOT)) + 1 :].replace(os.sep, "/")
            if f"{name}/".startswith(left_out):
                continue
            with open(path, "rb") as stream:
                content = stream.read()
            digest.update(f"{name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _files(place: str) -> list[str]:
    """All files under a place, or the place if it is a file; not what Python made of them."""
    if os.path.isfile(place):
        return [place]
    kept = (item for item in os.walk(place) if os.path.basename(item[0]) != "__pycache__")
    return [os.path.join(folder, name) for folder, _, names in kept for name in names]


def kernel_sources() -> str:
    """A hash of all sources that may decide a kernel's bytes: a changed schedule or pass never meets an old kernel."""
    return source_fingerprint(without=tuple(NOT_IN_KERNELS))


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
    return f"{VERSION}+{kernel_sources()[:12]}"
