"""Rows of fragments, and scalar functions of one instruction, as functions of CUDA C++."""

from __future__ import annotations

from tilewright.codegen.cuda.instructions import function_name
from tilewright.tir.row_instructions import POWER_OF_TWO, ROUND_PAIR, ROW_MAX, ROW_SUM

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
