"""`quantize`: a float32 model and calibration data in, the same model in integers out, with a report.

quantized = tw.quantize("resnet18.onnx", images)
exe = tw.compile(quantized.module)
print(quantized.report)
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

import numpy.typing as npt

from tilewright.frontend import from_file
from tilewright.graph.ir.expr import Function, GraphExpr
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.passes.fixed_point import fixed_point
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.recognize import recognize
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import IntImm
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType
from tilewright.quantization.apply import Plan, apply_plan
from tilewright.quantization.data import CalibrationData, Feed, Input, feeds
from tilewright.quantization.equalize import equalize
from tilewright.quantization.layers import Layer, Sources, find_layers, recurrent_inputs, visible
from tilewright.quantization.options import FIELDS, QuantizeFields, QuantizeOptions
from tilewright.quantization.parameters import of_range
from tilewright.quantization.report import LayerReport, Report, Trial
from tilewright.quantization.running import CompileModule
from tilewright.quantization.search import SearchRecord, fewest_kept, search_key
from tilewright.quantization.sensitivity import measure_layers, results_of, signal_to_noise
from tilewright.quantization.statistics import Statistics, collect
from tilewright.quantization.weights import mean_error, quantize_weight
from tilewright.request import ModelLike
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.progress import Progress
from tilewright.support.text import kind_of

Array = npt.NDArray[Any]
Metric: TypeAlias = Callable[[list[list[Array]]], float]
"""How good results are: a list with the outputs of each run in, a number out; more is better."""
_PREPARATION = (
    eliminate_dead_code,
    canonicalize,
    fold_constants,
    recognize,
    fold_batch_norm,
    canonicalize,
    fold_constants,
)
_MOST_EXPONENT = 300.0
"""A squared error relative to nothing is large, not infinite."""


@dataclass(frozen=True)
class Quantized:
    """A quantised model: `tw.compile(quantized.module)`."""

    module: IRModule
    report: Report


def quantize_model(
    model: ModelLike,
    calibration: CalibrationData,
    compile_module: CompileModule,
    *,
    metric: Metric | None = None,
    options: QuantizeOptions | None = None,
    resume: str | os.PathLike[str] | None = None,
    **changes: Unpack[QuantizeFields],
) -> Quantized:
    """`tw.quantize`, with a function that compiles what calibration runs."""
    for name in changes:
        if name not in FIELDS:
            raise UserError(f"there is no option {name!r}", hint=f"options: {', '.join(FIELDS)}")
    settings = replace(options or QuantizeOptions(), **changes)
    function = prepared(model, settings)
    data = feeds(calibration, _inputs(function))
    path = None if resume is None else Path(resume)
    return _Quantization(function, settings, data, metric, compile_module, path).run()


def quantize_without_data(model: ModelLike, options: QuantizeOptions) -> IRModule:
    """A model quantised by a scheme that needs no ranges of activations, with weights rounded to the nearest."""
    if options.scheme == "static" or options.rounding != "nearest" or options.corrects_bias:
        raise CompilerBug(f"the scheme {options.scheme!r} needs calibration data")
    function = prepared(model, options)
    order = visible(function)
    layers = chosen_layers(order, options)
    weights = {layer.name: quantize_weight(layer, layer.weight.data, options, None) for layer in layers if layer.weight}
    plan = Plan(layers, Sources(order, layers), {}, weights, {}, options.scheme == "dynamic")
    result = apply_plan(function, plan)
    return infer_types(IRModule({result.name: result}))


def chosen_layers(order: list[GraphExpr], options: QuantizeOptions) -> list[Layer]:
    """The layers of a model, given its expressions, that are quantised."""
    layers = find_layers(order)
    names = {layer.name for layer in layers}
    unknown = [name for name in options.skip if name not in names]
    if unknown:
        raise UserError(f"there is no layer {unknown[0]!r} to skip", hint=f"layers: {', '.join(sorted(names))}")
    chosen = [layer for layer in layers if layer.name not in options.skip]
    if options.scheme == "weights" or not options.products:
        chosen = [layer for layer in chosen if layer.weight is not None]
    if options.scheme == "dynamic":
        chosen = [layer for layer in chosen if layer.is_plain_product]
    elif options.scheme == "static":
        # Errors of what a recurrent layer takes in add up over its steps.
        recurrent = recurrent_inputs(order)
        chosen = [layer for layer in chosen if id(layer.call) not in recurrent]
    if not chosen:
        what = "matrix products" if options.scheme == "dynamic" else "convolutions and matrix products"
        raise UserError("the model has no layer to quantise", hint=f"{what} of float32 with constant weights")
    return chosen


def prepared(model: ModelLike, options: QuantizeOptions) -> Function:
    """The model as layers: batch normalisation in weights, constants computed, channels equalised if asked for."""
    module = infer_types(model if isinstance(model, IRModule) else from_file(model))
    if list(module.functions) != ["main"]:
        raise UserError(
            f"the model has several functions ({', '.join(module.functions)}): only 'main' can be quantised"
        )
    for transform in _PREPARATION:
        module = transform(module)
    main = module["main"]
    assert isinstance(main, Function)
    return equalize(main) if options.equalize else main


def _inputs(function: Function) -> list[Input]:
    result = []
    for param in function.params:
        if not isinstance(param.type, TensorType) or param.type.shape is None:
            raise UserError(f"the input {param.name!r} is no tensor of known rank: the model cannot be calibrated")
        shape = tuple(dim.value if isinstance(dim, IntImm) else None for dim in param.type.shape)
        result.append(Input(param.name, shape, param.type.dtype.numpy()))
    return result


class _Quantization:
    """One model on its way to integers."""

    def __init__(
        self,
        function: Function,
        options: QuantizeOptions,
        data: list[Feed],
        metric: Metric | None,
        compile_module: CompileModule,
        resume: Path | None,
    ) -> None:
        self.function, self.options, self.data, self.resume = function, options, data, resume
        self.compile_module = compile_module
        order = visible(function)
        self.layers = chosen_layers(order, options)
        self.sources = Sources(order, self.layers, integers=options.arithmetic == "fixed_point")
        self.exact = results_of(self._compiled(function), data)
        self.metric = metric

    def _compiled(self, function: Function) -> Any:
        return self.compile_module(infer_types(IRModule({function.name: function})))

    def _score(self, results: list[list[Array]]) -> float:
        """What the metric says of results; without one, minus their squared error relative to the exact ones."""
        if self.metric is None:
            return -float(10 ** min(-signal_to_noise(self.exact[: len(results)], results) / 10, _MOST_EXPONENT))
        value = self.metric(results)
        try:
            score = float(value)
        except (TypeError, ValueError):
            raise UserError(f"the metric gave {kind_of(value)}", hint="it gives a number; more is better") from None
        if not math.isfinite(score):
            raise UserError(f"the metric gave {score}", hint="it gives a finite number for every result of the model")
        return score

    def run(self) -> Quantized:
        """Calibrate, choose numbers and layers, and build the quantised model."""
        plan = self._plan()
        metric_before = self._score(self.exact)
        key = "" if self.resume is None else search_key(self.function, self.options, self.data)
        record = SearchRecord(self.resume, key, metric_before)
        if self.options.max_drop is not None or self.options.sensitivity:
            by_metric = None if self.metric is None else self._score
            measure_layers(self.function, plan, self.data, self.exact, record, by_metric, self.compile_module)
        kept, function, results = self._search(plan, record)
        report = Report(
            self.options.scheme,
            self.options.weight_bits,
            self.options.observer,
            len(self.data),
            [self._reported(layer, kept, record) for layer in self.layers],
            signal_to_noise(self.exact, results),
            metric_before,
            self._score(results),
            self.options.max_drop,
            [Trial(count, score) for count, score in record.trials.items()],
        )
        module = infer_types(IRModule({function.name: function}))
        if self.options.arithmetic == "fixed_point":
            module = eliminate_common_subexpressions(fixed_point(module))
        return Quantized(module, report)

    def _reported(self, layer: Layer, kept: frozenset[str], record: SearchRecord) -> LayerReport:
        measured = record.layers.get(layer.name)
        return LayerReport(
            layer.name,
            str(getattr(layer.call.callee, "name", "")),
            0 if layer.weight is None else layer.weight.data.size,
            layer.name not in kept,
            None if measured is None else measured.decibels,
            None if measured is None else measured.metric,
        )

    def _plan(self) -> Plan:
        options = self.options
        with_squares = options.rounding == "learned"
        statistics = Statistics({}, {})
        if options.scheme == "static" or with_squares or options.corrects_bias:
            statistics = collect(
                self.function,
                self.layers,
                self.sources,
                self.data,
                observer=options.observer,
                with_means=options.corrects_bias,
                with_squares=with_squares,
                compile_module=self.compile_module,
            )
        dtype = DataType.of(options.activations)
        ranges = statistics.ranges if options.scheme == "static" else {}
        activations = {group: of_range(*ends, dtype, options.activation_bits) for group, ends in ranges.items()}
        weights, corrections = {}, {}
        with Progress("rounding weights", len(self.layers)) as progress:
            for layer in self.layers:
                if layer.weight is not None:
                    values, moments = layer.weight.data, statistics.moments.get(layer.name)
                    weights[layer.name] = quantize_weight(layer, values, options, moments)
                    if options.corrects_bias and moments is not None:
                        rounded = weights[layer.name].numbers()
                        corrections[layer.name] = -mean_error(layer, values, rounded, moments)
                progress.step(layer.name)
        dynamic = options.scheme == "dynamic"
        return Plan(self.layers, self.sources, activations, weights, corrections, dynamic)

    def _trial(self, plan: Plan, kept: frozenset[str]) -> tuple[Function, list[list[Array]]]:
        if len(kept) == len(self.layers):
            return self.function, self.exact
        function = apply_plan(self.function, plan, kept)
        return function, results_of(self._compiled(function), self.data)

    def _search(self, plan: Plan, record: SearchRecord) -> tuple[frozenset[str], Function, list[list[Array]]]:
        """The layers that stay in float32, and the model that keeps them, with its results."""
        tried: dict[frozenset[str], tuple[Function, list[list[Array]]]] = {}

        def try_kept(kept: frozenset[str]) -> float:
            tried[kept] = self._trial(plan, kept)
            return self._score(tried[kept][1])

        drop = self.options.max_drop
        kept = frozenset() if drop is None else fewest_kept(record, drop, try_kept)
        return (kept, *(tried.get(kept) or self._trial(plan, kept)))
