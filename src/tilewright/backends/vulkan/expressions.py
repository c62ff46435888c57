"""Scalar expressions as SPIR-V instructions, with the meaning of `docs/semantics.md`.

Values are ids of results; everything is computed once a statement. Selections that read memory become branches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilewright.backends.vulkan.convert import cast
from tilewright.backends.vulkan.intrinsics import call
from tilewright.backends.vulkan.module import SpirvModule
from tilewright.backends.vulkan.types import (
    FLOAT_OPERATIONS,
    INTEGER_OPERATIONS,
    float_words,
    register_type,
    storage_type,
)
from tilewright.codegen.operators import by_family
from tilewright.codegen.values import KernelValues, logical_value, select_value
from tilewright.ir import expr as e
from tilewright.ir.dtype import INDEX, DataType
from tilewright.ir.expr import PrimExpr, Var
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir.buffer import Buffer, BufferLoad


class SpirvExpressions(KernelValues):
    """Expressions of one kernel. `storage` are the variables of buffers in storage, `memory` those of other buffers."""

    def __init__(self, module: SpirvModule, prefix: str) -> None:
        super().__init__()
        self.module = module
        self.prefix = prefix
        self.storage: dict[Buffer, str] = {}
        self.memory: dict[Buffer, tuple[str, str]] = {}
        self.variables: dict[Var, str] = {}
        self.label = f"%{prefix}_start"

    # ---------------------------------------------------------------- instructions

    def fresh(self) -> str:
        """An id that was not used before."""
        return f"%{self.prefix}_{self.temporary()}"

    def op(self, name: str, kind: str, *operands: str) -> str:
        """An instruction with a result of a type."""
        result = self.fresh()
        self.line(f"{result} = {name} {self.module.type(kind)} {' '.join(operands)}")
        return result

    def glsl(self, number: int, kind: str, *operands: str) -> str:
        """A function of the extended instruction set."""
        return self.op("OpExtInst", kind, "%glsl", str(number), *operands)

    def integer(self, value: int, kind: str = "%u32") -> str:
        """An integer constant."""
        return self.module.integer(kind, value)

    def truth(self, value: bool) -> str:
        """A constant condition."""
        return self.module.constant("%bool", int(value))

    def connect(self, conjunction: bool, a: str, b: str) -> str:
        """Both of two conditions, or one of them."""
        return self.op("OpLogicalAnd" if conjunction else "OpLogicalOr", "%bool", a, b)

    def select(self, kind: str, condition: str, a: str, b: str) -> str:
        """One of two values that are both there."""
        return self.op("OpSelect", kind, condition, a, b)

    def begin(self, label: str) -> None:
        """Begin a block of instructions."""
        self.line(f"{label} = OpLabel")
        self.label = label

    def choice(self, condition: str, kind: str, then: Callable[[], str], otherwise: Callable[[], str]) -> str:
        """A value of one of two sides, only one of which is computed."""
        first, second, after = self.fresh(), self.fresh(), self.fresh()
        self.line(f"OpSelectionMerge {after} None")
        self.line(f"OpBranchConditional {condition} {first} {second}")
        sides = []
        for label, side in ((first, then), (second, otherwise)):
            self.begin(label)
            self.enter()
            value = side()
            sides += [value, self.label]
            self.leave()
            self.line(f"OpBranch {after}")
        self.begin(after)
        return self.op("OpPhi", kind, *sides)

    # ---------------------------------------------------------------- values

    def emit(self, expr: PrimExpr) -> str:
        """The id of an expression that was not met before."""
        handler = _HANDLERS.get(type(expr))
        if handler is None:
            raise UnsupportedError(f"Vulkan kernels have no {type(expr).__name__}")
        return handler(self, expr)

    def share(self, expr: PrimExpr, text: str) -> str:
        """A result has a name already."""
        return text

    def type_of(self, expr: PrimExpr) -> str:
        """The type of an expression's result."""
        return "%u32" if self.is_narrow(expr) else register_type(expr.dtype)

    def widen(self, text: str) -> str:
        """An index of 32 bits in 64."""
        return self.op("OpSConvert", "%u64", text)

    def place(self, buffer: Buffer, index: str) -> tuple[str, str]:
        """A pointer to an element, and its type in memory."""
        if buffer in self.storage:
            element = storage_type(buffer.dtype)
            pointer = self.module.pointer("StorageBuffer", self.module.type(element))
            result = self.fresh()
            chain = f"{self.storage[buffer]} {self.integer(0)} {index}"
        else:
            variable, storage = self.memory[buffer]
            element = register_type(buffer.dtype)
            pointer = self.module.pointer(storage, self.module.type(element))
            result = self.fresh()
            chain = f"{variable} {index}"
        self.line(f"{result} = OpAccessChain {pointer} {chain}")
        return result, element

    # ---------------------------------------------------------------- integers of few bits

    def wrapped(self, value: str, dtype: DataType) -> str:
        """A value of 32 bits brought into the range of its type."""
        if dtype.bits >= 32:
            return value
        if dtype.is_uint:
            return self.op("OpBitwiseAnd", "%u32", value, self.integer((1 << dtype.bits) - 1))
        shift = self.integer(32 - dtype.bits)
        return self.op("OpShiftRightArithmetic", "%u32", self.op("OpShiftLeftLogical", "%u32", value, shift), shift)

    def is_nan(self, value: str, kind: str) -> str:
        """Whether a float is not a number."""
        return self.op("OpFUnordNotEqual", "%bool", value, value) if kind == "%f64" else self._is_nan_by_bits(value)

    def _is_nan_by_bits(self, value: str) -> str:
        bits = self.op("OpBitwiseAnd", "%u32", self.op("OpBitcast", "%u32", value), self.integer(0x7FFFFFFF))
        return self.op("OpULessThan", "%bool", self.integer(0x7F800000), bits)


def _variable(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, Var)
    return c.variables[expr]


def _integer(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.IntImm)
    if expr.dtype.is_bool:
        return c.truth(bool(expr.value))
    return c.integer(expr.value, c.type_of(expr))


def _float(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.FloatImm)
    kind = register_type(expr.dtype)
    return c.module.constant(kind, *float_words(expr.value, kind))


def _load(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, BufferLoad)
    pointer, element = c.place(expr.buffer, c.index(expr.indices[0]))
    value = c.op("OpLoad", element, pointer)
    dtype = expr.buffer.dtype
    if element == "%f16":
        return c.op("OpFConvert", "%f32", value)
    if element not in ("%u8", "%u16"):
        return value
    value = c.op("OpSConvert" if dtype.is_int else "OpUConvert", "%u32", value)
    if dtype.is_bool:
        return c.op("OpINotEqual", "%bool", value, c.integer(0))
    if dtype.name == "bfloat16":
        return c.op("OpBitcast", "%f32", c.op("OpShiftLeftLogical", "%u32", value, c.integer(16)))
    return value


def _arithmetic(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    dtype = expr.dtype
    if dtype.is_float:
        if dtype.bits == 16:
            raise CompilerBug(f"{dtype} arithmetic reached the code generator")
        return c.op(FLOAT_OPERATIONS[type(expr)], register_type(dtype), c.value(expr.a), c.value(expr.b))
    if c.is_narrow(expr):
        return c.op(INTEGER_OPERATIONS[type(expr)], "%u32", c.value(expr.a), c.value(expr.b))
    value = c.op(INTEGER_OPERATIONS[type(expr)], register_type(dtype), c.full(expr.a), c.full(expr.b))
    return c.wrapped(value, dtype)


def _division(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    kind = type(expr)
    if expr.dtype.is_float:
        return _fmod(c, expr) if kind is e.Mod else _arithmetic(c, expr)
    a, b, dtype = c.pair(expr.a, expr.b)
    register = register_type(dtype)
    quotient = kind in (e.FloorDiv, e.Div)
    if expr.dtype is INDEX:
        plain = c.divides_naturals(expr.a, expr.b)
    else:
        plain = dtype.is_uint and isinstance(expr.b, e.IntImm) and expr.b.value > 0
    if plain:
        return c.widened(expr, c.op("OpUDiv" if quotient else "OpUMod", register, a, b), dtype)
    return c.widened(expr, c.wrapped(_safe_division(c, kind, a, b, dtype), dtype), dtype)


def _safe_division(c: SpirvExpressions, kind: type, a: str, b: str, dtype: DataType) -> str:
    """A division that never traps: 0 for a divisor of 0, wrap-around for the least integer by -1."""
    register = register_type(dtype)
    zero, one, minus = (c.integer(value, register) for value in (0, 1, -1))
    quotient = kind in (e.FloorDiv, e.Div)
    by_zero = c.op("OpIEqual", "%bool", b, zero)
    if dtype.is_uint:
        value = c.op("OpUDiv" if quotient else "OpUMod", register, a, c.select(register, by_zero, one, b))
        return c.select(register, by_zero, zero, value)
    by_minus = c.op("OpIEqual", "%bool", b, minus)
    safe = c.select(register, c.op("OpLogicalOr", "%bool", by_zero, by_minus), one, b)
    q = c.op("OpSDiv", register, a, safe)
    r = c.op("OpISub", register, a, c.op("OpIMul", register, q, safe))
    if kind in (e.FloorDiv, e.FloorMod):
        differ = c.op("OpSLessThan", "%bool", c.op("OpBitwiseXor", register, r, safe), zero)
        fix = c.op("OpLogicalAnd", "%bool", differ, c.op("OpINotEqual", "%bool", r, zero))
        q = c.op("OpISub", register, q, c.select(register, fix, one, zero))
        r = c.op("OpIAdd", register, r, c.select(register, fix, safe, zero))
    if quotient:
        q = c.select(register, by_minus, c.op("OpISub", register, zero, a), q)
        return c.select(register, by_zero, zero, q)
    return c.select(register, c.op("OpLogicalOr", "%bool", by_zero, by_minus), zero, r)


def _fmod(c: SpirvExpressions, expr: e.BinaryExpr) -> str:
    """The exact remainder of floats, in doubles: multiples of the divisor go from the largest power of two downward.

    A quotient of one step has few enough bits for its product with the divisor to be exact.
    """
    if expr.dtype.bits == 64:
        raise UnsupportedError("Vulkan kernels have no remainder of float64", hint="cast to float32 first")
    x, y = c.value(expr.a), c.value(expr.b)
    rest = c.op("OpFConvert", "%f64", c.glsl(4, "%f32", x))
    divisor = c.op("OpFConvert", "%f64", c.glsl(4, "%f32", y))
    zero = c.module.constant("%f64", 0, 0)
    for power in range(252, -1, -28):
        step = divisor
        if power:
            step = c.op("OpFMul", "%f64", divisor, c.module.constant("%f64", *float_words(2.0**power, "%f64")))
        count = c.glsl(3, "%f64", c.op("OpFDiv", "%f64", rest, step))
        rest = c.op("OpFSub", "%f64", rest, c.op("OpFMul", "%f64", count, step))
        # The quotient may have been rounded up to the next integer.
        negative = c.op("OpFOrdLessThan", "%bool", rest, zero)
        rest = c.select("%f64", negative, c.op("OpFAdd", "%f64", rest, step), rest)
    sign = c.op("OpBitwiseAnd", "%u32", c.op("OpBitcast", "%u32", x), c.integer(0x80000000))
    bits = c.op("OpBitcast", "%u32", c.op("OpFConvert", "%f32", rest))
    value = c.op("OpBitcast", "%f32", c.op("OpBitwiseOr", "%u32", bits, sign))
    small = c.op("OpFOrdLessThan", "%bool", c.glsl(4, "%f32", x), c.glsl(4, "%f32", y))
    value = c.select("%f32", small, x, value)
    limit = c.module.constant("%f32", 0x7F800000)
    finite = c.op("OpFOrdLessThan", "%bool", c.glsl(4, "%f32", x), limit)
    divides = c.op("OpFOrdLessThan", "%bool", c.module.constant("%f32", 0), c.glsl(4, "%f32", y))
    return c.select(
        "%f32", c.op("OpLogicalAnd", "%bool", finite, divides), value, c.module.constant("%f32", 0x7FC00000)
    )


def _extreme(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.BinaryExpr)
    lesser = isinstance(expr, e.Min)
    a, b, dtype = c.pair(expr.a, expr.b)
    if dtype.is_bool:
        return c.connect(lesser, a, b)
    kind = register_type(dtype)
    first, second = (a, b) if lesser else (b, a)
    if dtype.is_float:
        chosen = c.op("OpFOrdLessThan", "%bool", first, second)
        chosen = c.op("OpLogicalOr", "%bool", chosen, c.is_nan(a, kind))
    else:
        chosen = c.op("OpSLessThan" if dtype.is_int else "OpULessThan", "%bool", first, second)
    return c.widened(expr, c.select(kind, chosen, a, b), dtype)


_COMPARISONS: Final[dict[type, tuple[str, str, str, str]]] = {
    e.EQ: ("OpIEqual", "OpIEqual", "OpFOrdEqual", "OpLogicalEqual"),
    e.NE: ("OpINotEqual", "OpINotEqual", "OpFUnordNotEqual", "OpLogicalNotEqual"),
    e.LT: ("OpSLessThan", "OpULessThan", "OpFOrdLessThan", ""),
    e.LE: ("OpSLessThanEqual", "OpULessThanEqual", "OpFOrdLessThanEqual", ""),
}


def _compare(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.CompareExpr)
    a, b, dtype = c.pair(expr.a, expr.b)
    signed, unsigned, floating, logical = _COMPARISONS[type(expr)]
    if dtype.is_bool:
        if logical:
            return c.op(logical, "%bool", a, b)
        return c.connect(isinstance(expr, e.LT), c.op("OpLogicalNot", "%bool", a), b)
    return c.op(floating if dtype.is_float else signed if dtype.is_int else unsigned, "%bool", a, b)


def _not(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Not)
    return c.op("OpLogicalNot", "%bool", c.value(expr.a))


def _cast(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Cast)
    return cast(c, expr)


def _call(c: SpirvExpressions, expr: PrimExpr) -> str:
    assert isinstance(expr, e.Call)
    return call(c, expr)


_HANDLERS: Final[dict[type, Callable[[SpirvExpressions, PrimExpr], str]]] = {
    Var: _variable,
    e.IntImm: _integer,
    e.FloatImm: _float,
    **by_family(arithmetic=_arithmetic, division=_division, extreme=_extreme, compare=_compare, logical=logical_value),
    e.Not: _not,
    e.Select: select_value,
    e.Cast: _cast,
    e.Call: _call,
    BufferLoad: _load,
}
