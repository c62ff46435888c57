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
from tilewright.quantization.apply import Plan, corrected, dynamic_layer
from tilewright.quantization.data import Feed
from tilewright.quantization.layers import Layer
from tilewright.quantization.running import CompileModule
from tilewright.quantization.search import SearchRecord, Sensitivity
from tilewright.support.progress import Progress

Array = npt.NDArray[Any]
Runner = Callable[..., Any]
_MOST_RUNS = 8
"""Runs that the sensitivity of a layer is measured on where only noise is asked for."""


def results_of(executable: Runner, data: Sequence[Feed]) -> list[list[Array]]:
    """The results of a model for each run: arrays, in the order of its outputs."""
    outputs = []
    for feed in data:
        results = executable(*feed)
        outputs.append(
            [np.asarray(item) for item in results] if isinstance(results, tuple | list) else [np.asarray(results)]
        )
    return outputs


def signal_to_noise(exact: Sequence[Sequence[Array]], rounded: Sequence[Sequence[Array]]) -> float:
    """In decibels, over all results that are floats; infinite where nothing differs."""
    signal = noise = 0.0
    for theirs, ours in zip(exact, rounded, strict=True):
        for a, b in zip(theirs, ours, strict=True):
            if a.dtype.kind != "f":
                continue
            # Minus infinity (a mask) or no number is no signal; a result that becomes one is all noise.
            known = np.isfinite(a)
            wide = a[known].astype(np.float64)
            signal += float((wide**2).sum())
            noise += float(((wide - b[known]) ** 2).sum())
    if not np.isfinite(noise):
        return float("-inf")
    if noise == 0.0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")


def measure_layers(
    function: Function,
    plan: Plan,
    data: Sequence[Feed],
    exact: Sequence[Sequence[Array]],
    record: SearchRecord,
    metric: Callable[[list[list[Array]]], float] | None,
    compile_module: CompileModule,
) -> None:
    """Put into the record what each layer costs when it alone is quantised, but for those that it has already.

    With a metric, on all the data; without, on a few runs.
    """
    missing = [place for place, layer in enumerate(plan.layers) if layer.name not in record.layers]
    if not missing:
        return
    some = data if metric is not None else data[:_MOST_RUNS]
    executable = compile_module(_switched(function, plan))
    with Progress("sensitivity of layers", len(missing)) as progress:
        for place in missing:
            switches = np.zeros(len(plan.layers), bool)
            switches[place] = True
            outputs = results_of(lambda *feed, on=switches: executable(on, *feed), some)
            noise = signal_to_noise(exact[: len(some)], outputs)
            name = plan.layers[place].name
            record.layers[name] = Sensitivity(noise, None if metric is None else metric(outputs))
            record.save()
            progress.step(name)


def _switched(function: Function, plan: Plan) -> IRModule:
    """The model with one more input: for each layer, whether its operands are rounded."""
    switches = Var("quantized_layers", tensor_type((len(plan.layers),), BOOL))
    places = {id(layer.call): place for place, layer in enumerate(plan.layers)}

    def replace(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        # A node whose operands were rounded has the type that it had.
        new.type = old.type if new.type is None else new.type
        if id(old) not in places:
            return new
        assert isinstance(new, Call)
        place = places[id(old)]
        part = make("slice", switches, begin=(place,), end=(place + 1,), strides=(1,))
        return _either(make("reshape", part, shape=()), plan.layers[place], new, plan)

    body = rewrite(function.body, replace)
    return infer_types(IRModule({function.name: Function(function.name, (switches, *function.params), body, None, ())}))


def _either(switch: GraphExpr, layer: Layer, call: Call, plan: Plan) -> GraphExpr:
    """A layer that is quantised where a switch says so."""
    if plan.dynamic:
        return make("where", switch, corrected(layer, dynamic_layer(layer, call, plan), plan), call)
    operands = []
    for before, operand in zip(layer.call.args, call.args, strict=True):
        rounded: GraphExpr | None = None
        if before is layer.weight:
            weight = plan.weights.get(layer.name)
            rounded = None if weight is None else constant(weight.numbers(), "float32")
        elif plan.sources.group(before) in plan.activations:
            parameters = plan.activations[plan.sources.group(before)]
            rounded = parameters.through_integers(operand, call.span)
        operands.append(operand if rounded is None else make("where", switch, rounded, operand))
    result = Call(call.callee, tuple(operands), call.attributes)
    result.type = call.type
    if layer.name not in plan.corrections:
        return result
    return make("where", switch, corrected(layer, result, plan), result)
