"""The program of a training step: loss, gradients and updates as one function, and which of its values are state.

    main(inputs..., target, [seed], scalars..., parameters..., moments..., buffers...)
        -> loss, metrics..., parameters..., moments..., buffers...

What follows from the number of the step alone (learning rate, scale of the loss, whether parameters move in this call)
is a scalar that the host gives.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import dtype_of
from tilewright.graph.gradient.api import value_and_grad
from tilewright.graph.ir.expr import Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Array
from tilewright.graph.state import with_state
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, tensor_type
from tilewright.support.errors import UserError
from tilewright.train.losses import Loss
from tilewright.train.model import ENTRY, TrainableModel, main_of, put_together, taken_apart
from tilewright.train.optimizers import Optimizer, sum_of_squares

TARGET = "target"
SCALE, MOVES = "loss_scale", "moves"


@dataclass(frozen=True)
class Rules:
    """How gradients become changes of parameters, beside the optimizer."""

    clip_norm: float | None = None
    """The most that all gradients together may be long; longer ones are shortened."""
    clip_value: float | None = None
    """The most that one element of a gradient may be."""
    accumulate: int = 1
    """Calls whose gradients are averaged before parameters move."""
    average: float | None = None
    """How much of an average of parameters stays in each step; None keeps no average."""
    scaled: bool = False
    """Whether the loss is scaled before it is differentiated, and steps whose gradients overflow are left out."""


@dataclass
class StepProgram:
    """A step as a module with state, and what the state starts as."""

    module: IRModule
    inputs: tuple[str, ...]
    scalars: tuple[str, ...]
    metrics: tuple[str, ...]
    """The names of the results that are no state, after the loss."""
    measures: tuple[str, ...]
    """Those of them that say something of predictions, not of gradients."""
    initial: dict[str, Array]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]


@dataclass
class Assembly:
    """Inputs and results of the step while they are put together."""

    initial: dict[str, Array] = field(default_factory=dict)
    vars: list[Var] = field(default_factory=list)
    after: dict[str, GraphExpr] = field(default_factory=dict)

    def state(self, name: str, start: Array, kind: TensorType) -> Var:
        """A value of state, which the caller gives a next value."""
        var = Var(name, kind)
        self.keep(var, start)
        return var

    def keep(self, var: Var, start: Array) -> None:
        """A variable becomes state."""
        if var.name in self.initial:
            raise UserError(f"two values of the model are called '{var.name}'")
        self.vars.append(var)
        self.initial[var.name] = np.array(start)


def loss_module(
    b: ArithmeticBuilder, model: TrainableModel, loss: Loss | None, output: int, scaled: bool
) -> tuple[IRModule, tuple[str, ...]]:
    """The module that gives what is differentiated, the loss, metrics and next values of buffers; metrics' names."""
    if not 0 <= output < len(model.outputs):
        raise UserError(f"the model has no output {output}: it has {len(model.outputs)}")
    prediction = model.outputs[output]
    params = list(model.inputs)
    metrics: dict[str, GraphExpr] = {}
    if loss is None:
        value = prediction
        kind = value.type
        if not isinstance(kind, TensorType) or kind.static_shape != () or not kind.dtype.is_float:
            raise UserError("without a loss, the model's output must be one: a float scalar", hint="loss='mse'")
        aimed = value = b.cast(value, FLOAT32)
    else:
        target = Var(TARGET, loss.target(prediction))
        params.append(target)
        value = loss.loss(b, prediction, target)
        metrics = loss.metrics(b, prediction, target)
        aimed = loss.aimed(b, prediction, target, value)
    if scaled:
        params.append(Var(SCALE, tensor_type((), FLOAT32)))
        aimed = b.multiply(aimed, params[-1])
    params += [] if model.seed is None else [model.seed]
    params += [var for var, _ in model.parameters.values()]
    params += [item.var for item in model.buffers.values()]
    results = [aimed, value, *metrics.values(), *(item.after for item in model.buffers.values())]
    body = put_together(b, model.bindings, results)
    names = ("aimed", "loss", *metrics, *(f"next_{name}" for name in model.buffers))
    module = model.module.with_function(Function(ENTRY, tuple(params), body))
    module = IRModule(module.functions, module.types.values(), {"model_name": "step", "output_names": names})
    return infer_types(module), tuple(metrics)


def step_program(
    model: TrainableModel, loss: Loss | None, optimizer: Optimizer, rules: Rules, output: int = 0
) -> StepProgram:
    """The whole step of a model."""
    b = ArithmeticBuilder()
    aimed, metrics = loss_module(b, model, loss, output, rules.scaled)
    names = tuple(model.parameters)
    module = value_and_grad(aimed, list(names), has_aux=True)
    main = main_of(module)
    params = {param.name: param for param in main.params}
    b = ArithmeticBuilder()
    for param in main.params:
        assert param.type is not None
        b.declare(param.type)
    bindings, results = taken_apart(b, main.body)
    _, gradients, (value, *rest) = results[0], results[1 : 1 + len(names)], results[1 + len(names) :]
    shown = dict(zip(metrics, rest, strict=False))
    assembly = Assembly()
    scalars = {name: Var(name, tensor_type((), FLOAT32)) for name in optimizer.scalars(0)}
    if rules.accumulate > 1:
        scalars[MOVES] = Var(MOVES, tensor_type((), FLOAT32))
    update(b, assembly, model, params, gradients, optimizer, rules, scalars, shown)
    for (name, item), after in zip(model.buffers.items(), rest[len(metrics) :], strict=True):
        assembly.keep(params[name], item.value)
        assembly.after[name] = after
    given = [params[var.name] for var in model.inputs] + ([params[TARGET]] if loss is not None else [])
    hosts = [*([params[SCALE]] if rules.scaled else []), *scalars.values()]
    seed = [] if model.seed is None else [params[model.seed.name]]
    # Kernels come in the order of the results that need them. Gradients of the last layer are there first: if they are
    # used first, too, what they are computed from need not be kept until the others are.
    order = [var.name for var in reversed(assembly.vars)]
    body = put_together(b, bindings, [value, *shown.values(), *(assembly.after[name] for name in order)])
    function = Function(ENTRY, (*given, *seed, *hosts, *assembly.vars), body)
    labels = ("loss", *shown, *(f"next_{name}" for name in order))
    made = infer_types(module.with_function(function).with_attributes(output_names=labels))
    return StepProgram(
        with_state(made, {name: f"next_{name}" for name in order}),
        tuple(var.name for var in given),
        tuple(var.name for var in (*seed, *hosts)),
        tuple(shown),
        metrics,
        assembly.initial,
        names,
        tuple(model.buffers),
    )


def update(
    b: ArithmeticBuilder,
    assembly: Assembly,
    model: TrainableModel,
    params: Mapping[str, Var],
    gradients: list[GraphExpr],
    optimizer: Optimizer,
    rules: Rules,
    scalars: Mapping[str, Var],
    shown: dict[str, GraphExpr],
) -> None:
    """State of parameters and moments, with their next values."""
    for name, (_, start) in model.parameters.items():
        if dtype_of(params[name]) is not FLOAT32:
            raise UserError(f"the weight '{name}' is of {dtype_of(params[name])}: weights are trained in float32")
        assembly.keep(params[name], start)
    if rules.scaled:
        gradients = [b.divide(gradient, params[SCALE]) for gradient in gradients]
    if rules.accumulate > 1:
        gradients = _accumulated(b, assembly, model, params, gradients, rules, scalars[MOVES])
    norm = None
    if rules.clip_norm is not None or rules.scaled:
        norm = b.call("sqrt", _total(b, [sum_of_squares(b, gradient) for gradient in gradients]))
        shown["gradient_norm"] = norm
    moves = b.compare("greater", scalars[MOVES], 0.5) if rules.accumulate > 1 else None
    if rules.scaled:
        assert norm is not None
        # NaN is less than nothing.
        finite = b.compare("less", norm, math.inf)
        shown["finite"] = b.cast(finite, FLOAT32)
        moves = finite if moves is None else b.call("logical_and", moves, finite)
    gradients = [_clipped(b, gradient, norm, rules) for gradient in gradients]
    for (name, (_, start)), gradient in zip(model.parameters.items(), gradients, strict=True):
        kind = params[name].type
        assert isinstance(kind, TensorType)
        moments = {
            moment: assembly.state(f"{name}:{moment}", np.zeros_like(start), kind) for moment in optimizer.moments
        }
        after, found = optimizer.update(b, params[name], gradient, moments, scalars)
        assembly.after[name] = _chosen(b, moves, after, params[name])
        for moment, value in found.items():
            assembly.after[f"{name}:{moment}"] = _chosen(b, moves, value, moments[moment])
        if rules.average is not None:
            old = assembly.state(f"{name}:average", start, kind)
            mixed = b.add(b.multiply(old, rules.average), b.multiply(after, 1 - rules.average))
            assembly.after[f"{name}:average"] = _chosen(b, moves, mixed, old)


def _chosen(b: ArithmeticBuilder, moves: GraphExpr | None, after: GraphExpr, before: GraphExpr) -> GraphExpr:
    return after if moves is None else b.where(moves, after, before)


def _total(b: ArithmeticBuilder, values: list[GraphExpr]) -> GraphExpr:
    """The sum, the last first: in that order gradients are there."""
    total = values[-1]
    for value in values[-2::-1]:
        total = b.add(total, value)
    return total


def _accumulated(
    b: ArithmeticBuilder,
    assembly: Assembly,
    model: TrainableModel,
    params: Mapping[str, Var],
    gradients: list[GraphExpr],
    rules: Rules,
    moves: GraphExpr,
) -> list[GraphExpr]:
    """Averages over the calls since parameters moved last."""
    averages: list[GraphExpr] = []
    for (name, (_, start)), gradient in zip(model.parameters.items(), gradients, strict=True):
        kind = params[name].type
        assert isinstance(kind, TensorType)
        old = assembly.state(f"{name}:sum", np.zeros_like(start), kind)
        total = b.add(old, gradient)
        assembly.after[f"{name}:sum"] = b.where(b.compare("greater", moves, 0.5), 0.0, total)
        averages.append(b.multiply(total, 1 / rules.accumulate))
    return averages


def _clipped(b: ArithmeticBuilder, gradient: GraphExpr, norm: GraphExpr | None, rules: Rules) -> GraphExpr:
    if rules.clip_norm is not None:
        assert norm is not None
        factor = b.binary("minimum", b.divide(rules.clip_norm, b.add(norm, 1e-6)), 1.0)
        gradient = b.multiply(gradient, factor)
    if rules.clip_value is not None:
        gradient = b.binary("minimum", b.binary("maximum", gradient, -rules.clip_value), rules.clip_value)
    return gradient
