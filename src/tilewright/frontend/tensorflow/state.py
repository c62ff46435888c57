"""Converters of variables, tables and checkpoints: what a model keeps beside tensors.

A compiled model keeps nothing from run to run: variables begin with what the checkpoint has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.frontend.core.builder import dtype_of, sizes_of
from tilewright.frontend.core.indexing import scatter_nd
from tilewright.frontend.tensorflow.context import NodeContext
from tilewright.frontend.tensorflow.registry import converter
from tilewright.frontend.tensorflow.tensors import array_of, tensor_dtype
from tilewright.frontend.tensorflow.values import Handle, Value
from tilewright.graph.ir.expr import Constant, GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import DataType
from tilewright.support.errors import UnsupportedError, UserError

_LARGEST_ASSET = 1 << 28


@converter("Const")
def constant(node: NodeContext) -> GraphExpr:
    """A tensor of the file."""
    array, kind = array_of(node.tensor("value"), f"the constant '{node.name}'")
    if kind.startswith("complex"):
        raise UnsupportedError("a constant of complex numbers")
    return node.builder.constant(array, DataType.of(kind.removeprefix("q")))


@converter("Placeholder", "PlaceholderV2")
def placeholder(node: NodeContext) -> GraphExpr:
    """An input that nothing is given for."""
    raise UserError(
        f"the placeholder '{node.name}' is no input of what is imported", hint="name it among the inputs=[...]"
    )


@converter("PlaceholderWithDefault")
def placeholder_with_default(node: NodeContext) -> GraphExpr:
    """A value that a caller might replace: the default."""
    return node.input(0)


@converter("VarHandleOp")
def var_handle(node: NodeContext) -> Handle:
    """The variable of a name."""
    shared = node.text("shared_name")
    return Handle("variable", shared if shared and not shared.startswith("cd2c89b7") else node.name)


@converter("VariableV2", "Variable", "TemporaryVariable")
def variable(node: NodeContext) -> Handle:
    """A variable of old graphs, whose reference is its value wherever one is needed."""
    return Handle("reference", node.text("shared_name") or node.name)


@converter("ReadVariableOp", effect=False)
def read_variable(node: NodeContext) -> GraphExpr:
    """The value of a variable at this place of the run."""
    return current(node, node.handle(0))


def current(node: NodeContext, handle: Handle) -> GraphExpr:
    """The value of a variable."""
    state = node.scope.state
    value = state.variables.get(handle.name)
    if value is None:
        raise UserError(
            f"the variable '{handle.name}' has no value",
            hint="the checkpoint lacks it, or the model initialises it when it is trained: save the model again",
        )
    if handle.name not in state.assigned:
        state.read.add(handle.name)
    return value


def assign(node: NodeContext, handle: Handle, value: GraphExpr) -> None:
    """Give a variable another value."""
    node.scope.state.variables[handle.name] = value
    node.scope.state.assigned.add(handle.name)


@converter("AssignVariableOp", effect=True)
def assign_variable(node: NodeContext) -> Sequence[Value]:
    """Another value for a variable."""
    assign(node, node.handle(0), node.input(1))
    return []


@converter("Assign", effect=True)
def assign_reference(node: NodeContext) -> Handle:
    """Another value for a variable of old graphs."""
    assign(node, node.handle(0), node.input(1))
    return node.handle(0)


@converter("AssignAddVariableOp", "AssignSubVariableOp", "AssignAdd", "AssignSub", effect=True)
def assign_sum(node: NodeContext) -> Sequence[Value]:
    """A variable with something added or taken away."""
    handle = node.handle(0)
    name = "add" if "Add" in node.operator else "subtract"
    assign(node, handle, node.call(name, current(node, handle), node.input(1)))
    return [] if node.operator.endswith("Op") else [handle]


@converter("VarIsInitializedOp", "IsVariableInitialized")
def is_initialized(node: NodeContext) -> GraphExpr:
    """Whether a variable has a value."""
    return node.builder.constant(node.handle(0).name in node.scope.state.variables, "bool")


@converter("VariableShape")
def variable_shape(node: NodeContext) -> GraphExpr:
    """The sizes of a variable."""
    value = current(node, node.handle(0))
    return node.builder.cast(node.builder.shape_tensor(sizes_of(value)), node.dtype("out_type", 3))


@converter("ResourceGather")
def resource_gather(node: NodeContext) -> GraphExpr:
    """Rows of a variable."""
    table = current(node, node.handle(0))
    return _rows(node, table, node.input(1))


def _rows(node: NodeContext, table: GraphExpr, indices: GraphExpr) -> GraphExpr:
    from_zero = node.builder.cast(indices, "int64")
    return node.call("take", table, from_zero, axis=0)


@converter(*(f"ResourceScatter{name}" for name in ("Update", "Add", "NdUpdate", "NdAdd")), effect=True)
def resource_scatter(node: NodeContext) -> Sequence[Value]:
    """Rows of a variable replaced, or added to."""
    handle, indices = node.handle(0), node.input(1)
    if "Nd" not in node.operator:
        indices = node.builder.expand_dims(indices, (len(sizes_of(indices)),))
    reduction = "add" if node.operator.endswith("Add") else "none"
    assign(node, handle, scatter_nd(node.builder, current(node, handle), indices, node.input(2), reduction))
    return []


@converter("RestoreV2")
def restore(node: NodeContext) -> Sequence[Value]:
    """Tensors of the checkpoint that lies beside the model."""
    checkpoint = node.scope.model.checkpoint
    if checkpoint is None:
        raise UserError("the model has no checkpoint", hint="copy the whole folder of the model, with its variables")
    names, slices = _texts(node, 1), _texts(node, 2)
    results: list[Value | None] = []
    for name, part, kind in zip(names, slices, _types(node, "dtypes"), strict=True):
        array, _ = checkpoint.tensor(name)
        results.append(node.builder.constant(_part(array, part), tensor_dtype(kind)))
    return results  # type: ignore[return-value]


def _types(node: NodeContext, name: str) -> list[int]:
    return list(node.node.attributes[name].list.type)


def _part(array: Array, text: str) -> Array:
    """A part of a tensor: sizes, then `start,length` for each dimension or `-` for all of it (`10 4 0,5:-`)."""
    if not text:
        return array
    places: list[slice] = []
    for item in text.split(" ")[-1].split(":"):
        start, _, length = item.partition(",")
        places.append(slice(None) if item == "-" else slice(int(start), int(start) + int(length)))
    return array[tuple(places)]


def _texts(node: NodeContext, index: int) -> list[str]:
    value = node.input(index)
    if not isinstance(value, Constant):
        raise UnsupportedError(f"{node.operator} of names that are computed")
    return [str(item) for item in value.data.ravel()]


@converter("HashTableV2", "HashTable", "MutableHashTableV2", "MutableHashTable")
def hash_table(node: NodeContext) -> Handle:
    """A table from keys to values."""
    return Handle("table", node.text("shared_name") or node.name)


def _constant(value: GraphExpr) -> Array:
    if not isinstance(value, Constant):
        raise UnsupportedError("a table whose keys or values are computed")
    return value.data.ravel()


@converter("LookupTableImportV2", "LookupTableImport", "InitializeTableV2", "InitializeTable", effect=True)
def import_table(node: NodeContext) -> Sequence[Value]:
    """Constant keys and values of a table."""
    node.scope.state.tables[node.handle(0).name] = (_constant(node.input(1)), _constant(node.input(2)))
    return []


@converter("InitializeTableFromTextFileV2", "InitializeTableFromTextFile", effect=True)
def import_text_file(node: NodeContext) -> Sequence[Value]:
    """A table from the lines of a file that the model brings: whole lines (-2), their numbers (-1), or a column."""
    (name,) = _texts(node, 1)
    if Path(name) not in node.scope.model.assets.values():
        raise UserError(f"the model reads the file {name}, which it does not bring", hint="export it with its assets")
    try:
        if Path(name).stat().st_size > _LARGEST_ASSET:
            raise UserError(f"the file {name} of a table is too large")
        lines = Path(name).read_text("utf-8", "surrogateescape").split("\n")
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror or error}") from error
    lines = [line.removesuffix("\r") for line in (lines[:-1] if lines and not lines[-1] else lines)]
    separator, offset = node.text("delimiter", "\t"), node.integer("offset")
    lines = lines[offset:]

    def column(place: int) -> Array:
        if place == -1:
            return np.arange(len(lines), dtype=np.int64)
        parts = [line if place == -2 else line.split(separator)[place] for line in lines]
        return np.array(parts, object)

    keys, values = column(node.integer("key_index", -2)), column(node.integer("value_index", -1))
    node.scope.state.tables[node.handle(0).name] = (keys, values)
    return []


@converter("LookupTableFindV2", "LookupTableFind")
def find_in_table(node: NodeContext) -> GraphExpr:
    """The values of keys; a default for keys that are not there."""
    name = node.handle(0).name
    if name not in node.scope.state.tables:
        raise UserError(f"the table '{name}' has no entries", hint="nothing initialises it: export the model again")
    keys, values = node.scope.state.tables[name]
    default = _constant(node.input(2))
    dtype = node.dtype("Tout", 7)
    if not dtype.is_float and not dtype.is_integer and dtype.name != "string":
        raise UnsupportedError(f"a table of {dtype}")
    data = node.input(1)
    if dtype_of(data).name != "string":
        keys = keys.astype(np.int64)
    if dtype.name != "string":
        values = values.astype(dtype.numpy())
    return node.call(
        "text.lookup",
        data,
        keys=tuple(keys.tolist()),
        values=tuple(values.tolist()),
        default=default.tolist()[0],
        dtype=dtype,
    )


@converter("LookupTableSizeV2", "LookupTableSize")
def table_size(node: NodeContext) -> GraphExpr:
    """How many keys a table has."""
    keys, _ = node.scope.state.tables.get(node.handle(0).name, (np.empty(0), np.empty(0)))
    return node.builder.constant(len(keys), "int64")


@converter("NoOp", "Assert", "Print", "PrintV2")
def nothing(node: NodeContext) -> Sequence[Value]:
    """What is run for what it says or checks, not for a result."""
    return []
