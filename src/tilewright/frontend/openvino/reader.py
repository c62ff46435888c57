"""Reads OpenVINO IR: layers, ports and edges of an XML document, and the file of weights beside it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tilewright.frontend.openvino.model import Layer, Net, OpenvinoModel, Port, PortMap
from tilewright.frontend.openvino.xml import Element, parse
from tilewright.support.errors import UnsupportedError, UserError

_VERSIONS = ("10", "11")
_BODIES = ("body", "then_body", "else_body")
_MAPS = ("port_map", "then_port_map", "else_port_map")
_DEEPEST = 16


def read_model(source: object) -> OpenvinoModel:
    """A model by the path of its .xml or its .bin file, or by the bytes of a document without weights."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return OpenvinoModel("the bytes", _document(bytes(source), "the bytes"), memoryview(b""))
    if not isinstance(source, (str, os.PathLike)):
        raise UserError(f"an OpenVINO model is a path or bytes, not {type(source).__name__}")
    path = Path(source)
    document, weights = path.with_suffix(".xml"), path.with_suffix(".bin")
    document = path if path.suffix != ".bin" else document
    if not document.exists():
        raise UserError(f"there is no file {document}", hint="a model is a file .xml, with its .bin beside it")
    net = _document(document.read_bytes(), str(document))
    data = memoryview(weights.read_bytes()) if weights.exists() else memoryview(b"")
    return OpenvinoModel(str(document), net, data)


def _document(content: bytes, source: str) -> Net:
    root = parse(content, source)
    if root.tag != "net":
        raise UserError(f"this is no OpenVINO model: the document is a <{root.tag}>", where=source)
    version = root.attributes.get("version", "")
    if version not in _VERSIONS:
        raise UnsupportedError(
            f"OpenVINO IR of version {version!r}",
            where=source,
            hint="versions 10 and 11 are read: convert the model with a newer OpenVINO",
        )
    try:
        return _net(root, 0)
    except UserError as error:
        error.where = error.where or source
        raise
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(
            f"the document is damaged: {error!r}"[:200], where=source, hint="download or export it again"
        ) from error


def _net(root: Element, depth: int) -> Net:
    if depth > _DEEPEST:
        raise UserError("bodies are nested too deeply")
    sources: dict[tuple[int, int], tuple[int, int]] = {}
    for edge in root.all("edges/edge"):
        numbers = [int(edge.attributes[key]) for key in ("to-layer", "to-port", "from-layer", "from-port")]
        sources[numbers[0], numbers[1]] = (numbers[2], numbers[3])
    layers = [_layer(item, sources, depth) for item in root.all("layers/layer")]
    if len({layer.number for layer in layers}) != len(layers):
        raise UserError("two layers have one number")
    return Net(root.attributes.get("name", ""), tuple(_ordered(layers)))


def _layer(item: Element, sources: Mapping[tuple[int, int], tuple[int, int]], depth: int) -> Layer:
    number = int(item.attributes["id"])
    data = item.first("data")
    ports = [int(port.attributes["id"]) for port in item.all("input/port")]
    outputs = tuple(
        Port(int(port.attributes["id"]), _names(port.attributes.get("names", ""))) for port in item.all("output/port")
    )
    back = tuple(
        (int(edge.attributes["from-layer"]), int(edge.attributes["to-layer"])) for edge in item.all("back_edges/edge")
    )
    return Layer(
        number,
        item.attributes.get("name", str(number)),
        item.attributes["type"],
        item.attributes.get("version", ""),
        {} if data is None else data.attributes,
        tuple(sources.get((number, port)) for port in ports),
        outputs,
        _names(item.attributes.get("output_names", "")),
        {child.tag: _net(child, depth + 1) for child in item.children if child.tag in _BODIES},
        {child.tag: tuple(map(_port_map, child.children)) for child in item.children if child.tag in _MAPS},
        back,
        tuple(ports),
    )


def _names(text: str) -> tuple[str, ...]:
    r"""Names of a tensor, separated by commas; `\,` is part of one."""
    parts = text.replace("\\,", "\0").split(",")
    return tuple(part.replace("\0", ",") for part in parts if part)


def _port_map(item: Element) -> PortMap:
    options = {key: int(value) for key, value in item.attributes.items() if key != "purpose"}
    external, internal = options.pop("external_port_id"), options.pop("internal_layer_id")
    return PortMap(item.tag == "input", external, internal, options)


def _ordered(layers: list[Layer]) -> list[Layer]:
    """Layers in an order in which each follows those that it takes values from; else in the document's order."""
    numbers = {layer.number: layer for layer in layers}
    missing: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    for layer in layers:
        before = {source[0] for source in layer.inputs if source is not None}
        for number in before:
            if number not in numbers:
                raise UserError(f"the layer '{layer.name}' takes a value from a layer {number}, which is not there")
            users.setdefault(number, []).append(layer.number)
        missing[layer.number] = len(before)
    ready = [layer.number for layer in layers if not missing[layer.number]]
    result: list[Layer] = []
    for number in ready:
        result.append(numbers[number])
        for user in users.get(number, ()):
            missing[user] -= 1
            if not missing[user]:
                ready.append(user)
    if len(result) != len(layers):
        raise UserError("layers take values from each other in a circle")
    return result
