"""C11 as compilers of CPUs have it: the types of `stdint.h`, the mathematics of `math.h`."""

from __future__ import annotations

from typing import ClassVar, Final

from tilewright.codegen.c.dialect import Dialect, math_name
from tilewright.ir.dtype import DataType

INCLUDES: Final = """\
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
"""
RUNTIME: Final = """\
int32_t tw_parallel(int32_t (*body)(void* record, int64_t begin, int64_t end), void* record, int64_t extent);
void* tw_alloc(int64_t bytes);
void tw_free(void* memory);
"""
"""What the thread pool provides (`docs/abi.md`)."""
BIT_COUNTS: Final = """\
static inline int tw_ones(uint64_t x) {
  x -= (x >> 1) & 0x5555555555555555ul;
  x = (x & 0x3333333333333333ul) + ((x >> 2) & 0x3333333333333333ul);
  return (int)((((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0ful) * 0x0101010101010101ul) >> 56);
}
static inline int tw_zeros(uint64_t x) {
  for (int shift = 1; shift < 64; shift *= 2) x |= x >> shift;
  return 64 - tw_ones(x);
}
"""
"""What some compilers call a library of their own for."""
_HALF_BITS: Final = """
#ifndef TW_HALF_BITS
#define TW_HALF_BITS
static inline uint16_t tw_half_bits_float(float x) {
  union { float value; uint32_t bits; } u = {x};
  const uint32_t magnitude = u.bits & 0x7fffffffu, sign = (u.bits >> 16) & 0x8000u;
  const uint32_t normal = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u)) >> 13;
  u.bits = magnitude;
  u.value += 0.5f; /* the last place is now that of a subnormal half */
  const uint32_t subnormal = u.bits - 0x3f000000u;
  if (magnitude >= 0x47800000u) return (uint16_t)(sign | (magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u));
  return (uint16_t)(sign | (magnitude < 0x38800000u ? subnormal : normal));
}
#endif"""
_HALF_BITS_OF_DOUBLE: Final = """
static inline uint16_t tw_half_bits_double(double x) {
  union { float value; uint32_t bits; } u = {(float)x}; /* rounded to odd, so that it is rounded once in all */
  const double single = u.value;
  if (single == single && single != x) u.bits = (u.bits - (fabs(single) > fabs(x))) | 1u;
  return tw_half_bits_float(u.value);
}"""
_HALF_VALUE: Final = """
static inline float tw_half_value(uint16_t bits) {
  union { uint32_t bits; float value; } u = {(uint32_t)(bits & 0x7fffu) << 13};
  u.value *= 0x1p112f;
  if ((bits & 0x7c00u) == 0x7c00u) u.bits |= 0x7f800000u;
  u.bits |= (uint32_t)(bits & 0x8000u) << 16;
  return u.value;
}"""


class CSource(Dialect):
    """C11 with the extensions that GCC and Clang share."""

    name: ClassVar[str] = "C"
    types: ClassVar[dict[str, str]] = {
        **{f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)},
        "bool": "bool",
        "float32": "float",
        "float64": "double",
    }
    function_prefix: ClassVar[str] = "static inline "
    infinity: ClassVar[str] = "INFINITY"
    not_a_number: ClassVar[str] = "NAN"

    def math(self, name: str, dtype: DataType) -> str:
        """The function of `math.h`."""
        base = math_name(name)
        return base if dtype.bits == 64 or base in ("isnan", "isinf", "isfinite") else f"{base}f"

    def bits(self, value: str, source: DataType, target: DataType) -> str:
        """A union."""
        return f"((union {{ {self.types[source.name]} a; {self.types[target.name]} b; }}){{{value}}}).b"

    def half_helpers(self) -> dict[str, str]:
        """Conversions on the bits: not every compiler has a type for halves."""
        return {
            "tw_half_bits_float": _HALF_BITS,
            "tw_half_bits_double": _HALF_BITS + _HALF_BITS_OF_DOUBLE,
            "tw_half_value": _HALF_VALUE,
        }

    def count_bits(self, value: str, wide: bool, leading: bool) -> str:
        """Arithmetic of our own."""
        if not leading:
            return f"tw_ones({value})"
        return f"tw_zeros({value})" if wide else f"(tw_zeros({value}) - 32)"
