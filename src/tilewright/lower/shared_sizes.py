"""Kernels of layers for any size: those in which a model has a layer are arguments of one kernel.

Before:  fn (x: [1, 64, 64, 32]) { max_pool2d(x) },  fn (x: [1, 16, 16, 32]) { max_pool2d(x) }, ...
After:   fn (x: [1, size0, size0, 32]) { max_pool2d(x) },  called with size0 = 64, size0 = 16, ...

What such a kernel does with an element takes longer than counting them. Innermost sizes are those of vectors: they stay
as they are, and so do sizes of one, which are repeated.

Layers with weights are tiled for their size, and get code for it, but for convolutions that hardly count: a
segmentation network has one in six sizes, each a quarter of the one before, and compiling the least takes as long as
compiling the first. Those that together are a small part of all products share kernels too. Weights stay as they are,
but for the channels that a convolution sums:

Before:  fn (x: [1, 64, 64, 64], w: [3, 3, 64, 32]) { conv2d(x, w) },  fn (x: [1, 16, 16, 32], w: [3, 3, 32, 32]) ...
After:   fn (x: [1, size0, size0, 16 * size1], w: [3, 3, 16 * size1, 32]) { conv2d(x, w) }
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from math import prod

from tilewright.graph.ir.expr import Call, Function, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import FusionKind, Operator, is_call_to
from tilewright.graph.ir.rewrite import static_shape
from tilewright.graph.ir.traverse import count_uses, post_order, rewrite
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.graph.structure import structure_of
from tilewright.ir.build import const, mul
from tilewright.ir.expr import ONE, IntImm, PrimExpr, is_const_int
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType, Type
from tilewright.lower.general_sizes import dims_of, types_agree
from tilewright.support.errors import UserError

_CHANNELS = 16
"""Layers of so many input channels, or of a multiple of it, share a kernel: a sum over them is unrolled by no more."""
_NEAR_WEIGHTS = 1 << 17
"""Weights of such a layer, at most: sums over more of them are cut into parts that stay near, as their number says."""


def _is_as_quick_in_any_size(layer: Call, weights: Sequence[Var]) -> bool:
    """Whether a layer's template takes open sizes: others, and pairs of layers, are made for sizes that are known."""
    if not any(layer.args[1] is item for item in weights):
        return False
    if is_call_to(layer, "nn.conv2d"):
        assert isinstance(layer.attributes, Conv2dAttributes)
        is_dense = layer.attributes.groups == 1 and layer.attributes.data_layout == "NHWC"
        # Taps that lie apart meet the border in most tiles, which kernels of any size test for it.
        is_near = tuple(layer.attributes.dilation) == (1, 1)
        return is_dense and is_near and layer.args[1].tensor_type.dtype.name == "float32"
    return is_call_to(layer, "qnn.conv2d")


def _of_any_channels(function: Function) -> dict[int, int]:
    """The image and the weights of a convolution whose channels are summed: parameters by number, and that axis."""
    order = post_order(function)
    uses, numbers = count_uses(order), {id(param): number for number, param in enumerate(function.params)}
    for item in order:
        if isinstance(item, Call) and is_call_to(item, "nn.conv2d"):
            image, weights = item.args
            sizes = static_shape(weights)
            is_param = {id(image), id(weights)} <= numbers.keys() and uses[id(image)] == 1
            if is_param and sizes and sizes[2] % _CHANNELS == 0 and prod(sizes) <= _NEAR_WEIGHTS:
                return {numbers[id(image)]: 3, numbers[id(weights)]: 2}
    return {}


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

    key = list(structure_of(function, type_key=form))
    summed = _of_any_channels(function) if layers else {}
    for number, axis in summed.items():
        shape = dims_of(function.params[number].type)
        others = shape[:axis] + shape[axis + 1 :]
        key[number] = tuple(map(id, others)) if number in weights else tuple(dim is ONE for dim in others)
    own = [id(param.type) for number, param in enumerate(function.params) if number in weights and number not in summed]
    return (*own, *key)


def in_any_size(functions: Sequence[Function]) -> list[tuple[Function, dict[Symbol, PrimExpr]]] | None:
    """For functions of one form, each time the one that they share, with what its symbols stand for in each of them."""
    shapes = [[dim for param in item.params for dim in dims_of(param.type)] for item in functions]
    if not all(isinstance(dim, IntImm) for shape in shapes for dim in shape):
        return None
    first, summed = functions[0], _of_any_channels(functions[0])
    steps = [
        _CHANNELS if summed.get(number) == axis else 1
        for number, param in enumerate(first.params)
        for axis in range(len(dims_of(param.type)))
    ]
    columns = [(step, *column) for step, column in zip(steps, zip(*shapes, strict=True), strict=True)]
    several = dict.fromkeys(column for column in columns if len(set(column[1:])) > 1)
    symbols = {column: Symbol(f"size{number}") for number, column in enumerate(several)}
    dims = iter([mul(column[0], symbols[column]) if column in symbols else column[1] for column in columns])
    params = tuple(Var(param.name, _with_dims(param.type, dims)) for param in first.params)
    body = rewrite(first.body, lambda old, item: None, {id(a): b for a, b in zip(first.params, params, strict=True)})
    general = Function(first.name, params, body, notes=first.notes)
    try:
        infer_types(general)
    except UserError:
        return None
    rows = zip(*([const(size.value // step) for size in sizes] for step, *sizes in several), strict=True)
    sizes = [dict(zip(symbols.values(), row, strict=True)) for row in rows]
    fits = all(types_agree(item, general, found) for item, found in zip(functions, sizes, strict=True))
    return [(general, found) for found in sizes] if fits else None


def _with_dims(kind: Type | None, dims: Iterator[PrimExpr]) -> Type | None:
    return kind.replace(shape=tuple(next(dims) for _ in kind.shape or ())) if isinstance(kind, TensorType) else kind
