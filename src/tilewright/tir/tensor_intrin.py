"""Tensor intrinsics: instructions that work on tiles, declared by what they compute and by how they are called.

An intrinsic is a small loop program (its *description*: what the instruction computes) and a *lowering rule* (the
statements that make the hardware do it). `tensorize` finds the description in a program and marks the place; until the
program is lowered the place keeps its plain loops, so that it prints, interprets and moves like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from tilewright.ir.build import add, as_expr, const, mul
from tilewright.ir.dtype import HANDLE, INDEX, INT32, DataType
from tilewright.ir.expr import (
    Add,
    Broadcast,
    Call,
    ExprLike,
    FloorDiv,
    FloorMod,
    Mul,
    PrimExpr,
    Ramp,
    StringImm,
    const_value,
)
from tilewright.ir.structural import structural_equal
from tilewright.support.errors import UserError
from tilewright.tir import machine
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc
from tilewright.tir.stmt import Block, BufferStore, For, Stmt


@dataclass(frozen=True, slots=True)
class Operand:
    """A tile of a buffer, as a lowering rule sees it: element x is at `base + matrix x` of the buffer.

    `name`, `shape` and `dtype` are those of the declaration. Index it to read an element, `store` to write one; or
    take its address with `access_ptr` and pass `strides` along where the declaration leaves them open.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DataType
    buffer: Buffer
    base: tuple[PrimExpr, ...]
    matrix: tuple[tuple[int, ...], ...]
    """One row a dimension of the buffer, one column a dimension of the operand."""

    def _indices(self, place: Sequence[ExprLike]) -> tuple[PrimExpr, ...]:
        if len(place) != len(self.shape):
            raise UserError(f"operand {self.name} has {len(self.shape)} dimensions, indexed with {len(place)}")
        given = [as_expr(item, INDEX) for item in place]
        result: list[PrimExpr] = []
        for start, row in zip(self.base, self.matrix, strict=True):
            index = start
            for coefficient, item in zip(row, given, strict=True):
                if coefficient:
                    index = _plus_scaled(index, item, coefficient)
            result.append(index)
        return tuple(result)

    def __getitem__(self, place: ExprLike | tuple[ExprLike, ...]) -> BufferLoad:
        return BufferLoad(self.buffer, self._indices(place if isinstance(place, tuple) else (place,)))

    def store(self, place: ExprLike | Sequence[ExprLike], value: ExprLike) -> BufferStore:
        """The statement that writes an element (or, with a vector index, elements)."""
        indices = self._indices(place if isinstance(place, (tuple, list)) else (place,))
        return BufferStore(self.buffer, indices, as_expr(value, self.dtype))

    def vector(self) -> BufferLoad:
        """All elements as one vector: they must be neighbours in the last dimension of the buffer."""
        return BufferLoad(self.buffer, self._vector_indices())

    def store_vector(self, value: PrimExpr) -> BufferStore:
        """The statement that writes all elements from one vector."""
        return BufferStore(self.buffer, self._vector_indices(), value)

    def _vector_indices(self) -> tuple[PrimExpr, ...]:
        """The indices of all elements, the last dimension of the operand fastest, one a lane.

        They are neighbours in memory: in one dimension of the buffer, or through its inner dimensions in order
        (the 16 x 4 tile of weights packed as [.., .., 16, 4]).
        """
        lanes = prod(self.shape)
        distances = _packed_strides(self.buffer)
        inner, in_last, in_memory = lanes, True, True
        for dimension, extent in enumerate(self.shape):
            inner //= extent
            if extent == 1:
                continue
            column = [row[dimension] for row in self.matrix]
            moved = [n for n, factor in enumerate(column) if factor]
            in_last = in_last and moved == [len(column) - 1] and column[-1] == inner
            known = all(n in distances for n in moved)
            in_memory = in_memory and known and sum(column[n] * distances[n] for n in moved) == inner
        if in_last:
            return (*self.base[:-1], Ramp(self.base[-1], const(1), lanes))
        if not in_memory:
            raise UserError(
                f"the elements of operand {self.name} are not neighbours in {self.buffer.name}",
                hint="arrange the buffer with transform_layout",
            )
        return tuple(self._lane_index(n, lanes) for n in range(len(self.base)))

    def _lane_index(self, place: int, lanes: int) -> PrimExpr:
        """The index in one dimension of the buffer of the elements in all lanes."""
        result: PrimExpr = Broadcast(self.base[place], lanes)
        inner = lanes
        for extent, coefficient in zip(self.shape, self.matrix[place], strict=True):
            inner //= extent
            if coefficient and extent > 1:
                digit: PrimExpr = Ramp(const(0), const(1), lanes)
                if inner > 1:
                    digit = FloorDiv(digit, Broadcast(const(inner), lanes))
                if inner * extent < lanes:
                    digit = FloorMod(digit, Broadcast(const(extent), lanes))
                if coefficient != 1:
                    digit = Mul(digit, Broadcast(const(coefficient), lanes))
                result = Add(result, digit)
        return result

    def access_ptr(self, mode: str) -> AccessPointer:
        """The address of the first element; `mode` ("r", "w" or "rw") says what the instruction does there."""
        if mode not in ("r", "w", "rw"):
            raise UserError(f"access_ptr: the mode of operand {self.name} is {mode!r}", hint='use "r", "w" or "rw"')
        return AccessPointer(self, mode)

    @property
    def strides(self) -> tuple[PrimExpr, ...]:
        """The distance in memory (in elements) between neighbours along each dimension of the operand."""
        origin = [0] * len(self.shape)
        result: list[PrimExpr] = []
        for dimension in range(len(self.shape)):
            step = [int(n == dimension) for n in range(len(self.shape))]
            result.append(Call("element_distance", (self[tuple(origin)], self[tuple(step)]), INDEX))
        return tuple(result)

    @property
    def scope(self) -> str:
        """Where the tile lives."""
        return self.buffer.scope


def _plus_scaled(start: PrimExpr, item: PrimExpr, factor: int) -> PrimExpr:
    """start + item * factor, where the item may be a vector."""
    if isinstance(item, Ramp):
        base = add(start, mul(item.base, const(factor)))
        return Ramp(base, mul(item.stride, const(factor)), item.lanes)
    if isinstance(item, Broadcast):
        return Broadcast(add(start, mul(item.value, const(factor))), item.lanes)
    return add(start, mul(item, const(factor)))


@dataclass(frozen=True, slots=True)
class AccessPointer:
    """The address of an operand, for an instruction that reads ("r"), writes ("w") or updates ("rw") it."""

    operand: Operand
    mode: str

    def expression(self) -> PrimExpr:
        """The pointer as an argument of a call: its first and last element tell lowering what may be touched."""
        first = self.operand[tuple(0 for _ in self.operand.shape)]
        last = self.operand[tuple(dim - 1 for dim in self.operand.shape)]
        return Call("access_ptr", (StringImm(self.mode), first, last), HANDLE)


Argument = AccessPointer | ExprLike


@dataclass(frozen=True, slots=True)
class HardwareCall:
    """An instruction by name, with pointers and numbers."""

    name: str
    arguments: tuple[Argument, ...]


def hardware_intrin(name: str, *arguments: Argument) -> HardwareCall:
    """A call of a hardware instruction, for lowering rules: `hardware_intrin("gemm8x8", w_ptr, x_ptr, z_ptr)`.

    Where a software implementation is known (`implement_intrin`) it takes the call's place; otherwise it becomes a call
    of the processor's instruction of that name (`accel.gemm`), or of the extern function of that name, which gives 0
    (or an error code) as an int32.
    """
    return HardwareCall(name, arguments)


Piece = Stmt | PrimExpr | HardwareCall
"""What a lowering rule gives for one part of the computation."""
LowerRule = Callable[[list[Operand], list[Operand]], "Piece | tuple[Piece | None, ...]"]
"""From input and output operands to the computation; or to (compute, reset, update) for reductions."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """What an intrinsic is lowered to: the whole computation; and, for reductions, its init and one more step."""

    compute: Piece | None
    reset: Piece | None = None
    update: Piece | None = None


@dataclass(frozen=True, slots=True)
class TensorIntrin:
    """A declared intrinsic. `strides` gives, by parameter name, strides of an operand that pointers rely on."""

    name: str
    description: PrimFunc
    rule: LowerRule
    strides: dict[str, tuple[int | None, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"TensorIntrin({self.name})"

    @property
    def block(self) -> Block:
        """The block of the description."""
        item: Stmt = self.description.root.body
        while isinstance(item, For):
            item = item.body
        if not isinstance(item, Block):
            raise UserError(
                f"intrinsic {self.name}: the description must be one computation", hint="declare it by one te.compute"
            )
        return item

    def lower(self, operands: Sequence[Operand]) -> Pieces:
        """What the rule makes of operands (those of the description's parameters, outputs last)."""
        lowering = self.rule(list(operands[:-1]), list(operands[-1:]))
        parts = lowering if isinstance(lowering, tuple) else (lowering,)
        if len(parts) not in (1, 3):
            raise UserError(
                f"intrinsic {self.name}: the lowering rule gave {len(parts)} parts",
                hint="give the computation alone, or (compute, reset, update)",
            )
        for part in parts:
            if part is not None and not isinstance(part, (Stmt, PrimExpr, HardwareCall)):
                raise UserError(
                    f"intrinsic {self.name}: the lowering rule gave {part!r}",
                    hint="give statements, calls, or te.hardware_intrin(...)",
                )
        return Pieces(*parts)


_declared: Final[dict[str, TensorIntrin]] = {}
_implementations: Final[dict[str, PrimFunc]] = {}


def declare(intrinsic: TensorIntrin) -> TensorIntrin:
    """Make an intrinsic known by its name. Declaring the same again is fine; something else under the name is not."""
    before = _declared.get(intrinsic.name)
    if before is not None and not structural_equal(before.description, intrinsic.description):
        raise UserError(
            f"another intrinsic is declared as {intrinsic.name!r} already",
            hint="give this one a name of its own: decl_tensor_intrin(op, rule, name=...)",
        )
    _declared[intrinsic.name] = intrinsic
    return intrinsic


def find_intrinsic(name: str) -> TensorIntrin:
    """The intrinsic of a name."""
    intrinsic = _declared.get(name)
    if intrinsic is None:
        known = ", ".join(_declared) or "none"
        raise UserError(
            f"there is no tensor intrinsic {name!r}",
            hint=f"declare it with te.decl_tensor_intrin first; declared are: {known}",
        )
    return intrinsic


def is_declared(name: str) -> bool:
    """Whether an intrinsic of this name is known."""
    return name in _declared


def implement_intrin(name: str, implementation: PrimFunc) -> PrimFunc:
    """Say in software what a hardware instruction does: `implementation` has one parameter for each argument."""
    if not isinstance(implementation, PrimFunc):
        raise UserError(f"the implementation of {name} must be a PrimFunc, not {type(implementation).__name__}")
    _implementations[name] = implementation
    return implementation


def implementation_of(name: str) -> PrimFunc | None:
    """The software implementation of a hardware instruction, if there is one."""
    return _implementations.get(name)


def extern_call(call: HardwareCall) -> PrimExpr:
    """A hardware call as a call of the processor's instruction of that name, else of an extern function."""
    arguments = [item.expression() if isinstance(item, AccessPointer) else as_expr(item) for item in call.arguments]
    instruction = machine.table.get(call.name)
    if instruction is not None:
        return Call(call.name, tuple(arguments), instruction.result)
    return Call("call_extern", (StringImm(call.name), *arguments), INT32)


def _packed_strides(buffer: Buffer) -> dict[int, int]:
    """The distance in memory between neighbours, for the inner dimensions where it is a known number."""
    strides: dict[int, int] = {}
    distance = 1
    for number in range(buffer.ndim - 1, -1, -1):
        if buffer.strides:
            given = const_value(buffer.strides[number])
            if given is not None:
                strides[number] = given
            continue
        strides[number] = distance
        size = const_value(buffer.shape[number])
        if size is None:
            break
        distance *= size
    return strides
