"""Converters of `ai.onnx.ml`: tables from keys to values, and lists of maps."""

from __future__ import annotations

import numpy as np

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.onnx.context import NodeContext
from tilewright.frontend.onnx.ml_scores import DOMAIN
from tilewright.frontend.onnx.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ops.host import Plain
from tilewright.ir.dtype import FLOAT32, INT64, STRING, DataType
from tilewright.ir.types import SequenceType, TensorType, TupleType
from tilewright.support.errors import UserError


def lookup(
    node: NodeContext, data: GraphExpr, keys: tuple[Plain, ...], values: tuple[Plain, ...], default: Plain, to: DataType
) -> GraphExpr:
    """A table applied to every element."""
    if len(keys) != len(values):
        raise UserError(f"{node.node.op_type} has {len(keys)} keys for {len(values)} values")
    return node.call("text.lookup", data, keys=keys, values=values, default=default, dtype=to)


def _column(node: NodeContext, prefix: str) -> tuple[tuple[Plain, ...], DataType]:
    """The keys or the values of LabelEncoder, in whichever attribute they are."""
    if node.has_attribute(f"{prefix}_tensor"):
        stored = node.tensor(f"{prefix}_tensor")
        return tuple(stored.array.reshape(-1).tolist()), stored.dtype
    if node.has_attribute(f"{prefix}_int64s"):
        return node.ints(f"{prefix}_int64s"), INT64
    if node.has_attribute(f"{prefix}_floats"):
        return node.floats(f"{prefix}_floats"), FLOAT32
    return node.texts(f"{prefix}_strings"), STRING


@converter("LabelEncoder", domain=DOMAIN, since=2)
def label_encoder(node: NodeContext) -> GraphExpr:
    """Each key replaced by its value."""
    keys, _ = _column(node, "keys")
    values, to = _column(node, "values")
    defaults: dict[str, Plain] = {
        "int64": node.integer("default_int64", -1),
        "float": node.number("default_float", -0.0),
        "string": node.text("default_string", "_Unused"),
    }
    if node.has_attribute("default_tensor"):
        default = node.tensor("default_tensor").array.reshape(-1)[0].item()
    else:
        default = defaults["string" if to is STRING else "float" if to.is_float else "int64"]
    return lookup(node, node.input(0), keys, values, default, to)


@converter("LabelEncoder", domain=DOMAIN, until=1)
def old_label_encoder(node: NodeContext) -> GraphExpr:
    """Texts to their places in a list, or places to texts."""
    names = node.texts("classes_strings")
    places = tuple(range(len(names)))
    number, text = node.integer("default_int64", -1), node.text("default_string", "_Unused")
    if dtype_of(node.input(0)) is STRING:
        return lookup(node, node.input(0), names, places, number, INT64)
    return lookup(node, node.input(0), places, names, text, STRING)


@converter("CategoryMapper", domain=DOMAIN)
def category_mapper(node: NodeContext) -> GraphExpr:
    """Texts to whole numbers, or back."""
    names, numbers = node.texts("cats_strings"), node.ints("cats_int64s")
    number, text = node.integer("default_int64", -1), node.text("default_string", "_Unused")
    if dtype_of(node.input(0)) is STRING:
        return lookup(node, node.input(0), names, numbers, number, INT64)
    return lookup(node, node.input(0), numbers, names, text, STRING)


@converter("ZipMap", domain=DOMAIN)
def zip_map(node: NodeContext) -> GraphExpr:
    """For each row, the pair of all labels and their scores (what ONNX calls a map)."""
    data = node.input(0)
    if rank_of(data) == 1:
        data = node.builder.reshape(data, (1, *sizes_of(data)))
    names, numbers = node.texts("classlabels_strings", ()), node.ints("classlabels_int64s", ())
    if bool(names) == bool(numbers):
        raise UserError("ZipMap needs labels, either classlabels_int64s or classlabels_strings")
    keys = (
        node.builder.constant(np.array(names, dtype=object), STRING)
        if names
        else node.builder.constant(np.array(numbers), INT64)
    )
    assert isinstance(keys.type, TensorType) and isinstance(data.type, TensorType) and data.type.shape is not None
    row = TensorType(data.type.shape[1:], data.type.dtype)
    return node.call("sequence.pairs", keys, data, result=SequenceType(TupleType((keys.type, row))))
