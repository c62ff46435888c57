"""Rows of fragments, and scalar functions of one instruction, as functions of CUDA C++."""

from __future__ import annotations

from tilewright.backends.cuda.instructions import function_name
from tilewright.tir.row_instructions import POWER_OF_TWO, ROUND_PAIR, ROW_MAX, ROW_SUM, STARTED
from tilewright.tir.warp_instructions import HELD

_PREFIX = "static __device__ __forceinline__"


def row_instruction_text(instruction: str) -> str | None:
    """The function of an instruction; None if it is none of these."""
    name = function_name(instruction)
    if instruction == POWER_OF_TWO:
        power = 'asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));'
        return f"{_PREFIX} float {name}(float x) {{ float y; {power} return y; }}"
    if instruction in ROUND_PAIR.values():
        kind = instruction.rpartition(".")[2]
        # The first operand is the upper half.
        rounded = f'asm("cvt.rn.{kind}x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(from[1]), "f"(from[0]));'
        head = f"{_PREFIX} void {name}(unsigned short* to, const float* from)"
        return f"{head} {{ unsigned int bits; {rounded} *(unsigned int*)to = bits; }}"
    if f"{HELD}wait." in instruction:
        return _wait(instruction)
    if HELD in instruction:
        return _held(instruction)
    if instruction in (*ROW_MAX.values(), *ROW_SUM.values()):
        combined = "max.NaN.f32" if instruction in ROW_MAX.values() else "add.f32"
        parts = int(instruction.rpartition(".")[2])
        steps = "".join(
            f"  other = __shfl_xor_sync(0xffffffffu, x, {distance});\n"
            f'  asm("{combined} %0, %1, %2;" : "=f"(x) : "f"(x), "f"(other));\n'
            for distance in (1, 2, 4, 8, 16)
            if distance < parts
        )
        return (
            f"{_PREFIX} void {name}(float* to, const float* from) {{\n  float x = *from, other;\n{steps}  *to = x;\n}}"
        )
    return None


def _held(instruction: str) -> str:
    """A product of a warp group with rows in registers: all steps, and the wait for them, in one piece.

    Nothing comes between: the registers are in use until the wait is over. Products that are started only have a wait
    elsewhere, which names the registers.
    """
    _, _, kind, _, order, *more, columns_text, steps_text = instruction.removesuffix(STARTED).split(".")
    wait = "" if instruction.endswith(STARTED) else "\\nwgmma.wait_group.sync.aligned 0;"
    columns, steps = int(columns_text[1:]), int(steps_text[1:])
    panels, fresh = order == "panels", bool(more)
    count, slabs = columns // 2, steps // 16
    sums = ", ".join(f"%{n}" for n in range(count))
    # Sixteen steps further are 32 bytes in a row of steps, 16 rows in panels; descriptors count in 16 bytes.
    advance = 128 if panels else 2
    lines = "".join(
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{sums}}}, "
        f"{{{', '.join(f'%{count + 4 * slab + n}' for n in range(4))}}}, %{count + 4 * slabs + slab}, "
        f"{'q' if fresh and slab == 0 else 'p'}, 1, 1, {int(panels)};\\n"
        for slab in range(slabs)
    )
    outputs = ", ".join(f'"{"=" if fresh else "+"}f"(d[{n}])' for n in range(count))
    rows = ", ".join(f'"r"(x[{n}])' for n in range(4 * slabs))
    places = ", ".join(f'"l"(y + {advance * slab}ull)' for slab in range(slabs))
    distance = "((unsigned long long)(panel >> 4) << 16)" if panels else "(1ull << 16)"
    return (
        f"{_PREFIX} void {function_name(instruction)}"
        f"(float* d, const void* a, const void* b{', long long panel' if panels else ''}) {{\n"
        "  const unsigned int* x = (const unsigned int*)a;\n"
        "  const unsigned int at = (unsigned int)__cvta_generic_to_shared(b);\n"
        "  const unsigned long long y = (((unsigned long long)(at & 0x3ffff)) >> 4) | (64ull << 32) | (1ull << 62)"
        f" | {distance};\n"
        '  asm volatile("{.reg .pred p, q;\\nsetp.ne.b32 p, 1, 0;\\nsetp.ne.b32 q, 0, 0;\\nwgmma.fence.sync.aligned;\\n'
        f'{lines}wgmma.commit_group.sync.aligned;{wait}}}"\n'
        f'    : {outputs} : {rows}, {places} : "memory");\n'
        "}"
    )


def _wait(instruction: str) -> str:
    """The wait for started products, whose registers it names: no use of them may move in front of it."""
    _, _, _, _, left, columns, *steps = instruction.split(".")
    named = [f'"+f"(d[{n}])' for n in range(int(columns[1:]) // 2)]
    named += [f'"+r"(x[{n}])' for text in steps for n in range(int(text[1:]) // 4)]
    rows = "  unsigned int* x = (unsigned int*)a;\n" if steps else ""
    return (
        f"{_PREFIX} void {function_name(instruction)}(float* d{', void* a' if steps else ''}) {{\n{rows}"
        f'  asm volatile("wgmma.wait_group.sync.aligned {left};" : {", ".join(named)} :: "memory");\n'
        "}"
    )
