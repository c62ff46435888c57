"""OpenCL C 1.2."""

from __future__ import annotations

from typing import ClassVar

from tilewright.codegen.c.dialect import DOT4_FUNCTION, SHORT_TYPES, math_name
from tilewright.codegen.c.kernels import CLanguage
from tilewright.codegen.c.vectors import vector_spellings
from tilewright.ir.dtype import DataType
from tilewright.tir.machine import DOT4

_AXES = {"x": 0, "y": 1, "z": 2}


class OpenCLDialect(CLanguage):
    """OpenCL C: address spaces are written out, builtin functions are overloaded."""

    name: ClassVar[str] = "OpenCL"
    suffix: ClassVar[str] = ".cl"
    types: ClassVar[dict[str, str]] = {**SHORT_TYPES, "float64": "double"}
    function_prefix: ClassVar[str] = "inline "
    # PoCL 3.1 joins a condition after such a loop with the same condition inside it, and takes the way of one
    # work-item for that of all.
    meets_after_loops: ClassVar[bool] = True
    vector_types: ClassVar[dict[tuple[str, int], str]] = vector_spellings(
        (2, 4), {name: spelling for name, spelling in types.items() if name != "bool"}, types
    )
    infinity: ClassVar[str] = "INFINITY"
    not_a_number: ClassVar[str] = "as_float(0x7fc00000u)"

    def preamble(self, uses_double: bool) -> str:
        """The double-precision extension, where it is used."""
        return "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" if uses_double else ""

    def signature(self, name: str, parameters: list[str], threads: int) -> str:
        """The head of a kernel."""
        return f"__kernel void {name}({', '.join(parameters)})"

    def pointer(self, element: str, name: str, is_written: bool, is_constant: bool, is_alone: bool) -> str:
        """A pointer to global memory that no other parameter reaches."""
        return f"__global {'' if is_written else 'const '}{element}*{' restrict' if is_alone else ''} {name}"

    def shared(self, element: str, name: str, size: int) -> str:
        """Local memory of the work-group."""
        return f"__local {element} {name}[{size}];"

    def axis(self, name: str) -> str:
        """The id of the work-group or of the work-item in it."""
        kind, letter = name.split(".")
        function = "get_group_id" if kind == "blockIdx" else "get_local_id"
        return f"(int){function}({_AXES[letter]})"

    def barrier(self, scope: str) -> str:
        """A barrier of the work-group."""
        fence = "CLK_LOCAL_MEM_FENCE" if scope == "shared" else "CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE"
        return f"barrier({fence});"

    def math(self, name: str, dtype: DataType) -> str:
        """The builtin function."""
        return math_name(name)

    def bits(self, value: str, source: DataType, target: DataType) -> str:
        """`as_type`."""
        return f"as_{self.types[target.element.name]}({value})"

    def half_helpers(self) -> dict[str, str]:
        """Conversions by the functions that load and store halves, which need no extension."""
        to_bits = "{{ ushort bits; vstore_half_rte(x, 0, (__private half*)&bits); return bits; }}"
        return {
            "tw_half_bits_float": f"inline ushort tw_half_bits_float(float x) {to_bits.format()}",
            "tw_half_bits_double": f"inline ushort tw_half_bits_double(double x) {to_bits.format()}",
            "tw_half_value": "inline float tw_half_value(ushort bits) "
            "{ return vload_half(0, (__private const half*)&bits); }",
        }

    def count_bits(self, value: str, wide: bool, leading: bool) -> str:
        """`clz` and `popcount`."""
        return f"(int){'clz' if leading else 'popcount'}(({'ulong' if wide else 'uint'}){value})"

    def load_vector(self, element: str, lanes: int, place: str, scope: str) -> str:
        """`vload`."""
        return f"vload{lanes}(0, {place})"

    def load_word(self, place: str) -> str:
        """A read through a pointer to global words."""
        return f"*(__global const int*)({place})"

    def instruction_helper(self, name: str) -> tuple[str, str] | None:
        """The function of `cl_khr_integer_dot_product`."""
        if name != DOT4:
            return None
        total = "(int)((uint)c + (uint)dot_4x8packed_ss_int((uint)a, (uint)b))"
        return DOT4_FUNCTION, f"inline int {DOT4_FUNCTION}(int c, int a, int b) {{ return {total}; }}"

    def store_vector(self, element: str, place: str, values: list[str], scope: str) -> str:
        """`vstore`."""
        return f"vstore{len(values)}(({self.vector_type(element, len(values))})({', '.join(values)}), 0, {place});"
