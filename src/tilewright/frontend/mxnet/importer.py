"""Import of MXNet models: a symbol (`-symbol.json`) and the arrays beside it (`-0000.params`), as Gluon exports them.

A symbol does not say the shapes of its inputs: `shapes` gives them. Where the first layer of an input has weights, they
say it: the batch and the sizes of an image are open then. Labels that only losses read are left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.frontend.companions import mxnet_pair
from tilewright.frontend.core.converters import NamingBuilder
from tilewright.frontend.core.functions import main_module, new_input, refuse_unknown
from tilewright.frontend.mxnet import control, detection, elementwise, layers, recurrent, reduce, shape
from tilewright.frontend.mxnet.files import Symbol, SymbolNode, read_arrays, read_symbol
from tilewright.frontend.mxnet.node import Bodies, Node, converter
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

FAMILIES = (control, detection, elementwise, layers, recurrent, reduce, shape)
"""The modules whose converters are registered."""
_LOSSES = (
    "SoftmaxOutput",
    "Softmax",
    "LinearRegressionOutput",
    "LogisticRegressionOutput",
    "MAERegressionOutput",
    "SVMOutput",
)
"""Operators whose second input, a label, concerns training."""
_SPATIAL = ("length",), ("height", "width"), ("depth", "height", "width")
_THROUGH = ("BatchNorm", "identity", "_copy", "Cast", "_mul_scalar", "_minus_scalar", "_plus_scalar", "_div_scalar")
"""Operators that keep the shape of their first input."""
Shapes = dict[str, Sequence[int | str | None]]


def from_mxnet(
    source: str | os.PathLike[str] | bytes,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    params: str | os.PathLike[str] | bytes | None = None,
) -> IRModule:
    """Import an MXNet model: the path of its symbol or of its arrays, or the bytes of the symbol.

    The other file lies beside it (`net-symbol.json`, `net-0000.params`, the highest number of several), or `params`
    is its path or content.
    """
    arrays: bytes | None = params if isinstance(params, bytes) else None
    where = "the bytes"
    if isinstance(source, bytes):
        text = source
    else:
        symbol_path, params_path = mxnet_pair(Path(os.fspath(source)))
        if symbol_path is None:
            raise UserError(
                f"there is no symbol beside {source}", hint="an MXNet model is net-symbol.json + net-0000.params"
            )
        where, text = str(symbol_path), _read(symbol_path)
        if arrays is None and params_path is not None:
            arrays = _read(params_path)
    if params is not None and not isinstance(params, bytes):
        arrays = _read(Path(os.fspath(params)))
    symbol = read_symbol(text.decode("utf-8", "replace"), where)
    known = {} if arrays is None else read_arrays(arrays, where)
    return _Importer(symbol, known, where).module(dict(shapes or {}))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


class _Importer:
    """The import of one symbol."""

    def __init__(self, symbol: Symbol, arrays: Mapping[str, Array], where: str) -> None:
        self.symbol, self.arrays, self.where = symbol, arrays, where
        self.builder = NamingBuilder()
        self.functions: list[Function] = []
        self.bodies = Bodies(self._run, self.functions)

    def module(self, shapes: Shapes) -> IRModule:
        params: dict[str, Var] = {}
        values: list[GraphExpr] = []
        nodes = self.symbol.nodes
        read = _read_nodes(self.symbol)
        variables: dict[int, GraphExpr] = {}
        for at, node in enumerate(nodes):
            if node.op != "null" or at not in read:
                continue
            if node.name in self.arrays:
                self.builder.span = None
                variables[at] = self.builder.constant(self.arrays[node.name], str(self.arrays[node.name].dtype))
            else:
                params[node.name] = self._new_input(at, node, shapes)
                variables[at] = params[node.name]
        refuse_unknown(shapes, list(params))
        values = self._computed(self.symbol, variables)
        names = _output_names(self.symbol)
        name = Path(self.where).stem.split("-symbol")[0]
        return main_module(self.builder, list(params.values()), values, names, name, self.functions)

    def _new_input(self, at: int, node: SymbolNode, shapes: Shapes) -> Var:
        given, guess = shapes.pop(node.name, None), self._guess(at, node)
        if given is None and guess is None:
            raise UserError(
                f"the symbol does not say the shape of its input '{node.name}'",
                where=self.where,
                hint=f'give it: shapes={{"{node.name}": (1, 3, 224, 224)}}'
                + ("" if self.arrays else "; is the .params file beside the symbol?"),
            )
        if given is not None and guess is not None and len(given) != len(guess):
            guess = None  # a dense layer takes data of any number of dimensions; others complain themselves
        sizes: list[int | str] = []
        for axis in range(len(given if given is not None else guess or ())):
            new = None if given is None else given[axis]
            old = f"{node.name}_{axis}" if guess is None else guess[axis]
            if isinstance(old, int) and isinstance(new, int) and old != new:
                raise UserError(f"the input '{node.name}' has {old} elements along axis {axis}, not {new}")
            sizes.append(old if new is None or isinstance(old, int) else new)
        return new_input(self.builder, node.name, sizes, FLOAT32)

    def _guess(self, at: int, node: SymbolNode) -> list[int | str] | None:
        """The shape of an input, as its own attribute or the weights of the layer that reads it say."""
        text = node.attributes.get("__shape__", "")
        listed = [item for item in text.strip("()[] ").split(",") if item.strip()]
        if listed and all(item.strip().lstrip("-").isdigit() for item in listed):
            return [int(item) if int(item) > 0 else f"{node.name}_{axis}" for axis, item in enumerate(listed)]
        place = at
        for number, other in enumerate(self.symbol.nodes):
            if not other.inputs or other.inputs[0][0] != place:
                continue
            if other.op in _THROUGH:
                place = number
                continue
            weight = self.arrays.get(self.symbol.nodes[other.inputs[1][0]].name) if len(other.inputs) > 1 else None
            if weight is None:
                return None
            if other.op == "Convolution" and 3 <= weight.ndim <= 5 and other.attributes.get("layout", "NC")[:2] == "NC":
                groups = int(float(other.attributes.get("num_group", "1") or 1))
                return ["batch", int(weight.shape[1]) * groups, *_SPATIAL[weight.ndim - 3]]
            if other.op == "FullyConnected" and weight.ndim == 2:
                return ["batch", int(weight.shape[1])]
            return None
        return None

    # Nodes

    def _run(self, symbol: Symbol, values: Sequence[GraphExpr]) -> list[GraphExpr]:
        """The results of a symbol inside a node for values of its arguments."""
        if len(values) != len(symbol.arguments):
            raise UserError(f"a symbol of {len(symbol.arguments)} arguments is given {len(values)}")
        span = self.builder.span
        results = self._computed(symbol, dict(zip(symbol.arguments, values, strict=True)))
        self.builder.span = span
        return results

    def _computed(self, symbol: Symbol, variables: Mapping[int, GraphExpr]) -> list[GraphExpr]:
        results: dict[int, list[GraphExpr]] = {at: [value] for at, value in variables.items()}
        read = _read_nodes(symbol)
        for at, node in enumerate(symbol.nodes):
            if at not in read or at in results:
                continue
            where = f"{node.op} '{node.name}'"
            if node.op == "null":
                raise UserError(f"the variable '{node.name}' has no value", where=self.where)
            inputs: list[GraphExpr | None] = []
            for place, index in _inputs(node):
                known = results.get(place)
                if known is None or index >= len(known):
                    raise UserError("the node reads a result that no node before it gives", where=where)
                inputs.append(known[index])
            made = Node(node, inputs, self.builder, self.bodies)
            results[at] = converter.convert(self.builder, node.op, node.name, made)
        return [self._head(results, place, index) for place, index in symbol.heads]

    def _head(self, results: Mapping[int, list[GraphExpr]], place: int, index: int) -> GraphExpr:
        known = results.get(place, [])
        if index >= len(known):
            raise UserError(f"the symbol gives result {index} of node {place}, which is not there", where=self.where)
        return known[index]


def _inputs(node: SymbolNode) -> Sequence[tuple[int, int]]:
    """What a node reads when it runs: no labels."""
    return node.inputs[:1] if node.op in _LOSSES else node.inputs


def _read_nodes(symbol: Symbol) -> set[int]:
    """The nodes that the results of a symbol need."""
    found: set[int] = set()
    waiting = [place for place, _ in symbol.heads]
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting.extend(place for place, _ in _inputs(symbol.nodes[at]))
    return found


def _output_names(symbol: Symbol) -> list[str]:
    """The names that MXNet gives results: that of the node, with the number of the result where it has several."""
    names: list[str] = []
    for place, index in symbol.heads:
        node = symbol.nodes[place]
        several = sum(1 for other, _ in symbol.heads if other == place) > 1
        name = node.name if node.op == "null" else f"{node.name}_output{index if several else ''}"
        names.append(name if name not in names else f"{name}_{len(names)}")
    return names
