"""Fine-tuning by low-rank adapters (LoRA: Hu and others, 2021): a few small matrices are trained beside large weights.

    adapted = tw.train.LoRA(module, rank=8)
    step = tw.train.Step(adapted.module, "cross_entropy", tw.train.AdamW(1e-3), trainable=adapted.is_adapter)
    merged = adapted.merged(step.parameters())       # the model as it came, with other weights

Before:  matmul(x, w)
After:   matmul(x, w) + matmul(matmul(x, a), b) * (alpha / rank)

`a` is drawn at random and `b` is zero, so that the model starts as it was.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.frontend.core.builder import sizes_of
from tilewright.graph.gradient.constants import parameters_of
from tilewright.graph.ir.expr import Call, Constant, GraphExpr, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Array, is_call_to
from tilewright.graph.ir.traverse import rewrite
from tilewright.graph.ops.contract import MatmulAttributes
from tilewright.graph.ops.random_bits import folded_key, key_of
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError
from tilewright.support.span import Span
from tilewright.train.initializers import kaiming_uniform
from tilewright.train.model import main_of, with_weights

_DOWN, _UP = ".lora_a", ".lora_b"


@dataclass
class LoRA:
    """A model whose dense layers have adapters.

    `layers` chooses among the weights of matrix products: a pattern such as "*.attention.*", several, or a function of
    a name; without it, all of them. The product of the adapters is multiplied with `alpha / rank`. `seed` decides what
    they start as.
    """

    original: IRModule
    rank: int = 8
    alpha: float = 16.0
    layers: str | Sequence[str] | Callable[[str], bool] | None = None
    seed: int = 0
    module: IRModule = field(init=False)
    """The model with adapters."""
    adapted: tuple[str, ...] = field(init=False)
    """The weights that have adapters."""

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1:
            raise UserError(f"the rank of adapters is a whole number of at least 1, not {self.rank!r}")
        self.original = infer_types(self.original)
        self._swapped: dict[str, bool] = {}
        """Whether a product reads a weight with its axes swapped."""
        self.module = self._with_adapters()
        self.adapted = tuple(self._swapped)

    def is_adapter(self, name: str) -> bool:
        """Whether a weight is one of an adapter: what `Step(..., trainable=)` asks."""
        plain, dot, end = name.rpartition(".")
        return dot + end in (_DOWN, _UP) and plain in self._swapped

    def merged(self, parameters: Mapping[str, Array]) -> IRModule:
        """The model as it came, with what adapters have learned added to its weights."""
        known = parameters_of(self.original)
        values: dict[str, Array] = {}
        for name, swapped in self._swapped.items():
            for end in (_DOWN, _UP):
                if name + end not in parameters:
                    raise UserError(f"the parameters have no '{name + end}'", hint="step.parameters() has them")
            change = parameters[name + _DOWN].astype(np.float64) @ parameters[name + _UP] * self._scale
            weight = known[name].data.astype(np.float64)
            values[name] = (weight + (change.T if swapped else change)).astype(np.float32)
        return with_weights(self.original, values)

    @property
    def _scale(self) -> float:
        return self.alpha / self.rank

    def _wants(self, name: str) -> bool:
        if self.layers is None or callable(self.layers):
            return self.layers is None or bool(self.layers(name))
        patterns = [self.layers] if isinstance(self.layers, str) else self.layers
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    def _with_adapters(self) -> IRModule:
        names = {id(item): name for name, item in parameters_of(self.original).items()}
        builder = ArithmeticBuilder()
        main = main_of(self.original)
        for param in main.params:
            assert param.type is not None
            builder.declare(param.type)

        def replaced(old: GraphExpr, new: GraphExpr) -> GraphExpr | None:
            new.type = old.type if new.type is None else new.type
            if not is_call_to(old, "matmul"):
                return None
            assert isinstance(old, Call) and isinstance(new, Call)
            weight = old.args[1]
            name = names.get(id(weight), "")
            if not isinstance(weight, Constant) or weight.data.ndim != 2 or not name or not self._wants(name):
                return None
            return self._adapted(builder, new, name)

        body = rewrite(main.body, replaced)
        if not self._swapped:
            known = ", ".join(list(names.values())[:8]) or "none"
            raise UserError("no matrix product has a weight that is to be adapted", hint=f"weights: {known}")
        return infer_types(self.original.with_function(main.replace(body=body)))

    def _adapted(self, b: ArithmeticBuilder, product: Call, name: str) -> GraphExpr:
        attributes = product.attributes
        assert isinstance(attributes, MatmulAttributes)
        if name in self._swapped:
            raise UserError(
                f"the weight '{name}' is in two products: adapters of it would part", hint="leave it out with layers="
            )
        inputs, outputs = sizes_of(product.args[1])[:: -1 if attributes.transpose_b else 1]
        assert isinstance(inputs, int) and isinstance(outputs, int)
        key = folded_key(key_of(self.seed), len(self._swapped))
        self._swapped[name] = attributes.transpose_b
        down = constant(kaiming_uniform(key, (self.rank, inputs)).T.copy())
        up = constant(np.zeros((self.rank, outputs), np.float32))
        down.span, up.span = Span(name + _DOWN), Span(name + _UP)
        narrow = b.call("matmul", product.args[0], down, transpose_a=attributes.transpose_a)
        return b.add(product, b.multiply(b.call("matmul", narrow, up), self._scale))
