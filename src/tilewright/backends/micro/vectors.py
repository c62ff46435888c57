"""Vector stores as C for processors with MVE: four lanes of 32 bits a register, bytes made wide as they are loaded.

    for lane in 4: out[i + lane] = int8(round(max(float(sums[lane]) * scale[lane], 0)))
    ->  tw_store_int8(out + i, tw_rounded_int8(tw_at_least_f(tw_f_of_i(tw_load_int32(sums)) * ..., 0.0f), 0))

The functions have versions for any other processor in GCC's and Clang's vector types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.codegen.c.expressions import Expressions
from tilewright.codegen.lanes import Lanes
from tilewright.ir import expr as e
from tilewright.ir.dtype import FLOAT32, INT8, INT32, UINT8, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.tir.buffer import BufferLoad
from tilewright.tir.stmt import BufferStore

LANES: Final = 4
"""Of a register, each of 32 bits."""
FUNCTIONS: Final = "tw_vectors"
_MEMORY: Final = (INT8, UINT8, INT32, FLOAT32)
"""Types of elements in memory; in registers, bytes are int32."""
_ARITHMETIC: Final[dict[type, str]] = {e.Add: "add", e.Sub: "sub", e.Mul: "mul", e.Max: "max", e.Min: "min"}


class VectorStores:
    """Vector stores of one kernel."""

    def __init__(self, c: Expressions, lanes: Lanes) -> None:
        self._c = c
        self._lanes = lanes

    def store(self, stmt: BufferStore) -> bool:
        """Emit a store of whole registers; False, and nothing is emitted, where some part of it has no vector form."""
        if stmt.value.dtype.lanes % LANES or not self._has_form(stmt.value) or not _is_run(stmt.indices[0]):
            return False
        if stmt.buffer.dtype.element not in _MEMORY:
            return False
        c = self._c
        for first in range(0, stmt.value.dtype.lanes, LANES):
            place = self._lanes.of(stmt.indices[0], first)
            c.start(place, *self._scalars(stmt.value, first))
            value = self._text(stmt.value, first)
            c.line(f"tw_store_{stmt.buffer.dtype.element}({c.name(stmt.buffer)} + {c.value(place)}, {value});")
        return True

    def _has_form(self, expr: PrimExpr) -> bool:
        """Whether all parts of a value have a vector form."""
        if isinstance(expr, e.Broadcast):
            return expr.dtype.element in (INT32, FLOAT32, INT8, UINT8)
        if isinstance(expr, BufferLoad):
            return expr.buffer.dtype.element in _MEMORY and _is_run(expr.indices[0])
        if isinstance(expr, e.Cast):
            source = self._rounded(expr)
            if source is not None:
                return self._has_form(source[0])
            narrow = expr.dtype.element in (INT32, FLOAT32) and expr.value.dtype.element in (INT8, UINT8, INT32)
            return narrow and self._has_form(expr.value)
        if type(expr) in _ARITHMETIC and expr.dtype.element in (INT32, FLOAT32):
            assert isinstance(expr, e.BinaryExpr)
            return self._has_form(expr.a) and self._has_form(expr.b)
        return False

    def _rounded(self, expr: e.Cast) -> tuple[PrimExpr, int] | None:
        """The float that a cast to a byte rounds, and the zero point that is added."""
        value, zero = expr.value, 0
        if expr.dtype.element not in (INT8, UINT8):
            return None
        if isinstance(value, e.Add) and isinstance(value.b, e.Broadcast) and isinstance(value.b.value, e.FloatImm):
            number = float(value.b.value.value)
            if not number.is_integer() or abs(number) > UINT8.max_value():
                return None
            value, zero = value.a, int(number)
        if not isinstance(value, e.Call) or value.name != "round" or value.dtype.element is not FLOAT32:
            return None
        return value.args[0], zero

    def _scalars(self, expr: PrimExpr, first: int) -> list[PrimExpr]:
        """The scalar expressions that a value is made of: places in memory, and numbers that all lanes have."""
        if isinstance(expr, e.Broadcast):
            return [expr.value]
        if isinstance(expr, BufferLoad):
            return [self._lanes.of(expr.indices[0], first)]
        return [
            part for child in expr.children() if isinstance(child, PrimExpr) for part in self._scalars(child, first)
        ]

    def _text(self, expr: PrimExpr, first: int) -> str:
        return _FORMS[type(expr)](self, expr, first)

    def _broadcast(self, expr: PrimExpr, first: int) -> str:
        assert isinstance(expr, e.Broadcast)
        return f"tw_all_{_register(expr.dtype)}({self._c.value(expr.value)})"

    def _load(self, expr: PrimExpr, first: int) -> str:
        assert isinstance(expr, BufferLoad)
        place = self._c.value(self._lanes.of(expr.indices[0], first))
        return f"tw_load_{expr.buffer.dtype.element}({self._c.name(expr.buffer)} + {place})"

    def _cast(self, expr: PrimExpr, first: int) -> str:
        assert isinstance(expr, e.Cast)
        rounded = self._rounded(expr)
        if rounded is not None:
            return f"tw_rounded_{expr.dtype.element}({self._text(rounded[0], first)}, {rounded[1]})"
        text = self._text(expr.value, first)
        if isinstance(expr.value, e.Cast) and self._rounded(expr.value) is not None:
            text = f"tw_wide_{expr.value.dtype.element}({text})"
        return f"tw_f_of_i({text})" if expr.dtype.element is FLOAT32 else text

    def _arithmetic(self, expr: PrimExpr, first: int) -> str:
        assert isinstance(expr, e.BinaryExpr)
        kind = _register(expr.dtype)
        bound = expr.b
        if isinstance(expr, e.Max) and kind == "f" and isinstance(bound, e.Broadcast) and _is_number(bound.value):
            return f"tw_at_least_f({self._text(expr.a, first)}, {self._c.value(bound.value)})"
        return f"tw_{_ARITHMETIC[type(expr)]}_{kind}({self._text(expr.a, first)}, {self._text(expr.b, first)})"


_FORMS: Final[dict[type, Callable[[VectorStores, PrimExpr, int], str]]] = {
    e.Broadcast: VectorStores._broadcast,
    BufferLoad: VectorStores._load,
    e.Cast: VectorStores._cast,
    **dict.fromkeys(_ARITHMETIC, VectorStores._arithmetic),
}


def _register(dtype: DataType) -> str:
    return "f" if dtype.element is FLOAT32 else "i"


def _is_number(value: PrimExpr) -> bool:
    return isinstance(value, e.FloatImm) and value.value == value.value


def _is_run(index: PrimExpr) -> bool:
    """Whether the lanes of an index are neighbours."""
    return isinstance(index, e.Ramp) and e.is_const_int(index.stride, 1)


TEXT: Final = """\
#if defined(__ARM_FEATURE_MVE) && (__ARM_FEATURE_MVE & 2)
#include <arm_mve.h>
#define TW_MVE 1
#endif
typedef int32_t tw_i __attribute__((vector_size(16)));
typedef uint32_t tw_u __attribute__((vector_size(16)));
typedef float tw_f __attribute__((vector_size(16)));
/* In memory, vectors are only as aligned as their elements. */
typedef tw_i tw_i_memory __attribute__((aligned(4), may_alias));
typedef tw_f tw_f_memory __attribute__((aligned(4), may_alias));
static inline tw_i tw_load_int32(const int32_t* p) { return *(const tw_i_memory*)p; }
static inline tw_f tw_load_float32(const float* p) { return *(const tw_f_memory*)p; }
static inline void tw_store_int32(int32_t* p, tw_i x) { *(tw_i_memory*)p = x; }
static inline void tw_store_float32(float* p, tw_f x) { *(tw_f_memory*)p = x; }
static inline tw_i tw_add_i(tw_i a, tw_i b) { return (tw_i)((tw_u)a + (tw_u)b); }
static inline tw_i tw_sub_i(tw_i a, tw_i b) { return (tw_i)((tw_u)a - (tw_u)b); }
static inline tw_i tw_mul_i(tw_i a, tw_i b) { return (tw_i)((tw_u)a * (tw_u)b); }
static inline tw_f tw_add_f(tw_f a, tw_f b) { return a + b; }
static inline tw_f tw_sub_f(tw_f a, tw_f b) { return a - b; }
static inline tw_f tw_mul_f(tw_f a, tw_f b) { return a * b; }
static inline tw_i tw_all_i(int32_t x) { return (tw_i){x, x, x, x}; }
static inline tw_f tw_all_f(float x) { return (tw_f){x, x, x, x}; }
/* NaN if either is. */
static inline tw_f tw_max_f(tw_f a, tw_f b) {
  for (int n = 0; n < 4; ++n) a[n] = a[n] > b[n] || a[n] != a[n] ? a[n] : b[n];
  return a;
}
static inline tw_f tw_min_f(tw_f a, tw_f b) {
  for (int n = 0; n < 4; ++n) a[n] = a[n] < b[n] || a[n] != a[n] ? a[n] : b[n];
  return a;
}
#if defined(TW_MVE)
static inline tw_i tw_load_int8(const int8_t* p) { return (tw_i)vldrbq_s32(p); }
static inline tw_i tw_load_uint8(const uint8_t* p) { return (tw_i)vldrbq_u32(p); }
static inline void tw_store_int8(int8_t* p, tw_i x) { vstrbq_s32(p, (int32x4_t)x); }
static inline void tw_store_uint8(uint8_t* p, tw_i x) { vstrbq_u32(p, (uint32x4_t)x); }
static inline tw_i tw_max_i(tw_i a, tw_i b) { return (tw_i)vmaxq_s32((int32x4_t)a, (int32x4_t)b); }
static inline tw_i tw_min_i(tw_i a, tw_i b) { return (tw_i)vminq_s32((int32x4_t)a, (int32x4_t)b); }
static inline tw_f tw_f_of_i(tw_i x) { return (tw_f)vcvtq_f32_s32((int32x4_t)x); }
static inline tw_f tw_at_least_f(tw_f x, float least) {
  __asm__("vpt.f32 le, %q0, %1\\n vdupt.32 %q0, %1" : "+w"(x) : "r"(least) : "p0");
  return x;
}
/* To the nearest, even ones of two; NaN is 0. Only the lowest byte of a lane is to be used, or made wide. */
static inline tw_i tw_rounded_int8(tw_f x, int32_t zero) {
  tw_i y;
  __asm__("vcvtn.s32.f32 %q0, %q1\\n vpt.f32 eq, %q1, %q1\\n vqaddt.s32 %q0, %q0, %2\\n"
          "vqmovnb.s32 %q0, %q0\\n vqmovnb.s16 %q0, %q0" : "=&w"(y) : "w"(x), "r"(zero) : "p0");
  return y;
}
static inline tw_i tw_rounded_uint8(tw_f x, int32_t zero) {
  tw_i y;
  __asm__("vcvtn.s32.f32 %q0, %q1\\n vpt.f32 eq, %q1, %q1\\n vqaddt.s32 %q0, %q0, %2\\n"
          "vqmovunb.s32 %q0, %q0\\n vqmovnb.u16 %q0, %q0" : "=&w"(y) : "w"(x), "r"(zero) : "p0");
  return y;
}
static inline tw_i tw_wide_int8(tw_i x) { return (tw_i)vmovlbq_s16(vmovlbq_s8((int8x16_t)x)); }
static inline tw_i tw_wide_uint8(tw_i x) { return (tw_i)vmovlbq_u16(vmovlbq_u8((uint8x16_t)x)); }
#else
static inline tw_i tw_wide_int8(tw_i x) { return x; }
static inline tw_i tw_wide_uint8(tw_i x) { return x; }
static inline tw_i tw_load_int8(const int8_t* p) { return (tw_i){p[0], p[1], p[2], p[3]}; }
static inline tw_i tw_load_uint8(const uint8_t* p) { return (tw_i){p[0], p[1], p[2], p[3]}; }
static inline void tw_store_int8(int8_t* p, tw_i x) { for (int n = 0; n < 4; ++n) p[n] = (int8_t)x[n]; }
static inline void tw_store_uint8(uint8_t* p, tw_i x) { for (int n = 0; n < 4; ++n) p[n] = (uint8_t)x[n]; }
static inline tw_i tw_max_i(tw_i a, tw_i b) {
  for (int n = 0; n < 4; ++n) a[n] = a[n] > b[n] ? a[n] : b[n];
  return a;
}
static inline tw_i tw_min_i(tw_i a, tw_i b) {
  for (int n = 0; n < 4; ++n) a[n] = a[n] < b[n] ? a[n] : b[n];
  return a;
}
static inline tw_f tw_f_of_i(tw_i x) { return (tw_f){(float)x[0], (float)x[1], (float)x[2], (float)x[3]}; }
static inline tw_f tw_at_least_f(tw_f x, float least) {
  for (int n = 0; n < 4; ++n) x[n] = x[n] <= least ? least : x[n];
  return x;
}
static inline tw_i tw_rounded(tw_f x, int32_t zero, float least, float most) {
  tw_i y;
  for (int n = 0; n < 4; ++n) {
    union { float value; int32_t bits; } u = {(x[n] < least ? least : x[n] > most ? most : x[n]) + 12582912.0f};
    y[n] = x[n] != x[n] ? 0 : u.bits - 0x4b400000 + zero;
  }
  return y;
}
static inline tw_i tw_rounded_int8(tw_f x, int32_t zero) {
  return tw_rounded(x, zero, -128.0f - (float)zero, 127.0f - (float)zero);
}
static inline tw_i tw_rounded_uint8(tw_f x, int32_t zero) {
  return tw_rounded(x, zero, 0.0f - (float)zero, 255.0f - (float)zero);
}
#endif"""
