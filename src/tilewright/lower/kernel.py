"""Compiling kernels: named by what they compute, shared, scheduled, lowered, and kept in the object cache."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import reduce

from tilewright.backends.backend import lower
from tilewright.backends.host import compile_lowered, lower_planned
from tilewright.backends.llvm.cache import ObjectCache, shared_cache
from tilewright.ir.build import add
from tilewright.ir.structural import structural_key
from tilewright.lower.bounds import Bound, bound_of
from tilewright.lower.cache_key import target_parts
from tilewright.lower.cost import Work, work_of
from tilewright.lower.device_kernel import DeviceKernelCode, compile_for_device
from tilewright.lower.horizontal import KernelPart, compile_horizontal
from tilewright.lower.kernel_format import DamagedKernelError, KernelTable, decode_kernel, encode_kernel
from tilewright.lower.schedules import require_legal_schedule, use_schedule
from tilewright.runtime.core.artifact import DeviceKernelInfo
from tilewright.support import settings, trace
from tilewright.support.fingerprint import kernel_sources
from tilewright.target import Target
from tilewright.tir.analysis.in_place import Pair, in_place_pairs, with_in_place
from tilewright.tir.function import PrimFunc
from tilewright.tir.index_map import IndexMap
from tilewright.tir.passes.scratch_parameters import scratch_bytes
from tilewright.tir.verify_bounds import refuse_outside
from tilewright.topi.schedule.choices import Answer, answers_to_json
from tilewright.topi.schedule.packing import packing_of


@dataclass(frozen=True, slots=True)
class Kernel:
    """One distinct kernel of a model: its unscheduled program under its final name, and its work.

    `answers` are choices of its schedule that a tuner has found; the template decides the rest. `parts` are the kernels
    that it is made of, where it is several that share launches on a device.
    """

    symbol: str
    func: PrimFunc
    work: Work
    answers: Mapping[str, Answer] = field(default_factory=dict)
    parts: tuple[KernelPart, ...] = ()

    def __repr__(self) -> str:
        """The name; `print(kernel.func)` shows the program."""
        return f"Kernel({self.symbol})"

    @property
    def alone(self) -> tuple[Kernel, ...]:
        """The different kernels that it is made of, each as it would be by itself; most are one."""
        parts = {part.symbol: part for part in self.parts}
        return tuple(Kernel(part.symbol, part.func, part.work, part.answers) for part in parts.values()) or (self,)


def make_kernel(func: PrimFunc, label: str) -> Kernel:
    """Name a program by its structure: equal computations get equal names, in every model and process."""
    digest = structural_key(func.replace(name=""))
    text = digest if isinstance(digest, str) else digest.hex()
    symbol = f"tw_{_identifier(plain_label(label))}_{text[:16]}"
    return Kernel(symbol, func.replace(name=symbol), work_of(func))


def make_horizontal(func: PrimFunc, label: str, parts: Sequence[KernelPart]) -> Kernel:
    """A kernel of several that share launches, named by them; `func` is the program of all."""
    text = json.dumps([(part.symbol, part.numbers) for part in parts])
    symbol = f"tw_{_identifier(plain_label(label))}_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    work = Work(reduce(add, (part.work.flops for part in parts)), reduce(add, (part.work.bytes for part in parts)))
    pairs = tuple(pair for part in parts for pair in part.pairs(in_place_pairs(part.func)))
    return Kernel(symbol, with_in_place(func, pairs).replace(name=symbol), work, parts=tuple(parts))


def plain_label(label: str) -> str:
    """A label without the number that tells functions of one model apart: equal kernels must get equal names."""
    return re.sub(r"_\d+$", "", label)


def _identifier(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in text)[:48]


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """The object code of a kernel, and what the model's assembly must know of it.

    `packing` is how its schedule wants constant parameters arranged (by parameter number); `in_place` has pairs of
    parameters (an input and a result) that may be the same memory, `scratch` the bytes of each piece of scratch memory,
    which are the last parameters. `device` has the launches of a kernel for a device; `refused` says why the device
    cannot run it. `failed_template` says why the kernel has a plainer schedule than its template's, if it has; `bound`
    how far it is from what the processor can do. `seconds` is the processor's time that compiling it took, 0 for one
    from the cache.
    """

    code: bytes
    packing: dict[int, IndexMap]
    in_place: tuple[Pair, ...] = ()
    scratch: tuple[int, ...] = ()
    device: DeviceKernelInfo | None = None
    refused: str = ""
    failed_template: str = ""
    bound: Bound = field(default_factory=Bound)
    seconds: float = field(default=0.0, compare=False)

    def to_bytes(self) -> bytes:
        """One string of bytes, for the cache."""
        reasons = (self.refused, self.failed_template)
        table = KernelTable(self.packing, self.in_place, self.scratch, self.device, *reasons, astuple(self.bound))
        return encode_kernel(table, self.code)

    @staticmethod
    def from_bytes(payload: bytes) -> CompiledKernel:
        """The kernel that `to_bytes` wrote; `DamagedKernelError` for other bytes."""
        table, code = decode_kernel(payload)
        parts = (table.packing, table.in_place, table.scratch, table.device, table.refused, table.failed_template)
        return CompiledKernel(code, *parts, Bound(*table.bound))


def _known(store: ObjectCache, key: str) -> CompiledKernel | None:
    """The kernel in the cache; an entry that is none is deleted."""
    found = store.load(key)
    try:
        return None if found is None else CompiledKernel.from_bytes(found)
    except DamagedKernelError:
        store.discard(key)
        return None


def compile_kernel(kernel: Kernel, target: Target, *, planned: bool = False) -> CompiledKernel:
    """The code of a kernel, from the cache when this compiler has made it before.

    With `planned`, the kernel takes its scratch memory as last parameters; else it takes it from the heap. Where a
    template fails, the kernel has the next plainer schedule (`schedules.py`).
    """
    store = _store()
    key = _cache_key(kernel, target, planned)
    if store is not None:
        known = _known(store, key)
        if known is not None and not (known.failed_template and settings.STRICT_TEMPLATES.get()):
            return known
    start = time.process_time()
    if kernel.parts and not target.is_cpu:
        result = _on_device(compile_horizontal(kernel.func, kernel.parts, target))
    else:
        result = _compiled(kernel, target, planned)
    if store is not None:
        store.store(key, result.to_bytes())
    return replace(result, seconds=time.process_time() - start)


def _compiled(kernel: Kernel, target: Target, planned: bool) -> CompiledKernel:
    # Operators that users declare are computed by expressions of theirs.
    with trace.span("verify"):
        refuse_outside(kernel.func)
    used = use_schedule(
        kernel.func,
        target,
        kernel.answers,
        lambda scheduled: (compile_scheduled(kernel.func, scheduled, target, planned=planned), scheduled),
    )
    compiled, scheduled = used.result
    with trace.span("bound"):
        bound = bound_of(kernel.func, scheduled, used.templates, target)
    return replace(compiled, failed_template=used.failure, bound=bound)


def compile_scheduled(func: PrimFunc, scheduled: PrimFunc, target: Target, *, planned: bool) -> CompiledKernel:
    """The code of a scheduled program; `func` is it before scheduling: its parameters are what callers pass."""
    require_legal_schedule(scheduled)
    if target.is_cpu:
        with trace.span("lower"):
            lowered = (lower_planned if planned else lower)(scheduled, target)
        code = compile_lowered(lowered, target)
        return CompiledKernel(code, packing_of(scheduled), in_place_pairs(lowered), scratch_bytes(lowered))
    return _on_device(compile_for_device(func, scheduled, target))


def _on_device(made: DeviceKernelCode) -> CompiledKernel:
    parts = (made.in_place, made.scratch, made.info, made.refused, made.failed_template)
    return CompiledKernel(made.code, dict(made.packing), *parts)


def is_cached(kernel: Kernel, target: Target, *, planned: bool = False) -> bool:
    """Whether the kernel's object is in the cache (it may still turn out damaged)."""
    store = _store()
    return store is not None and store.has(_cache_key(kernel, target, planned))


def _store() -> ObjectCache | None:
    """The cache of kernels. A key says nothing of stages that files replace: what they make must not be kept."""
    return None if settings.stages_are_files() else shared_cache()


def _cache_key(kernel: Kernel, target: Target, planned: bool) -> str:
    """The name of everything that decides a kernel's bytes; `tests/lower/test_kernel_key.py` changes each of them."""
    chosen = [kernel.answers, *(part.answers for part in kernel.parts)]
    answers = json.dumps([answers_to_json(item) for item in chosen])
    memory = "planned" if planned else "own"
    parts = (kernel.symbol, answers, memory, *target_parts(target), kernel_sources())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
