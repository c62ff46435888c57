"""Import of ncnn models: a .param file (text or binary) with the .bin file of its name beside it.

Blobs of ncnn have no batch: an image is (channels, height, width). Inputs whose sizes the file does not say are open
where the weights of their first layer say the channels; `shapes` gives or fixes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewright.frontend.companions import ncnn_pair
from tilewright.frontend.core.converters import NamingBuilder
from tilewright.frontend.core.functions import chosen_shape, main_module, new_input, refuse_unknown
from tilewright.frontend.ncnn import elementwise, images, recurrent, shape, weighted
from tilewright.frontend.ncnn.files import LayerSpec, Numbers, read_layers
from tilewright.frontend.ncnn.layer import Layer, converter
from tilewright.graph.ir.expr import GraphExpr, Var
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError

FAMILIES = (elementwise, images, recurrent, shape, weighted)
"""The modules whose converters are registered."""
Shapes = dict[str, Sequence[int | str | None]]
_SIZES = (2, 11, 1, 0)
"""The parameters of an input: channels, depth, height, width."""


def from_ncnn(
    source: str | os.PathLike[str] | bytes,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    weights: str | os.PathLike[str] | bytes | None = None,
) -> IRModule:
    """Import an ncnn model: the path of its .param (or .param.bin) or .bin file, or the bytes of the first.

    The other file lies beside it; `weights` is another .bin file, or its content.
    """
    numbers: bytes | None = weights if isinstance(weights, bytes) else None
    where = "the bytes"
    if isinstance(source, bytes):
        content = source
    else:
        layers_path, weights_path = ncnn_pair(Path(os.fspath(source)))
        if layers_path is None:
            raise UserError(f"there is no .param file beside {source}", hint="an ncnn model is net.param and net.bin")
        where, content = str(layers_path), _read(layers_path)
        if weights is None and weights_path is not None:
            numbers = _read(weights_path)
    if weights is not None and not isinstance(weights, bytes):
        numbers = _read(Path(os.fspath(weights)))
    layers = read_layers(content, where)
    return _Importer(layers, Numbers(numbers or b"", "the .bin file"), where).module(dict(shapes or {}))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(
            f"cannot read {path}: {error.strerror or error}", hint="an ncnn model is net.param and net.bin"
        ) from error


class _Importer:
    """The import of one net."""

    def __init__(self, layers: Sequence[LayerSpec], numbers: Numbers, where: str) -> None:
        self.layers, self.numbers, self.where = layers, numbers, where
        self.builder = NamingBuilder()
        self.values: dict[str, GraphExpr] = {}
        self.params: list[Var] = []

    def module(self, shapes: Shapes) -> IRModule:
        for spec in self.layers:
            if spec.kind == "Input":
                self._input(spec, shapes)
            else:
                self._convert(spec)
        refuse_unknown(shapes, [param.name for param in self.params])
        self.numbers.finish()
        read = {name for spec in self.layers for name in spec.bottoms}
        names = [name for spec in self.layers for name in spec.tops if name not in read]
        if not names:
            raise UserError("the net has no outputs", where=self.where)
        name = Path(self.where).name.split(".")[0]
        return main_module(self.builder, self.params, [self.values[item] for item in names], names, name)

    def _input(self, spec: LayerSpec, shapes: Shapes) -> None:
        if len(spec.tops) != 1:
            raise UserError(f"the input '{spec.name}' gives {len(spec.tops)} blobs", where=self.where)
        name = spec.tops[0]
        sizes = [value for key in _SIZES if isinstance(value := spec.params.get(key, 0), int) and value]
        declared: Sequence[int | str] | None = sizes or self._guess(name)
        given = shapes.get(name)
        if declared is None:
            if given is None:
                raise UserError(
                    f"the net does not say the shape of its input '{name}'",
                    where=self.where,
                    hint=f'give it: shapes={{"{name}": (3, 224, 224)}}',
                )
            declared = [f"{name}_{axis}" for axis in range(len(given))]
        if any(isinstance(size, int) and size < 1 for size in declared):
            raise UserError(f"the input '{name}' has the shape {tuple(declared)}", where=self.where)
        # A size that the file says is what the net was exported with: others may be given.
        channels, *rest = declared
        open_sizes = [f"{name}_{axis}" if given is not None else size for axis, size in enumerate(rest, start=1)]
        chosen = chosen_shape(name, (channels, *open_sizes) if len(declared) == 3 else tuple(declared), shapes)
        sizes_now = [
            old if isinstance(new, str) and given is not None and given[axis] is None else new
            for axis, (old, new) in enumerate(zip(declared, chosen, strict=True))
        ]
        is_whole = any(item.kind == "Embed" and item.bottoms[:1] == [name] for item in self.layers)
        self.params.append(new_input(self.builder, name, sizes_now, INT32 if is_whole else FLOAT32))
        self.values[name] = self.params[-1]

    def _guess(self, name: str) -> list[int | str] | None:
        """The shape of an input, as the weights of the layer that reads it say."""
        for spec in self.layers:
            if name not in spec.bottoms:
                continue
            if spec.kind == "Split":
                return self._guess(spec.tops[0]) if spec.tops and spec.tops[0] != name else None
            outputs, across, count = (spec.params.get(key, 0) for key in (0, 1, 6))
            down = spec.params.get(11, across)
            sizes = (outputs, across, count, down)
            if spec.kind != "Convolution" or not all(isinstance(item, int) and item > 0 for item in sizes):
                return None
            assert isinstance(outputs, int) and isinstance(across, int)
            assert isinstance(count, int) and isinstance(down, int)
            return [count // (outputs * across * down), "height", "width"]
        return None

    def _convert(self, spec: LayerSpec) -> None:
        where = f"{spec.kind} '{spec.name}'"
        bottoms: list[GraphExpr] = []
        for name in spec.bottoms:
            if name not in self.values:
                raise UserError(f"the layer reads '{name}', which no layer before it gives", where=where)
            bottoms.append(self.values[name])
        layer = Layer(spec, bottoms, self.numbers, self.builder)
        results = converter.convert(self.builder, spec.kind, spec.name, layer)
        if len(results) < len(spec.tops):
            raise UserError(f"the layer has {len(spec.tops)} tops, {len(results)} are known", where=where)
        for name, value in zip(spec.tops, results, strict=False):
            self.values[name] = value
