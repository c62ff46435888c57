"""The machine parameters of a target: from the user's table of its processor, a shipped one, or its own numbers."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path

from tilewright.support import settings
from tilewright.support.errors import CompilerBug
from tilewright.target.machine.cpu import CpuParameters
from tilewright.target.machine.derive import REFERENCE_CPU, REFERENCE_GPU, derived_cpu, derived_gpu
from tilewright.target.machine.gpu import GpuParameters
from tilewright.target.machine.tables import (
    DAMAGED,
    P,
    Table,
    Values,
    all_values,
    build,
    merged,
    read_table,
    shipped_tables,
    values_of,
)
from tilewright.target.target import Target

BAD_USER_TABLE = "`tilewright calibrate --reset` deletes it, `tilewright calibrate` writes it anew"


def cpu_parameters(target: Target) -> CpuParameters:
    """The parameters of a CPU."""
    if not target.is_cpu:
        raise CompilerBug(f"the target {target.kind} has no parameters of a CPU")
    return _cpu_parameters(target, settings.MACHINES.get())


def gpu_parameters(target: Target) -> GpuParameters:
    """The parameters of a GPU."""
    if target.is_cpu:
        raise CompilerBug(f"the target {target.kind} has no parameters of a GPU")
    return _gpu_parameters(target, settings.MACHINES.get())


def parameters_fingerprint(target: Target) -> str:
    """A text of all parameters of a target, for cache keys: they decide what code is made."""
    return _fingerprint(cpu_parameters(target) if target.is_cpu else gpu_parameters(target))


@lru_cache(maxsize=8)
def _fingerprint(parameters: CpuParameters | GpuParameters) -> str:
    """Each kernel of a model asks for it, for the same target."""
    return hashlib.sha256(json.dumps(values_of(parameters)).encode()).hexdigest()


def shipped_table(target: Target) -> Table | None:
    """The shipped table of a target's family; None for processors that are not known."""
    return next((table for table in shipped_tables().values() if table.processors.include(target)), None)


def shipped_values(target: Target) -> Values:
    """What a target has without a table of the user's: from its family's table, else derived."""
    table = shipped_table(target)
    if table is not None:
        return all_values(table)
    if target.is_cpu:
        return derived_cpu(all_values(shipped_tables()[REFERENCE_CPU]), target)
    return derived_gpu(all_values(shipped_tables()[REFERENCE_GPU]), target)


def user_table_path(target: Target, folder: Path) -> Path:
    """Where the user's table of a target's processor lies: a hypervisor may hide the longest vectors of a CPU."""
    name = f"{target.arch}-{target.cpu}-{target.vector_bits}" if target.is_cpu else f"{target.kind}-{target.arch}"
    return folder / f"{name}.json"


def parameters_origin(target: Target) -> str:
    """Where a target's parameters come from, for people."""
    folder = settings.MACHINES.get()
    if folder is not None and user_table_path(target, folder).exists():
        return f"measured, in {user_table_path(target, folder)}"
    table = shipped_table(target)
    return "derived from its own numbers" if table is None else f"those of the family {table.family}"


def forget_tables() -> None:
    """Read the user's tables anew from now on; a process otherwise keeps what it has read."""
    _cpu_parameters.cache_clear()
    _gpu_parameters.cache_clear()


@lru_cache(maxsize=64)
def _cpu_parameters(target: Target, folder: Path | None) -> CpuParameters:
    return _parameters(CpuParameters, target, folder)


@lru_cache(maxsize=64)
def _gpu_parameters(target: Target, folder: Path | None) -> GpuParameters:
    return _parameters(GpuParameters, target, folder)


def _parameters(form: type[P], target: Target, folder: Path | None) -> P:
    values, where, hint = shipped_values(target), "a shipped table", DAMAGED
    path = None if folder is None else user_table_path(target, folder)
    if path is not None and path.exists():
        where, hint = str(path), BAD_USER_TABLE
        values = merged(values, read_table(path, hint).values)
    return build(form, values, where, hint)
