"""Blocks that tensor intrinsics compute get what the intrinsics' lowering rules give in the place of their loops.

    with block("C_o"):  # tensor_intrin: gemm8x8        with block("C_o"):
        with init():                                        with init():
            for i, j in grid(8, 8): C[...] = 0.0     ->         fill_zero(&C[...])
        for i, j, k in grid(8, 8, 8):                       fuse_gemm8x8_add(&W[...], &X[...], &C[...])
            C[...] = C[...] + W[...] * X[...]

A call of an instruction with a software implementation becomes the loops of that implementation, on the operands' own
elements wherever they lie. Other calls take pointers: what they rely on about strides is asserted, and checked as soon
as the layout of the buffers is settled.
"""

from __future__ import annotations

from tilewright.ir.build import as_expr, const, eq
from tilewright.ir.expr import PrimExpr, Var
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir.analysis.match_intrin import Mismatch, match_intrinsic, match_reset
from tilewright.tir.annotations import TENSOR_INTRIN, TENSOR_INTRIN_RESET
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.passes.lower_blocks import lower_blocks
from tilewright.tir.rewrite.statements import ExprRewriter, StmtRewriter, all_statements, fresh_copy, substitute_stmt
from tilewright.tir.stmt import Assert, Block, BufferStore, Evaluate, Stmt, seq
from tilewright.tir.tensor_intrin import (
    AccessPointer,
    HardwareCall,
    Operand,
    Piece,
    TensorIntrin,
    extern_call,
    find_intrinsic,
    implementation_of,
)


def lower_tensor_intrinsics(func: PrimFunc) -> PrimFunc:
    """The function with its intrinsics called."""
    blocks = [stmt for stmt in all_statements(func.body) if isinstance(stmt, Block)]
    if not any(TENSOR_INTRIN.is_on(block) or TENSOR_INTRIN_RESET.is_on(block) for block in blocks):
        return func
    return func.replace(body=_LowerIntrinsics().stmt(func.body))


class _LowerIntrinsics(StmtRewriter):
    def visit_block(self, block: Block) -> Stmt:
        name, reset = TENSOR_INTRIN.of(block), TENSOR_INTRIN_RESET.of(block)
        if name is not None:
            return _lowered(block, find_intrinsic(name))
        if reset is not None:
            return _lowered_reset(block, find_intrinsic(reset))
        return super().visit_block(block)


def _lowered(block: Block, intrinsic: TensorIntrin) -> Block:
    matched = match_intrinsic(block, intrinsic)
    if isinstance(matched, Mismatch):
        raise UserError(f"block {block.name} is not what {intrinsic.name} computes: {matched.reason}")
    pieces = intrinsic.lower(matched.operands)
    body = pieces.compute if matched.role == "compute" else pieces.update
    init = None if block.init is None else _statement(pieces.reset, intrinsic, matched.operands)
    if matched.role == "update" and isinstance(body, HardwareCall):
        body = _updating(body, matched.operands[-1])
    return block.replace(body=_statement(body, intrinsic, matched.operands), init=init)


def _updating(call: HardwareCall, output: Operand) -> HardwareCall:
    """A call that adds to its output reads it too, whatever mode the rule gave."""
    arguments = tuple(
        AccessPointer(output, "rw") if isinstance(item, AccessPointer) and item.operand is output else item
        for item in call.arguments
    )
    return HardwareCall(call.name, arguments)


def _lowered_reset(block: Block, intrinsic: TensorIntrin) -> Block:
    matched = match_reset(block, intrinsic)
    if isinstance(matched, Mismatch):
        raise UserError(f"block {block.name} is not what the reset of {intrinsic.name} computes: {matched.reason}")
    # The rule is asked with the output in every place: what it gives for the inputs is not used.
    params = intrinsic.description.buffers
    output = matched.operands[0]
    stand_ins = [_stand_in(param) for param in params[:-1]]
    pieces = intrinsic.lower([*stand_ins, output])
    return block.replace(body=_statement(pieces.reset, intrinsic, [output]))


def _stand_in(param: Buffer) -> Operand:
    """An operand for a parameter that the reset does not have."""
    shape = param.static_shape
    assert shape is not None
    unit = tuple(tuple(int(n == m) for m in range(len(shape))) for n in range(len(shape)))
    return Operand(param.name, shape, param.dtype, param, tuple(const(0) for _ in shape), unit)


def _statement(piece: Piece | None, intrinsic: TensorIntrin, operands: list[Operand] | tuple[Operand, ...]) -> Stmt:
    """A part of a computation as a statement."""
    if piece is None:
        raise UserError(f"intrinsic {intrinsic.name} lacks a part that this program needs: give compute, reset, update")
    if isinstance(piece, Stmt):
        return piece
    if isinstance(piece, PrimExpr):
        return Evaluate(piece)
    software = implementation_of(piece.name)
    if software is not None:
        return _inlined(piece, software, intrinsic)
    checks = [check for operand in operands for check in _stride_checks(operand, piece, intrinsic)]
    return seq(*checks, Evaluate(extern_call(piece)))


def _stride_checks(operand: Operand, call: HardwareCall, intrinsic: TensorIntrin) -> list[Stmt]:
    """Assertions that an operand lies in memory as the instruction expects: packed, unless declared otherwise."""
    if not any(isinstance(item, AccessPointer) and item.operand is operand for item in call.arguments):
        return []
    expected = intrinsic.strides.get(operand.name, _packed(operand.shape))
    result: list[Stmt] = []
    for dimension, (stride, actual) in enumerate(zip(expected, operand.strides, strict=True)):
        if stride is None or operand.shape[dimension] == 1:
            continue
        message = (
            f"{intrinsic.name}: operand {operand.name} must have stride {stride} in dimension {dimension}, and "
            f"{operand.buffer.name} has not; stage it with cache_read or cache_write, or leave the stride open"
        )
        result.append(Assert(eq(actual, const(stride)), message))
    return result


def _packed(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim
    return tuple(reversed(strides))


def _inlined(call: HardwareCall, software: PrimFunc, intrinsic: TensorIntrin) -> Stmt:
    """The loops of an implementation, on the operands of a call."""
    if len(software.params) != len(call.arguments):
        raise UserError(
            f"{intrinsic.name} calls {call.name} with {len(call.arguments)} arguments; its implementation takes "
            f"{len(software.params)}"
        )
    operands: dict[Buffer, Operand] = {}
    scalars: dict[Var, PrimExpr] = {}
    for param, item in zip(software.params, call.arguments, strict=True):
        if isinstance(param, Buffer) != isinstance(item, AccessPointer):
            raise UserError(f"{intrinsic.name} calls {call.name}: argument {param.name} is not what it takes")
        if isinstance(param, Buffer) and isinstance(item, AccessPointer):
            operand = item.operand
            if param.static_shape != operand.shape or param.dtype is not operand.dtype:
                raise UserError(
                    f"{intrinsic.name} calls {call.name}: operand {operand.name} is {operand.dtype}{operand.shape}, "
                    f"the implementation takes {param.dtype}{param.static_shape}"
                )
            operands[param] = operand
        elif isinstance(param, Var) and not isinstance(item, AccessPointer):
            scalars[param] = as_expr(item, param.dtype)
    body = fresh_copy(lower_blocks(software).body, {})
    return substitute_stmt(_Place(operands).stmt(body), scalars)


class _Place(StmtRewriter):
    """Accesses of an implementation's parameters become accesses of operands."""

    def __init__(self, operands: dict[Buffer, Operand]) -> None:
        self._operands = operands
        self.expr = ExprRewriter(self._load)  # type: ignore[method-assign]

    def _load(self, expr: PrimExpr) -> PrimExpr | None:
        if isinstance(expr, BufferLoad) and expr.buffer in self._operands:
            return self._operands[expr.buffer][expr.indices]
        return None

    def visit_store(self, stmt: BufferStore) -> Stmt:
        indices, value = self.exprs(stmt.indices), self.expr(stmt.value)
        operand = self._operands.get(stmt.buffer)
        if operand is None:
            return stmt.replace(indices=indices, value=value)
        return operand.store(indices, value)

    def visit_block(self, block: Block) -> Stmt:
        raise CompilerBug(f"block {block.name} in an implementation that was lowered")
