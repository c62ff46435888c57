"""A graph as an ONNX model: nodes by rules of their operators, sizes that are symbols computed from shapes of values.

`to_onnx(module)` gives the bytes of a model of opset 21, which onnx's checker accepts (of a later one where it has
types or operators that came later). Elements of fewer than 8 bits are packed. An `If` is one of ONNX, a function that
calls itself in tail position a `Loop`, any other function is written where it is called. What ONNX has no words for
(data types of one's own, closures, kernels of the compiler) is refused with the name of the node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.dimensions import Size, as_size
from tilewright.graph.ir.expr import Call, Constant, Function, GlobalVar, GraphExpr, If, Let, Tuple, TupleGet, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import children
from tilewright.ir import expr as scalar
from tilewright.ir.dtype import BOOL, INT64, DataType
from tilewright.ir.function import IRModule
from tilewright.ir.types import OptionalType, SequenceType, TensorType, TupleType, Type
from tilewright.onnx_writer.blocks import Block, Named, calls_itself, tail_call
from tilewright.support.errors import MissingDependencyError, UnsupportedError, UserError
from tilewright.support.order import children_first
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
    "string": 8,
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
_ML_OPSET = 3
Rule = Callable[["Writer", Call, list[str]], str | tuple[str, ...]]
RULES: dict[str, Rule] = {}
"""How a call of each operator is written: its ONNX nodes are added to the writer, the name of the result comes back."""
_MADE_HERE = "it is what passes of the compiler make of a model: write the model as it was imported"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("host.svd", "host.eigh", "host.eig", "host.cholesky", "host.lu", "host.reflections"),
        "ONNX has no decompositions of matrices",
    ),
    "host.couple": "ONNX has probabilities of pairs of classes in whole classifiers alone",
}
"""Why some operators cannot be written, where there is more to say."""


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
    if not isinstance(typed["main"], Function):
        raise UserError("the function main is no graph: only graphs are written as ONNX models")
    return Writer(typed).model()


def name_of(call: Call) -> str:
    """The name of the operator of a call; empty if it calls something else."""
    return str(getattr(call.callee, "name", ""))


def element_type(dtype: DataType) -> int:
    """The number that ONNX has for a data type."""
    if dtype.name not in _TYPES:
        raise UnsupportedError(f"values of {dtype} cannot be written to an ONNX model")
    return _TYPES[dtype.name]


class Writer:
    """An ONNX model being written."""

    def __init__(self, module: IRModule) -> None:
        try:
            import onnx
        except ImportError:
            raise MissingDependencyError.for_extra("onnx", "onnx", "writing ONNX models") from None
        self.onnx = onnx
        self.module = module
        self.initializers: dict[str, Any] = {}
        self.block = Block()
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}
        self._held: list[object] = []
        self._count = 0
        self._taken: set[str] = set()
        self._opsets = {"": (OPSET, _IR_VERSION)}
        self._where = ""

    # The model

    def model(self) -> bytes:
        """The whole model."""
        helper = self.onnx.helper
        main = self.module["main"]
        assert isinstance(main, Function)
        inputs = [self._input(param) for param in main.params]
        body = self.value(main.body)
        kinds = self._result_types(main)
        results = list(zip(body, kinds, strict=True)) if isinstance(body, tuple) else [(body, kinds[0])]
        outputs = [self._output(n, name, kind) for n, (name, kind) in enumerate(results)]
        nodes = self._used_nodes({info.name for info in outputs})
        used = {name for node in nodes for name in self._reads(node)}
        constants = [value for name, value in self.initializers.items() if name in used]
        graph = helper.make_graph(nodes, self._model_name(), inputs, outputs, constants)
        version = max(version for _, version in self._opsets.values())
        opsets = [helper.make_opsetid(domain, opset) for domain, (opset, _) in self._opsets.items()]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=version, producer_name="tilewright", producer_version=VERSION
        )
        if model.ByteSize() > _MOST_BYTES:
            raise UnsupportedError("a model of more than 2 GiB cannot be written to one ONNX file")
        return bytes(model.SerializeToString())

    def _model_name(self) -> str:
        return str(self.module.attributes.get("model_name") or "main")

    @staticmethod
    def _result_types(function: Function) -> list[Type]:
        kind = function.body.type
        assert kind is not None
        return list(kind.items) if isinstance(kind, TupleType) else [kind]

    def _used_nodes(self, results: set[str]) -> list[Any]:
        """The nodes but for those whose results nothing reads: another one says the same of what they were read for."""
        kept: list[Any] = []
        used = set(results)
        for node in reversed(self.block.nodes):
            if used.intersection(node.output):
                kept.append(node)
                used.update(self._reads(node))
        return kept[::-1]

    def _reads(self, node: Any) -> Iterator[str]:
        """The names that a node and the graphs in it read."""
        yield from node.input
        for attribute in node.attribute:
            for inner in attribute.g.node if attribute.HasField("g") else ():
                yield from self._reads(inner)

    def _input(self, param: Var) -> Any:
        assert param.type is not None
        self._taken.add(param.name)
        self._bind(param, param.name)
        return self.value_info(param.name, param.type)

    def _output(self, place: int, value: Named, kind: Type) -> Any:
        given = self.module.attributes.get("output_names")
        names = given if isinstance(given, (tuple, list)) else ()
        name = str(names[place]) if place < len(names) else f"output_{place}"
        while name in self._taken or not name:
            name += "_"
        self._taken.add(name)
        if isinstance(value, tuple):
            raise UnsupportedError(f"output {place} is a tuple: it cannot be written to an ONNX model")
        self.block.nodes.append(self.onnx.helper.make_node("Identity", [value], [name], name=name))
        return self.value_info(name, kind)

    # Types

    def value_info(self, name: str, kind: Type, *, named: bool = True) -> Any:
        """What ONNX is told of a value; symbols are left out of it unless they are `named`."""
        return self.onnx.helper.make_value_info(name, self._type_proto(name, kind, named))

    def type_proto(self, kind: Type) -> Any:
        """What ONNX calls a type."""
        return self._type_proto("", kind, False)

    def _type_proto(self, name: str, kind: Type, named: bool) -> Any:
        helper = self.onnx.helper
        if isinstance(kind, TensorType):
            return helper.make_tensor_type_proto(self.element(kind.dtype), self._dimensions(kind, named))
        if isinstance(kind, SequenceType):
            return helper.make_sequence_type_proto(self._type_proto(name, kind.item, False))
        if isinstance(kind, OptionalType):
            return helper.make_optional_type_proto(self._type_proto(name, kind.item, False))
        raise UnsupportedError(f"the value {name} is no tensor: it cannot be written to an ONNX model")

    @staticmethod
    def _dimensions(kind: TensorType, named: bool) -> list[int | str | None] | None:
        if kind.shape is None:
            return None
        result: list[int | str | None] = []
        for dim in kind.shape:
            size = None if dim is None else as_size(dim)
            symbol = size.name if isinstance(size, scalar.Var) and named else None
            result.append(size if isinstance(size, int) else symbol)
        return result

    def element(self, dtype: DataType) -> int:
        """The number that ONNX has for a data type, which the model uses."""
        if dtype.name in _LATER:
            self.require(*_LATER[dtype.name])
        return element_type(dtype)

    def require(self, opset: int, version: int = _IR_VERSION, domain: str = "") -> None:
        """Use an opset that has what is to be written."""
        self._opsets[domain] = max(self._opsets.get(domain, (0, 0)), (opset, version))

    # Nodes

    def node(self, operation: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node; the name of its result, or of its results."""
        names = [self.fresh(operation.lower()) for _ in range(outputs)]
        known = {name: value for name, value in attributes.items() if value is not None}
        label = f"{self._where or operation}_{self._count}"
        if domain:
            self.require(_ML_OPSET, domain=domain)
        made = self.onnx.helper.make_node(operation, list(inputs), names, name=label, domain=domain or None, **known)
        self.block.nodes.append(made)
        return names[0] if outputs == 1 else tuple(names)

    def constant(self, value: npt.ArrayLike, dtype: Any = None, element: DataType | None = None) -> str:
        """A constant by its values: one initializer for all that are equal. `element` is what the values stand for."""
        array = np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))
        small = array.size <= _FEW and array.dtype != object
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

    def number(self, value: float, dtype: DataType) -> str:
        """One number of a data type, which numpy may lack, as a constant."""
        if dtype.name == "bfloat16" or dtype.is_small_float:
            return str(self.node("Cast", self.constant(np.float32(value)), to=self.element(dtype)))
        return self.constant(np.asarray(value, dtype.numpy()), element=dtype)

    def fresh(self, stem: str) -> str:
        """A name that nothing has."""
        while True:
            self._count += 1
            name = f"{stem}_{self._count}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    # Graphs in nodes

    @contextmanager
    def written_in(self, block: Block) -> Iterator[None]:
        """Write to a block for a while."""
        before, self.block = self.block, block
        try:
            yield
        finally:
            self.block = before

    def graph(
        self, inputs: Sequence[tuple[str, Type]], write: Callable[[], Sequence[str]], kinds: Sequence[Type]
    ) -> Any:
        """A graph that is an attribute of a node: it sees the values around it. `write` gives its results."""
        block = Block(self.block)
        with self.written_in(block):
            results = list(write())
            # The results of a graph are results of its own nodes, each by a name of its own.
            outputs = [self.node("Identity", name) for name in results]
        infos = [self.value_info(name, kind, named=False) for name, kind in inputs]
        ends = [self.value_info(name, kind, named=False) for name, kind in zip(outputs, kinds, strict=True)]
        return self.onnx.helper.make_graph(block.nodes, self.fresh("graph"), infos, ends)

    # Sizes

    def sizes(self, values: Sequence[Size]) -> str:
        """A list of sizes as a tensor of int64: a constant, or computed from the shapes of values."""
        if all(isinstance(value, int) for value in values):
            return self.constant(np.asarray(values, np.int64).reshape(len(values)))
        parts = [self.node("Reshape", self.size(value), self.constant([1], np.int64)) for value in values]
        return str(self.node("Concat", *parts, axis=0))

    def size(self, value: Size) -> str:
        """One size as a scalar of int64."""
        if isinstance(value, int):
            return self.constant(np.int64(value))
        known = next((block.sizes[value] for block in self.block.around() if value in block.sizes), None)
        if known is None:
            known = self.block.sizes[value] = self._size(value)
        return known

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
        for block in self.block.around():
            if symbol in block.origins:
                name, axis = block.origins[symbol]
                dims = self.node("Shape", name, start=axis, end=axis + 1)
                return str(self.node("Reshape", dims, self.constant(np.zeros(0, np.int64))))
        raise UnsupportedError(f"nothing gives the size {symbol.name} a value: it cannot be written to an ONNX model")

    # Values

    def value(self, root: GraphExpr) -> Named:
        """Write a value and all that it needs; its name, or the names of a tuple's items."""
        while isinstance(root, Let):
            self._bind(root.var, self.value(root.value))
            root = root.body
        for item in children_first((root,), self._below):
            if self.block.name_of(item) is None:
                self._visit(item)
        name = self.block.name_of(root)
        assert name is not None
        return name

    def _below(self, item: GraphExpr) -> Iterable[GraphExpr]:
        """What is to be written before an expression; branches and bodies are written with it."""
        if self.block.name_of(item) is not None or isinstance(item, (Let, Function)):
            return ()
        if isinstance(item, If):
            return (item.condition,)
        return [child for child in children(item) if not isinstance(child, (Operator, GlobalVar))]

    def _bind(self, item: GraphExpr, name: Named) -> None:
        """Give an expression its name, and symbols in its type their values."""
        self.block.names[id(item)] = name
        self._held.append(item)
        self._declare(item.type, name)

    def _declare(self, kind: Type | None, name: Named) -> None:
        if isinstance(kind, TupleType) and isinstance(name, tuple):
            for part, inner in zip(kind.items, name, strict=True):
                self._declare(part, inner)
        elif isinstance(kind, TensorType) and isinstance(name, str):
            for axis, dim in enumerate(kind.shape or ()):
                if isinstance(dim, scalar.Var) and not any(dim in block.origins for block in self._own_blocks()):
                    self.block.origins[dim] = (name, axis)

    def _own_blocks(self) -> Iterator[Block]:
        """The blocks whose symbols mean the same as here: a function that is written again has them anew."""
        for block in self.block.around():
            yield block
            if block.is_function:
                return

    def text_name(self, item: GraphExpr) -> str:
        """The name of a value that is no tuple."""
        name = self.block.name_of(item)
        if not isinstance(name, str):
            raise UnsupportedError("a tuple is an argument of an operator: it cannot be written to an ONNX model")
        return name

    def _visit(self, item: GraphExpr) -> None:
        if isinstance(item, Constant):
            if item.dtype.name not in _TYPES:
                raise UnsupportedError(f"constants of {item.dtype} cannot be written to an ONNX model")
            self._bind(item, self.constant(item.data, element=item.dtype))
        elif isinstance(item, Call):
            self._call(item)
        elif isinstance(item, TupleGet):
            parts = self.block.name_of(item.value)
            assert isinstance(parts, tuple)
            self._bind(item, parts[item.index])
        elif isinstance(item, Tuple):
            self._bind(item, tuple(self._known(part) for part in item.items))
        elif isinstance(item, Let):
            self._bind(item, self.value(item))
        elif isinstance(item, If):
            self._bind(item, self._if(item))
        elif not isinstance(item, Operator):
            raise UnsupportedError(f"{type(item).__name__} cannot be written to an ONNX model")

    def _known(self, item: GraphExpr) -> Named:
        name = self.block.name_of(item)
        assert name is not None
        return name

    def _call(self, item: Call) -> None:
        before = self._where
        self._where = str(item.span) if item.span is not None else ""
        if isinstance(item.callee, GlobalVar):
            self._bind(item, self._function_call(item, item.callee.name))
            self._where = before
            return
        name = item.callee.name if isinstance(item.callee, Operator) else ""
        if name not in RULES:
            where = item.span.described() if item.span is not None else "a node without a name"
            raise UnsupportedError(
                f"{name or 'a call of a closure'} at {where} cannot be written to an ONNX model",
                hint=REFUSED.get(name, _MADE_HERE),
            )
        self._bind(item, RULES[name](self, item, [self.text_name(arg) for arg in item.args]))

    # Control flow

    def _if(self, item: If) -> Named:
        """The node If; what its branches give is flat."""
        assert item.type is not None
        kinds = list(flat_types(item.type))
        condition = self._reshaped_scalar(self.text_name(item.condition))
        branches = {
            name: self.graph((), lambda branch=branch: flat_names(self.value(branch)), kinds)  # type: ignore[misc]
            for name, branch in (("then_branch", item.then_value), ("else_branch", item.else_value))
        }
        results = self.node("If", condition, outputs=len(kinds), **branches)
        names = iter(results if isinstance(results, tuple) else (results,))
        return nested_names(item.type, names)

    def _reshaped_scalar(self, name: str) -> str:
        return str(self.node("Reshape", name, self.constant(np.zeros(0, np.int64))))

    def _function_call(self, call: Call, name: str) -> Named:
        """A function where it is called, or the loop that it is."""
        function = self.module[name]
        assert isinstance(function, Function)
        arguments = [self._known(arg) for arg in call.args]
        loop = tail_call(function)
        if loop is not None:
            return self._loop(function, arguments, *loop)
        if calls_itself(function):
            raise UnsupportedError(f"the function {name} calls itself: only loops can be written to an ONNX model")
        return self._inline(function.params, arguments, function.body)

    def _inline(self, params: Sequence[Var], arguments: Sequence[Named], body: GraphExpr) -> Named:
        """What a body gives for arguments, written in the graph of the caller."""
        with self.written_in(Block(self.block, self.block.nodes, is_function=True)):
            for param, name in zip(params, arguments, strict=True):
                self._bind(param, name)
            return self.value(body)

    def _loop(self, function: Function, arguments: Sequence[Named], choice: If, again: Call, first: bool) -> Named:
        """The node Loop: it carries what a turn changes, and goes on by the condition for the next turn's values."""
        params = function.params
        changed = [place for place, arg in enumerate(again.args) if arg is not params[place]]
        kinds = [kind for place in changed for kind in flat_types(_known_type(params[place]))]

        def goes_on(values: Sequence[Named]) -> str:
            condition = self._inline(params, values, choice.condition)
            assert isinstance(condition, str)
            return self._reshaped_scalar(condition if first else str(self.node("Not", condition)))

        def after(values: Sequence[Named]) -> list[Named]:
            """All values of the parameters, of which a turn changes some."""
            fresh = iter(values)
            return [next(fresh) if place in changed else name for place, name in enumerate(arguments)]

        turn, entered = self.fresh("turn"), self.fresh("going")
        carried = [self.fresh("carried") for _ in kinds]

        def one_turn() -> list[str]:
            before = self._nested(params, changed, carried)
            branch = choice.then_value if first else choice.else_value
            with self.written_in(Block(self.block, self.block.nodes, is_function=True)):
                for param, name in zip(params, after(before), strict=True):
                    self._bind(param, name)
                while isinstance(branch, Let):
                    self._bind(branch.var, self.value(branch.value))
                    branch = branch.body
                fresh = [self.value(again.args[place]) for place in changed]
            return [goes_on(after(fresh)), *(name for item in fresh for name in flat_names(item))]

        scalars: list[tuple[str, Type]] = [(turn, TensorType((), INT64)), (entered, TensorType((), BOOL))]
        body = self.graph([*scalars, *zip(carried, kinds, strict=True)], one_turn, [scalars[1][1], *kinds])
        starts = [name for place in changed for name in flat_names(arguments[place])]
        results = self.node("Loop", "", goes_on(arguments), *starts, outputs=len(kinds), body=body)
        ends = self._nested(params, changed, results if isinstance(results, tuple) else (results,))
        return self._inline(params, after(ends), choice.else_value if first else choice.then_value)

    @staticmethod
    def _nested(params: Sequence[Var], changed: Sequence[int], names: Sequence[str]) -> list[Named]:
        found = iter(names)
        return [nested_names(_known_type(params[place]), found) for place in changed]


def _known_type(item: GraphExpr) -> Type:
    assert item.type is not None
    return item.type


def flat_types(kind: Type) -> Iterator[Type]:
    """The types of a tuple's items, those of tuples inside it too; of another value its own."""
    if isinstance(kind, TupleType):
        for item in kind.items:
            yield from flat_types(item)
    else:
        yield kind


def flat_names(name: Named) -> list[str]:
    """The names of a tuple's items, in the order of `flat_types`."""
    return [name] if isinstance(name, str) else [inner for item in name for inner in flat_names(item)]


def nested_names(kind: Type, names: Iterator[str]) -> Named:
    """Names in the form of a type: the reverse of `flat_names`."""
    if isinstance(kind, TupleType):
        return tuple(nested_names(item, names) for item in kind.items)
    return next(names)
