"""HIP C++, as clang and hipRTC compile it without any header.

Single-precision mathematics was made arithmetic before, so that programs need no library of AMD's; functions of doubles
are those of its device library, which hipRTC and hipcc link.
"""

from __future__ import annotations

from typing import ClassVar, Final

from tilewright.codegen.c.dialect import CPP_TYPES, CPP_VECTORS, DOT4_FUNCTION, math_name
from tilewright.codegen.c.kernels import CLanguage
from tilewright.codegen.c.vectors import vector_spellings
from tilewright.ir.dtype import DataType
from tilewright.tir.machine import DOT4

_BUILTIN: Final = ("sqrt", "floor", "ceil", "round", "trunc", "abs", "fma", "fmod", "copysign")
_TESTS: Final = ("isnan", "isinf", "isfinite")
_LIBRARY: Final = (
    "exp exp2 log log2 log10 log1p expm1 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf pow atan2"
).split()
_FAR: Final = """
{head}float tw_turns(float x) {{
  double t = x;
  for (int i = 0; i < 3; ++i) {{
    double n = __builtin_rint(t * 0.15915494309189535);
    t = __builtin_fma(-n, 2.4492935982947064e-16, __builtin_fma(-n, 6.283185307179586, t));
  }}
  return (float)(t * 0.15915494309189535);
}}
{head}float tw_far_sin(float x) {{ return __builtin_amdgcn_sinf(tw_turns(x)); }}
{head}float tw_far_cos(float x) {{ return __builtin_amdgcn_cosf(tw_turns(x)); }}
{head}float tw_far_tan(float x) {{ return tw_far_sin(x) / tw_far_cos(x); }}
"""
"""Angles so large that the expansions leave them alone: reduced in doubles, then the hardware's functions."""


class HipDialect(CLanguage):
    """HIP C++ in terms of clang's attributes and builtin functions."""

    name: ClassVar[str] = "HIP"
    suffix: ClassVar[str] = ".hip"
    types: ClassVar[dict[str, str]] = CPP_TYPES
    function_prefix: ClassVar[str] = "static __attribute__((device, always_inline)) inline "
    vector_types: ClassVar[dict[tuple[str, int], str]] = vector_spellings(
        (2, 4), {name: f"tw_{base}" for name, base in CPP_VECTORS.items()}, types
    )
    infinity: ClassVar[str] = "__builtin_inff()"
    not_a_number: ClassVar[str] = '__builtin_nanf("")'

    def preamble(self, uses_double: bool) -> str:
        """Vector types, and the functions of doubles."""
        lines = [
            f"typedef {self.types[name]} tw_{base}{lanes} __attribute__((ext_vector_type({lanes})));"
            for name, base in CPP_VECTORS.items()
            for lanes in (2, 4)
        ]
        if uses_double:
            for name in _LIBRARY:
                parameters = "double, double" if name in ("pow", "atan2") else "double"
                lines.append(f'extern "C" __attribute__((device, const)) double __ocml_{name}_f64({parameters});')
        return "\n".join([*lines, _FAR.format(head=self.function_prefix)])

    def signature(self, name: str, parameters: list[str], threads: int) -> str:
        """The head of a kernel for blocks of at most so many threads."""
        bounds = f"amdgpu_flat_work_group_size(1, {threads})"
        return f'extern "C" __attribute__((global, {bounds})) void {name}({", ".join(parameters)})'

    def pointer(self, element: str, name: str, is_written: bool, is_constant: bool, is_alone: bool) -> str:
        """A pointer that no other parameter reaches."""
        return f"{'' if is_written else 'const '}{element}*{' __restrict__' if is_alone else ''} {name}"

    def shared(self, element: str, name: str, size: int) -> str:
        """Local data share of the workgroup, aligned for vector accesses."""
        return f"static __attribute__((shared, aligned(16))) {element} {name}[{size}];"

    def axis(self, name: str) -> str:
        """The builtin function of the place in the grid or in the workgroup."""
        kind, letter = name.split(".")
        return f"(int)__builtin_amdgcn_{'workgroup' if kind == 'blockIdx' else 'workitem'}_id_{letter}()"

    def barrier(self, scope: str) -> str:
        """A barrier of the workgroup between fences of its memory."""
        release = '__builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");'
        acquire = '__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");'
        return f"{release} __builtin_amdgcn_s_barrier(); {acquire}"

    def math(self, name: str, dtype: DataType) -> str:
        """A builtin function, or one of the device library."""
        if name in _TESTS:
            return f"__builtin_{name}"
        if name in _BUILTIN:
            return f"__builtin_{math_name(name)}{'' if dtype.bits == 64 else 'f'}"
        return f"__ocml_{name}_f64" if dtype.bits == 64 else f"tw_far_{name}"

    def bits(self, value: str, source: DataType, target: DataType) -> str:
        """`__builtin_bit_cast`."""
        return f"__builtin_bit_cast({self.types[target.element.name]}, {value})"

    def half_helpers(self) -> dict[str, str]:
        """Conversions through the type of halves."""
        head, short = self.function_prefix, self.types["uint16"]
        to_bits = f"{{ return __builtin_bit_cast({short}, (_Float16)x); }}"
        return {
            "tw_half_bits_float": f"{head}{short} tw_half_bits_float(float x) {to_bits}",
            "tw_half_bits_double": f"{head}{short} tw_half_bits_double(double x) {to_bits}",
            "tw_half_value": f"{head}float tw_half_value({short} bits) "
            "{ return (float)__builtin_bit_cast(_Float16, bits); }",
        }

    def count_bits(self, value: str, wide: bool, leading: bool) -> str:
        """`__builtin_clz`, which is undefined at 0, and `__builtin_popcount`."""
        suffix, kind = ("ll", self.types["uint64"]) if wide else ("", self.types["uint32"])
        if not leading:
            return f"__builtin_popcount{suffix}(({kind}){value})"
        return f"(({kind}){value} == 0 ? {64 if wide else 32} : __builtin_clz{suffix}(({kind}){value}))"

    def instruction_helper(self, name: str) -> tuple[str, str] | None:
        """The builtin functions of `v_dot4_i32_i8`, and of `v_dot4_i32_iu8` that newer GPUs have in its place."""
        if name != DOT4:
            return None
        text = (
            f"{self.function_prefix}int {DOT4_FUNCTION}(int c, int a, int b) {{\n"
            "#if defined(__GFX11__) || defined(__GFX12__)\n"
            "  return __builtin_amdgcn_sudot4(true, a, true, b, c, false);\n"
            "#else\n"
            "  return __builtin_amdgcn_sdot4(a, b, c, false);\n"
            "#endif\n"
            "}"
        )
        return DOT4_FUNCTION, text

    def store_vector(self, element: str, place: str, values: list[str], scope: str) -> str:
        """An assignment of a vector."""
        kind = self.vector_type(element, len(values))
        return f"*({kind}*)({place}) = ({kind}){{{', '.join(values)}}};"
