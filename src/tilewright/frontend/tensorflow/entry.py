"""What is imported of a model: a signature by its name, or the inputs and outputs of a graph that has none."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.tensorflow.model import Node, Ref, Signature, TensorSpec, TfModel
from tilewright.frontend.tensorflow.tensors import shape_dims
from tilewright.support.errors import UserError

DEFAULT = "serving_default"
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2")
_WITHOUT_RESULTS = ("Assert", "NoOp", "Print", "PrintV2", "SaveV2", "MergeV2Checkpoints", "Const", "VarHandleOp")
"""Operators that no output is of, though nothing takes their results."""
_NAMES_SHOWN = 12


def entry_of(
    model: TfModel, signature: str | None, inputs: Sequence[str] | None, outputs: Sequence[str] | None
) -> Signature:
    """The inputs and outputs to import."""
    if inputs is None and outputs is None and (model.signatures or signature is not None):
        return _signature(model, signature)
    if signature is not None:
        raise UserError("a signature says the inputs and outputs: give either it or them", where=model.source)
    nodes = model.graph.nodes
    names = list(inputs) if inputs is not None else [item.name for item in nodes.values() if item.op in _PLACEHOLDERS]
    refs = [_named(model, name) for name in outputs] if outputs is not None else _ends(model)
    if not refs:
        raise UserError(
            "the graph has no outputs: each node is taken by another one",
            where=model.source,
            hint='name them: outputs=["..."]',
        )
    specs = tuple(_input(model, name) for name in names)
    labels = list(outputs) if outputs is not None else [ref.node for ref in refs]
    results = tuple(TensorSpec(label, ref, 0, None) for label, ref in zip(labels, refs, strict=True))
    return Signature("", _used(model, specs, results) if inputs is None else specs, results)


def _signature(model: TfModel, key: str | None) -> Signature:
    wanted = DEFAULT if key is None else key
    for item in model.signatures:
        if item.key == wanted or (key is None and len(model.signatures) == 1):
            if not item.outputs:
                raise UserError(f"the signature '{item.key}' has no outputs", where=model.source)
            return item
    known = ", ".join(repr(item.key) for item in model.signatures) or "none"
    what = f"no signature '{key}'" if key is not None else f"several signatures, none of them '{DEFAULT}'"
    raise UserError(f"the model has {what}", where=model.source, hint=f"it has {known}")


def _named(model: TfModel, name: str) -> Ref:
    node, _, port = name.rpartition(":")
    ref = Ref(node, int(port)) if node and port.isdigit() else Ref(name)
    if ref.node not in model.graph.nodes:
        shown = ", ".join(list(model.graph.nodes)[-_NAMES_SHOWN:])
        raise UserError(f"the graph has no node '{ref.node}'", where=model.source, hint=f"its last ones are {shown}")
    return ref


def _input(model: TfModel, name: str) -> TensorSpec:
    """An input that is a placeholder, or any node whose results are given instead of computed."""
    ref = _named(model, name)
    node = model.graph.nodes[ref.node]
    dtype = next((node.attributes[key].type for key in ("dtype", "T") if key in node.attributes), 0)
    shape = node.attributes["shape"].shape if "shape" in node.attributes else None
    dims = None if shape is None else shape_dims(shape)
    # Placeholders of old graphs that say nothing of their shape say so by a shape without dimensions.
    is_unknown = node.op == "Placeholder" and dims == () and "_output_shapes" in node.attributes
    if is_unknown:
        shapes = node.attributes["_output_shapes"].list.shape
        dims = shape_dims(shapes[0]) if len(shapes) else None
    return TensorSpec(name, ref, dtype, dims)


def _ends(model: TfModel) -> list[Ref]:
    """What nothing takes or waits for; of a graph with placeholders, what depends on one."""
    nodes = model.graph.nodes
    taken = {ref.node for node in nodes.values() for ref in node.inputs}
    taken |= {name for node in nodes.values() for name in node.controls}
    ends = [node.name for node in nodes.values() if node.name not in taken and _is_result(node)]
    given = {node.name for node in nodes.values() if node.op in _PLACEHOLDERS}
    dependent = [name for name in ends if given & _reached(model, [name])]
    return [Ref(name) for name in dependent or ends]


def _is_result(node: Node) -> bool:
    is_saving = node.name.startswith(("save/", "init")) or node.op.startswith(("Assign", "Restore", "Save"))
    return not is_saving and node.op not in _WITHOUT_RESULTS and node.op not in _PLACEHOLDERS


def _used(model: TfModel, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    """The placeholders that outputs depend on; a graph that was trained has others too."""
    reached = _reached(model, [spec.ref.node for spec in outputs])
    return tuple(spec for spec in inputs if spec.ref.node in reached)


def _reached(model: TfModel, names: Sequence[str]) -> set[str]:
    """The nodes that some depend on or wait for."""
    reached: set[str] = set()
    ahead = list(names)
    while ahead:
        name = ahead.pop()
        if name in reached:
            continue
        reached.add(name)
        node = model.graph.nodes.get(name)
        if node is not None:
            ahead += [ref.node for ref in node.inputs] + list(node.controls)
    return reached
