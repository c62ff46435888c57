"""The host function that adds up patches of an image whose size, or whose patches' size, is data."""

from __future__ import annotations

import math

import numpy as np

from tilewright.runtime.host.registry import HostValue, register
from tilewright.runtime.host.shaping import shape_of_entries
from tilewright.runtime.host.values import Attributes, tensor, whole_numbers
from tilewright.support.errors import UserError


@register("host.col2im")
def columns_to_image(values: list[HostValue], attributes: Attributes) -> list[HostValue]:
    """Columns (batch, channels * taps, blocks) as the image that has them as blocks, summed where they overlap.

    Inputs: the columns, the size of the image, the size of blocks. No strides (or dilations, pads) are ones (zeros).
    """
    data = tensor(values[0])
    image, block = shape_of_entries(values[1]), shape_of_entries(values[2])
    rank = len(image)
    strides, dilations, pads = (whole_numbers(attributes, name) for name in ("strides", "dilations", "pads"))
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * (2 * rank)
    if not rank == len(block) == len(strides) == len(dilations) == len(pads) // 2 or data.ndim != 3 or 0 in block:
        raise UserError(f"an image {image} of blocks {block} does not fit columns of shape {data.shape}")
    full = [size + pads[axis] + pads[axis + rank] for axis, size in enumerate(image)]
    counts = [(full[axis] - (block[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1 for axis in range(rank)]
    batch, rows, columns = data.shape
    taps = math.prod(block)
    if rows % taps or min(counts, default=0) < 1 or columns != math.prod(counts):
        raise UserError(f"columns of shape {data.shape} do not fit {counts} blocks of {block}")
    parts = data.reshape(batch, rows // taps, taps, *counts)
    total = np.zeros((batch, rows // taps, *full), data.dtype)
    for tap, offsets in enumerate(np.ndindex(*block)):
        places = [
            slice(offset * space, offset * space + (count - 1) * stride + 1, stride)
            for offset, space, count, stride in zip(offsets, dilations, counts, strides, strict=True)
        ]
        total[(slice(None), slice(None), *places)] += parts[:, :, tap]
    inside = [slice(pads[axis], pads[axis] + size) for axis, size in enumerate(image)]
    return [np.ascontiguousarray(total[(slice(None), slice(None), *inside)])]
