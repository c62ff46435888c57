"""C for microcontrollers: as for other CPUs, with less of the library of mathematics."""

from __future__ import annotations

from typing import Final

from tilewright.backends.c.dialect import CSource
from tilewright.backends.micro.run_dots import run_dots_text
from tilewright.codegen.c.dialect import DOT4_FUNCTION
from tilewright.tir.machine import DOT4

WORDS: Final = """\
static inline int32_t tw_word(const void* place) {
  int32_t word; /* inputs and outputs are only as aligned as bytes are */
  memcpy(&word, place, sizeof word);
  return word;
}
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
        """Rounded by a sum whose last digit is that of units: `rintf` is a call where there is no instruction."""
        kept = f"(x < {least}f ? {least}f : x > {most}f ? {most}f : x)"
        return (
            f"union {{ float value; int32_t bits; }} u = {{{kept} + 12582912.0f}}; "
            f"return ({kind})(x != x ? 0 : u.bits - 0x4b400000 + {zero});"
        )

    def load_word(self, place: str) -> str:
        """A copy of four bytes, which compilers make one load of."""
        return f"tw_word({place})"

    def instruction_helper(self, name: str) -> tuple[str, str] | None:
        """The product of words, by two instructions of the DSP extension; and dot products of runs."""
        if name == DOT4:
            return DOT4_FUNCTION, _DOT4
        text = run_dots_text(name)
        return None if text is None else (name, text)
