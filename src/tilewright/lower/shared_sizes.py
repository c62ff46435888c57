"""Kernels of layers for any size: those in which a model has a layer are arguments of one kernel.

Before:  fn (x: [1, 64, 64, 32]) { max_pool2d(x) },  fn (x: [1, 16, 16, 32]) { max_pool2d(x) }, ...
After:   fn (x: [1, size0, size0, 32]) { max_pool2d(x) },  called with size0 = 64, size0 = 16, ...

What such a kernel does with an element takes longer than counting them. Innermost sizes are those of vectors: they stay
as they are, and so do sizes of one, which are repeated.

Layers with weights are tiled for their size, and get code for it, but for convolutions that hardly count: a
segmentation network has one in six sizes, each a quarter of the one before, and compiling the least takes as long as
compiling the first. Those that together are a small part of all products share kernels too; weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby
from math import prod

from tilewright.graph.ir.expr import Call, Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import FusionKind, Operator, is_call_to
from tilewright.graph.ir.rewrite import static_shape
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.structure import structure_of
from tilewright.ir.expr import IntImm, PrimExpr, is_const_int
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, Type
from tilewright.lower.general_sizes import dims_of, types_agree
from tilewright.support.errors import UserError

_LITTLE = 0.1
"""The part of a model's products that layers with kernels of any size may be: they take up to 1.1 times as long."""


def products_of(function: Function) -> int:
    """Multiplications of a function's layers, as if each took weights; 0 of those whose sizes are open."""
    return sum(_products(item) for item in post_order(function) if isinstance(item, Call))


def _is_as_quick_in_any_size(layer: Call, weights: Sequence[Var]) -> bool:
    """Whether a layer's template takes open sizes: others, and pairs of layers, are made for sizes that are known."""
    if not any(layer.args[1] is item for item in weights):
        return False
    if is_call_to(layer, "nn.conv2d"):
        assert isinstance(layer.attributes, Conv2dAttributes)
        is_dense = layer.attributes.groups == 1 and layer.attributes.data_layout == "NHWC"
        return is_dense and layer.args[1].tensor_type.dtype.name == "float32"
    return is_call_to(layer, "qnn.conv2d")


def _products(call: Call) -> int:
    if not isinstance(call.callee, Operator) or call.callee.kind <= FusionKind.REDUCTION or len(call.args) < 2:
        return 0
    weights, result = static_shape(call.args[1]), static_shape(call)
    # Each of as many columns as the weights have is summed over all else of them.
    return prod(result) * prod(weights[:-1]) if weights and result else 0


def most_of_little(products: Iterable[int]) -> int:
    """Layers of no more products than this are together a small part of all products of a model."""
    numbers = sorted(products)
    left, most = _LITTLE * sum(numbers), 0
    for number, equal in groupby(numbers):
        left -= number * len(list(equal))
        if left < 0:
            break
        most = number
    return most


def form_of(function: Function, weights: Container[int] = ()) -> tuple[object, ...] | None:
    """A key that functions share which differ in their sizes alone; None of those that are to have code for their own.

    `weights` are the parameters of a convolution that are constants, by their numbers: their sizes count too. Without
    them functions with layers have code for their own sizes.
    """
    calls = [item for item in post_order(function) if isinstance(item, Call)]
    layers = [
        item for item in calls if not isinstance(item.callee, Operator) or item.callee.kind > FusionKind.REDUCTION
    ]
    kept = [param for number, param in enumerate(function.params) if number in weights]
    if layers and (len(layers) > 1 or not _is_as_quick_in_any_size(layers[0], kept)):
        return None
    rank = max((len(dims_of(param.type)) for param in function.params), default=0)

    def form(kind: Type | None) -> object:
        if not isinstance(kind, TensorType):
            return id(kind)
        shape = dims_of(kind)
        vectors = shape[-1:] if len(shape) == rank else ()
        return (kind.dtype, *map(id, vectors), *(dim is not None and is_const_int(dim, 1) for dim in shape))

    return (*(id(param.type) for param in kept), *structure_of(function, type_key=form))


def in_any_size(functions: Sequence[Function]) -> list[tuple[Function, dict[Symbol, PrimExpr]]] | None:
    """For functions of one form, each time the one that they share, with what its symbols stand for in each of them."""
    shapes = [[dim for param in item.params for dim in dims_of(param.type)] for item in functions]
    if not all(isinstance(dim, IntImm) for shape in shapes for dim in shape):
        return None
    columns = list(zip(*shapes, strict=True))
    several = dict.fromkeys(column for column in columns if len(set(column)) > 1)
    symbols = {column: Symbol(f"size{number}") for number, column in enumerate(several)}
    dims = iter([symbols.get(column, column[0]) for column in columns])
    first = functions[0]
    params = tuple(Var(param.name, _with_dims(param.type, dims)) for param in first.params)
    body = rewrite(first.body, lambda old, item: None, {id(a): b for a, b in zip(first.params, params, strict=True)})
    general = Function(first.name, params, body, notes=first.notes)
    try:
        infer_types(general)
    except UserError:
        return None
    sizes = [dict(zip(symbols.values(), row, strict=True)) for row in zip(*several, strict=True)]
    fits = all(types_agree(item, general, found) for item, found in zip(functions, sizes, strict=True))
    return [(general, found) for found in sizes] if fits else None


def _with_dims(kind: Type | None, dims: Iterator[PrimExpr]) -> Type | None:
    return kind.replace(shape=tuple(next(dims) for _ in kind.shape or ())) if isinstance(kind, TensorType) else kind
