"""Kernels that differ in numbers alone are one: the numbers become parameters.

Before:  a = fused_multiply_add(x)      with  x * 0.5 + 1.0
         b = fused_multiply_add_1(a)    with  x * 0.7 + 1.0
After:   a = fused_multiply_add(x, 0.5)       both with  x * number + 1.0
         b = fused_multiply_add_1(a, 0.7)

Layers of quantised networks have scales and zero points of their own, others learned factors; each would be a kernel to
compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Var
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import map_functions, post_order, rewrite
from tilewright.graph.passes.fuse import WITH_ANY_NUMBER, is_primitive, primitive_functions
from tilewright.graph.structure import structure_of
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.function import IRModule

_TAKE_ANY_NUMBER: Final = {FLOAT32: WITH_ANY_NUMBER | {"divide"}, INT32: frozenset(["add", "subtract"])}
"""Operators that are as quick with one number as with another: floats are not divided by reciprocals."""


def shared_numbers(module: IRModule) -> IRModule:
    """Make parameters of the numbers in which kernels differ, if they differ in nothing else."""
    alike: dict[tuple[object, ...], list[tuple[Function, list[Constant]]]] = {}
    for function in primitive_functions(module):
        numbers = _numbers(function)
        if numbers:
            key = structure_of(function, {id(number) for number in numbers})
            alike.setdefault(key, []).append((function, numbers))
    new: dict[int, tuple[Function, list[Constant]]] = {}
    for functions in alike.values():
        columns = list(zip(*(numbers for _, numbers in functions), strict=True))
        differing = [place for place, column in enumerate(columns) if len({item.data.tobytes() for item in column}) > 1]
        for function, numbers in functions if differing else ():
            given = [numbers[place] for place in differing]
            new[id(function)] = (_with_parameters(function, given), given)
    if not new:
        return module

    def visit(old: GraphExpr, item: GraphExpr) -> GraphExpr | None:
        if isinstance(old, Call) and isinstance(item, Call) and id(old.callee) in new:
            function, given = new[id(old.callee)]
            item = Call(function, (*item.args, *given))
        if item is not old:
            item.span, item.type = old.span, old.type
        return item

    def changed(function: Function) -> Function:
        result = rewrite(function, visit)
        assert isinstance(result, Function)
        return result

    return map_functions(module, lambda function: function if is_primitive(function) else changed(function))


def _numbers(function: Function) -> list[Constant]:
    """The single numbers in a kernel with which it computes as it would with any others."""
    readers: dict[int, list[Call]] = {}
    constants: dict[int, Constant] = {}
    for item in post_order(function.body):
        if not isinstance(item, Call):
            continue
        for arg in item.args:
            if isinstance(arg, Constant) and arg.data.size == 1 and arg.dtype in _TAKE_ANY_NUMBER:
                constants[id(arg)] = arg
                readers.setdefault(id(arg), []).append(item)
    return [
        item
        for key, item in constants.items()
        if all(any(is_call_to(call, name) for name in _TAKE_ANY_NUMBER[item.dtype]) for call in readers[key])
    ]


def _with_parameters(function: Function, numbers: Sequence[Constant]) -> Function:
    """A kernel with parameters in the place of numbers."""
    first = len(function.params)
    params = tuple(Var(f"p{first + n}", number.type) for n, number in enumerate(numbers))
    mapping: dict[int, GraphExpr] = {id(number): param for number, param in zip(numbers, params, strict=True)}
    body = rewrite(function.body, lambda old, new: fill_type(new), mapping)
    result = Function(function.name, (*function.params, *params), body, body.type, (), function.notes)
    result.span = function.span
    fill_type(result)
    return result
