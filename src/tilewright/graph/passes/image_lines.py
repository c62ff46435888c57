"""Signals between convolutions of one dimension stay images of one line, which convolutions of images take as they are.

Before:  conv2d(reshape(relu(reshape(conv2d(x, w), (n, c, width))), (n, c, 1, width)), v)
After:   conv2d(relu(conv2d(x, w)), v)

Importers write a convolution of one dimension as one of images whose height is 1, between two reshapes. Operators in
between then have three dimensions: `convert_layout` would turn the image back before each of them, and kernels of
convolutions would end there. So the reshape sinks below operators that can as well be computed on the image, until it
meets its inverse.
"""

from __future__ import annotations

from tilewright.graph.ir.dimensions import Sizes
from tilewright.graph.ir.expr import Attributes, Call, Function, GraphExpr
from tilewright.graph.ir.infer import fill_type
from tilewright.graph.ir.op import Operator, is_call_to
from tilewright.graph.ir.rewrite import Bindings, P, Rule, apply_rules, known_sizes, make
from tilewright.graph.ir.traverse import map_functions
from tilewright.graph.ops.reduce import ReduceAttributes
from tilewright.ir.function import IRModule

_IMAGE = 4
_LINE = 2
"""The axis of the lines of an image (NCHW), of which there is one."""
_MOST_STEPS = 32
"""Operators between a reshape and the convolution that are looked through."""
_NEUTRAL: dict[str, dict[str, int]] = {
    "pad": {"before": 0, "after": 0},
    "slice": {"begin": 0, "end": 1, "strides": 1},
}
"""Operators with an entry an axis, and what their entries are for an axis of one element that stays as it is."""
_AXIS = "axis"
_ONE_AXIS = frozenset(["concatenate", "cumsum", "nn.softmax", "nn.log_softmax"])
_REDUCTIONS = frozenset(["sum", "mean", "max", "min", "prod"])


def image_lines(module: IRModule) -> IRModule:
    """Compute what lies between convolutions of one dimension on images of one line."""
    return map_functions(module, _visit)


def _visit(function: Function) -> Function:
    return apply_rules(function, RULES)


def _takes_lines(item: GraphExpr) -> bool:
    """Whether an operator is the same on images of one line, but for its attributes."""
    if not isinstance(item, Call) or not isinstance(item.callee, Operator):
        return False
    name = item.callee.name
    if name in _REDUCTIONS:
        return isinstance(item.attributes, ReduceAttributes) and item.attributes.keepdims
    return item.callee.elementwise or name in _NEUTRAL or name in _ONE_AXIS


def _line(item: GraphExpr) -> GraphExpr | None:
    """The image that a signal is the only line of, if a convolution computed it."""
    if not isinstance(item, Call) or not is_call_to(item, "reshape"):
        return None
    image = item.args[0]
    sizes, signal = known_sizes(image), known_sizes(item)
    if sizes is None or signal is None or len(sizes) != _IMAGE or sizes[_LINE] != 1:
        return None
    return image if (*sizes[:_LINE], sizes[-1]) == signal and _is_convolved(image) else None


def _is_convolved(image: GraphExpr) -> bool:
    """Whether an image comes from a convolution, through operators that keep its order."""
    for _ in range(_MOST_STEPS):
        if not isinstance(image, Call):
            return False
        if is_call_to(image, "nn.conv2d") or is_call_to(image, "nn.conv2d_transpose"):
            return True
        below = next((item for item in image.args if isinstance(item, Call) and _rank(item) == _IMAGE), None)
        if below is None or not _takes_lines(image):
            return False
        image = below
    return False


def _rank(item: GraphExpr) -> int | None:
    sizes = known_sizes(item)
    return None if sizes is None else len(sizes)


def _sink(b: Bindings) -> GraphExpr | None:
    """The operator on images of one line, and the reshape after it."""
    root = b.call("root")
    shape = known_sizes(root)
    if shape is None or len(shape) != _IMAGE - 1 or not any(_line(item) is not None for item in root.args):
        return None
    args = [_as_image(item) for item in root.args]
    if any(item is None for item in args):
        return None
    result = Call(root.callee, tuple(item for item in args if item is not None), _attributes_of(root))
    result.span = root.span
    fill_type(result)
    return make("reshape", result, shape=shape)


def _as_image(item: GraphExpr) -> GraphExpr | None:
    """An operand with the axis of lines: of the image itself where it is a line of one."""
    image = _line(item)
    if image is not None:
        return image
    sizes = known_sizes(item)
    if sizes is None:
        return None
    if len(sizes) < _IMAGE - _LINE:
        # What has no axis of channels is broadcast as it is.
        return item
    at = len(sizes) - 1
    return make("reshape", item, shape=(*sizes[:at], 1, *sizes[at:]))


def _attributes_of(root: Call) -> Attributes | None:
    """The attributes of an operator on signals, for images of one line."""
    assert isinstance(root.callee, Operator)
    attributes, name = root.attributes, root.callee.name
    if attributes is None or root.callee.elementwise:
        return attributes
    if name in _NEUTRAL:
        changes: dict[str, Sizes] = {}
        for field, neutral in _NEUTRAL[name].items():
            entries: Sizes = getattr(attributes, field)
            changes[field] = (*entries[:_LINE], neutral, *entries[_LINE:])
        return attributes.replace(**changes)
    if isinstance(attributes, ReduceAttributes):
        return attributes.replace(axes=tuple(_moved(axis) for axis in attributes.axes))
    axis = getattr(attributes, _AXIS)
    assert isinstance(axis, int)
    return attributes.replace(**{_AXIS: _moved(axis)})


def _moved(axis: int) -> int:
    return axis + 1 if axis >= _LINE else axis


RULES = (Rule("reshape of a line", P.any("root", where=_takes_lines), _sink),)
"""All rules, tried in order at each node."""
