"""What is to be compiled: a model, a target and options, checked; and the name of the result in the cache.

This file imports little: a model whose artifact is in the cache is ready before the compiler itself would be loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

from tilewright.accel.config import AccelConfig
from tilewright.lower.model_cache import model_key
from tilewright.options import SHIPPED, CompileOptions, DatabaseLike, key_parts, not_in_key
from tilewright.runtime.device.devices import choosing, device_kinds, find_device, split_index
from tilewright.support import settings
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.text import kind_of
from tilewright.target import Target, target_fields
from tilewright.target.kinds import kind_named
from tilewright.target.processors import with_processor

if TYPE_CHECKING:
    from tilewright.ir.function import IRModule
    from tilewright.lower.database import Database
    from tilewright.topi.schedule.choices import Answer

ModelLike: TypeAlias = "IRModule | str | os.PathLike[str] | bytes"
TargetLike: TypeAlias = "Target | str | Mapping[str, Target | AccelConfig | str]"
_FILES = (str, os.PathLike, bytes)


@dataclass(frozen=True)
class CompileRequest:
    """One compilation: everything that decides its result."""

    model: ModelLike = field(metadata=not_in_key("its content is in the key, not its name"))
    target: Target
    host: Target
    """The CPU that runs what a device does not; the target itself where that is a CPU."""
    options: CompileOptions
    answers: Mapping[str, Mapping[str, Answer]]
    """Tuned choices of schedules, by the kernel's symbol."""
    names_device: bool = field(default=False, metadata=not_in_key("code is the same wherever the device is"))
    """Whether the user says which device it is for, not just the one that is here: then it may be elsewhere."""
    device_index: int = field(default=0, metadata=not_in_key("code is the same for all devices that are alike"))
    """Which of the devices of the target's kind it runs on here."""

    @cached_property
    def key(self) -> str | None:
        """The name of the result in the cache, for a model file that is not calibrated.

        Others are compiled anew (kernels are cached).
        """
        if not isinstance(self.model, _FILES) or self.options.calibration is not None:
            return None
        answers = {symbol: sorted(found.items()) for symbol, found in sorted(self.answers.items())}
        parts = {**key_parts(self), "options": key_parts(self.options), "answers": answers}
        return model_key(self.model, (self.target, self.host), parts)

    @property
    def runs_here(self) -> bool:
        """Whether the result can run in this process: on this CPU, with a device (if any) that may be here."""
        return self.host.is_host


def make_request(model: ModelLike, target: TargetLike, options: CompileOptions) -> CompileRequest:
    """A checked request; a model for one thread is scheduled as for one core."""
    if options.shapes is not None and not isinstance(model, _FILES):
        raise UserError("shapes are given when a model is imported", hint="tw.load_model(path, shapes={...})")
    target, index = split_index(target) if isinstance(target, str) else (target, 0)
    with choosing(target.split()[0] if isinstance(target, str) and target.strip() else "", index):
        resolved, host = model_targets(target)
    if options.precision == "tf32":
        if options.precision not in resolved.capabilities.precisions:
            raise UserError(f"tf32 is a precision of NVIDIA GPUs, not of {_short(resolved)}", hint="target='cuda'")
        resolved = resolved.replace(features="+tf32")
    if options.precision == "float8" and not resolved.has_float8_products:
        raise UserError(
            f"precision 'float8' needs products of 8-bit floats, which {_short(resolved)} lacks",
            hint="NVIDIA GPUs have them from sm_89 on: target='cuda', or 'cuda -arch=sm_90' for one that is not here",
        )
    if options.cpus:
        # The first is the one that the model itself is compiled for, and what C programs see of it.
        host = with_processor(resolved, options.cpus[0])
    if options.threads is not None:
        host = host.replace(cores=options.threads)
    if resolved.is_cpu:
        resolved = host
    names_device = not resolved.is_cpu and _names_device(target, resolved.kind)
    return CompileRequest(
        model, resolved, host, options, _answers(options.database, resolved), names_device, device_index=index
    )


def _short(target: Target) -> str:
    """A target in a message: its kind, and its processor or architecture."""
    processor = target.cpu if target.is_cpu else target.arch
    return f"'{target.kind}' ({processor})" if processor else f"'{target.kind}'"


def _names_device(target: TargetLike, kind: str) -> bool:
    named = _named(target, kind) if isinstance(target, Mapping) else target
    return "arch" in target_fields(named) if isinstance(named, str) and named else isinstance(named, Target)


def _answers(database: DatabaseLike, target: Target) -> Mapping[str, Mapping[str, Answer]]:
    """What is known of kernels for a target: by the database given; else by the user's, and by what is shipped."""
    place = database
    if place is None:
        place = settings.DATABASE.get()
        if place is None:
            return {}
        shipped = _shipped(target)
        return {**shipped, **_read(place, target)} if place.exists() else shipped
    if isinstance(place, (str, os.PathLike)) and os.fspath(place) == SHIPPED:
        return _shipped(target)
    return _read(place, target)


def _shipped(target: Target) -> Mapping[str, Mapping[str, Answer]]:
    from tilewright.lower.shipped import shipped_answers

    return shipped_answers(target)


def _read(place: Database | str | os.PathLike[str], target: Target) -> Mapping[str, Mapping[str, Answer]]:
    # Most compilations have no database: what reads one is loaded only then.
    from tilewright.lower.database import Database

    if isinstance(place, Database):
        return place.answers(str(target))
    if not isinstance(place, (str, os.PathLike)):
        raise UserError(f"a database is a path or a tw.tune.Database, not {kind_of(place)}")
    with Database(place, read_only=True) as file:
        return file.answers(str(target))


def any_target(target: Target | str) -> Target:
    """The resolved target, of any kind."""
    if not isinstance(target, (Target, str)):
        raise UserError(f"a target is a text or a tw.Target, not {kind_of(target)}", hint="target='native'")
    return target if isinstance(target, Target) else Target(target)


def model_targets(target: TargetLike) -> tuple[Target, Target]:
    """What a model is compiled for: a target, and the CPU beside it (itself where it is one).

    `{"cuda": "cuda -arch=sm_90", "host": "native"}` names both; an empty text for a device means the one that is here,
    and the kind need not be written twice (`{"accel": "-config=block_in:32"}`, or the configuration itself).
    """
    if not isinstance(target, Mapping):
        resolved = of_this_machine(target)
        return (cpu_target(resolved),) * 2 if resolved.is_cpu else (resolved, cpu_target("native"))
    kinds = [kind for kind in target if kind != "host"]
    if len(kinds) != 1 or kinds[0] not in device_kinds():
        raise UserError(
            f"a pair of targets has one kind of device and a host, not {', '.join(map(repr, target)) or 'nothing'}",
            hint="target={'cuda': '', 'host': 'native'}",
        )
    kind = kinds[0]
    named = target.get("host", "native")
    if isinstance(named, AccelConfig):
        raise UserError("the host is a CPU, not a tensor processor", hint="target={'accel': config, 'host': 'native'}")
    host = cpu_target(named)
    device = _named(target, kind) or kind
    resolved = any_target(device) if kind_named(host.kind).is_elsewhere else of_this_machine(device)
    if resolved.kind != kind:
        raise UserError(f"the target of the kind '{kind}' is '{resolved}'")
    return resolved, host


def _named(target: Mapping[str, Target | AccelConfig | str], kind: str) -> Target | str:
    """What a pair of targets says of its device, as a target."""
    named = target[kind]
    if isinstance(named, AccelConfig):
        return f"accel -config={named.to_text()}"
    return f"{kind} {named}" if isinstance(named, str) and named.startswith("-") else named


def of_this_machine(target: Target | str) -> Target:
    """The resolved target; what a text leaves open about a device is taken from the one that is here, if any."""
    resolved = any_target(target)
    if isinstance(target, Target) or resolved.is_cpu:
        return resolved
    try:
        numbers = find_device(resolved.kind).numbers()
    except UserError:
        # Compiling needs no device.
        return resolved
    written = target_fields(target)
    if "arch" in written and resolved.arch != numbers.get("arch"):
        return resolved
    return resolved.replace(**{name: value for name, value in numbers.items() if name not in written})


def cpu_target(target: Target | str) -> Target:
    """The resolved target, which must be a CPU."""
    resolved = any_target(target)
    if not resolved.is_cpu:
        raise UnsupportedError(
            f"there is no back end for the target kind {resolved.kind!r} yet",
            hint="use target='native', an llvm target such as 'llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1', "
            f"or a device: {', '.join(device_kinds())}",
        )
    return resolved
