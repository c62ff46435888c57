"""Compiling kernels: named by what they compute, shared, scheduled, lowered, and kept in the object cache."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.codegen.llvm.build import compile_functions
from tilewright.codegen.llvm.cache import shared_cache
from tilewright.codegen.llvm.toolchain import llvm_version
from tilewright.ir.structural import structural_key
from tilewright.lower.cost import Work, work_of
from tilewright.support import trace
from tilewright.support.fingerprint import source_fingerprint
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.topi.schedule.choices import Answer, Choices, answers_to_json
from tilewright.topi.schedule.cpu.strategy import schedule_cpu
from tilewright.topi.schedule.packing import packing_of

_PACKAGES = ("arith", "codegen", "ir", "lower", "target", "te", "tir", "topi")
"""The packages that make a kernel's code: a changed schedule or pass never meets an old object."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One distinct kernel of a model: its unscheduled program under its final name, and its work.

    `answers` are choices of its schedule that a tuner has found; the template decides the rest.
    """

    symbol: str
    func: PrimFunc
    work: Work
    answers: Mapping[str, Answer] = field(default_factory=dict)


def make_kernel(func: PrimFunc, label: str) -> Kernel:
    """Name a program by its structure: equal computations get equal names, in every model and process."""
    digest = structural_key(func.replace(name=""))
    text = digest if isinstance(digest, str) else digest.hex()
    # A number at the end only told apart functions of one model; equal kernels must get equal names.
    plain = re.sub(r"_\d+$", "", label)
    symbol = f"tw_{_identifier(plain)}_{text[:16]}"
    return Kernel(symbol, func.replace(name=symbol), work_of(func))


def _identifier(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in text)[:48]


def schedule_kernel(func: PrimFunc, target: Target, choices: Choices | None = None) -> PrimFunc:
    """The default schedule of a program for a target, with `choices` in place of the template's own where given."""
    with trace.span("schedule"):
        return schedule_cpu(func, target, choices)


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """The object code of a kernel, and how its schedule wants constant parameters arranged (by parameter number)."""

    code: bytes
    packing: dict[int, IndexMap]

    def to_bytes(self) -> bytes:
        """One string of bytes, for the cache."""
        header = pickle.dumps(self.packing)
        return len(header).to_bytes(8, "little") + header + self.code

    @staticmethod
    def from_bytes(payload: bytes) -> CompiledKernel:
        """The kernel that `to_bytes` wrote."""
        start = 8 + int.from_bytes(payload[:8], "little")
        return CompiledKernel(payload[start:], pickle.loads(payload[8:start]))


def compile_kernel(kernel: Kernel, target: Target) -> CompiledKernel:
    """The code of a kernel, from the cache when this compiler has made it before."""
    store = shared_cache()
    key = _cache_key(kernel, target)
    if store is not None:
        found = store.load(key)
        if found is not None:
            return CompiledKernel.from_bytes(found)
    scheduled = schedule_kernel(kernel.func, target, Choices(kernel.answers))
    result = CompiledKernel(compile_functions([scheduled], target), packing_of(scheduled))
    if store is not None:
        store.store(key, result.to_bytes())
    return result


def is_cached(kernel: Kernel, target: Target) -> bool:
    """Whether the kernel's object is in the cache (it may still turn out damaged)."""
    store = shared_cache()
    return store is not None and store.path(_cache_key(kernel, target)).exists()


def _cache_key(kernel: Kernel, target: Target) -> str:
    # The whole target: schedules depend on its caches and on how many cores share the work.
    answers = json.dumps(answers_to_json(kernel.answers))
    parts = (kernel.symbol, str(target), answers, llvm_version(), source_fingerprint(*_PACKAGES))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
