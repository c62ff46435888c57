"""Algebraic data types that programs share: List, Option and Tree, and functions over them.

module = with_prelude(IRModule([main]))
LIST.constructor("Cons")
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.graph.interpreter import DataValue, Value
from tilewright.graph.ir.expr import Call, ConstructorRef, GraphExpr
from tilewright.ir.function import Constructor, IRModule, TypeDefinition
from tilewright.ir.types import DataTypeCall, DataTypeName, Type, TypeVariable


def _definition(name: str, fields: dict[str, tuple[Type, ...]], parameter: TypeVariable) -> TypeDefinition:
    constructors = tuple(Constructor(constructor, types, name) for constructor, types in fields.items())
    return TypeDefinition(name, (parameter,), constructors)


def _recursive(name: str, parameter: TypeVariable) -> DataTypeCall:
    return DataTypeCall(DataTypeName(name), (parameter,))


_A = TypeVariable("a")
LIST = _definition("List", {"Nil": (), "Cons": (_A, _recursive("List", _A))}, _A)
"""A linked list: Nil() or Cons(head, tail)."""
NIL, CONS = LIST.constructors

_B = TypeVariable("a")
OPTION = _definition("Option", {"Nothing": (), "Some": (_B,)}, _B)
"""A value that may be missing: Nothing() or Some(value)."""
NOTHING, SOME = OPTION.constructors

_C = TypeVariable("a")
TREE = _definition("Tree", {"Leaf": (), "Branch": (_recursive("Tree", _C), _C, _recursive("Tree", _C))}, _C)
"""A binary tree: Leaf() or Branch(left, value, right)."""
LEAF, BRANCH = TREE.constructors


def list_of(item: Type) -> Type:
    """The type List[item]."""
    return DataTypeCall(DataTypeName("List"), (item,))


def option_of(item: Type) -> Type:
    """The type Option[item]."""
    return DataTypeCall(DataTypeName("Option"), (item,))


def tree_of(item: Type) -> Type:
    """The type Tree[item]."""
    return DataTypeCall(DataTypeName("Tree"), (item,))


def construct(constructor: Constructor, *args: GraphExpr) -> Call:
    """The expression that builds a value of an algebraic data type."""
    return Call(ConstructorRef(constructor), args)


def list_value(items: Sequence[Value]) -> DataValue:
    """Python values as a List for the interpreter."""
    result = DataValue(NIL)
    for item in reversed(items):
        result = DataValue(CONS, (item, result))
    return result


def list_items(value: Value) -> list[Value]:
    """The items of a List value of the interpreter."""
    items: list[Value] = []
    while isinstance(value, DataValue) and value.constructor is CONS:
        items.append(value.fields[0])
        value = value.fields[1]
    return items


def with_prelude(module: IRModule) -> IRModule:
    """The module with the shared data types added to its own."""
    types = {definition.name: definition for definition in (LIST, OPTION, TREE)}
    return IRModule(module.functions, {**types, **module.types}.values(), module.attributes)
