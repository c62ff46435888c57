"""What a primitive function computes, as something to compare: a layer that a model repeats is one kernel."""

from __future__ import annotations

from collections.abc import Callable, Container

from tilewright.graph.ir.expr import Call, Constant, Function, Tuple, TupleGet
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import children, post_order
from tilewright.graph.passes.eliminate_common_subexpressions import COMPARED_BYTES, attribute_key
from tilewright.ir.types import Type


def structure_of(
    function: Function, any_number: Container[int] = (), type_key: Callable[[Type | None], object] = id
) -> tuple[object, ...]:
    """A key that equal functions share; what differs in constants that `any_number` has (by identity) is equal too.

    Types and sizes are told apart by identity (or by `type_key`): functions must live as long as their keys.
    """
    numbers = {id(param): number for number, param in enumerate(function.params)}
    parts: list[object] = [type_key(param.type) for param in function.params]
    for item in post_order(function)[:-1]:
        if id(item) in numbers:
            continue
        operands = tuple([numbers[id(child)] for child in children(item)])
        match item:
            case Call(callee=Operator(name=name)):
                attributes = () if item.attributes is None else item.attributes.field_values()
                parts.append((name, attribute_key(attributes), operands, type_key(item.type)))
            case Tuple():
                parts.append(operands)
            case TupleGet():
                parts.append((operands, item.index))
            case Constant() if id(item) in any_number:
                parts.append(id(item.type))
            case Constant() if item.data.nbytes <= COMPARED_BYTES:
                parts.append((item.dtype, item.data.shape, item.data.tobytes()))
            case _:
                parts.append(id(item))
        numbers[id(item)] = len(numbers)
    return tuple(parts)
