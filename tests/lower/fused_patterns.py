"""Every pair and triple of operator kinds that can become one kernel: float and integer, of fixed and of open sizes.

A pattern is a head (a product, a convolution, a reduction, or nothing) and one or two operators that follow it. Values
are images in channels first, or rows; `followers` takes any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from tilewright.graph.ir.expr import Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.rewrite import known_sizes, make
from tilewright.ir import expr as ir
from tilewright.ir.dtype import FLOAT32, INDEX, INT32, UINT8
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type

Step = Callable[[GraphExpr], GraphExpr]

_RANDOM = np.random.default_rng(0)


def _weights(*shape: int) -> GraphExpr:
    return constant((_RANDOM.standard_normal(shape) * 0.1).astype(np.float32))


def _byte_weights(*shape: int) -> GraphExpr:
    return constant(_RANDOM.integers(-127, 128, shape).astype(np.int32))


def _number(value: float) -> GraphExpr:
    return constant(np.float32(value))


def _quantized(x: GraphExpr) -> GraphExpr:
    """Unsigned bytes, as QuantizeLinear gives them."""
    level = make("add", make("round", make("divide", x, _number(0.02))), _number(120.0))
    return make("cast", make("clip", level, minimum=0.0, maximum=255.0), dtype=UINT8)


def _dequantized(x: GraphExpr) -> GraphExpr:
    shifted = make("subtract", make("cast", x, dtype=INT32), constant(np.int32(120)))
    return make("multiply", make("cast", shifted, dtype=FLOAT32), _number(0.02))


def _shifted(x: GraphExpr) -> GraphExpr:
    return make("subtract", make("cast", _quantized(x), dtype=INT32), constant(np.int32(120)))


def _scaled(x: GraphExpr) -> GraphExpr:
    return make("multiply", make("cast", x, dtype=FLOAT32), _number(0.001))


def _channels(x: GraphExpr) -> int:
    sizes = known_sizes(x)
    assert sizes is not None
    size = sizes[1 if len(sizes) == 4 else -1]
    # A number for all where the last axis is open.
    return size if isinstance(size, int) else 1


def _rank(x: GraphExpr) -> int:
    return len(known_sizes(x) or ())


def _per_channel(x: GraphExpr) -> GraphExpr:
    sizes = known_sizes(x)
    assert sizes is not None
    return _weights(_channels(x), 1, 1) if len(sizes) == 4 else _weights(_channels(x))


def _gelu(x: GraphExpr) -> GraphExpr:
    curve = make("add", make("erf", make("divide", x, _number(1.4142135))), _number(1.0))
    return make("multiply", make("multiply", x, curve), _number(0.5))


def _concatenated(x: GraphExpr) -> GraphExpr:
    return make("concatenate", x, make("nn.relu", x), axis=1)


def _transposed(x: GraphExpr) -> GraphExpr:
    sizes = known_sizes(x)
    assert sizes is not None
    rank = len(sizes)
    return make("transpose", x, axes=(0, 2, 3, 1) if rank == 4 else (*range(rank - 2), rank - 1, rank - 2))


def _halved(x: GraphExpr) -> GraphExpr:
    """Every second channel."""
    sizes = known_sizes(x)
    assert sizes is not None
    axis = 1 if len(sizes) == 4 else len(sizes) - 1
    strides = tuple(2 if n == axis else 1 for n in range(len(sizes)))
    return make("slice", x, begin=(0,) * len(sizes), end=sizes, strides=strides)


FOLLOWERS: dict[str, Step] = {
    "relu": lambda x: make("nn.relu", x),
    "bias": lambda x: make("add", x, _per_channel(x)),
    "swish": lambda x: make("multiply", x, make("sigmoid", x)),
    "gelu": _gelu,
    "quantize": lambda x: _dequantized(_quantized(x)),
    "square": lambda x: make("multiply", make("exp", x), make("exp", x)),
    "mixed": lambda x: make("add", make("tanh", x), make("sqrt", make("abs", make("tanh", x)))),
    "clip": lambda x: make("clip", x, minimum=0.0, maximum=6.0),
    "transpose": _transposed,
    "concatenate": _concatenated,
    "slice": _halved,
    "pad": lambda x: make("pad", x, before=(0,) * _rank(x), after=(0, *(1,) * (_rank(x) - 1))),
    "softmax": lambda x: make("nn.softmax", x, axis=_rank(x) - 1),
    "mean": lambda x: make("mean", x, axes=(_rank(x) - 1,), keepdims=True),
}
"""What follows a head, by name."""


@dataclass(frozen=True, slots=True)
class Head:
    """The first operator of a pattern."""

    apply: Step
    image: bool


HEADS: dict[str, Head] = {
    "rows": Head(lambda x: x, False),
    "image": Head(lambda x: x, True),
    "matmul": Head(lambda x: make("matmul", x, _weights(_channels(x), 160)), False),
    "product": Head(lambda x: make("matmul", x, _transposed(x)), False),
    "conv3x3": Head(lambda x: make("nn.conv2d", x, _weights(48, _channels(x), 3, 3), padding=(1, 1, 1, 1)), True),
    "conv1x1": Head(lambda x: make("nn.conv2d", x, _weights(64, _channels(x), 1, 1)), True),
    "depthwise": Head(
        lambda x: make("nn.conv2d", x, _weights(_channels(x), 1, 3, 3), padding=(1, 1, 1, 1), groups=_channels(x)), True
    ),
    "layer_norm": Head(
        lambda x: make("nn.layer_norm", x, _weights(_channels(x)), _weights(_channels(x)), axis=1, epsilon=1e-5), False
    ),
    "max_pool": Head(lambda x: make("nn.max_pool2d", x, kernel=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1)), True),
    "byte_matmul": Head(lambda x: _scaled(make("matmul", _shifted(x), _byte_weights(_channels(x), 160))), False),
    "byte_conv": Head(
        lambda x: _scaled(make("nn.conv2d", _shifted(x), _byte_weights(48, _channels(x), 3, 3), padding=(1, 1, 1, 1))),
        True,
    ),
}
"""Heads by name."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A head and what follows it; `is_open`: whether the number of rows, or the size of images, is a symbol."""

    head: str
    followers: tuple[str, ...]
    is_open: bool

    def __str__(self) -> str:
        """Its name in a test's report."""
        return "-".join((self.head, *self.followers, "open" if self.is_open else "fixed"))

    def module(self) -> IRModule:
        """The model of the pattern alone."""
        head = HEADS[self.head]
        open_sizes = (ir.Var("h", INDEX), ir.Var("w", INDEX))
        image = (1, 32, *(open_sizes if self.is_open else (56, 64)))
        x = Var("x", tensor_type(image if head.image else (open_sizes[0] if self.is_open else 120, 96), "float32"))
        value = head.apply(x)
        for name in self.followers:
            value = FOLLOWERS[name](value)
        function = infer_types(Function("main", (x,), value))
        assert isinstance(function, Function)
        return IRModule([function])


def all_patterns() -> Iterator[Pattern]:
    """Every pair and triple."""
    for length in (1, 2):
        for head, *names in product(HEADS, *[FOLLOWERS] * length):
            for is_open in (False, True):
                yield Pattern(head, tuple(names), is_open)
