"""Blocks of places as channels or as images of their own, and back: shared by importers of channels-last formats."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import rank_of, sizes_of
from tilewright.frontend.core.node_inputs import NodeInputs
from tilewright.graph.ir.dimensions import Size, floor_divide, product, same, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.common import sizes_text
from tilewright.support.errors import UserError


def space_to_depth(node: NodeInputs, block: int) -> GraphExpr:
    """Blocks of pixels as channels, which come last."""
    data, builder = node.input(0), node.builder
    batch, height, width, channels = _image(node, data, block)
    if any(isinstance(size, int) and size % block for size in (height, width)):
        raise UserError(f"blocks of {block} do not fit data of shape {sizes_text(sizes_of(data))}")
    rows, columns = floor_divide(height, block), floor_divide(width, block)
    parts = builder.reshape(data, (batch, rows, block, columns, block, channels))
    turned = builder.transpose(parts, (0, 1, 3, 2, 4, 5))
    return builder.reshape(turned, (batch, rows, columns, product((channels, block * block))))


def depth_to_space(node: NodeInputs, block: int) -> GraphExpr:
    """Channels, which come last, as blocks of pixels."""
    data, builder = node.input(0), node.builder
    batch, height, width, channels = _image(node, data, block)
    depth = floor_divide(channels, block * block)
    if not same(product((depth, block * block)), channels):
        raise UserError(f"blocks of {block} do not fit data of shape {sizes_text(sizes_of(data))}")
    parts = builder.reshape(data, (batch, height, width, block, block, depth))
    turned = builder.transpose(parts, (0, 1, 3, 2, 4, 5))
    return builder.reshape(turned, (batch, product((height, block)), product((width, block)), depth))


def _image(node: NodeInputs, data: GraphExpr, block: int) -> tuple[Size, ...]:
    sizes = sizes_of(data)
    if len(sizes) != 4 or block < 1:
        raise UserError(f"{node.operator} in blocks of {block} of data of shape {sizes_text(sizes)}")
    return sizes


def space_to_batch(node: NodeInputs, fill: float = 0.0) -> GraphExpr:
    """Blocks of places (input 1), after padding (input 2), as images of their own."""
    data, builder = node.input(0), node.builder
    blocks = node.constant_ints(1, "the blocks")
    pads = node.constant(2, "the padding").reshape(-1, 2)
    count = len(blocks)
    if len(pads) != count or count > rank_of(data) - 1 or min(blocks, default=0) < 1:
        raise UserError(f"blocks {blocks} do not fit data of {rank_of(data)} dimensions")
    rest = rank_of(data) - 1 - count
    before = (0, *(int(item) for item in pads[:, 0]), *(0,) * rest)
    after = (0, *(int(item) for item in pads[:, 1]), *(0,) * rest)
    if any(before) or any(after):
        data = node.call("pad", data, before=before, after=after, value=fill)
    sizes = sizes_of(data)
    shape: list[Size] = [sizes[0]]
    for size, block in zip(sizes[1 : 1 + count], blocks, strict=True):
        if isinstance(size, int) and size % block:
            raise UserError(f"blocks {blocks} do not fit data of shape {sizes_text(sizes)}")
        shape += [floor_divide(size, block), block]
    parts = builder.reshape(data, (*shape, *sizes[1 + count :]))
    inner = [2 + 2 * at for at in range(count)]
    order = (*inner, 0, *(at - 1 for at in inner), *range(1 + 2 * count, 1 + 2 * count + rest))
    turned = sizes_of(builder.transpose(parts, order))
    batch = product(turned[: count + 1])
    return builder.reshape(builder.transpose(parts, order), (batch, *turned[count + 1 :]))


def batch_to_space(node: NodeInputs) -> GraphExpr:
    """Images as blocks of places (input 1) of larger ones, whose borders (input 2) are cut off."""
    data, builder = node.input(0), node.builder
    blocks = node.constant_ints(1, "the blocks")
    crops = node.constant(2, "what is cut off").reshape(-1, 2)
    count, sizes = len(blocks), sizes_of(data)
    total = int(np.prod(blocks))
    fits = len(crops) == count <= len(sizes) - 1 and min(blocks, default=0) >= 1
    if not fits or (isinstance(sizes[0], int) and sizes[0] % total):
        raise UserError(f"blocks {blocks} do not fit data of shape {sizes_text(sizes)}")
    batch = floor_divide(sizes[0], total)
    parts = builder.reshape(data, (*blocks, batch, *sizes[1:]))
    order = [count]
    for at in range(count):
        order += [count + 1 + at, at]
    order += range(2 * count + 1, count + len(sizes))
    turned = builder.transpose(parts, order)
    spaces = [product((size, block)) for size, block in zip(sizes[1 : 1 + count], blocks, strict=True)]
    result = builder.reshape(turned, (batch, *spaces, *sizes[1 + count :]))
    for axis, (first, last) in enumerate(crops.tolist(), 1):
        result = builder.slice_axis(result, axis, int(first), subtract(sizes_of(result)[axis], int(last)))
    return result
