"""A graph as an ONNX model: nodes by rules of their operators, sizes that are symbols computed from shapes of inputs.

`to_onnx(module)` gives the bytes of a model of opset 21, which onnx's checker accepts (of a later one where it has
types that came later). Elements of fewer than 8 bits are packed. What ONNX has no words for here (control flow, values
on the host, recurrent layers) is refused with the name of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.dimensions import Size, as_size
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order
from tilewright.ir import expr as scalar
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.support.errors import MissingDependencyError, UnsupportedError, UserError
from tilewright.support.version import VERSION

Array = npt.NDArray[Any]
OPSET = 21
_IR_VERSION = 10
_TYPES = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
    "uint4": 21,
    "int4": 22,
    "float4_e2m1fn": 23,
    "float8_e8m0fnu": 24,
    "uint2": 25,
    "int2": 26,
}
_LATER = {"float4_e2m1fn": (23, 11), "float8_e8m0fnu": (24, 12), "uint2": (25, 13), "int2": (25, 13)}
"""Types that came after opset 21: the opset and the version of files that have them."""
_MOST_BYTES = 2**31 - 2**20
"""A protobuf message holds no more."""
_FEW = 1024
"""Constants of no more elements are shared by their values, others by identity."""
Rule = Callable[["Writer", Call, list[str]], str | tuple[str, ...]]
RULES: dict[str, Rule] = {}
"""How a call of each operator is written: its ONNX nodes are added to the writer, the name of the result comes back."""


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register how operators are written."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def to_onnx(module: IRModule) -> bytes:
    """The bytes of an ONNX model that computes what the function `main` of a module does."""
    typed = infer_types(module)
    main = typed["main"]
    if not isinstance(main, Function):
        raise UserError("the function main is no graph: only graphs are written as ONNX models")
    return Writer(main).model()


def element_type(dtype: DataType) -> int:
    """The number that ONNX has for a data type."""
    if dtype.name not in _TYPES:
        raise UnsupportedError(f"values of {dtype} cannot be written to an ONNX model")
    return _TYPES[dtype.name]


class Writer:
    """An ONNX graph being written."""

    def __init__(self, function: Function) -> None:
        try:
            import onnx
        except ImportError:
            raise MissingDependencyError.for_extra("onnx", "onnx", "writing ONNX models") from None
        self.onnx = onnx
        self.function = function
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._parts: dict[int, tuple[str, ...]] = {}
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}
        self._held: list[object] = []
        self._sizes: dict[scalar.PrimExpr, str] = {}
        self._count = 0
        self._taken: set[str] = set()
        self._types: set[str] = set()
        self._where = ""

    def model(self) -> bytes:
        """The whole model."""
        helper = self.onnx.helper
        inputs = [self._input(param) for param in self.function.params]
        body = self.function.body
        for item in post_order(body):
            self._visit(item)
        results = list(body.items) if isinstance(body, Tuple) else [body]
        outputs = [self._output(n, item) for n, item in enumerate(results)]
        self._drop_unused({info.name for info in outputs})
        used = {name for node in self.nodes for name in node.input}
        constants = [value for name, value in self.initializers.items() if name in used]
        graph = helper.make_graph(self.nodes, "main", inputs, outputs, constants)
        usual = (OPSET, _IR_VERSION)
        opset, version = max((_LATER.get(name, usual) for name in self._types), default=usual)
        opsets = [helper.make_opsetid("", opset)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=version, producer_name="tilewright", producer_version=VERSION
        )
        if model.ByteSize() > _MOST_BYTES:
            raise UnsupportedError("a model of more than 2 GiB cannot be written to one ONNX file")
        return bytes(model.SerializeToString())

    def _drop_unused(self, results: set[str]) -> None:
        """Leave out nodes whose results nothing reads: another node says the same of what they were read for."""
        kept: list[Any] = []
        used = set(results)
        for node in reversed(self.nodes):
            if used.intersection(node.output):
                kept.append(node)
                used.update(node.input)
        self.nodes = kept[::-1]

    def node(self, operation: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; the name of its result, or of its results."""
        names = [self.fresh(operation.lower()) for _ in range(outputs)]
        known = {name: value for name, value in attributes.items() if value is not None}
        label = f"{self._where or operation}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, list(inputs), names, name=label, **known))
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, value: npt.ArrayLike, dtype: Any = None, element: DataType | None = None) -> str:
        """A constant by its values: one initializer for all that are equal. `element` is what the values stand for."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        small = array.size <= _FEW
        kind = str(array.dtype if element is None else element)
        key = (kind, array.tobytes() if small else id(value).to_bytes(8, "little"), array.shape)
        if key not in self._constants:
            name = self.fresh("constant")
            self.initializers[name] = self.onnx.numpy_helper.from_array(self._as_package(array, element), name)
            self._constants[key] = name
            # An array that is gone leaves its identity to another one.
            self._held.append(value)
        return self._constants[key]

    def _as_package(self, array: Array, element: DataType | None) -> Array:
        """Values of types that numpy lacks in those of the package ml_dtypes, which onnx packs."""
        if element is None:
            return array
        number = self.element(element)
        if element.name == "bfloat16" or element.is_small_float:
            return array.view(self.onnx.helper.tensor_dtype_to_np_dtype(number))
        return array.astype(self.onnx.helper.tensor_dtype_to_np_dtype(number)) if element.is_small_integer else array

    def element(self, dtype: DataType) -> int:
        """The number that ONNX has for a data type, which the model uses."""
        self._types.add(dtype.name)
        return element_type(dtype)

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        while True:
            self._count += 1
            name = f"{stem}_{self._count}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def sizes(self, values: Sequence[Size]) -> str:
        """A list of sizes as a tensor of int64: a constant, or computed from the shapes of inputs."""
        if all(isinstance(value, int) for value in values):
            return self.constant(np.asarray(values, np.int64).reshape(len(values)))
        parts = [self.node("Reshape", self.size(value), self.constant([1], np.int64)) for value in values]
        return str(self.node("Concat", *parts, axis=0))

    def size(self, value: Size) -> str:
        """One size as a scalar of int64."""
        if isinstance(value, int):
            return self.constant(np.int64(value))
        if value not in self._sizes:
            self._sizes[value] = self._size(value)
        return self._sizes[value]

    def _size(self, value: scalar.PrimExpr) -> str:
        if isinstance(value, scalar.IntImm):
            return self.constant(np.int64(value.value))
        if isinstance(value, scalar.Var):
            return self._symbol(value)
        if isinstance(value, (scalar.Add, scalar.Sub, scalar.Mul, scalar.Min, scalar.Max)):
            return str(self.node(type(value).__name__, self.size(value.a), self.size(value.b)))
        if isinstance(value, (scalar.FloorDiv, scalar.FloorMod)):
            a, b = self.size(value.a), self.size(value.b)
            rest = self.node("Mod", a, b)
            return str(rest if isinstance(value, scalar.FloorMod) else self.node("Div", self.node("Sub", a, rest), b))
        raise UnsupportedError(f"the size {value} cannot be computed in an ONNX model")

    def _symbol(self, symbol: scalar.Var) -> str:
        for param in self.function.params:
            shape = param.type.shape if isinstance(param.type, TensorType) else None
            for axis, dim in enumerate(shape or ()):
                if dim is symbol:
                    dims = self.node("Shape", self._names[id(param)], start=axis, end=axis + 1)
                    return str(self.node("Reshape", dims, self.constant(np.zeros(0, np.int64))))
        raise UnsupportedError(f"the size {symbol.name} is decided by data: it cannot be written to an ONNX model")

    def _dimensions(self, item: GraphExpr) -> list[int | str | None]:
        shape = item.tensor_type.shape
        if shape is None:
            raise UnsupportedError("a value of unknown rank cannot be written to an ONNX model")
        result: list[int | str | None] = []
        for dim in shape:
            size = None if dim is None else as_size(dim)
            result.append(size if isinstance(size, int) else size.name if isinstance(size, scalar.Var) else None)
        return result

    def _input(self, param: Var) -> Any:
        if not isinstance(param.type, TensorType):
            raise UnsupportedError(f"the input {param.name} is no tensor: it cannot be written to an ONNX model")
        self._names[id(param)] = param.name
        self._taken.add(param.name)
        return self._value_info(param.name, param)

    def _value_info(self, name: str, item: GraphExpr) -> Any:
        number = self.element(item.tensor_type.dtype)
        return self.onnx.helper.make_tensor_value_info(name, number, self._dimensions(item))

    def _output(self, place: int, item: GraphExpr) -> Any:
        if not isinstance(item.type, TensorType):
            raise UnsupportedError(f"output {place} is no tensor: it cannot be written to an ONNX model")
        name = f"output_{place}"
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self.nodes.append(self.onnx.helper.make_node("Identity", [self._names[id(item)]], [name], name=name))
        return self._value_info(name, item)

    def _visit(self, item: GraphExpr) -> None:
        if isinstance(item, Constant):
            if item.dtype.name not in _TYPES:
                raise UnsupportedError(f"constants of {item.dtype} cannot be written to an ONNX model")
            self._names[id(item)] = self.constant(item.data, element=item.dtype)
        elif isinstance(item, Call):
            self._call(item)
        elif isinstance(item, TupleGet):
            self._names[id(item)] = self._parts[id(item.value)][item.index]
        elif not isinstance(item, (Var, Operator, Tuple)):
            raise UnsupportedError(f"{type(item).__name__} (control flow) cannot be written to an ONNX model")

    def _call(self, item: Call) -> None:
        name = item.callee.name if isinstance(item.callee, Operator) else ""
        self._where = str(item.span) if item.span is not None else ""
        if name not in RULES:
            where = item.span.described() if item.span is not None else "a node without a name"
            raise UnsupportedError(
                f"{name or 'a call of a function'} at {where} cannot be written to an ONNX model",
                hint=f"operators that can: {', '.join(sorted(RULES))}",
            )
        result = RULES[name](self, item, [self._names[id(arg)] for arg in item.args])
        if isinstance(result, tuple):
            self._parts[id(item)] = result
        else:
            self._names[id(item)] = result
