"""Table of the processor names LLVM knows: architecture, vector width, registers, caches and implied features.

The table answers two questions without asking LLVM: which numbers should schedules be derived from when the
target is not this machine, and is a name given by a user a processor at all (LLVM itself only prints a warning).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class CpuModel:
    """What is known of a processor from its name alone.

    `features` holds only the features that Tilewright makes decisions on, under LLVM's names.
    """

    arch: str
    vector_bits: int
    vector_registers: int
    features: frozenset[str] = frozenset()
    l1_bytes: int = 32 * KIB
    l2_bytes: int = 512 * KIB
    l3_bytes: int = 0
    cores: int = 4


_X86_V2 = frozenset({"sse", "sse2", "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt"})
_X86_V3 = _X86_V2 | {"avx", "avx2", "fma", "f16c", "bmi", "bmi2"}
_X86_V4 = _X86_V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_ICELAKE = _X86_V4 | {"avx512vnni", "avx512vbmi", "avx512vbmi2", "avx512bitalg", "avx512ifma", "avx512vpopcntdq"}
_SAPPHIRE = _ICELAKE | {"avxvnni", "avx512bf16", "avx512fp16", "amx-tile", "amx-int8", "amx-bf16"}
_ARM_V8 = frozenset({"neon", "fp-armv8"})
_ARM_V82 = _ARM_V8 | {"dotprod", "fullfp16", "lse"}
_ARM_V86 = _ARM_V82 | {"i8mm", "bf16"}
_RISCV_VECTOR = frozenset({"m", "a", "f", "d", "c", "v"})

_sse = CpuModel("x86_64", 128, 16, frozenset({"sse", "sse2"}), l3_bytes=8 * MIB)
_sse4 = replace(_sse, features=_X86_V2)
_avx = replace(_sse4, vector_bits=256, features=_X86_V2 | {"avx"})
_avx2 = replace(_sse4, vector_bits=256, features=_X86_V3)
_avx512 = CpuModel("x86_64", 512, 32, _X86_V4, l2_bytes=MIB, l3_bytes=16 * MIB, cores=8)
_icelake = replace(_avx512, features=_ICELAKE, l1_bytes=48 * KIB)
_sapphire = replace(_icelake, features=_SAPPHIRE, l2_bytes=2 * MIB, l3_bytes=64 * MIB)
_alderlake = replace(_avx2, features=_X86_V3 | {"avxvnni"}, l1_bytes=48 * KIB, l2_bytes=2 * MIB, l3_bytes=24 * MIB)
_zen4 = replace(_icelake, features=_ICELAKE | {"avx512bf16"}, l1_bytes=32 * KIB, l3_bytes=32 * MIB)
_armv8 = CpuModel("aarch64", 128, 32, _ARM_V8)
_armv82 = replace(_armv8, features=_ARM_V82, l1_bytes=64 * KIB)
_neoverse = replace(_armv82, l2_bytes=MIB, l3_bytes=32 * MIB, cores=8)
_neoverse_v = replace(_neoverse, features=_ARM_V86 | {"sve"})
_apple = replace(_armv82, l1_bytes=128 * KIB, l2_bytes=4 * MIB)
# Microcontrollers: vectors of four bytes in an integer register are the most they have.
_cortex_m = CpuModel("thumb", 32, 8, frozenset(), l1_bytes=0, l2_bytes=0, cores=1)
_cortex_m55 = replace(_cortex_m, vector_bits=128, features=frozenset({"mve", "mve.fp", "dsp"}))
_armv7 = CpuModel("arm", 128, 16, frozenset({"neon", "vfp4"}))
_riscv = CpuModel("riscv64", 64, 32, frozenset({"m", "a", "f", "d", "c"}), cores=4)
_riscv_vector = replace(_riscv, vector_bits=128, features=_RISCV_VECTOR)

_FAMILIES: tuple[tuple[CpuModel, str], ...] = (
    (_sse, "x86-64 k8 opteron athlon64 nocona core2 amdfam10 barcelona"),
    (_sse4, "x86-64-v2 penryn nehalem westmere silvermont goldmont goldmont-plus tremont btver1"),
    (_avx, "sandybridge ivybridge btver2 bdver1 bdver2 bdver3"),
    (_avx2, "x86-64-v3 haswell broadwell skylake bdver4 core-avx2"),
    (replace(_avx2, l3_bytes=16 * MIB, cores=8), "znver1 znver2 znver3"),
    (_alderlake, "alderlake raptorlake meteorlake gracemont sierraforest grandridge arrowlake arrowlake-s lunarlake"),
    (_alderlake, "pantherlake clearwaterforest"),
    (_avx512, "x86-64-v4 skylake-avx512 skx"),
    (replace(_avx512, features=_X86_V4 | {"avx512vnni"}), "cascadelake"),
    (replace(_avx512, features=_X86_V4 | {"avx512vnni", "avx512bf16"}), "cooperlake"),
    (replace(_avx512, features=_X86_V4 | {"avx512ifma", "avx512vbmi"}), "cannonlake"),
    (_icelake, "icelake-client icelake-server tigerlake rocketlake"),
    (_sapphire, "sapphirerapids emeraldrapids"),
    (replace(_sapphire, features=_SAPPHIRE | {"amx-fp16"}), "graniterapids graniterapids-d diamondrapids"),
    (_zen4, "znver4"),
    (replace(_zen4, features=_ICELAKE | {"avx512bf16", "avxvnni"}, l1_bytes=48 * KIB), "znver5"),
    (_armv8, "cortex-a34 cortex-a35 cortex-a53 cortex-a57 cortex-a72 cortex-a73 carmel kryo"),
    (_armv82, "cortex-a55 cortex-a65 cortex-a65ae cortex-a75 cortex-a76 cortex-a76ae cortex-a77 cortex-a78"),
    (_armv82, "cortex-a78ae cortex-a78c cortex-x1 cortex-x1c a64fx tsv110 ampere1"),
    (replace(_armv82, features=_ARM_V86), "cortex-a510 cortex-a520 cortex-a710 cortex-a715 cortex-a720 cortex-a725"),
    (replace(_armv82, features=_ARM_V86, l2_bytes=MIB), "cortex-x2 cortex-x3 cortex-x4 cortex-x925"),
    (_neoverse, "neoverse-e1 neoverse-n1"),
    (_neoverse_v, "neoverse-n2 neoverse-n3 neoverse-v1 neoverse-v2 neoverse-v3 neoverse-512tvb grace"),
    (replace(_neoverse, features=_ARM_V86), "ampere1a ampere1b"),
    (_apple, "apple-a11 apple-a12 apple-a13 apple-s4 apple-s5 apple-a14 apple-m1"),
    (replace(_apple, features=_ARM_V86), "apple-a15 apple-a16 apple-a17 apple-a18 apple-m2 apple-m3 apple-m4"),
    (_cortex_m, "cortex-m0 cortex-m0plus cortex-m3 cortex-m23"),
    (replace(_cortex_m, features=frozenset({"dsp"})), "cortex-m4 cortex-m7 cortex-m33 cortex-m35p"),
    (_cortex_m55, "cortex-m52 cortex-m55 cortex-m85"),
    (_armv7, "cortex-a7 cortex-a8 cortex-a9 cortex-a15 cortex-a17"),
    (_riscv, "generic-rv64 rocket-rv64 sifive-u54 sifive-u74"),
    (_riscv_vector, "spacemit-x60 sifive-p470 sifive-p670"),
    (replace(_riscv_vector, vector_bits=512, l1_bytes=32 * KIB), "sifive-x280"),
    (replace(_riscv, arch="riscv32", vector_bits=32, cores=1, l1_bytes=0, l2_bytes=0), "generic-rv32 sifive-e31"),
    (CpuModel("wasm32", 128, 16, frozenset(), cores=1), "mvp"),
    (CpuModel("wasm32", 128, 16, frozenset({"simd128"}), cores=1), "bleeding-edge lime1"),
)

CPU_MODELS: dict[str, CpuModel] = {name: model for model, names in _FAMILIES for name in names.split()}

# What `-mcpu=generic` means: the least that every processor of an architecture has.
GENERIC_MODELS: dict[str, CpuModel] = {
    "x86_64": _sse,
    "aarch64": _armv8,
    "arm": CpuModel("arm", 64, 16),
    "thumb": _cortex_m,
    "riscv64": replace(_riscv, vector_bits=64),
    "riscv32": CpuModel("riscv32", 32, 32, frozenset({"m"}), l1_bytes=0, l2_bytes=0, cores=1),
    "wasm32": CpuModel("wasm32", 128, 16, frozenset({"simd128"}), cores=1),
    "wasm64": CpuModel("wasm64", 128, 16, frozenset({"simd128"}), cores=1),
}

# The triple meant when a user names only a processor of a foreign architecture.
DEFAULT_TRIPLES: dict[str, str] = {
    "x86_64": "x86_64-unknown-linux-gnu",
    "aarch64": "aarch64-unknown-linux-gnu",
    "arm": "armv7-unknown-linux-gnueabihf",
    "thumb": "thumbv7em-none-eabi",
    "riscv64": "riscv64-unknown-linux-gnu",
    "riscv32": "riscv32-unknown-elf",
    "wasm32": "wasm32-unknown-unknown",
    "wasm64": "wasm64-unknown-unknown",
}


def arch_of_triple(triple: str) -> str | None:
    """The canonical architecture name of a target triple, or None if it is not one that Tilewright knows."""
    first = triple.split("-", 1)[0].lower()
    if first in ("x86_64", "amd64", "x86-64"):
        return "x86_64"
    if first in ("aarch64", "arm64"):
        return "aarch64"
    for prefix in ("thumb", "arm"):
        if first.startswith(prefix):
            return prefix
    return first if first in GENERIC_MODELS else None


def vector_shape(arch: str, features: frozenset[str]) -> tuple[int, int] | None:
    """(vector bits, vector registers) that a set of features implies on an architecture, if it says anything."""
    if arch == "x86_64":
        if "avx512f" in features:
            return 512, 32
        if "avx" in features:
            return 256, 16
        return 128, 16
    if arch == "aarch64":
        # Scalable vectors are reached through intrinsics; the fixed-width part stays at 128 bits.
        return 128, 32
    if arch in ("riscv64", "riscv32") and "v" in features:
        return _riscv_vector_bits(features), 32
    if arch in ("arm", "thumb") and ({"neon", "mve"} & features):
        return 128, 16 if "neon" in features else 8
    return (32, 8) if arch == "thumb" else None


def _riscv_vector_bits(features: frozenset[str]) -> int:
    widths = [int(name[3:-1]) for name in features if name.startswith("zvl") and name.endswith("b")]
    return max([128, *widths])
