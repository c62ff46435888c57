"""The import of graphs that `torch.compile` captured: fx graphs of ATen operators whose inputs are flat lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.frontend.torch.complex_numbers import Complex
from tilewright.frontend.torch.importer import GraphImporter, finish_module, load_torch
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.ir.function import IRModule
from tilewright.support.errors import UnsupportedError
from tilewright.support.text import kind_of


def import_graph(
    graph: Any, inputs: Sequence[Any], constants: Mapping[int, Any]
) -> tuple[IRModule | None, list[int], list[bool]]:
    """A captured graph as a module, some of its inputs as constants.

    Gives the module (None if no output is a tensor), the places of the inputs that it takes, and for each output
    whether the module computes it (the others are nothing, which is what torch expects there).
    """
    torch = load_torch()
    importer = GraphImporter(torch)
    nodes = list(graph.graph.nodes)
    params: list[Var] = []
    given: list[int] = []
    for place, (node, example) in enumerate(
        zip((node for node in nodes if node.op == "placeholder"), inputs, strict=True)
    ):
        if place in constants:
            importer.values[node] = importer.constant(node.name, constants[place])
        elif isinstance(example, torch.Tensor):
            var = importer.parameter(node.name, example)
            params.append(var)
            given.append(place)
            importer.values[node] = importer.value_of(var)
        elif isinstance(example, (bool, int, float)):
            importer.values[node] = example
        else:
            raise UnsupportedError(
                f"the input '{node.name}' of the captured graph is {kind_of(example)}",
                hint="torch.compile(model, backend='tilewright', dynamic=False)",
            )
    outputs = importer.run(nodes)
    computed = [isinstance(value, (GraphExpr, Complex, bool, int, float)) for value in outputs]
    names = [f"output{index}" for index in range(len(outputs))]
    if not any(computed):
        return None, given, computed
    module = finish_module(importer.builder, "captured", params, outputs, names, importer.control.functions)
    return module, given, computed
