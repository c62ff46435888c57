"""From the options of a target's text to its final fields: fills in what the processor's name or the host implies."""

from __future__ import annotations

import functools
import re

from tilewright.support.errors import UserError
from tilewright.target.host import detect_host
from tilewright.target.kinds import TargetKind, closest
from tilewright.target.llvm_cpus import (
    CPU_MODELS,
    DEFAULT_TRIPLES,
    GENERIC_MODELS,
    CpuModel,
    arch_of_triple,
    vector_shape,
)

_FEATURE = re.compile(r"[+-][A-Za-z0-9][A-Za-z0-9_.\-]*")

# Removing the first feature removes the others with it, as it does in LLVM.
_DEPENDENTS: tuple[tuple[str, str], ...] = (
    ("avx", r"avx.*|fma|f16c"),
    ("avx2", r"avx512.*|avxvnni"),
    ("avx512f", r"avx512.*"),
    ("amx-tile", r"amx-.*"),
    ("sve", r"sve.*"),
    ("mve", r"mve\.fp"),
    ("neon", r"dotprod|i8mm|bf16|sve.*|fullfp16"),
)

# Having the first (a pattern) means having the others, as in LLVM.
_IMPLIED: tuple[tuple[str, frozenset[str]], ...] = (
    (r"avx512.*", frozenset({"avx512f", "avx2", "fma", "f16c"})),
    (r"avxvnni", frozenset({"avx2"})),
    (r"avx2|fma|f16c", frozenset({"avx"})),
    (r"amx-.*", frozenset({"amx-tile"})),
    (r"sve2.*", frozenset({"sve"})),
)

_NUMBERS = ("cores", "vector_bits", "vector_registers", "l1_bytes", "l2_bytes", "l3_bytes")


def resolve_gpu(kind: TargetKind, texts: dict[str, str], numbers: dict[str, int]) -> dict[str, str | int]:
    """The fields of a GPU target: the kind's defaults and what is known of the architecture, then what was written."""
    arch = kind.arch_of(texts.get("arch", kind.arch))
    known = kind.architectures.get(arch, {})
    return {"triple": "", "cpu": "", "features": "", **kind.defaults, **known, **texts, **numbers, "arch": arch}


def resolve_cpu(kind: TargetKind, texts: dict[str, str], numbers: dict[str, int], where: str) -> dict[str, str | int]:
    """The fields of a CPU target: the kind's defaults, then what was written.

    No processor and no triple, or `-mcpu=native`, mean this machine. A processor of this machine's architecture
    without a triple means this machine's triple, cores and caches with that instruction set. Anything else is
    another machine, described by the processor table alone, so that the answer is the same everywhere.
    """
    triple, cpu = texts.get("triple", kind.triple), texts.get("cpu", "")
    features = normalize_features(texts.get("features", ""), where)
    if triple and arch_of_triple(triple) is None:
        raise UserError(
            f"unknown architecture in the triple '{triple}': known are {', '.join(GENERIC_MODELS)}", where=where
        )
    if cpu == "native" or not (triple or cpu):
        fields = _native_fields(triple, features, where)
    else:
        fields = _named_fields(triple, cpu, features, explicit_width="vector_bits" in numbers, where=where)
    return {**fields, **kind.defaults, **numbers, "arch": arch_of_triple(str(fields["triple"])) or "", **_NO_GPU}


_NO_GPU: dict[str, str | int] = {"max_threads": 0, "warp_size": 0, "shared_bytes": 0}


def _native_fields(triple: str, features: str, where: str) -> dict[str, str | int]:
    host = detect_host()
    if triple and arch_of_triple(triple) != host.arch:
        raise UserError(
            f"'-mcpu=native' is this machine's processor ({host.cpu}), which the triple '{triple}' does not match",
            where=where,
            hint="name the processor with -mcpu=, or leave the triple out",
        )
    merged = normalize_features(",".join(filter(None, (host.features, features))), where)
    bits, registers = _shape(host.arch or "", host.cpu, merged)
    return {
        "triple": triple or host.triple,
        "cpu": host.cpu,
        "features": merged,
        "cores": host.cores,
        "vector_bits": bits,
        "vector_registers": registers,
        "l1_bytes": host.l1_bytes,
        "l2_bytes": host.l2_bytes,
        "l3_bytes": host.l3_bytes,
    }


def _named_fields(triple: str, cpu: str, features: str, explicit_width: bool, where: str) -> dict[str, str | int]:
    cpu = cpu or "generic"
    model = _model(triple, cpu, explicit_width, where)
    fields: dict[str, str | int] = {name: getattr(model, name) for name in _NUMBERS}
    if not triple:
        host = detect_host()
        if host.arch == model.arch:
            triple = host.triple
            fields.update(cores=host.cores, l1_bytes=host.l1_bytes, l2_bytes=host.l2_bytes, l3_bytes=host.l3_bytes)
        else:
            triple = DEFAULT_TRIPLES[model.arch]
    bits, registers = _shape(model.arch, cpu, features)
    if model.arch == "riscv64":
        features = _riscv_features(features, where)
    elif model.arch in ("wasm32", "wasm64") and "simd128" in model.features:
        # What the table says of the processor; LLVM's generic one has no vectors.
        features = normalize_features(f"+simd128,{features}", where)
    return {
        **fields,
        "triple": triple,
        "cpu": cpu,
        "features": features,
        "vector_bits": bits,
        "vector_registers": registers,
    }


def _riscv_features(features: str, where: str) -> str:
    """The features of a 64-bit RISC-V processor that runs Linux, and others: LLVM's generic one has none of them.

    The calling convention of all its libraries (lp64d) passes floats in registers of double precision.
    """
    merged = normalize_features(f"+m,+a,+f,+d,+c,{features}", where)
    for name in ("f", "d"):
        if f"-{name}" in merged.split(","):
            raise UserError(
                f"code for riscv64 needs the feature '{name}': its calling convention is lp64d",
                where=where,
                hint=f"leave -{name} out of -mattr",
            )
    return merged


def _model(triple: str, cpu: str, explicit_width: bool, where: str) -> CpuModel:
    arch = arch_of_triple(triple) if triple else None
    if cpu == "generic":
        return GENERIC_MODELS[arch or detect_host().arch or "x86_64"]
    model = CPU_MODELS.get(cpu)
    if model is None:
        # A processor newer than the table is welcome once its vector width is stated (as printed targets do).
        if arch is not None and explicit_width:
            return GENERIC_MODELS[arch]
        raise UserError(
            f"unknown processor '{cpu}'{closest(cpu, CPU_MODELS)}",
            where=where,
            hint="use a name LLVM knows, or 'generic' with features: -mcpu=generic -mattr=+avx2,+fma; for a processor "
            "newer than Tilewright give -mtriple and -vector-bits too",
        )
    if arch is not None and arch != model.arch and {arch, model.arch} != {"arm", "thumb"}:
        raise UserError(
            f"processor '{cpu}' is {model.arch}, but the triple '{triple}' is {arch}",
            where=where,
            hint=f"use -mtriple={DEFAULT_TRIPLES[model.arch]} or another processor",
        )
    return model


def _shape(arch: str, cpu: str, features: str) -> tuple[int, int]:
    model = CPU_MODELS.get(cpu) or GENERIC_MODELS.get(arch) or CpuModel(arch, 128, 16)
    if not features:
        return model.vector_bits, model.vector_registers
    return vector_shape(arch, effective_features(arch, cpu, features)) or (model.vector_bits, model.vector_registers)


def normalize_features(text: str, where: str) -> str:
    """Features in a fixed order, the last word on each kept; a `UserError` on anything but +name and -name.

    Additions come first: LLVM reads from left to right, and `-avx512f,+avx512vl` would bring `avx512f` back.
    """
    flags: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        if not _FEATURE.fullmatch(word):
            raise UserError(
                f"'{word}' is not a processor feature", where=where, hint="write +name to add, -name to remove"
            )
        flags[word[1:]] = word[0]
    return ",".join(f"{sign}{name}" for sign, name in sorted((sign, name) for name, sign in flags.items()))


@functools.cache
def effective_features(arch: str, cpu: str, features: str) -> frozenset[str]:
    """The features a target has: those its processor implies, plus those added, less those removed."""
    model = CPU_MODELS.get(cpu) or GENERIC_MODELS.get(arch)
    present = set(model.features) if model else set()
    words = features.split(",") if features else []
    present |= {word[1:] for word in words if word[0] == "+"}
    for pattern, implied in _IMPLIED:
        if any(re.fullmatch(pattern, name) for name in present):
            present |= implied
    removed = {word[1:] for word in words if word[0] == "-"}
    for name, dependents in _DEPENDENTS:
        if name in removed:
            present = {other for other in present if not re.fullmatch(dependents, other)}
    return frozenset(present - removed)
