"""C for microcontrollers: as for other CPUs, with less of the library of mathematics."""

from __future__ import annotations

from typing import Final

from tilewright.backends.c.dialect import CSource
from tilewright.backends.micro.run_dots import run_dots_text
from tilewright.codegen.c.dialect import DOT4_FUNCTION
from tilewright.ir.dtype import DataType
from tilewright.tir.machine import DOT4

WORDS: Final = """\
typedef int32_t tw_loose_word __attribute__((aligned(1), may_alias));
static inline int32_t tw_word(const void* place) {
  int32_t word; /* inputs and outputs are only as aligned as bytes are */
  memcpy(&word, place, sizeof word);
  return word;
}
/* A float to the nearest integer, even ones of two, with a zero point added, in the range of a byte. NaN is 0. */
#if defined(__ARM_FP) && (__ARM_FP & 4) && defined(__ARM_FEATURE_SAT)
#define TW_BYTE(name, narrow) \\
  static inline int32_t name(float x, int32_t zero) { \\
    int32_t n; \\
    float y; \\
    /* Bits beyond those of infinity are NaN: comparisons of floats would change flags that compilers keep. */ \\
    __asm__("vmov %0, %2\\n vcvtr.s32.f32 %1, %2\\n lsl %0, %0, #1\\n cmp %0, #0xff000000\\n vmov %0, %1\\n" \\
            "ssat %0, #24, %0\\n it ls\\n addls %0, %0, %3\\n " narrow \\
            : "=&r"(n), "=&t"(y) : "t"(x), "rI"(zero) : "cc"); \\
    return n; \\
  }
TW_BYTE(tw_byte_signed, "ssat %0, #8, %0")
TW_BYTE(tw_byte_unsigned, "usat %0, #8, %0")
#else
static inline int32_t tw_nearest(float x) {
  /* The last digit of the sum is that of units. */
  union { float value; int32_t bits; } u = {(x < -4096.0f ? -4096.0f : x > 4096.0f ? 4096.0f : x) + 12582912.0f};
  return u.bits - 0x4b400000;
}
static inline int32_t tw_byte_signed(float x, int32_t zero) {
  const int32_t n = tw_nearest(x) + zero;
  return x != x ? 0 : n < -128 ? -128 : n > 127 ? 127 : n;
}
static inline int32_t tw_byte_unsigned(float x, int32_t zero) {
  const int32_t n = tw_nearest(x) + zero;
  return x != x ? 0 : n < 0 ? 0 : n > 255 ? 255 : n;
}
#endif
"""
_DOT4: Final = f"""\
#if defined(__ARM_FEATURE_SIMD32)
static inline int32_t {DOT4_FUNCTION}(int32_t sum, int32_t a, int32_t b) {{
  int32_t even_a, odd_a, even_b, odd_b;
  __asm__("sxtb16 %0, %1" : "=r"(even_a) : "r"(a));
  __asm__("sxtb16 %0, %1" : "=r"(even_b) : "r"(b));
  __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(even_a), "r"(even_b));
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd_a) : "r"(a));
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd_b) : "r"(b));
  __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(odd_a), "r"(odd_b));
  return sum;
}}
#else
static inline int32_t {DOT4_FUNCTION}(int32_t sum, int32_t a, int32_t b) {{
  uint32_t total = (uint32_t)sum;
  for (int shift = 0; shift < 32; shift += 8) {{
    total += (uint32_t)((int8_t)((uint32_t)a >> shift) * (int8_t)((uint32_t)b >> shift));
  }}
  return (int32_t)total;
}}
#endif"""
"""Two products of 16 bits an instruction: of the even bytes, then of the odd ones."""


class MicroC(CSource):
    """C11 for processors whose floats are few and slow."""

    def rounded_byte(self, least: float, most: float, zero: int, kind: str) -> str | None:
        """Rounded by an instruction or a sum: `rintf` is a call where there is no instruction."""
        sign = "unsigned" if kind.startswith("u") else "signed"
        return f"return ({kind})tw_byte_{sign}(x, {zero});"

    def extreme(self, dtype: DataType, lesser: bool) -> str | None:
        """One comparison where the second is a number that is known."""
        if not dtype.is_float:
            return None
        return f"return !(a {'>=' if lesser else '<='} b) && b == b ? a : b;"

    def load_word(self, place: str) -> str:
        """A copy of four bytes, which compilers make one load of."""
        return f"tw_word({place})"

    def instruction_helper(self, name: str) -> tuple[str, str] | None:
        """The product of words, by two instructions of the DSP extension; and dot products of runs."""
        if name == DOT4:
            return DOT4_FUNCTION, _DOT4
        text = run_dots_text(name)
        return None if text is None else (name, text)
