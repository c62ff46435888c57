"""The graph interpreter: runs a function with the numpy references of its operators. The slow truth.

Values are numpy arrays (bfloat16 as its uint16 storage), Python tuples, lists for sequences, None for an empty
optional, `DataValue` for algebraic data and `Closure` for functions. Evaluation is lazy within a function: a node is
computed once, when it is first needed, so only the chosen branch of an `If` runs. The machine has a stack of its own:
neither deep graphs nor deep recursion of the program use the Python stack.

Symbols of dimensions get their values from the arguments of a function and from the results of host operators; every
result is checked against its type.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.dimensions import bind_sizes, symbols_of, value_of
from tilewright.graph.ir.expr import (
    Attributes,
    Call,
    Constant,
    ConstructorPattern,
    ConstructorRef,
    Function,
    GlobalVar,
    GraphExpr,
    If,
    Let,
    Match,
    Pattern,
    Tuple,
    TupleGet,
    TuplePattern,
    Var,
    VarPattern,
)
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.unify import show_dimension, show_type
from tilewright.graph.ops import special
from tilewright.ir import small_floats
from tilewright.ir.dtype import BFLOAT16, DataType
from tilewright.ir.expr import PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import Constructor, IRModule
from tilewright.ir.types import OptionalType, SequenceType, TensorType, TupleType, Type
from tilewright.support.errors import CompilerBug, UserError

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class DataValue:
    """A value of an algebraic data type: its constructor and fields."""

    constructor: Constructor
    fields: tuple[Value, ...] = ()

    def __repr__(self) -> str:
        # Nested data is not entered: lists may be thousands long.
        fields = (f"{f.constructor.name}(...)" if isinstance(f, DataValue) else repr(f) for f in self.fields)
        return f"{self.constructor.name}({', '.join(fields)})"


class Closure:
    """A function value: the function and the frame in which it was made."""

    __slots__ = ("frame", "function")

    def __init__(self, function: Function, frame: Frame | None) -> None:
        self.function = function
        self.frame = frame


Value = Array | tuple["Value", ...] | list["Value"] | DataValue | Closure | Constructor | None


class Frame:
    """One activation of a function: its variables, its symbols and the values of its nodes so far."""

    __slots__ = ("parent", "pending", "symbols", "values", "variables")

    def __init__(self, parent: Frame | None) -> None:
        self.parent = parent
        self.symbols: ChainMap[Symbol, int] = ChainMap() if parent is None else parent.symbols.new_child()
        self.variables: dict[int, Value] = {}
        self.values: dict[int, Value] = {}
        self.pending: dict[int, tuple[GraphExpr, Frame]] = {}

    def lookup(self, var: Var) -> Value:
        """The value of a variable, here or in a frame around."""
        frame: Frame | None = self
        while frame is not None:
            if id(var) in frame.variables:
                return frame.variables[id(var)]
            frame = frame.parent
        raise CompilerBug(f"the variable {var.name} is not bound")


def evaluate(program: IRModule | Function, *args: object, entry: str = "main") -> Value:
    """Run a function, or the entry function of a module, on arrays (or tuples and data values of arrays)."""
    module = program if isinstance(program, IRModule) else IRModule([program])
    function = module[entry] if isinstance(program, IRModule) else program
    if not isinstance(function, Function):
        raise UserError(f"{entry} is not a graph function")
    if function.type is None:
        infer_types(module)
    if len(args) != len(function.params):
        names = ", ".join(param.name for param in function.params)
        raise UserError(f"{function.name or 'the function'} takes ({names}), got {len(args)} arguments")
    frame = Frame(None)
    for param, arg in zip(function.params, args, strict=True):
        frame.variables[id(param)] = _argument(param, arg)
    _enter(function, frame)
    return _Machine(module).run(function.body, frame)


def _argument(param: Var, value: object) -> Value:
    found = param.type
    if isinstance(value, (DataValue, Closure)):
        return value
    if isinstance(found, TupleType):
        if not isinstance(value, (tuple, list)) or len(value) != len(found.items):
            raise UserError(f"the argument {param.name} must be a tuple of {len(found.items)} values")
        parts = enumerate(zip(value, found.items, strict=True))
        return tuple(_argument(Var(f"{param.name}[{index}]", expected), part) for index, (part, expected) in parts)
    if isinstance(found, SequenceType):
        if not isinstance(value, (tuple, list)):
            raise UserError(f"the argument {param.name} must be a list of values")
        return [_argument(Var(f"{param.name}[{index}]", found.item), part) for index, part in enumerate(value)]
    if isinstance(found, OptionalType):
        return None if value is None else _argument(Var(param.name, found.item), value)
    if not isinstance(found, TensorType):
        raise UserError(f"the argument {param.name} must be a {show_type(found) if found else 'value'}")
    array = np.asarray(value, object) if found.dtype.is_string else np.asarray(value)
    storage = found.dtype.numpy()
    if array.dtype != storage:
        if isinstance(value, (np.ndarray, np.generic)):
            raise UserError(f"the argument {param.name} has data type {array.dtype}, expected {found.dtype}")
        array = array.astype(storage)
    static = found.static_shape
    if static is not None and array.shape != static:
        raise UserError(f"the argument {param.name} has shape {array.shape}, expected {static}")
    if found.rank is not None and array.ndim != found.rank:
        raise UserError(f"the argument {param.name} has {array.ndim} dimensions, expected {found.rank}")
    return array


def _enter(function: Function, frame: Frame) -> None:
    """Give values to the symbols of a function's parameters, and check the dimensions that are expressions of them."""
    for introduces in (True, False):
        for param in function.params:
            what = f"the argument {param.name}"
            match_dimensions(param.type, frame.variables[id(param)], frame.symbols, what, introduces)


def _dimensions(found: Type | None, value: Value) -> Iterable[tuple[int, PrimExpr, int]]:
    """Axis, expected dimension and size of all tensors of a value (not of the items of sequences)."""
    if isinstance(found, TupleType) and isinstance(value, tuple):
        for item, part in zip(found.items, value, strict=True):
            yield from _dimensions(item, part)
    elif isinstance(found, TensorType) and found.shape is not None and isinstance(value, np.ndarray):
        if len(found.shape) != value.ndim:
            raise UserError(f"a value of shape {value.shape} has not {len(found.shape)} dimensions")
        for axis, (dim, size) in enumerate(zip(found.shape, value.shape, strict=True)):
            if dim is not None:
                yield axis, dim, size


def match_dimensions(
    found: Type | None, value: Value, symbols: MutableMapping[Symbol, int], what: str, introduces: bool
) -> None:
    """Check the dimensions of a value; symbols that have no value yet take one if `introduces` is set."""
    for axis, dim, size in _dimensions(found, value):
        if type(dim) is Symbol and introduces:
            symbols.setdefault(dim, size)
        expected = value_of(dim, symbols)
        if expected is not None and expected != size:
            raise UserError(f"dimension {axis} of {what} is {size}, expected {show_dimension(dim)} = {expected}")


class _Machine:
    """Evaluates expressions with an explicit stack of (expression, frame)."""

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self.stack: list[tuple[GraphExpr, Frame]] = []
        self.steps: dict[type, Callable[[Any, Frame], None]] = {
            Constant: self._constant,
            Var: self._var,
            GlobalVar: self._global,
            ConstructorRef: self._constructor,
            Function: self._function,
            Call: self._call,
            Tuple: self._tuple,
            TupleGet: self._tuple_get,
            Let: self._let,
            If: self._if,
            Match: self._match,
        }

    def run(self, root: GraphExpr, frame: Frame) -> Value:
        """The value of an expression."""
        self.stack.append((root, frame))
        while self.stack:
            item, current = self.stack[-1]
            if id(item) in current.values:
                self.stack.pop()
            else:
                self.steps[type(item)](item, current)
        return frame.values[id(root)]

    def _need(self, frame: Frame, *items: GraphExpr) -> bool:
        """Push what is not computed yet; whether anything was pushed."""
        missing = [item for item in items if id(item) not in frame.values]
        self.stack.extend((item, frame) for item in reversed(missing))
        return bool(missing)

    def _constant(self, item: Constant, frame: Frame) -> None:
        frame.values[id(item)] = item.data

    def _var(self, item: Var, frame: Frame) -> None:
        frame.values[id(item)] = frame.lookup(item)

    def _global(self, item: GlobalVar, frame: Frame) -> None:
        function = self.module[item.name]
        if not isinstance(function, Function):
            raise UserError(f"{item.name} is not a graph function")
        frame.values[id(item)] = Closure(function, None)

    def _constructor(self, item: ConstructorRef, frame: Frame) -> None:
        frame.values[id(item)] = item.constructor

    def _function(self, item: Function, frame: Frame) -> None:
        frame.values[id(item)] = Closure(item, frame)

    def _tuple(self, item: Tuple, frame: Frame) -> None:
        if not self._need(frame, *item.items):
            frame.values[id(item)] = tuple(frame.values[id(part)] for part in item.items)

    def _tuple_get(self, item: TupleGet, frame: Frame) -> None:
        if not self._need(frame, item.value):
            value = frame.values[id(item.value)]
            assert isinstance(value, tuple)
            frame.values[id(item)] = value[item.index]

    def _let(self, item: Let, frame: Frame) -> None:
        if id(item.var) not in frame.variables:
            if isinstance(item.value, Function):
                frame.variables[id(item.var)] = Closure(item.value, frame)
            elif self._need(frame, item.value):
                return
            else:
                frame.variables[id(item.var)] = frame.values[id(item.value)]
        if not self._need(frame, item.body):
            frame.values[id(item)] = frame.values[id(item.body)]

    def _if(self, item: If, frame: Frame) -> None:
        if self._need(frame, item.condition):
            return
        chosen = item.then_value if bool(frame.values[id(item.condition)]) else item.else_value
        if not self._need(frame, chosen):
            frame.values[id(item)] = frame.values[id(chosen)]

    def _match(self, item: Match, frame: Frame) -> None:
        if self._need(frame, item.value):
            return
        if id(item) not in frame.pending:
            value = frame.values[id(item.value)]
            for clause in item.clauses:
                bindings: dict[int, Value] = {}
                if _fits(clause.pattern, value, bindings):
                    frame.variables.update(bindings)
                    frame.pending[id(item)] = (clause.body, frame)
                    break
            else:
                raise UserError(f"no clause of the match fits {value!r}", where=str(item.span) if item.span else None)
        body, _ = frame.pending[id(item)]
        if not self._need(frame, body):
            frame.values[id(item)] = frame.values[id(body)]

    def _call(self, item: Call, frame: Frame) -> None:
        if id(item) in frame.pending:
            body, inner = frame.pending.pop(id(item))
            frame.values[id(item)] = inner.values[id(body)]
            return
        if isinstance(item.callee, Operator):
            if not self._need(frame, *item.args):
                values = [frame.values[id(arg)] for arg in item.args]
                frame.values[id(item)] = apply_operator(item, values, frame.symbols)
            return
        if self._need(frame, item.callee, *item.args):
            return
        callee = frame.values[id(item.callee)]
        arguments = tuple(frame.values[id(arg)] for arg in item.args)
        if isinstance(callee, Constructor):
            frame.values[id(item)] = DataValue(callee, arguments)
            return
        assert isinstance(callee, Closure)
        inner = Frame(callee.frame)
        for param, argument in zip(callee.function.params, arguments, strict=True):
            inner.variables[id(param)] = argument
        _enter(callee.function, inner)
        body = callee.function.body
        frame.pending[id(item)] = (body, inner)
        self.stack.append((body, inner))


def _fits(pattern: Pattern, value: Value, bindings: dict[int, Value]) -> bool:
    stack: list[tuple[Pattern, Value]] = [(pattern, value)]
    while stack:
        part, found = stack.pop()
        if isinstance(part, VarPattern):
            bindings[id(part.var)] = found
        elif isinstance(part, TuplePattern):
            assert isinstance(found, tuple)
            stack.extend(zip(part.patterns, found, strict=True))
        elif isinstance(part, ConstructorPattern):
            assert isinstance(found, DataValue)
            if found.constructor is not part.constructor:
                return False
            stack.extend(zip(part.patterns, found.fields, strict=True))
    return True


_OF_BITS: Final = "reinterpret"
"""The operator whose reference takes and gives the bits of floats."""


def to_float32(storage: Array) -> Array:
    """bfloat16 storage (uint16) as float32 values."""
    return (storage.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(values: Array) -> Array:
    """float values rounded to the nearest bfloat16 (ties to even), as its uint16 storage."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet_nan = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet_nan, rounded).astype(np.uint16).reshape(np.shape(values))


def numbers_of(item: Constant) -> Array:
    """The numbers that a constant holds, whatever they are stored in: bfloat16 and small floats as float32."""
    return _numbers(item.data, item.dtype)


def _numbers(storage: Array, dtype: DataType) -> Array:
    if dtype is BFLOAT16:
        return to_float32(storage)
    return small_floats.values_of(dtype.name)[storage] if dtype.is_small_float else storage


def apply_operator(item: Call, values: list[Value], symbols: MutableMapping[Symbol, int] | None = None) -> Value:
    """The value of an operator call from the values of its inputs, checked against its inferred type.

    Attributes are evaluated under the values of symbols; what a host operator introduces is added to them.
    """
    operator = item.callee
    assert isinstance(operator, Operator)
    known = {} if symbols is None else symbols
    found: Any
    if operator.host:
        inputs: list[Any] = list(values)
        found = operator.reference(inputs, item.attributes)
        match_dimensions(item.type, found, known, _describe(item), introduces=True)
    else:
        with np.errstate(all="ignore"):
            found = operator.reference(_arrays(item, values), _bound(item.attributes, known))
    result: Value
    if isinstance(found, tuple):
        types = item.type.items if isinstance(item.type, TupleType) else (None,) * len(found)
        result = tuple(_checked(item, part, t) for part, t in zip(found, types, strict=True))
    else:
        result = _checked(item, found, item.type)
    match_dimensions(item.type, result, known, _describe(item), introduces=False)
    return result


def _describe(item: Call) -> str:
    assert isinstance(item.callee, Operator)
    return f"the result of {item.callee.name}{'' if item.span is None else f' ({item.span})'}"


def _bound(attributes: Attributes | None, symbols: Mapping[Symbol, int]) -> object:
    if attributes is None or not symbols_of(attributes):
        return attributes
    return bind_sizes(attributes, symbols)


def _arrays(item: Call, values: list[Value]) -> list[Array]:
    """The inputs of a reference: bfloat16 and small floats as float32, unless it is about their bits."""
    arrays: list[Array] = []
    assert isinstance(item.callee, Operator)
    takes_bits = item.callee.name == _OF_BITS
    for arg, value in zip(item.args, values, strict=True):
        if not isinstance(value, (np.ndarray, np.generic)):
            raise CompilerBug(f"an input of {item.callee.name} is no tensor but {value!r}")
        found, array = arg.type, np.asarray(value)
        if isinstance(found, TensorType) and not (takes_bits and found.dtype.is_small_float):
            array = _numbers(array, found.dtype)
        arrays.append(array)
    return arrays


def _checked(item: Call, value: Any, expected: Type | None) -> Value:
    if isinstance(value, list) or value is None:
        return value
    result = np.asarray(value)
    if not isinstance(expected, TensorType):
        return result
    assert isinstance(item.callee, Operator)
    if expected.dtype is BFLOAT16 and not item.callee.host:
        result = to_bfloat16(result)
    elif expected.dtype.is_small_float and not item.callee.host and item.callee.name != _OF_BITS:
        result = small_floats.codes_of(result, expected.dtype.name)
    elif expected.dtype.is_small_integer and not item.callee.host:
        result = special.wrap_small(result, expected.dtype.bits)
    if result.dtype != expected.dtype.numpy():
        raise CompilerBug(f"the reference of {item.callee.name} gave {result.dtype}, its type says {expected.dtype}")
    static = expected.static_shape
    if static is not None and result.shape != static and not item.callee.host:
        raise CompilerBug(f"the reference of {item.callee.name} gave shape {result.shape}, its type says {static}")
    return result
