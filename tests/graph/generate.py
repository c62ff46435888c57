"""Random graphs for property tests: small models with convolutions, matrix products, shapes and elementwise parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from tests.graph.helpers import op, var
from tilewright.graph.ir.expr import Constant, Function, GraphExpr, Tuple, TupleGet, constant
from tilewright.graph.ir.infer import fill_type, infer_types
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType

T = TypeVar("T")
Shape = tuple[int, ...]
Pool = list[GraphExpr]

UNARY = ["nn.relu", "sigmoid", "tanh", "negative", "abs", "exp", "nn.gelu"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum"]


def tensor_of(item: GraphExpr) -> TensorType:
    assert isinstance(item.type, TensorType)
    return item.type


def shape_of(item: GraphExpr) -> Shape:
    shape = tensor_of(item).static_shape
    assert shape is not None
    return shape


class Generator:
    """Grows a graph from a seed; every choice is drawn from one random stream."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.count = 0

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.rng.integers(len(items)))]

    def const(self, *shape: int) -> Constant:
        return constant(self.rng.standard_normal(shape).astype(np.float32) * 0.5)

    def apply(self, name: str, *args: GraphExpr, **attributes: object) -> GraphExpr:
        self.count += 1
        result = op(name, *args, span=f"node{self.count}", **attributes)
        fill_type(result)
        return result

    def step(self, pool: Pool) -> GraphExpr:
        x = self.pick(pool[-6:])
        shape = shape_of(x)
        choices = ["unary", "binary", "binary", "const", "identity", "reduce", "transpose", "reshape"]
        if len(shape) == 4:
            choices += ["conv", "conv", "conv_bn", "pool", "conv"]
        if len(shape) >= 2:
            choices += ["matmul", "slice", "concatenate", "softmax", "split"]
        result: GraphExpr = getattr(self, "_" + self.pick(choices))(x, shape, pool)
        return result

    def _unary(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        return self.apply(self.pick(UNARY), self.apply("tanh", x))

    def _binary(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        same = [item for item in pool if shape_of(item) == shape]
        return self.apply(self.pick(BINARY), x, self.pick(same))

    def _const(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        dims = [size if self.rng.random() < 0.5 else 1 for size in shape]
        data = self.const(*dims[int(self.rng.integers(len(dims) + 1)) :])
        value: GraphExpr = data
        if self.rng.random() < 0.3:
            axes = tuple(range(data.data.ndim))[::-1]
            value = self.apply("transpose", constant(data.data.T.copy()), axes=axes)
        args = (x, value) if self.rng.random() < 0.5 else (value, x)
        return self.apply(self.pick(BINARY), *args)

    def _identity(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        zero, one = constant(np.float32(0)), constant(np.float32(1))
        forms: list[Callable[[], GraphExpr]] = [
            lambda: self.apply("reshape", x, shape=shape),
            lambda: self.apply("cast", x, dtype=tensor_of(x).dtype),
            lambda: self.apply("add", x, zero),
            lambda: self.apply("multiply", one, x),
            lambda: self.apply("pad", x, before=(0,) * len(shape), after=(0,) * len(shape)),
            lambda: self.apply("clip", self.apply("nn.relu", x), minimum=-1.0, maximum=1.0),
            lambda: self.apply("power", x, constant(np.float32(2))),
            lambda: self.apply("divide", x, constant(np.float32(4))),
            lambda: self.apply("maximum", x, zero),
        ]
        return self.pick(forms)()

    def _reduce(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        axes = tuple(axis for axis in range(len(shape)) if self.rng.random() < 0.4)
        keep = bool(self.rng.random() < 0.7) or len(axes) == len(shape)
        return self.apply(self.pick(["sum", "mean", "max"]), x, axes=axes, keepdims=keep)

    def _transpose(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        return self.apply("transpose", x, axes=tuple(int(a) for a in self.rng.permutation(len(shape))))

    def _reshape(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        total = int(np.prod(shape))
        options = [(total,), (1, total), (total, 1), shape[::-1], (*shape, 1)]
        return self.apply("reshape", x, shape=self.pick(options))

    def _conv(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        channels = shape[1]
        groups = self.pick([1, 1, channels]) if channels > 1 else 1
        outputs = groups * int(self.rng.integers(1, 3))
        kernel = self.pick([1, 3])
        pad = self.pick([0, 1]) if min(shape[2:]) < 3 or self.rng.random() < 0.5 else 0
        if min(shape[2:]) + 2 * pad < kernel:
            kernel = 1
        weight = self.const(outputs, channels // groups, kernel, kernel)
        source = x
        if self.rng.random() < 0.3:
            source = self.apply(self.pick(["multiply", "add"]), x, self.const(channels, 1, 1))
        result = self.apply("nn.conv2d", source, weight, padding=(pad,) * 4, groups=groups)
        if self.rng.random() < 0.6:
            result = self.apply(self.pick(["add", "multiply"]), result, self.const(outputs, 1, 1))
        return result

    def _conv_bn(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        result = self._conv(x, shape, pool)
        channels = shape_of(result)[1]
        variance = constant(np.abs(self.const(channels).data) + np.float32(0.5))
        scale, bias, mean = self.const(channels), self.const(channels), self.const(channels)
        return self.apply("nn.batch_norm", result, scale, bias, mean, variance)

    def _pool(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        if min(shape[2:]) < 2:
            return self._unary(x, shape, pool)
        return self.apply(self.pick(["nn.max_pool2d", "nn.avg_pool2d"]), x, kernel=(2, 2), strides=(1, 1))

    def _matmul(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        weight = self.const(shape[-1], 3) if self.rng.random() < 0.5 else self.const(3, shape[-1])
        result = self.apply("matmul", x, weight, transpose_b=weight.data.shape[0] == 3 and shape[-1] != 3)
        if self.rng.random() < 0.5:
            result = self.apply(self.pick(["add", "multiply"]), result, self.const(3))
        return result

    def _slice(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        begin = tuple(int(self.rng.integers(0, size)) if size > 1 else 0 for size in shape)
        return self.apply("slice", x, begin=begin, end=shape, strides=(1,) * len(shape))

    def _concatenate(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        axis = int(self.rng.integers(len(shape)))
        other = self.apply(self.pick(UNARY[:5]), x)
        result = self.apply("concatenate", x, other, axis=axis)
        return result if int(np.prod(shape_of(result))) < 4000 else x

    def _softmax(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        return self.apply("nn.softmax", x, axis=int(self.rng.integers(len(shape))))

    def _split(self, x: GraphExpr, shape: Shape, pool: Pool) -> GraphExpr:
        if shape[-1] < 2:
            return self._unary(x, shape, pool)
        parts = self.apply("split", x, sizes=(1, shape[-1] - 1), axis=len(shape) - 1)
        first, second = TupleGet(parts, 0), TupleGet(parts, 1)
        fill_type(first)
        fill_type(second)
        return self.apply("add", first, second) if self.rng.random() < 0.5 else second


def random_module(seed: int, size: int = 14) -> IRModule:
    """A typed module with one random model."""
    generator = Generator(seed)
    params = [var("x", 2, 4, 5, 5), var("y", 3, 4)]
    pool: Pool = list(params)
    for _ in range(size):
        pool.append(generator.step(pool))
    outputs = [pool[-1]]
    for item in pool[2:-1]:
        if generator.rng.random() < 0.15:
            outputs.append(item)
    body = outputs[0] if len(outputs) == 1 else Tuple(tuple(outputs))
    module = IRModule([Function("main", tuple(params), body)], attributes={"model_name": f"random{seed}"})
    return infer_types(module)
