"""Writes the fixtures of the TensorFlow importer: `python -m bench.tensorflow_fixtures` (needs tensorflow).

Models are those of `bench.frontend_tensorflow`, without what no importer reads (debug information, the object graph,
functions that save), so that they stay small. `tests/fixtures/tensorflow` gets a folder or a file for each,
`*.operators` with a graph, inputs and results for every single operator of a family (an index, all graphs, all numbers,
compressed), and `models.npz` with inputs and results of the others.
"""

from __future__ import annotations

import json
import lzma
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.frontend_tensorflow import exported, load_tensorflow, traced
from bench.tensorflow_cases import FAMILIES
from bench.tensorflow_graphs import graphs
from bench.tensorflow_models import models, small_lstm, small_network
from tilewright.frontend.tensorflow.schema import SCHEMA

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "tensorflow"
MODELS = ("decoder with a loop", "table of a file")
GRAPHS = {
    "frozen": "frozen.pb",
    "text": "text.pbtxt",
    "checkpoint": "checkpoint",
    "old checkpoint": "old_checkpoint",
    "TensorArray of open length": "array.pb",
    "branches [-1.0, -22.0]": "branches.pb",
    "nested loops [1.0, 2.0]": "loops.pb",
}
"""Graphs of `bench.tensorflow_graphs`, and what they are called here."""


def _stripped_graph(graph: Any) -> None:
    """Take out attributes that say nothing of the meaning, and functions that nothing calls."""
    called = {
        function.name
        for nodes in (graph.node, *(item.node_def for item in graph.library.function))
        for node in nodes
        for value in node.attr.values()
        for function in (value.func, *value.list.func)
        if not function.name.startswith("__inference__traced_save")
    }
    functions = [item for item in graph.library.function if item.signature.name in called]
    del graph.library.function[:]
    graph.library.function.extend(functions)
    saving = {node.name for node in graph.node if _saves(node)}
    nodes = [node for node in graph.node if node.name not in saving]
    del graph.node[:]
    graph.node.extend(nodes)
    for part in (graph.node, *(item.node_def for item in graph.library.function)):
        for node in part:
            for key in [key for key in node.attr if key.startswith("_") or key in ("config", "config_proto")]:
                del node.attr[key]
            node.ClearField("device")
    for item in graph.library.function:
        item.attr.clear()


def _saves(node: Any) -> bool:
    return any(value.func.name.startswith("__inference__traced_save") for value in node.attr.values())


def _pruned(meta: Any) -> None:
    """Take out the nodes that no signature and no start of the model needs."""
    graph = meta.graph_def
    names = [item.name for signature in meta.signature_def.values() for item in signature.outputs.values()]
    names += [meta.saver_def.restore_op_name, meta.saver_def.filename_tensor_name]
    names += [item.tensor_info.name for item in meta.asset_file_def]
    if not meta.signature_def:
        return
    by_name = {node.name: node for node in graph.node}
    ahead, reached = [name.split(":")[0] for name in names], set()
    while ahead:
        name = ahead.pop()
        if name in by_name and name not in reached:
            reached.add(name)
            ahead += [text.lstrip("^").split(":")[0] for text in by_name[name].input]
    nodes = [node for node in graph.node if node.name in reached]
    del graph.node[:]
    graph.node.extend(nodes)


def _stripped(kind: str, content: bytes) -> bytes:
    message = SCHEMA.read(kind, content, "a fixture")
    message.DiscardUnknownFields()
    if kind == "Graph":
        _stripped_graph(message)
    for meta in message.meta_graphs if kind == "SavedModel" else [message] if kind == "MetaGraph" else []:
        meta.signature_def.pop("serve", None)
        _pruned(meta)
        _stripped_graph(meta.graph_def)
    return bytes(message.SerializeToString(deterministic=True))


def _keep(folder: Path, name: str) -> None:
    """A SavedModel among the fixtures."""
    target = FOLDER / name
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("fingerprint.pb"))
    saved = target / "saved_model.pb"
    saved.write_bytes(_stripped("SavedModel", saved.read_bytes()))


def _note(arrays: dict[str, Any], name: str, inputs: Mapping[str, Any], outputs: Sequence[Any]) -> None:
    for key, value in inputs.items():
        arrays[f"{name}/input/{key}"] = _plain(np.asarray(value))
    for at, value in enumerate(outputs):
        arrays[f"{name}/output/{at}"] = value


def _models(tf: Any) -> None:
    arrays: dict[str, Any] = {}
    for name, build in {"network": small_network, "lstm": small_lstm, **{key: models()[key] for key in MODELS}}.items():
        folder = Path(tempfile.mkdtemp(prefix="tilewright-tensorflow-"))
        _, inputs, outputs = exported(tf, folder, build(tf, folder))
        label = name.split()[0].lower()
        _keep(folder, label)
        _note(arrays, label, inputs, outputs)
    for name, target in GRAPHS.items():
        source, inputs, outputs = graphs()[name](tf)
        if isinstance(source, Path):
            (FOLDER / target).mkdir()
            for path in source.parent.glob("model.ckpt*"):
                shutil.copy(path, FOLDER / target)
            meta = FOLDER / target / source.name
            meta.write_bytes(_stripped("MetaGraph", meta.read_bytes()))
        else:
            (FOLDER / target).write_bytes(source if target.endswith("txt") else _stripped("Graph", source))
        _note(arrays, target, inputs, outputs)
    np.savez_compressed(FOLDER / "models.npz", **arrays)


def _plain(array: Any) -> Any:
    """Texts as an array of a width, which has bytes of its own."""
    return array.astype("U") if array.dtype == object else array


def _operators(tf: Any) -> None:
    for family in FAMILIES:
        index: list[dict[str, Any]] = []
        parts: list[bytes] = []
        numbers: list[bytes] = []
        for name, function, inputs in family(tf):
            graph, named, outputs = traced(tf, function, inputs)
            assert isinstance(graph, bytes)
            parts.append(_stripped("Graph", graph))
            given, results = ([_plain(item) for item in items] for items in (named.values(), outputs))
            numbers += [np.ascontiguousarray(item).tobytes() for item in (*given, *results)]
            kinds = [[[item.dtype.str, *item.shape] for item in items] for items in (given, results)]
            index.append({"name": name, "graph": len(parts[-1]), "inputs": kinds[0], "outputs": kinds[1]})
        head = json.dumps(index).encode()
        content = len(head).to_bytes(4, "little") + head + b"".join(parts) + b"".join(numbers)
        (FOLDER / f"{family.__name__}.operators").write_bytes(lzma.compress(content, preset=9))


def main() -> None:
    """Write all of them."""
    tf = load_tensorflow()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    _operators(tf)
    _models(tf)
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file():
            print(f"{path.stat().st_size:8} {path.relative_to(FOLDER)}")


if __name__ == "__main__":
    main()
