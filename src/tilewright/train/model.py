"""A model as something to train: its weights are parameters, its batch normalisations take statistics of the batch.

Models come as they are for inference: weights are constants. Here float constants with names become inputs, by these
names, and every batch normalisation whose statistics are constants becomes one that normalises by those of the batch,
and mixes them into running ones. `with_weights` goes the other way: the model as it came, with other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.graph.gradient.constants import parameters_of
from tilewright.graph.ir import dimensions
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Let, Tuple, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Array, is_call_to
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.graph.ops.normalization import BatchNormAttributes
from tilewright.ir.function import IRModule
from tilewright.ir.types import TupleType
from tilewright.support.errors import UserError
from tilewright.support.text import kind_of

ENTRY = "main"
SEED = "seed"
"""The name of the input that programs of torch draw random numbers from."""
BUFFERS = "buffers"
"""The attribute of a module that has the values of buffers that it takes as inputs and gives anew."""
Trainable = Iterable[str] | Callable[[str], bool] | None
Bindings = list[tuple[Var, GraphExpr]]


@dataclass(frozen=True)
class Buffer:
    """What a step changes but does not train, a running statistic: the value it starts with, and its next value."""

    var: Var
    value: Array
    after: GraphExpr


@dataclass(frozen=True)
class TrainableModel:
    """The entry of a model, taken apart, with weights as parameters of their own."""

    module: IRModule
    inputs: tuple[Var, ...]
    """What a caller gives."""
    seed: Var | None
    """What random numbers are drawn from."""
    parameters: Mapping[str, tuple[Var, Array]]
    """Trained weights by name, with the values they start with."""
    buffers: Mapping[str, Buffer]
    bindings: Bindings
    """What is bound around the outputs."""
    outputs: tuple[GraphExpr, ...]
    """What the model says; without buffers."""


def main_of(module: IRModule) -> Function:
    """The entry of a model."""
    main = module[ENTRY]
    if not isinstance(main, Function):
        raise UserError(f"the module's {ENTRY!r} is not a graph function: it cannot be trained")
    return main


def taken_apart(builder: ArithmeticBuilder, body: GraphExpr) -> tuple[Bindings, list[GraphExpr]]:
    """What is bound around a function's results, and these."""
    bindings: Bindings = []
    while isinstance(body, Let):
        bindings.append((body.var, body.value))
        body = body.body
    if not isinstance(body.type, TupleType):
        return bindings, [body]
    if isinstance(body, Tuple):
        return bindings, list(body.items)
    return bindings, [builder.item(body, place) for place in range(len(body.type.items))]


def put_together(builder: ArithmeticBuilder, bindings: Bindings, results: Sequence[GraphExpr]) -> GraphExpr:
    """The body of a function: its results inside what the builder bound, and that inside what was bound before."""
    body = builder.body(builder.tuple(results))
    for var, value in reversed(bindings):
        body = Let(var, value, body)
    return body


def trainable_model(
    module: IRModule,
    builder: ArithmeticBuilder,
    trainable: Trainable,
    momentum: float | None = None,
    *,
    statistics: bool = False,
) -> TrainableModel:
    """A model whose weights are parameters; statistics are the batch's unless `momentum` is None.

    With `statistics`, running means and variances count as weights.
    """
    module = infer_types(module)
    main = main_of(module)
    known = parameters_of(module)
    left = set() if statistics else _statistics(main)
    names = {id(item): name for name, item in known.items()}
    chosen = _chosen({name: known[name] for key, name in names.items() if key not in left}, trainable)
    _refuse_copies(known, chosen)
    parameters = {name: (Var(name, known[name].type), known[name].data) for name in chosen}
    for param in main.params:
        assert param.type is not None
        builder.declare(param.type)
    norms = _BatchNorms(builder, momentum, names)
    lifted: dict[int, GraphExpr] = {id(known[name]): var for name, (var, _) in parameters.items()}
    body = rewrite(main.body, norms.replaced, lifted)
    bindings, outputs = taken_apart(builder, body)
    inputs, seed, buffers, said = _changes(module, main, outputs)
    return TrainableModel(module, inputs, seed, parameters, {**norms.buffers, **buffers}, bindings, tuple(said))


def _chosen(known: Mapping[str, Constant], trainable: Trainable) -> list[str]:
    """The weights that are trained."""
    names = list(known)
    # Where weights have names of their own, constants with the name of an operator (a mask) or of a buffer are none.
    weights = [name for name, item in known.items() if item.span is not None and not item.span.operation] or names
    if trainable is None:
        chosen = weights
    elif callable(trainable):
        chosen = [name for name in weights if trainable(name)]
    else:
        chosen = list(trainable)
        for name in chosen:
            if name not in names:
                listed = ", ".join(names[:8]) or "none"
                raise UserError(f"the model has no weight '{name}' to train", hint=f"it has: {listed}")
    if not chosen:
        raise UserError("there is nothing to train", hint="weights are float constants of the model that have names")
    return chosen


def _refuse_copies(known: Mapping[str, Constant], chosen: Sequence[str]) -> None:
    """Importing may have made two constants of one weight (itself and its transpose), which would part in training."""
    by_span: dict[str, str] = {}
    for name in chosen:
        span = str(known[name].span)
        if span in by_span and "/" not in span:
            raise UserError(
                f"the weight '{span}' is in the model in two forms, which training would change apart",
                hint=f"leave it out: trainable=lambda name: name not in ({by_span[span]!r}, {name!r})",
            )
        by_span.setdefault(span, name)


def _statistics(main: Function) -> set[int]:
    """Constants that are means and variances of batch normalisations: statistics, and no weights."""
    norms = [item for item in post_order(main) if is_call_to(item, "nn.batch_norm")]
    return {id(arg) for item in norms if isinstance(item, Call) for arg in item.args[3:] if isinstance(arg, Constant)}


def _changes(
    module: IRModule, main: Function, outputs: list[GraphExpr]
) -> tuple[tuple[Var, ...], Var | None, dict[str, Buffer], list[GraphExpr]]:
    """What a caller gives, the seed, the buffers that the program itself writes to, and the other outputs."""
    labels = module.attributes.get("output_names")
    given = module.attributes.get(BUFFERS, {})
    assert isinstance(given, Mapping)
    names = [str(label) for label in labels] if isinstance(labels, (tuple, list)) else []
    by_name = dict(zip(names, outputs, strict=False))
    buffers = {
        param.name: Buffer(param, given[param.name], by_name[param.name])
        for param in main.params
        if param.name in given and param.name in by_name
    }
    changed = {id(item.after) for item in buffers.values()}
    seed = next((param for param in main.params if param.name == SEED), None)
    inputs = tuple(param for param in main.params if param.name not in buffers and param is not seed)
    return inputs, seed, buffers, [item for item in outputs if id(item) not in changed]


class _BatchNorms:
    """Batch normalisations in training form: by the mean and variance of the batch."""

    def __init__(self, builder: ArithmeticBuilder, momentum: float | None, names: Mapping[int, str]) -> None:
        self._builder = builder
        self._momentum = momentum
        self._names = names
        self.buffers: dict[str, Buffer] = {}

    def replaced(self, old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
        """What takes the place of a node whose operands are rewritten."""
        if new.type is None:
            # Weights that became parameters have the types that they had.
            new.type = old.type
        if self._momentum is None or not is_call_to(old, "nn.batch_norm"):
            return None
        assert isinstance(old, Call) and isinstance(new, Call)
        running = [item for item in old.args[3:] if isinstance(item, Constant) and id(item) in self._names]
        if len(running) != 2:
            return None
        return self._by_batch(new, running, self._momentum)

    def _by_batch(self, norm: Call, running: Sequence[Constant], momentum: float) -> GraphExpr:
        b = self._builder
        data, scale, bias = norm.args[:3]
        attributes = norm.attributes
        assert isinstance(attributes, BatchNormAttributes)
        axes = tuple(at for at in range(rank_of(data)) if at != attributes.axis)
        both = b.call("moments", data, axes=axes)
        mean, variance = b.item(both, 0), b.item(both, 1)
        count = dimensions.product([sizes_of(data)[at] for at in axes])
        if not isinstance(count, int):
            raise UserError(
                "batch normalisation is trained on batches of a known size",
                hint="give the model's inputs their shapes, or say batch_norm=None to keep the statistics",
            )
        unbiased = b.multiply(variance, count / max(count - 1, 1))
        for item, fresh in zip(running, (mean, unbiased), strict=True):
            name = self._names[id(item)]
            if name not in self.buffers:
                var = Var(name, item.type)
                after = b.add(b.multiply(var, 1 - momentum), b.multiply(fresh, momentum))
                self.buffers[name] = Buffer(var, item.data, after)
        return b.call(
            "nn.batch_norm", data, scale, bias, mean, variance, epsilon=attributes.epsilon, axis=attributes.axis
        )


def with_weights(module: IRModule, values: Mapping[str, Array]) -> IRModule:
    """A model as it came, with other values of its named constants."""
    module = infer_types(module)
    known = parameters_of(module)
    replaced: dict[int, GraphExpr] = {}
    for name, value in values.items():
        if name not in known:
            raise UserError(f"the model for inference has no weight '{name}'")
        if known[name].data.shape != value.shape:
            raise UserError(
                f"the model for inference has '{name}' in the shape {known[name].data.shape}, not {value.shape}"
            )
        made = constant(value, known[name].dtype)
        made.span = known[name].span
        replaced[id(known[name])] = made
    main = main_of(module)
    body = rewrite(main.body, lambda old, new: None, replaced)
    return infer_types(module.with_function(main.replace(body=body)))


def model_kind(model: object) -> UserError:
    """What to say of something that is no model."""
    return UserError(
        f"a model is a module of a frontend or the path of a file, not {kind_of(model)}",
        hint="tw.frontend.from_torch(model, example), tw.frontend.from_onnx(path)",
    )
