"""Asking a processor, when a library is loaded, what it can do: LLVM IR of `i1 @tw.has_<level>()` functions.

x86-64 is asked by `cpuid` and `xgetbv`, whose machine code is here: LLVM has no intrinsics for them, and llvmlite no
assembler for machines that it does not run on. On other processors Linux answers (`getauxval`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tilewright.backends.llvm.object_format import architecture, is_macos, is_windows
from tilewright.support.errors import UnsupportedError

# The words that x86-64 is asked for, in the order in which `_READ_X86` stores them: leaf 1 ecx and edx, leaf 7 ebx, ecx
# and edx, leaf 7 part 1 eax, leaf 0x80000001 ecx, and what the operating system saves (xcr0).
_LEAF1_C, _LEAF1_D, _LEAF7_B, _LEAF7_C, _LEAF7_D, _LEAF71_A, _EXTENDED_C, _SAVED = range(8)
_X86: Final[dict[str, tuple[int, int]]] = {
    "sse": (_LEAF1_D, 25),
    "sse2": (_LEAF1_D, 26),
    "sse3": (_LEAF1_C, 0),
    "ssse3": (_LEAF1_C, 9),
    "sse4.1": (_LEAF1_C, 19),
    "sse4.2": (_LEAF1_C, 20),
    "popcnt": (_LEAF1_C, 23),
    "cx16": (_LEAF1_C, 13),
    "fma": (_LEAF1_C, 12),
    "movbe": (_LEAF1_C, 22),
    "f16c": (_LEAF1_C, 29),
    "avx": (_LEAF1_C, 28),
    "bmi": (_LEAF7_B, 3),
    "avx2": (_LEAF7_B, 5),
    "bmi2": (_LEAF7_B, 8),
    "lzcnt": (_EXTENDED_C, 5),
    "avx512f": (_LEAF7_B, 16),
    "avx512dq": (_LEAF7_B, 17),
    "avx512ifma": (_LEAF7_B, 21),
    "avx512cd": (_LEAF7_B, 28),
    "avx512bw": (_LEAF7_B, 30),
    "avx512vl": (_LEAF7_B, 31),
    "avx512vbmi": (_LEAF7_C, 1),
    "avx512vbmi2": (_LEAF7_C, 6),
    "avx512vnni": (_LEAF7_C, 11),
    "avx512bitalg": (_LEAF7_C, 12),
    "avx512vpopcntdq": (_LEAF7_C, 14),
    "avx512fp16": (_LEAF7_D, 23),
    "amx-bf16": (_LEAF7_D, 22),
    "amx-tile": (_LEAF7_D, 24),
    "amx-int8": (_LEAF7_D, 25),
    "avxvnni": (_LEAF71_A, 4),
    "avx512bf16": (_LEAF71_A, 5),
    "amx-fp16": (_LEAF71_A, 21),
}
# What LLVM takes for granted beside a feature, and what the system must save for it.
_X86_BESIDE: Final = {
    "sse4.2": ("sse3", "ssse3", "sse4.1", "popcnt", "cx16"),
    "avx2": ("avx", "fma", "f16c", "bmi", "bmi2", "lzcnt", "movbe"),
}
_SAVED_FOR: Final = {"avx": 0x6, "avx512f": 0xE6, "amx-tile": 0x60000}

# The two words of Linux (AT_HWCAP, AT_HWCAP2), and the bits of features in them.
_LINUX: Final[dict[str, dict[str, tuple[int, int]]]] = {
    "aarch64": {
        "fp-armv8": (0, 0),
        "neon": (0, 1),
        "lse": (0, 8),
        "fullfp16": (0, 10),
        "rdm": (0, 12),
        "dotprod": (0, 20),
        "sve": (0, 22),
        "sve2": (1, 1),
        "i8mm": (1, 13),
        "bf16": (1, 14),
    },
    "arm": {"neon": (0, 12), "vfp4": (0, 16)},
    "riscv64": {letter: (0, ord(letter) - ord("a")) for letter in "acdfmv"},
}

# void tw_cpuid(uint32_t leaf, uint32_t part, uint32_t registers[4]), uint64_t tw_xgetbv(void):
#     mov r8, rbx; mov r9, rdx; mov eax, edi; mov ecx, esi; cpuid                  (Windows: r10, r8, ecx, edx)
#     mov [r9], eax; mov [r9 + 4], ebx; mov [r9 + 8], ecx; mov [r9 + 12], edx; mov rbx, r8; ret
#     xor ecx, ecx; xgetbv; shl rdx, 32; or rax, rdx; ret
_STORE = "41890141895904418949084189510c"
_CPUID: Final = bytes.fromhex(f"4989d84989d189f889f10fa2{_STORE}4c89c3c3")
_CPUID_WINDOWS: Final = bytes.fromhex(f"4989da4d89c189c889d10fa2{_STORE}4c89d3c3")
_XGETBV: Final = bytes.fromhex("31c90f01d048c1e2204809d0c3")


def machine_code(triple: str) -> dict[str, bytes]:
    """Functions that LLVM cannot write, by their symbols."""
    if architecture(triple) != "x86_64":
        return {}
    return {"tw_cpuid": _CPUID_WINDOWS if is_windows(triple) else _CPUID, "tw_xgetbv": _XGETBV}


def feature_questions(triple: str, levels: Mapping[str, Sequence[str]]) -> str:
    """The IR of a function for each level that says whether the processor has all features that the level needs."""
    name = architecture(triple)
    if name == "x86_64":
        needed = [_x86_masks(features) for features in levels.values()]
        reader = _READ_X86
    elif name in _LINUX and not (is_windows(triple) or is_macos(triple)):
        needed = [_masks(features, _LINUX[name], name) for features in levels.values()]
        reader = _READ_LINUX.replace("{word}", "i32" if name == "arm" else "i64")
    else:
        raise UnsupportedError(
            f"one library with code for several processors of {triple} is not supported",
            hint="x86-64 has it everywhere, Arm and RISC-V on Linux; export a library for each",
        )
    functions = [_question(level, masks) for level, masks in zip(levels, needed, strict=True)]
    return "\n".join([reader, *functions])


def _x86_masks(features: Iterable[str]) -> dict[int, int]:
    wanted = set(features)
    for feature in tuple(wanted):
        wanted.update(_X86_BESIDE.get(feature, ()))
    masks = _masks(wanted, _X86, "x86_64")
    for feature in sorted(wanted & _SAVED_FOR.keys()):
        masks[_SAVED] = masks.get(_SAVED, 0) | _SAVED_FOR[feature]
    return masks


def _masks(features: Iterable[str], known: Mapping[str, tuple[int, int]], name: str) -> dict[int, int]:
    masks: dict[int, int] = {}
    for feature in features:
        if feature not in known:
            raise UnsupportedError(
                f"a library cannot ask a processor of {name} whether it has the feature '{feature}'",
                where="cpus",
                hint=f"features that it can ask for: {', '.join(known)}",
            )
        word, bit = known[feature]
        masks[word] = masks.get(word, 0) | 1 << bit
    return masks


def _question(level: str, masks: Mapping[int, int]) -> str:
    lines = [f"define internal i1 @tw.has_{level}(ptr %words) {{"]
    answer = "true"
    for word, mask in sorted(masks.items()):
        lines += [
            f"  %at{word} = getelementptr i64, ptr %words, i64 {word}",
            f"  %word{word} = load i64, ptr %at{word}, align 8",
            f"  %set{word} = and i64 %word{word}, {mask}",
            f"  %all{word} = icmp eq i64 %set{word}, {mask}",
            f"  %so_far{word} = and i1 {answer}, %all{word}",
        ]
        answer = f"%so_far{word}"
    return "\n".join([*lines, f"  ret i1 {answer}", "}"])


WORDS: Final = 8
"""How many words `@tw.read_processor(ptr)` writes."""

_READ_LINUX: Final = """
declare {word} @getauxval({word})

define internal void @tw.read_processor(ptr %words) {
  %first = call {word} @getauxval({word} 16)
  %first.wide = call i64 @tw.widen({word} %first)
  store i64 %first.wide, ptr %words, align 8
  %second = call {word} @getauxval({word} 26)
  %second.wide = call i64 @tw.widen({word} %second)
  %at = getelementptr i64, ptr %words, i64 1
  store i64 %second.wide, ptr %at, align 8
  ret void
}

define internal i64 @tw.widen({word} %value) {
  %wide = alloca i64, align 8
  store i64 0, ptr %wide, align 8
  store {word} %value, ptr %wide, align 8
  %result = load i64, ptr %wide, align 8
  ret i64 %result
}
"""

# A leaf is asked only where the processor has it. What the system saves is asked only where it may be (osxsave).
_READ_X86: Final = """
declare void @tw_cpuid(i32, i32, ptr)
declare i64 @tw_xgetbv()

define internal void @tw.read_processor(ptr %words) {
entry:
  %found = alloca [4 x i32], align 16
  call void @tw_cpuid(i32 0, i32 0, ptr %found)
  %most = load i32, ptr %found, align 4
  call void @tw_cpuid(i32 1, i32 0, ptr %found)
  call void @tw.keep(ptr %found, i64 2, ptr %words, i64 0)
  call void @tw.keep(ptr %found, i64 3, ptr %words, i64 1)
  %flags = load i64, ptr %words, align 8
  %osxsave = and i64 %flags, 134217728
  %saves = icmp ne i64 %osxsave, 0
  br i1 %saves, label %saved, label %check.seven
saved:
  %xcr0 = call i64 @tw_xgetbv()
  %at.saved = getelementptr i64, ptr %words, i64 7
  store i64 %xcr0, ptr %at.saved, align 8
  br label %check.seven
check.seven:
  %has.seven = icmp uge i32 %most, 7
  br i1 %has.seven, label %seven, label %extended
seven:
  call void @tw_cpuid(i32 7, i32 0, ptr %found)
  call void @tw.keep(ptr %found, i64 1, ptr %words, i64 2)
  call void @tw.keep(ptr %found, i64 2, ptr %words, i64 3)
  call void @tw.keep(ptr %found, i64 3, ptr %words, i64 4)
  %parts = load i32, ptr %found, align 4
  %has.part = icmp uge i32 %parts, 1
  br i1 %has.part, label %part, label %extended
part:
  call void @tw_cpuid(i32 7, i32 1, ptr %found)
  call void @tw.keep(ptr %found, i64 0, ptr %words, i64 5)
  br label %extended
extended:
  call void @tw_cpuid(i32 -2147483648, i32 0, ptr %found)
  %most.extended = load i32, ptr %found, align 4
  %has.extended = icmp uge i32 %most.extended, -2147483647
  br i1 %has.extended, label %ask, label %done
ask:
  call void @tw_cpuid(i32 -2147483647, i32 0, ptr %found)
  call void @tw.keep(ptr %found, i64 2, ptr %words, i64 6)
  br label %done
done:
  ret void
}

define internal void @tw.keep(ptr %registers, i64 %register, ptr %words, i64 %word) {
  %from = getelementptr i32, ptr %registers, i64 %register
  %value = load i32, ptr %from, align 4
  %wide = zext i32 %value to i64
  %to = getelementptr i64, ptr %words, i64 %word
  store i64 %wide, ptr %to, align 8
  ret void
}
"""
