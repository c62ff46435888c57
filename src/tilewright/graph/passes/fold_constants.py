"""Constant folding: operators whose inputs are all constants are computed at compile time, by their references.

Before:  add(x, transpose(const[3, 2]))
After:   add(x, const[2, 3])

A fold that would make the module grow is done only while the result is small: very small where elements are only
repeated (broadcasting or tiling a constant), which costs a kernel nothing, and of the size of a layer's weights where
they are computed from each other (a table of angles, of the taps of a filter): every call would do that anew.
Numbers that only get wider (bytes of weights that are dequantised) are folded whatever their size: else every call
would compute them anew, and write and read them in their full width. Before products of bytes are found, which take
them as they are, they stay (`fold_but_bytes`).
Also chooses the branch of an `If` on a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Sequence
from functools import partial

import numpy as np

from tilewright.graph.interpreter import Value, apply_operator
from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, If, Tuple, TupleGet
from tilewright.graph.ir.infer import keep_type
from tilewright.graph.ir.known import is_known
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite, settling, users
from tilewright.ir.dtype import INT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type

SMALL_BYTES = 64 * 1024
"""Results up to this size are always folded."""
GROWN_BYTES = 4 * 1024 * 1024
"""Results up to this size are folded where operators compute on several constants."""


def fold_constants(module: IRModule) -> IRModule:
    """Compute what does not depend on inputs."""
    return map_functions(module, _FOLD)


def fold_but_bytes(module: IRModule) -> IRModule:
    """The same, but bytes do not get wider: `matmul(x, int32(bytes) - 3)` stays."""
    return map_functions(module, _FOLD_BUT_BYTES)


def _fold_function(function: Function, keeps_bytes: bool) -> Function:
    folded = rewrite(function, _Folder(function, keeps_bytes).visit)
    assert isinstance(folded, Function)
    return folded


_FOLD, _FOLD_BUT_BYTES = (settling(partial(_fold_function, keeps_bytes=keeps)) for keeps in (False, True))


class _Folder:
    """One run over a function.

    A chain of operators on a constant is computed where it ends: what lies between, often wider than either, is gone
    before the next chain is computed.
    """

    def __init__(self, function: Function, keeps_bytes: bool) -> None:
        order = post_order(function)
        self._keeps_bytes = keeps_bytes
        can_fold: dict[int, Call] = {}
        for item in order:
            if isinstance(item, Call) and self._can_fold(item, can_fold):
                can_fold[id(item)] = item
        readers = users(order)
        self._between = {
            key
            for key, item in can_fold.items()
            if isinstance(item.type, TensorType) and _only(readers[key]) in can_fold
        }
        """The calls that one other call reads, which is folded too."""
        self._postponed: dict[int, Call] = {}

    def visit(self, old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        """What takes the place of a node."""
        keep_type(old, item)
        if isinstance(item, Call) and isinstance(item.callee, Operator):
            if id(old) in self._between:
                self._postponed[id(item)] = item
                return item
            return self._folded(item)
        if isinstance(item, TupleGet) and isinstance(item.value, Tuple):
            return item.value.items[item.index]
        if isinstance(item, If) and isinstance(item.condition, Constant):
            return item.then_value if bool(item.condition.data) else item.else_value
        return None

    def _can_fold(self, item: Call, others: Container[int]) -> bool:
        is_kept = self._keeps_bytes and widens_bytes(item)
        return not is_kept and _can_fold(item, lambda arg: isinstance(arg, Constant) or id(arg) in others)

    def _folded(self, item: Call) -> GraphExpr | None:
        """The value of a call, or None if it should stay."""
        if not self._can_fold(item, self._postponed):
            return None
        values: dict[int, Value] = {}
        for part in post_order(item):
            if isinstance(part, Constant):
                values[id(part)] = part.data
            elif isinstance(part, Call):
                given = [values[id(arg)] for arg in part.args]
                for arg in part.args:
                    if isinstance(arg, Call):
                        # Nothing else reads it.
                        values.pop(id(arg), None)
                values[id(part)] = apply_operator(part, given)
        assert item.type is not None
        result = _as_expression(values[id(item)], item.type)
        result.span = item.span
        return result


def _only(readers: Sequence[GraphExpr]) -> int | None:
    """The identity of the one reader; None if there are others."""
    identities = {id(reader) for reader in readers}
    return identities.pop() if len(identities) == 1 else None


def _can_fold(item: Call, is_known: Callable[[GraphExpr], bool]) -> bool:
    """Whether an operator call whose inputs are all known is to be computed."""
    if not isinstance(item.callee, Operator) or not item.args or item.type is None or not all(map(is_known, item.args)):
        return False
    if item.callee.host or (item.attributes is not None and symbols_of(item.attributes)):
        return False
    small = GROWN_BYTES if item.callee.elementwise and len(item.args) > 1 else SMALL_BYTES
    return _is_worth_keeping(item.type, [arg.type for arg in item.args], small)


def widens_bytes(item: Call) -> bool:
    """Whether a call makes many integers of bytes that are known."""
    wide, given = item.type, item.args[0].type if item.args else None
    if not isinstance(wide, TensorType) or not isinstance(given, TensorType) or wide.dtype is not INT32:
        return False
    return given.dtype.bits == 8 and (type_bytes(wide) or 0) > SMALL_BYTES and is_known(item)


def _is_worth_keeping(result: Type, given: Sequence[Type | None], small: int) -> bool:
    """Whether a result is small, or no larger than what it is computed from, or has no more elements than that."""
    size, count = type_bytes(result), type_elements(result)
    if size is None or count is None:
        return False
    sizes = [(type_bytes(kind) or 0, type_elements(kind) or 0) for kind in given if kind is not None]
    return size <= max(small, sum(size for size, _ in sizes)) or count <= max(count for _, count in sizes)


def _as_expression(value: Value, found: Type) -> GraphExpr:
    if isinstance(found, TupleType):
        assert isinstance(value, tuple)
        items = tuple(_as_expression(part, part_type) for part, part_type in zip(value, found.items, strict=True))
        result = Tuple(items)
        result.type = found
        return result
    assert isinstance(found, TensorType)
    assert isinstance(value, np.ndarray)
    return Constant(np.ascontiguousarray(value).reshape(value.shape), found.dtype)


def type_bytes(found: Type) -> int | None:
    """The bytes of a value of a type, or None if they are not known."""
    return _over_tensors(found, lambda tensor, count: count * tensor.dtype.itemsize)


def type_elements(found: Type) -> int | None:
    """The elements of a value of a type, or None if they are not known."""
    return _over_tensors(found, lambda tensor, count: count)


def _over_tensors(found: Type, size_of: Callable[[TensorType, int], int]) -> int | None:
    """A sum over the tensors of a value, of each and the number of its elements; None if one is not known."""
    if isinstance(found, TupleType):
        sizes = [_over_tensors(item, size_of) for item in found.items]
        return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
    shape = found.static_shape if isinstance(found, TensorType) else None
    return None if shape is None or not isinstance(found, TensorType) else size_of(found, math.prod(shape))
