"""Import of Caffe2 models: `predict_net.pb` with `init_net.pb` beside it, in bytes or as texts.

A net does not say the shapes of its inputs: `shapes` gives them. Where the first operator of an input has weights, they
say the number of channels, and the batch and the sizes of an image are open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.frontend.caffe2 import arithmetic, int8, layers, shape
from tilewright.frontend.caffe2.files import Weight, arguments, is_filling, read_file, read_net, read_weights
from tilewright.frontend.caffe2.node import Levels, Node, converter
from tilewright.frontend.companions import caffe2_pair
from tilewright.frontend.core.converters import NamingBuilder
from tilewright.frontend.core.functions import main_module, new_input, refuse_unknown
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

FAMILIES = (arithmetic, int8, layers, shape)
"""The modules whose converters are registered."""
Shapes = dict[str, Sequence[int | str | None]]


def from_caffe2(
    source: str | os.PathLike[str] | bytes,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    weights: str | os.PathLike[str] | bytes | None = None,
) -> IRModule:
    """Import a Caffe2 model: the path of one of its two nets, or the bytes of the one that computes.

    The other one lies beside it (`predict_net.pb`, `init_net.pb`); `weights` is another net of weights.
    """
    filling: bytes | None = weights if isinstance(weights, bytes) else None
    where = "the bytes"
    if isinstance(source, bytes):
        content = source
    else:
        predict, init = caffe2_pair(Path(os.fspath(source)))
        if predict is None:
            raise UserError(
                f"there is no net that computes beside {source}",
                hint="a Caffe2 model is predict_net.pb with init_net.pb beside it",
            )
        where, content = str(predict), read_file(predict)
        if weights is None and init is not None:
            filling = read_file(init)
    if weights is not None and not isinstance(weights, bytes):
        filling = read_file(Path(os.fspath(weights)))
    net = read_net(content, where)
    if not net.op:
        raise UserError("the net has no operators", where=where)
    if is_filling(net) and filling is None:
        raise UserError(
            "this is a net of weights alone", where=where, hint="pass the net that computes: predict_net.pb"
        )
    known = {} if filling is None else read_weights(read_net(filling, "the net of weights"), "the net of weights")
    return _Importer(net, known, where).module(dict(shapes or {}))


class _Importer:
    """The import of one net."""

    def __init__(self, net: Any, weights: Mapping[str, Weight], where: str) -> None:
        self.net, self.weights, self.where = net, weights, where
        self.builder = NamingBuilder()
        self.values: dict[str, GraphExpr] = {}
        self.levels: dict[str, Levels | None] = {}

    def module(self, shapes: Shapes) -> IRModule:
        params = self._inputs(shapes)
        for op in self.net.op:
            self._convert(op)
        names = list(dict.fromkeys(self.net.external_output)) or self._unread()
        results: list[GraphExpr] = []
        for name in names:
            if name not in self.values:
                raise UserError(f"the net gives '{name}', which no operator computes", where=self.where)
            results.append(self.values[name])
        if not results:
            raise UserError("the net has no outputs", where=self.where)
        return main_module(self.builder, params, results, names, self.net.name)

    def _unread(self) -> list[str]:
        """What no operator reads, where a net does not say what it gives."""
        read = {name for op in self.net.op for name in op.input}
        return [name for op in self.net.op for name in op.output[:1] if name not in read]

    def _inputs(self, shapes: Shapes) -> list[Var]:
        """The weights as constants, and what is left of what the net reads as inputs."""
        made = {name for op in self.net.op for name in op.output}
        first = {op.input[0] for op in self.net.op if op.input}
        read = [name for op in self.net.op for name in op.input]
        # Nets say their inputs; some fill them with a single number, so that they run without any.
        declared = list(dict.fromkeys([*self.net.external_input, *(name for name in read if name not in made)]))
        params: list[Var] = []
        for name in declared:
            weight = self.weights.get(name)
            if weight is not None and not (weight.is_placeholder and name in first):
                self.values[name] = self.builder.constant(weight.values, str(weight.values.dtype))
                self.levels[name] = weight.levels
            elif name in read:
                params.append(self._new_input(name, shapes))
                self.values[name] = params[-1]
        refuse_unknown(shapes, [param.name for param in params])
        return params

    def _new_input(self, name: str, shapes: Shapes) -> Var:
        given, guess = shapes.pop(name, None), self._guess(name)
        if given is None and guess is None:
            raise UserError(
                f"the net does not say the shape of its input '{name}'",
                where=self.where,
                hint=f'give it: shapes={{"{name}": (1, 3, 224, 224)}}'
                + ("" if self.weights else "; is init_net.pb beside the net?"),
            )
        if given is None or guess is None or len(guess) != len(given):
            guess = guess if given is None else [f"{name}_{axis}" for axis in range(len(given))]
        sizes = [
            old if new is None else new
            for old, new in zip(guess or (), given or [None] * len(guess or ()), strict=True)
        ]
        return new_input(self.builder, name, sizes, FLOAT32)

    def _guess(self, name: str) -> list[int | str] | None:
        """The shape of an input, as the weights of the operator that reads it say."""
        op = next((item for item in self.net.op if item.input and item.input[0] == name), None)
        if op is None or len(op.input) < 2 or op.input[1] not in self.weights:
            return None
        weight, given = self.weights[op.input[1]].values, arguments(op)
        if op.type == "Conv" and weight.ndim == 4:
            groups = int(given["group"].i) if "group" in given else 1
            if "order" in given and bytes(given["order"].s) == b"NHWC":
                return ["batch", "height", "width", int(weight.shape[3]) * groups]
            return ["batch", int(weight.shape[1]) * groups, "height", "width"]
        if op.type == "FC" and weight.ndim == 2:
            return ["batch", int(weight.shape[1])]
        return None

    def _convert(self, op: Any) -> None:
        name = op.name or (op.output[0] if op.output else op.type)
        where = f"{op.type} '{name}'"
        inputs: list[GraphExpr] = []
        for item in op.input:
            if item not in self.values:
                raise UserError(f"the operator reads '{item}', which no operator before it gives", where=where)
            inputs.append(self.values[item])
        levels = [self.levels.get(item) for item in op.input]
        kind = int8.KINDS.get(op.type)
        if kind is None:
            node = Node(op, op.type, inputs, self.builder, levels)
            results = converter.convert(self.builder, op.type, name, node)
            made = int8.own_levels(node) if op.type == "Int8Quantize" else None
        else:
            numbers = [int8.numbers(self.builder, value, item) for value, item in zip(inputs, levels, strict=True)]
            node = Node(op, kind, numbers, self.builder, levels)
            results = converter.convert(self.builder, kind, name, node)
            made = int8.own_levels(node)
            results[0] = int8.integers(node, results[0], made)
        for place, (item, value) in enumerate(zip(op.output, results, strict=False)):
            self.values[item] = value
            self.levels[item] = made if place == 0 else None
