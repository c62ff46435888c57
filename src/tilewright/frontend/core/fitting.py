"""The shapes that an operator's inputs must have to fit one another, where sizes are open.

What is certain is the business of the operator's type relation. Of the rest the importer's builder makes checks that a
run does: a kernel that is given other sizes would read past the end of what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tilewright.graph.ir import dimensions
from tilewright.graph.ir.dimensions import Size
from tilewright.graph.ir.op import Operator

Shapes = list[list[Size]]
Attributes = Mapping[str, object]
Rule = Callable[[Shapes, Attributes], Shapes | None]
"""The shapes that inputs of the given ones must have; None for ranks that the operator refuses."""
_IMAGE_RANK: Final = 4


def fitting_rule(operator: Operator) -> Rule | None:
    """What gives the shapes that inputs must have, of those they have; None where there is nothing to check."""
    return _RULES.get(operator.name, _elementwise if operator.elementwise else None)


def stretched(size: Size, wanted: Size) -> Size:
    """What a size is taken for where it broadcasts to another one, which is checked: 1, or equal."""
    return 1 if dimensions.acts_as_one(size) and not dimensions.same(size, wanted) else wanted


def _elementwise(shapes: Shapes, attributes: Attributes) -> Shapes:
    return _broadcast(shapes, [len(shape) for shape in shapes])


def _broadcast(shapes: Shapes, outer: Sequence[int]) -> Shapes:
    """Shapes whose first dimensions (so many of each) broadcast, aligned at the last of them."""
    rank = max(outer)
    target: list[Size] = [1] * rank
    for shape, count in zip(shapes, outer, strict=True):
        for at in range(1, count + 1):
            size = shape[count - at]
            known = target[rank - at]
            if known == 1 or (dimensions.acts_as_one(known) and size != 1):
                target[rank - at] = size
            elif not dimensions.acts_as_one(size):
                target[rank - at] = dimensions.simplest((known, size))
    for shape, count in zip(shapes, outer, strict=True):
        for at in range(1, count + 1):
            size, wanted = shape[count - at], target[rank - at]
            if size != 1 and wanted != 1 and not (isinstance(size, int) and isinstance(wanted, int)):
                shape[count - at] = stretched(size, wanted)
    return shapes


def _matmul(shapes: Shapes, attributes: Attributes) -> Shapes | None:
    if any(len(shape) < 2 for shape in shapes):
        return None
    places = [-2 if attributes.get("transpose_a") else -1, -1 if attributes.get("transpose_b") else -2]
    inner = dimensions.simplest([shape[place] for shape, place in zip(shapes, places, strict=True)])
    for shape, place in zip(shapes, places, strict=True):
        shape[place] = inner
    return _broadcast(shapes, [len(shape) - 2 for shape in shapes])


def _concatenate(shapes: Shapes, attributes: Attributes) -> Shapes | None:
    if any(len(shape) != len(shapes[0]) for shape in shapes):
        return None
    common = [dimensions.simplest(column) for column in zip(*shapes, strict=True)]
    return [[size if at == attributes["axis"] else common[at] for at, size in enumerate(shape)] for shape in shapes]


def _convolution(shapes: Shapes, attributes: Attributes) -> Shapes | None:
    return _with_channels(shapes, attributes, "OIHW", attributes.get("groups", 1))


def _transposed_convolution(shapes: Shapes, attributes: Attributes) -> Shapes | None:
    # Its weights have the inputs of all groups.
    return _with_channels(shapes, attributes, "IOHW", 1)


def _with_channels(shapes: Shapes, attributes: Attributes, usual: str, groups: object) -> Shapes | None:
    """Data with as many channels as so many groups of the weights' inputs."""
    data, weight = shapes
    if len(data) != _IMAGE_RANK or len(weight) != _IMAGE_RANK:
        return None
    channels = str(attributes.get("data_layout", "NCHW")).index("C")
    inputs = weight[str(attributes.get("kernel_layout", usual)).index("I")]
    assert isinstance(groups, int)
    data[channels] = dimensions.simplest((data[channels], dimensions.multiply(inputs, groups)))
    return shapes


def _batch_norm(shapes: Shapes, attributes: Attributes) -> Shapes | None:
    data, *vectors = shapes
    axis = attributes.get("axis", 1)
    assert isinstance(axis, int)
    if axis >= len(data) or any(len(vector) != 1 for vector in vectors):
        return None
    data[axis] = dimensions.simplest([data[axis], *(vector[0] for vector in vectors)])
    for vector in vectors:
        vector[0] = data[axis]
    return shapes


_RULES: Final[dict[str, Rule]] = {
    "matmul": _matmul,
    "concatenate": _concatenate,
    "nn.conv2d": _convolution,
    "nn.conv2d_transpose": _transposed_convolution,
    "nn.batch_norm": _batch_norm,
}
