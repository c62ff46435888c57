"""What quantising each layer alone costs: the signal-to-noise ratio of the model's results.

One program has a switch for each layer, an input of the model: it is compiled once, and run once a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.graph.ir.expr import Call, Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.rewrite import make
from tilewright.graph.ir.traverse import rewrite
from tilewright.ir.dtype import BOOL
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.quantization.apply import Plan
from tilewright.quantization.data import Feed
from tilewright.quantization.running import CompileModule
from tilewright.support.progress import Progress

Array = npt.NDArray[Any]
Runner = Callable[..., Any]


def results_of(executable: Runner, data: Sequence[Feed]) -> list[list[Array]]:
    """The results of a model for each run: arrays, in the order of its outputs."""
    outputs = []
    for feed in data:
        results = executable(*feed)
        outputs.append([np.asarray(item) for item in results] if isinstance(results, tuple | list) else [results])
    return outputs


def signal_to_noise(exact: Sequence[Sequence[Array]], rounded: Sequence[Sequence[Array]]) -> float:
    """In decibels, over all results that are floats; infinite where nothing differs."""
    signal = noise = 0.0
    for theirs, ours in zip(exact, rounded, strict=True):
        for a, b in zip(theirs, ours, strict=True):
            if a.dtype.kind != "f":
                continue
            wide = a.astype(np.float64)
            signal += float((wide**2).sum())
            noise += float(((wide - b) ** 2).sum())
    if noise == 0.0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")


def sensitivities(
    function: Function,
    plan: Plan,
    data: Sequence[Feed],
    exact: Sequence[Sequence[Array]],
    compile_module: CompileModule,
) -> dict[str, float]:
    """By layer, the signal-to-noise ratio of the results when it alone is quantised."""
    executable = compile_module(_switched(function, plan))
    result = {}
    with Progress("sensitivity of layers", len(plan.layers)) as progress:
        for place, layer in enumerate(plan.layers):
            switches = np.zeros(len(plan.layers), bool)
            switches[place] = True
            outputs = results_of(lambda *feed, on=switches: executable(on, *feed), data)
            result[layer.name] = signal_to_noise(exact, outputs)
            progress.step(layer.name)
    return result


def _switched(function: Function, plan: Plan) -> IRModule:
    """The model with one more input: for each layer, whether its operands are rounded."""
    switches = Var("quantized_layers", tensor_type((len(plan.layers),), BOOL))
    places = {id(layer.call): place for place, layer in enumerate(plan.layers)}

    def replace(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        if id(old) not in places:
            return None
        assert isinstance(new, Call) and isinstance(old, Call)
        place = places[id(old)]
        layer = plan.layers[place]
        part = make("slice", switches, begin=(place,), end=(place + 1,), strides=(1,))
        switch = make("reshape", part, shape=())
        operands = []
        for before, operand in zip(old.args, new.args, strict=True):
            rounded: GraphExpr | None = None
            if before is layer.weight:
                weight = plan.weights.get(layer.name)
                rounded = None if weight is None else constant(weight.numbers(), "float32")
            elif plan.sources.group(before) in plan.activations:
                parameters = plan.activations[plan.sources.group(before)]
                rounded = parameters.through_integers(operand, new.span)
            operands.append(operand if rounded is None else make("where", switch, rounded, operand))
        result = Call(new.callee, tuple(operands), new.attributes)
        result.type = old.type
        return result

    body = rewrite(function.body, replace)
    return infer_types(IRModule({function.name: Function(function.name, (switches, *function.params), body, None, ())}))
