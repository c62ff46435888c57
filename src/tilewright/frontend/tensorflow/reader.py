"""Reading of TensorFlow's files: SavedModel folders, GraphDefs (binary and text), and meta graphs with a checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.frontend.tensorflow.checkpoint import Checkpoint, read_checkpoint
from tilewright.frontend.tensorflow.model import Body, Node, Ref, Restore, Signature, TensorSpec, TfModel
from tilewright.frontend.tensorflow.registry import output_names
from tilewright.frontend.tensorflow.schema import SCHEMA
from tilewright.frontend.tensorflow.tensors import shape_dims
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.support.file_kinds import begin_of_text

SAVED_MODEL = "saved_model.pb"
SAVED_MODEL_TEXT = "saved_model.pbtxt"
INITIAL = "__saved_model_init_op"
"""The signature whose output fills tables."""
HIDDEN = (INITIAL, "__saved_model_train_op")
_INITIAL_COLLECTIONS = ("saved_model_main_op", "legacy_init_op")
_LARGEST_FILE = 1 << 31
"""The most bytes that a message of protobuf has."""

Outputs = Callable[[str, Any], Mapping[str, int]]
"""Where each named output of an operator begins, by the operator and its node."""


def read_model(source: object, tags: Sequence[str] | None = None) -> TfModel:
    """A model from a path (a folder, a GraphDef, a meta graph) or from the bytes of a GraphDef."""
    if isinstance(source, bytes):
        return _graph_model(source, "the bytes")
    if not isinstance(source, (str, os.PathLike)):
        raise UserError(f"a path or bytes are needed, not {type(source).__name__}")
    path = Path(source)
    if path.is_dir() or path.name in (SAVED_MODEL, SAVED_MODEL_TEXT):
        return _saved_model(path if path.is_dir() else path.parent, tags)
    for end in (".index", ".data-00000-of-00001"):
        if path.name.endswith(end):
            path = path.with_name(path.name.removesuffix(end) + ".meta")
            if not path.exists():
                raise UserError(
                    f"{source} is a checkpoint: it has variables and no graph",
                    hint="give the SavedModel that it belongs to, or put the .meta file beside it",
                )
    content = _content(path)
    return _meta_model(path, content) if path.suffix == ".meta" else _graph_model(content, str(path))


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise UserError(f"{path} is larger than a message of protobuf may be", hint="use a SavedModel folder")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def _message(name: str, content: bytes, where: str) -> Any:
    """A message from bytes or from a text."""
    text = begin_of_text(content[: 1 << 16])
    if text and re.match(r"\s*(#.*\n\s*)*[a-z_]+\s*[:{]", text):
        return SCHEMA.read_text(name, content.decode("utf-8", "replace"), where)
    return SCHEMA.read(name, content, where)


def _saved_model(folder: Path, tags: Sequence[str] | None) -> TfModel:
    path = next((folder / name for name in (SAVED_MODEL, SAVED_MODEL_TEXT) if (folder / name).exists()), None)
    if path is None:
        raise UserError(f"{folder} is no SavedModel: it has no file {SAVED_MODEL}")
    saved = _message("SavedModel", _content(path), str(path))
    meta = _chosen(saved, tags, str(path))
    prefix = folder / "variables" / "variables"
    has_variables = prefix.with_name("variables.index").exists()
    return _from_meta(meta, str(folder), read_checkpoint(prefix) if has_variables else None, folder / "assets")


def _chosen(saved: Any, tags: Sequence[str] | None, where: str) -> Any:
    """The graph of a SavedModel for serving, or the one with the tags that are asked for."""
    if not saved.meta_graphs:
        raise UserError("the SavedModel has no graph", where=where, hint="export the model again")
    known = [sorted(item.meta_info_def.tags) for item in saved.meta_graphs]
    for item, own in zip(saved.meta_graphs, known, strict=True):
        if own == sorted(tags if tags is not None else ["serve"]):
            return item
    if tags is not None:
        raise UserError(f"the SavedModel has no graph with the tags {list(tags)}", where=where, hint=f"it has {known}")
    return saved.meta_graphs[0]


def _meta_model(path: Path, content: bytes) -> TfModel:
    meta = _message("MetaGraph", content, str(path))
    prefix = path.with_suffix("")
    has_checkpoint = prefix.exists() or prefix.with_name(prefix.name + ".index").exists()
    return _from_meta(meta, str(path), read_checkpoint(prefix) if has_checkpoint else None, path.parent)


def _from_meta(meta: Any, source: str, checkpoint: Checkpoint | None, assets: Path) -> TfModel:
    ops = {op.name: op for op in meta.meta_info_def.stripped_op_list.op}
    graph, functions = _bodies(meta.graph_def, ops, source)
    signatures = tuple(_signature(key, item) for key, item in sorted(meta.signature_def.items()) if key not in HIDDEN)
    restore = None
    if meta.saver_def.restore_op_name and meta.saver_def.filename_tensor_name:
        restore = Restore(meta.saver_def.restore_op_name, _graph_ref(meta.saver_def.filename_tensor_name))
    initial = (
        [_graph_ref(item.name).node for item in meta.signature_def[INITIAL].outputs.values()]
        if (INITIAL in meta.signature_def)
        else []
    )
    for key in _INITIAL_COLLECTIONS:
        if key in meta.collection_def:
            initial += [_graph_ref(name).node for name in meta.collection_def[key].node_list.value]
    files = {
        _graph_ref(item.tensor_info.name): assets / _file_name(item.filename, source) for item in meta.asset_file_def
    }
    return TfModel(source, graph, functions, signatures, restore, checkpoint, tuple(initial), files)


def _file_name(name: str, where: str) -> str:
    if not name or name != os.path.basename(name) or name in (".", ".."):
        raise UserError(f"the model names a file {name!r} outside of its folder", where=where)
    return name


def _signature(key: str, message: Any) -> Signature:
    def specs(items: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(name, _graph_ref(items[name].name), items[name].dtype, shape_dims(items[name].tensor_shape))
            for name in sorted(items, key=_natural)
        )

    return Signature(key, specs(message.inputs), specs(message.outputs))


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Numbers in names by their value: output_2 comes before output_10."""
    parts = re.split(r"([0-9]+)", name)
    return [(at % 2 == 1, int(part) if at % 2 else 0, part) for at, part in enumerate(parts)]


def _graph_model(content: bytes, source: str) -> TfModel:
    message = _message("Graph", content, source)
    if not message.node:
        raise UserError("the graph has no nodes", where=source, hint="is it a GraphDef?")
    graph, functions = _bodies(message, {}, source)
    return TfModel(source, graph, functions)


def _bodies(graph: Any, ops: Mapping[str, Any], source: str) -> tuple[Body, dict[str, Body]]:
    """The nodes of a graph, and its functions."""
    signatures = {item.signature.name: item.signature for item in graph.library.function}
    known = {**ops, **signatures}

    def outputs(op: str, node: Any) -> Mapping[str, int]:
        if op not in known:
            return {name: at for at, name in enumerate(output_names(op))}
        places: dict[str, int] = {}
        count = 0
        for arg in known[op].output_arg:
            places[arg.name] = count
            count += _length(arg, node)
        return places

    functions = {item.signature.name: _function(item, outputs, source) for item in graph.library.function}
    nodes: dict[str, Node] = {}
    for item in graph.node:
        inputs = tuple(_graph_ref(text) for text in item.input if not text.startswith("^"))
        nodes[item.name] = _node(item, inputs, nodes, source)
    return Body("main", (), nodes), functions


def _length(arg: Any, node: Any) -> int:
    if arg.number_attr:
        return int(node.attr[arg.number_attr].i)
    return len(node.attr[arg.type_list_attr].list.type) if arg.type_list_attr else 1


def _node(item: Any, inputs: tuple[Ref, ...], nodes: Mapping[str, Node], source: str) -> Node:
    if item.name in nodes:
        raise UserError(f"two nodes are called '{item.name}'", where=source, hint="export the model again")
    controls = tuple(text[1:] for text in item.input if text.startswith("^"))
    return Node(item.name, item.op, inputs, controls, item.attr)


def _graph_ref(text: str) -> Ref:
    """An output of a node of a graph: `name`, or `name:2`."""
    name, _, port = text.rpartition(":")
    if not name or not port.isdigit() or not port.isascii():
        return Ref(text)
    return Ref(name, int(port[:9]))


def _function(message: Any, outputs: Outputs, source: str) -> Body:
    """The body of a function, whose nodes name outputs of others: `name:output:0`."""
    name = message.signature.name
    by_name = {item.name: item for item in message.node_def}
    params = tuple(arg.name for arg in message.signature.input_arg)

    def reference(text: str) -> Ref:
        node, *rest = text.split(":")
        if node in by_name and len(rest) == 2 and rest[1].isdigit():
            item = by_name[node]
            places = outputs(item.op, item)
            if rest[0] not in places and len(places) > 1:
                raise UnsupportedError(
                    f"'{node}' ({item.op}) has no output '{rest[0]}' that is known",
                    where=f"{source}, function '{name}'",
                )
            return Ref(node, places.get(rest[0], 0) + int(rest[1][:9]))
        return Ref(node, int(rest[-1][:9]) if rest and rest[-1].isdigit() else 0)

    nodes: dict[str, Node] = {}
    for item in message.node_def:
        inputs = tuple(reference(text) for text in item.input if not text.startswith("^"))
        nodes[item.name] = _node(item, inputs, nodes, source)
    missing = [arg.name for arg in message.signature.output_arg if arg.name not in message.ret]
    if missing:
        raise UserError(f"the function '{name}' says nothing of its result '{missing[0]}'", where=source)
    results = tuple(reference(message.ret[arg.name]) for arg in message.signature.output_arg)
    return Body(name, params, nodes, results, tuple(message.control_ret.values()))
