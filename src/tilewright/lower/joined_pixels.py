"""Convolutions of one tap over images of open sizes: their pixels are one row, of a single open length.

Before:  fn (x: [n, h, w, 96], k: [1, 1, 96, 16], r: [n, h, w, 16]) { conv2d(x, k) + r }
After:   fn (x: [1, 1, pixels, 96], k: [1, 1, 96, 16], r: [1, 1, pixels, 16]) { conv2d(x, k) + r },  pixels = n * h * w

Such a layer does not see which pixels lie side by side. Of rows of an open width each ends in a part of a register
tile; joined, one tile in the whole image is not full. Where a value is of an image and channel, `[n, 1, 1, 16]`, images
stay apart: `pixels = h * w` then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.graph.ir.dimensions import symbols_of
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order, rewrite
from tilewright.graph.ops.convolution import Conv2dAttributes
from tilewright.ir.build import mul
from tilewright.ir.expr import ONE, PrimExpr, const_value, is_const_int
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.types import TensorType
from tilewright.lower.general_sizes import dims_of

Shape = tuple[PrimExpr | None, ...]


def join_pixels(function: Function) -> tuple[Function, Mapping[Symbol, PrimExpr]]:
    """A primitive function over one row of pixels, and what their number is; the function itself where it is not one.

    It is one where every node gives a pixel from the same pixel of its operands, and some size of the image is open.
    """
    nodes = post_order(function.body)
    convolutions = [item for item in nodes if isinstance(item, Call) and isinstance(item.attributes, Conv2dAttributes)]
    image = _image(convolutions)
    if image is None or not all(map(_is_of_pixels, nodes)):
        return function, {}
    weights = {id(item.args[1]) for item in convolutions}
    ends = {shape[:-1] for item in nodes if id(item) not in weights and (shape := dims_of(item.type))}
    apart = (image[0], ONE, ONE)
    if not ends <= {image, apart, (ONE, ONE, ONE), ()}:
        return function, {}
    joins_images = apart not in ends or is_const_int(image[0], 1)
    pixels = Symbol("pixels")
    row = (ONE if joins_images else image[0], ONE, pixels)
    result = _with_rows(function, image, row, weights)
    count = mul(image[1], image[2])
    return result, {pixels: mul(image[0], count) if joins_images else count}


def _image(convolutions: Sequence[Call]) -> tuple[PrimExpr, PrimExpr, PrimExpr] | None:
    """The number, height and width of the images that all convolutions are over, if one of the latter two is open."""
    images = {shape[:-1] for item in convolutions if (shape := dims_of(item.type))}
    if len(images) != 1:
        return None
    (image,) = images
    match image:
        case (PrimExpr() as number, PrimExpr() as height, PrimExpr() as width):
            is_open = const_value(height) is None or const_value(width) is None
            return (number, height, width) if is_open else None
        case _:
            return None


def _is_of_pixels(item: GraphExpr) -> bool:
    """Whether a node gives each pixel from that pixel alone, whatever their order."""
    if not isinstance(item, Call):
        return isinstance(item, (Var, Constant)) and isinstance(item.type, TensorType)
    if not isinstance(item.callee, Operator) or not isinstance(item.type, TensorType):
        return False
    attributes = item.attributes
    if not isinstance(attributes, Conv2dAttributes):
        return item.callee.elementwise and (attributes is None or not symbols_of(attributes))
    weight = dims_of(item.args[1].type)
    return (
        item.callee.name == "nn.conv2d"
        and attributes.data_layout == "NHWC"
        and attributes.groups == 1
        and attributes.strides == (1, 1)
        and not any(attributes.padding)
        and isinstance(item.args[1], Var)
        and all(size is not None and is_const_int(size, 1) for size in weight[:2])
    )


def _with_rows(function: Function, image: Shape, row: Shape, weights: set[int]) -> Function:
    """The function with rows of pixels in the place of images."""
    params: list[Var] = []
    for param in function.params:
        kind, shape = param.type, dims_of(param.type)
        if isinstance(kind, TensorType) and id(param) not in weights and shape[:-1] == image:
            kind = kind.replace(shape=(*row, shape[-1]))
        params.append(Var(param.name, kind))
    mapping = {id(old): new for old, new in zip(function.params, params, strict=True)}
    body = rewrite(function.body, lambda old, item: None, mapping)
    result = infer_types(Function(function.name, tuple(params), body, notes=function.notes))
    assert isinstance(result, Function)
    return result
