"""C for microcontrollers: as for other CPUs, with less of the library of mathematics."""

from __future__ import annotations

from tilewright.backends.c.dialect import CSource


class MicroC(CSource):
    """C11 for processors whose floats are few and slow."""

    def rounded_byte(self, least: float, most: float, zero: int, kind: str) -> str | None:
        """Rounded by a sum whose last digit is that of units: `rintf` is a call where there is no instruction."""
        kept = f"(x < {least}f ? {least}f : x > {most}f ? {most}f : x)"
        return (
            f"union {{ float value; int32_t bits; }} u = {{{kept} + 12582912.0f}}; "
            f"return ({kind})(x != x ? 0 : u.bits - 0x4b400000 + {zero});"
        )
