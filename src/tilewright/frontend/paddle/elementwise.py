"""Converters of functions of several tensors, element by element, and of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.checks import checked_divisor
from tilewright.frontend.core.elementary import atan2
from tilewright.frontend.paddle.context import NodeContext
from tilewright.frontend.paddle.registry import converter
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import FLOAT32, DataType
from tilewright.support.errors import UserError

_ARITHMETIC = {
    "elementwise_add": "add",
    "elementwise_sub": "subtract",
    "elementwise_mul": "multiply",
    "elementwise_div": "divide",
    "elementwise_min": "minimum",
    "elementwise_max": "maximum",
    "elementwise_pow": "power",
    "elementwise_floordiv": "floor_divide",
    "elementwise_mod": "floor_mod",
}
_LATER = {name: name for name in ("add", "subtract", "multiply", "divide", "minimum", "maximum", "floor_divide")} | {
    "remainder": "floor_mod",
}
"""What PaddlePaddle 3 calls them."""
_NAMES = _ARITHMETIC | _LATER
_COMPARISONS = {
    "equal": "equal",
    "not_equal": "not_equal",
    "less_than": "less",
    "less_equal": "less_equal",
    "greater_than": "greater",
    "greater_equal": "greater_equal",
}
_LOGICAL = ("logical_and", "logical_or", "logical_xor")
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")


def aligned(node: NodeContext, x: GraphExpr, y: GraphExpr) -> tuple[GraphExpr, GraphExpr]:
    """Two operands as they broadcast: the dimensions of y may begin at an axis of x."""
    axis, missing = node.integer("axis", default=-1), rank_of(x) - rank_of(y)
    if axis != -1 and missing > 0 and rank_of(y):
        behind = rank_of(x) - axis - rank_of(y)
        shape = sizes_of(y)
        while behind < 0 and shape and shape[-1] == 1:
            shape, behind = shape[:-1], behind + 1
        if behind < 0:
            raise UserError(f"axis {axis} does not fit {rank_of(x)} and {rank_of(y)} dimensions")
        y = node.builder.reshape(y, (*shape, *(1,) * behind))
    common = common_type(dtype_of(x), dtype_of(y))
    return node.builder.cast(x, common), node.builder.cast(y, common)


def common_type(a: DataType, b: DataType) -> DataType:
    """The type that two operands are computed in: floats before integers, the wider of a kind."""
    if a is b:
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if a.bits == b.bits:
        return FLOAT32 if a.is_float else a
    return a if a.bits > b.bits else b


@converter(*_NAMES, inputs="X Y")
def arithmetic(node: NodeContext) -> GraphExpr:
    """Arithmetic of two tensors."""
    x, y = aligned(node, node.input(0), node.input(1))
    name = _NAMES[node.node.kind]
    if name in ("divide", "floor_divide", "floor_mod"):
        y = checked_divisor(node.builder, y)
    return node.call(name, x, y)


@converter("elementwise_heaviside", "heaviside", inputs="X Y")
def heaviside(node: NodeContext) -> GraphExpr:
    """0 where x is negative, 1 where it is positive, y elsewhere."""
    b = node.builder
    x, y = aligned(node, node.input(0), node.input(1))
    step = b.where(b.compare("greater", x, 0), b.scalar(1, dtype_of(x)), b.scalar(0, dtype_of(x)))
    return b.where(b.compare("equal", x, 0), y, step)


@converter("elementwise_fmax", "elementwise_fmin", "fmax", "fmin", inputs="X Y")
def of_numbers(node: NodeContext) -> GraphExpr:
    """The greater or the lesser; a number before NaN."""
    b = node.builder
    x, y = aligned(node, node.input(0), node.input(1))
    chosen = b.call("maximum" if node.node.kind.endswith("max") else "minimum", x, y)
    if not dtype_of(x).is_float:
        return chosen
    return b.where(b.call("isnan", x), y, b.where(b.call("isnan", y), x, chosen))


@converter("atan2", inputs="X1 X2")
def angle(node: NodeContext) -> GraphExpr:
    """The angle of a point."""
    return atan2(node.builder, node.input(0), node.input(1))


@converter(*_COMPARISONS, inputs="X Y")
def compare(node: NodeContext) -> GraphExpr:
    """A comparison of two tensors."""
    x, y = aligned(node, node.input(0), node.input(1))
    return node.builder.compare(_COMPARISONS[node.node.kind], x, y)


@converter(*_LOGICAL, inputs="X Y")
def logical(node: NodeContext) -> GraphExpr:
    """A combination of truth values."""
    return node.call(node.node.kind, *(node.builder.truth(node.input(at)) for at in range(2)))


@converter(*_BITWISE, inputs="X Y")
def bitwise(node: NodeContext) -> GraphExpr:
    """A combination of bits; of truth values, a logical one."""
    x, y = aligned(node, node.input(0), node.input(1))
    name = node.node.kind.replace("bitwise", "logical") if dtype_of(x).is_bool else node.node.kind
    return node.call(name, x, y)


@converter("where", inputs="Condition X Y")
def where(node: NodeContext) -> GraphExpr:
    """One tensor or the other, by a condition."""
    return node.builder.where(node.builder.truth(node.input(0)), node.input(1), node.input(2))


@converter("sum", "add_n")
def add_all(node: NodeContext) -> GraphExpr:
    """The sum of several tensors."""
    total, *others = node.group(0)
    for value in others:
        total = node.call("add", total, value)
    return total


@converter("increment", inputs="X")
def increment(node: NodeContext) -> GraphExpr:
    """x plus a step."""
    b, x = node.builder, node.input(0)
    return b.add(x, b.scalar(node.number("step", "value", default=1.0), dtype_of(x)))


@converter("lerp", inputs="X Y Weight")
def lerp(node: NodeContext) -> GraphExpr:
    """x + weight * (y - x)."""
    b = node.builder
    x, y, weight = (node.input(at) for at in range(3))
    return b.add(x, b.multiply(weight, b.subtract(y, x)))


@converter("matmul_v2", "matmul", inputs="X Y")
def matmul(node: NodeContext) -> GraphExpr:
    """The product of matrices; a tensor of one dimension is a row or a column."""
    turn_x = node.flag("trans_x", "transpose_x", "transpose_X")
    turn_y = node.flag("trans_y", "transpose_y", "transpose_Y")
    return matrix_product(node, node.input(0), node.input(1), turn_x, turn_y, node.number("alpha", default=1.0))


def matrix_product(
    node: NodeContext, x: GraphExpr, y: GraphExpr, transpose_x: bool, transpose_y: bool, alpha: float = 1.0
) -> GraphExpr:
    """The product of matrices, of which each may be transposed, times a number."""
    if rank_of(x) == 1 or rank_of(y) == 1:
        x = _turned(node, x) if transpose_x and rank_of(x) > 1 else x
        y = _turned(node, y) if transpose_y and rank_of(y) > 1 else y
        result = node.onnx("MatMul", x, y)
    else:
        result = node.call("matmul", x, y, transpose_a=transpose_x, transpose_b=transpose_y)
    return result if alpha == 1.0 else node.builder.multiply(result, alpha)


def _turned(node: NodeContext, value: GraphExpr) -> GraphExpr:
    order = list(range(rank_of(value)))
    order[-2:] = [order[-1], order[-2]]
    return node.builder.transpose(value, order)


@converter("mul", "matmul_with_flatten", inputs="X Y")
def flattened_product(node: NodeContext) -> GraphExpr:
    """The product of tensors as matrices: the first dimensions are rows, the others columns."""
    b, x, y = node.builder, node.input(0), node.input(1)
    rows, columns = node.integer("x_num_col_dims", default=1), node.integer("y_num_col_dims", default=1)
    left, right = sizes_of(x), sizes_of(y)
    flat_x = b.reshape(x, (product(left[:rows]), product(left[rows:])))
    flat_y = b.reshape(y, (product(right[:columns]), product(right[columns:])))
    return b.reshape(node.call("matmul", flat_x, flat_y), (*left[:rows], *right[columns:]))


@converter("bmm", inputs="X Y")
def batched_product(node: NodeContext) -> GraphExpr:
    """The products of batches of matrices."""
    return node.onnx("MatMul", node.input(0), node.input(1))


@converter("mv", inputs="X Vec")
def product_with_vector(node: NodeContext) -> GraphExpr:
    """The product of a matrix with a vector."""
    return node.onnx("MatMul", node.input(0), node.input(1))


@converter("dot", inputs="X Y")
def dot(node: NodeContext) -> GraphExpr:
    """The sum of products along the last dimension."""
    value = node.call("multiply", node.input(0), node.input(1))
    return node.call("sum", value, axes=(rank_of(value) - 1,))


@converter("addmm", inputs="Input X Y")
def addmm(node: NodeContext) -> GraphExpr:
    """beta * input + alpha * x @ y."""
    b = node.builder
    value = matrix_product(node, node.input(1), node.input(2), False, False, node.number("alpha", "Alpha", default=1.0))
    beta = node.number("beta", "Beta", default=1.0)
    other = node.input(0) if beta == 1.0 else b.multiply(node.input(0), beta)
    return b.add(value, other)


@converter("einsum", inputs="Operands")
def einsum(node: NodeContext) -> GraphExpr:
    """Einstein's summation."""
    return node.onnx("Einsum", *node.group(0), equation=node.text("equation"))


@converter("kron", inputs="X Y")
def kron(node: NodeContext) -> GraphExpr:
    """Each element of x times all of y."""
    b, x, y = node.builder, node.input(0), node.input(1)
    rank = max(rank_of(x), rank_of(y))
    left = (*(1,) * (rank - rank_of(x)), *sizes_of(x))
    right = (*(1,) * (rank - rank_of(y)), *sizes_of(y))
    x = b.reshape(x, [item for size in left for item in (size, 1)])
    y = b.reshape(y, [item for size in right for item in (1, size)])
    return b.reshape(b.multiply(x, y), [product(pair) for pair in zip(left, right, strict=True)])


@converter("p_norm", "norm", "frobenius_norm", inputs="X", outputs="Out")
def norm(node: NodeContext) -> GraphExpr | Sequence[GraphExpr]:
    """The p-norm along an axis, or over all; `norm` divides by it."""
    b, x = node.builder, node.input(0)
    rank = rank_of(x)
    if node.node.kind == "norm":
        axis = node.axis(node.integer("axis", default=-1), rank)
        total = b.reduce("sum", b.multiply(x, x), (axis,), True)
        return b.divide(x, b.call("sqrt", b.add(total, node.number("epsilon", default=1e-10))))
    keep = node.flag("keepdim", "keep_dim")
    if node.node.kind == "frobenius_norm":
        chosen = b.axes(node.wholes("the axes", (1,), "dim", "axis"), rank)
        chosen = tuple(range(rank)) if node.flag("reduce_all") else chosen
        return b.call("sqrt", b.reduce("sum", b.multiply(x, x), chosen, keep))
    all_of_it = node.flag("asvector")
    axes = tuple(range(rank)) if all_of_it else (node.axis(node.integer("axis", default=-1), rank),)
    p, size = node.number("porder", default=2.0), b.call("abs", x)
    if p == 0.0:
        return b.reduce("sum", b.cast(b.compare("not_equal", x, 0), dtype_of(x)), axes, keep)
    if p in (float("inf"), float("-inf")):
        return b.reduce("max" if p > 0 else "min", size, axes, keep)
    if p == 1.0:
        return b.reduce("sum", size, axes, keep)
    if p == 2.0:
        return b.call("sqrt", b.reduce("sum", b.multiply(x, x), axes, keep))
    power = b.call("power", size, b.scalar(p, dtype_of(x)))
    return b.call("power", b.reduce("sum", power, axes, keep), b.scalar(1 / p, dtype_of(x)))


@converter("isclose", "allclose", inputs="Input Other Rtol Atol")
def is_close(node: NodeContext) -> GraphExpr:
    """Whether numbers differ by less than a tolerance."""
    b, x, y = node.builder, node.input(0), node.input(1)
    relative, absolute = (node.known_number(at + 2, name, default=0.0) for at, name in enumerate(("rtol", "atol")))
    limit = b.add(b.multiply(b.call("abs", y), relative), absolute)
    near = b.call("less_equal", b.call("abs", b.subtract(x, y)), limit)
    near = b.call("logical_or", near, b.call("equal", x, y))
    if node.flag("equal_nan"):
        near = b.call("logical_or", near, b.call("logical_and", b.call("isnan", x), b.call("isnan", y)))
    return near if node.node.kind == "isclose" else b.reduce("all", near, tuple(range(rank_of(near))))
