"""Converters of variables and tables of texts: values that operators hand on by name.

A compiled model keeps nothing from run to run: a run begins with what the model's initialisation (CALL_ONCE) gives
variables, or with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import evaluate
from tilewright.frontend.tflite.context import NodeContext
from tilewright.frontend.tflite.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64
from tilewright.support.errors import UnsupportedError, UserError

HANDLE = "handle of "


@converter("VAR_HANDLE")
def var_handle(node: NodeContext) -> GraphExpr:
    """The variable of a name."""
    name = f"{node.option('container', '')}/{node.option('shared_name', '')}"
    return node.builder.constant(np.array(HANDLE + name, object), "string")


def _name(node: NodeContext) -> str:
    known = evaluate_text(node.optional(0))
    if known is None:
        raise UserError(f"{node.node.name} needs a variable as its first input")
    return known


def evaluate_text(value: GraphExpr | None) -> str | None:
    """The name that a handle holds."""
    data = getattr(value, "data", None)
    text = str(data.reshape(-1)[0]) if isinstance(data, np.ndarray) and data.size == 1 else ""
    return text if text.startswith(HANDLE) else None


@converter("READ_VARIABLE")
def read_variable(node: NodeContext) -> GraphExpr:
    """The value of a variable at this place of the run."""
    name = _name(node)
    value = node.bodies.variables.get(name)
    if value is None:
        tensor = node.output_tensor()
        if tensor.dims is None or None in tensor.dims or tensor.dtype is None:
            raise UserError(f"the variable '{name}' is read before anything is assigned to it")
        value = node.builder.filled(0, [size for size in tensor.dims if size is not None], tensor.dtype)
        node.bodies.variables[name] = value
    return value


@converter("ASSIGN_VARIABLE")
def assign_variable(node: NodeContext) -> Sequence[GraphExpr]:
    """Another value for a variable."""
    node.bodies.variables[_name(node)] = node.input(1)
    return []


@converter("HASHTABLE")
def hashtable(node: NodeContext) -> GraphExpr:
    """A table from keys to values."""
    return node.builder.constant(np.array(f"{HANDLE}table {node.integer('table_id')}", object), "string")


@converter("HASHTABLE_IMPORT")
def hashtable_import(node: NodeContext) -> Sequence[GraphExpr]:
    """Constant keys and values of a table."""
    values = [getattr(node.input(at), "data", None) for at in (1, 2)]
    if values[0] is None or values[1] is None:
        values = [evaluate(node.input(at)) for at in (1, 2)]
    if values[0] is None or values[1] is None:
        raise UnsupportedError("a table whose keys or values are computed")
    node.bodies.tables[_name(node)] = (np.asarray(values[0]).ravel(), np.asarray(values[1]).ravel())
    return []


@converter("HASHTABLE_FIND")
def hashtable_find(node: NodeContext) -> GraphExpr:
    """The values of keys; a default for keys that are not there."""
    keys, values = node.bodies.tables.get(_name(node), (np.empty(0, object), np.empty(0, object)))
    default = getattr(node.input(2), "data", None)
    if default is None:
        raise UnsupportedError("HASHTABLE_FIND with a default that is computed")
    return node.call(
        "text.lookup",
        node.input(1),
        keys=tuple(keys.tolist()),
        values=tuple(values.tolist()),
        default=np.asarray(default).reshape(-1)[0].item() if hasattr(np.asarray(default).reshape(-1)[0], "item")
        else np.asarray(default).reshape(-1)[0],
        dtype=node.output_dtype(),
    )  # fmt: skip


@converter("HASHTABLE_SIZE")
def hashtable_size(node: NodeContext) -> GraphExpr:
    """How many keys a table has."""
    keys, _ = node.bodies.tables.get(_name(node), (np.empty(0), np.empty(0)))
    return node.builder.constant([len(keys)], INT64)
