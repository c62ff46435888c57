"""`quantize`: a float32 model and calibration data in, the same model in integers out, with a report.

quantized = tw.quantize("resnet18.onnx", images)
exe = tw.compile(quantized.module)
print(quantized.report)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, Unpack

import numpy.typing as npt

from tilewright.frontend.onnx import from_onnx
from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.recognize import recognize
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import IntImm
from tilewright.ir.function import IRModule
from tilewright.quantization.apply import Plan, apply_plan
from tilewright.quantization.data import CalibrationData, Feed, feeds
from tilewright.quantization.equalize import equalize
from tilewright.quantization.layers import Layer, Sources, find_layers, visible
from tilewright.quantization.options import FIELDS, QuantizeFields, QuantizeOptions
from tilewright.quantization.parameters import of_range
from tilewright.quantization.report import LayerReport, Report
from tilewright.quantization.running import CompileModule
from tilewright.quantization.sensitivity import results_of, sensitivities, signal_to_noise
from tilewright.quantization.statistics import Statistics, collect
from tilewright.quantization.weights import mean_error, quantize_weight
from tilewright.request import ModelLike
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.progress import Progress

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
_MOST_SENSITIVITY_RUNS = 8
"""Runs that the sensitivity of a layer is measured on."""


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
    **changes: Unpack[QuantizeFields],
) -> Quantized:
    """`tw.quantize`, with a function that compiles what calibration runs."""
    for name in changes:
        if name not in FIELDS:
            raise UserError(f"there is no option {name!r}", hint=f"options: {', '.join(FIELDS)}")
    settings = replace(options or QuantizeOptions(), **changes)
    function = _prepared(model, settings)
    names, shapes = _inputs(function)
    data = feeds(calibration, names, shapes)
    return _Quantization(function, settings, data, metric, compile_module).run()


def quantize_without_data(model: ModelLike, options: QuantizeOptions) -> IRModule:
    """A model quantised by a scheme that needs no ranges of activations, with weights rounded to the nearest."""
    if options.scheme == "static" or options.rounding != "nearest" or options.correct_bias:
        raise CompilerBug(f"the scheme {options.scheme!r} needs calibration data")
    function = _prepared(model, options)
    layers = chosen_layers(find_layers(visible(function)), options)
    weights = {layer.name: quantize_weight(layer, layer.weight.data, options, None) for layer in layers if layer.weight}
    plan = Plan(layers, Sources(visible(function), layers), {}, weights, {}, options.scheme == "dynamic")
    result = apply_plan(function, plan)
    return infer_types(IRModule({result.name: result}))


def chosen_layers(layers: list[Layer], options: QuantizeOptions) -> list[Layer]:
    """The layers of a model that are quantised."""
    names = {layer.name for layer in layers}
    unknown = [name for name in options.skip if name not in names]
    if unknown:
        raise UserError(f"there is no layer {unknown[0]!r} to skip", hint=f"layers: {', '.join(sorted(names))}")
    chosen = [layer for layer in layers if layer.name not in options.skip]
    if options.scheme == "weights" or not options.products:
        chosen = [layer for layer in chosen if layer.weight is not None]
    if options.scheme == "dynamic":
        chosen = [layer for layer in chosen if layer.is_plain_product]
    if not chosen:
        what = "matrix products" if options.scheme == "dynamic" else "convolutions and matrix products"
        raise UserError("the model has no layer to quantise", hint=f"{what} of float32 with constant weights")
    return chosen


def _prepared(model: ModelLike, options: QuantizeOptions) -> Function:
    """The model as layers: batch normalisation in weights, constants computed, channels equalised if asked for."""
    module = infer_types(model if isinstance(model, IRModule) else from_onnx(model))
    if list(module.functions) != ["main"]:
        raise UserError(
            f"the model has several functions ({', '.join(module.functions)}): only 'main' can be quantised"
        )
    for transform in _PREPARATION:
        module = transform(module)
    main = module["main"]
    assert isinstance(main, Function)
    return equalize(main) if options.equalize else main


def _inputs(function: Function) -> tuple[list[str], list[tuple[int | None, ...]]]:
    names, shapes = [], []
    for param in function.params:
        dims = param.tensor_type.shape or ()
        names.append(param.name)
        shapes.append(tuple(dim.value if isinstance(dim, IntImm) else None for dim in dims))
    return names, shapes


class _Quantization:
    """One model on its way to integers."""

    def __init__(
        self,
        function: Function,
        options: QuantizeOptions,
        data: list[Feed],
        metric: Metric | None,
        compile_module: CompileModule,
    ) -> None:
        self.function, self.options, self.data, self.compile_module = function, options, data, compile_module
        order = visible(function)
        self.layers = chosen_layers(find_layers(order), options)
        self.sources = Sources(order, self.layers)
        self.exact = results_of(self._compiled(function), data)
        self.metric = metric or self._closeness

    def _compiled(self, function: Function) -> Any:
        return self.compile_module(infer_types(IRModule({function.name: function})))

    def _closeness(self, results: list[list[Array]]) -> float:
        ratio = signal_to_noise(self.exact, results)
        return -float(10 ** (-ratio / 10))

    def run(self) -> Quantized:
        """Calibrate, choose numbers and layers, and build the quantised model."""
        plan = self._plan()
        exact_metric = self.metric(self.exact)
        some = self.data[:_MOST_SENSITIVITY_RUNS]
        noise: dict[str, float] = {}
        if self.options.max_drop is not None:
            noise = sensitivities(self.function, plan, some, self.exact[: len(some)], self.compile_module)
        kept, function, results, trials = self._search(plan, noise, exact_metric)
        layers = [
            LayerReport(
                layer.name,
                str(getattr(layer.call.callee, "name", "")),
                0 if layer.weight is None else layer.weight.data.size,
                layer.name not in kept,
                noise.get(layer.name),
            )
            for layer in self.layers
        ]
        report = Report(
            self.options.scheme,
            self.options.weight_bits,
            self.options.observer,
            len(self.data),
            layers,
            signal_to_noise(self.exact, results),
            exact_metric,
            self.metric(results),
            trials,
        )
        module = infer_types(IRModule({function.name: function}))
        return Quantized(module, report)

    def _plan(self) -> Plan:
        options = self.options
        with_moments = options.rounding == "learned" or options.correct_bias
        statistics = Statistics({}, {})
        if options.scheme == "static" or with_moments:
            statistics = collect(
                self.function,
                self.layers,
                self.sources,
                self.data,
                observer=options.observer,
                with_moments=with_moments,
                compile_module=self.compile_module,
            )
        dtype = DataType.of(options.activations)
        ranges = statistics.ranges if options.scheme == "static" else {}
        activations = {group: of_range(*ends, dtype) for group, ends in ranges.items()}
        weights, corrections = {}, {}
        with Progress("rounding weights", len(self.layers)) as progress:
            for layer in self.layers:
                if layer.weight is not None:
                    values, moments = layer.weight.data, statistics.moments.get(layer.name)
                    weights[layer.name] = quantize_weight(layer, values, options, moments)
                    if options.correct_bias and moments is not None:
                        rounded = weights[layer.name].numbers()
                        corrections[layer.name] = -mean_error(layer, values, rounded, moments)
                progress.step(layer.name)
        dynamic = options.scheme == "dynamic"
        return Plan(self.layers, self.sources, activations, weights, corrections, dynamic)

    def _trial(self, plan: Plan, kept: frozenset[str]) -> tuple[Function, list[list[Array]]]:
        function = apply_plan(self.function, plan, kept)
        return function, results_of(self._compiled(function), self.data)

    def _search(
        self, plan: Plan, noise: dict[str, float], exact_metric: float
    ) -> tuple[frozenset[str], Function, list[list[Array]], list[dict[str, float]]]:
        """The fewest layers in float32, the most sensitive first, for which the metric holds: by bisection."""
        drop = self.options.max_drop
        function, results = self._trial(plan, frozenset())
        trials = [{"kept": 0.0, "metric": self.metric(results)}]
        if drop is None or exact_metric - trials[0]["metric"] <= drop:
            return frozenset(), function, results, trials
        ranking = sorted(noise, key=lambda name: noise[name])
        low, high = 0, len(ranking)
        best: tuple[frozenset[str], Function, list[list[Array]]] = (frozenset(ranking), self.function, self.exact)
        while high - low > 1:
            middle = (low + high) // 2
            kept = frozenset(ranking[:middle])
            function, results = self._trial(plan, kept)
            score = self.metric(results)
            trials.append({"kept": float(middle), "metric": score})
            if exact_metric - score <= drop:
                high, best = middle, (kept, function, results)
            else:
                low = middle
        return (*best, trials)
