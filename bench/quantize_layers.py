"""Layers of a benchmark model in 8 bits, by our quantiser and by onnxruntime's on the same calibration data.

    python -m bench.quantize_layers resnet18            # one line of JSON: decibels of each layer, ours and theirs

Both quantised models run on inputs that calibration did not see. The noise of a layer is the difference of its result
in the quantised model (everything before it quantised too) from its result in the float32 model; the signal is the
float32 result, with its bias. Onnxruntime runs its file without graph optimisations: as the file says.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import tilewright as tw
from bench import zoo
from bench.quantize_peers import Feed, onnxruntime_static
from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.quantization.layers import find_layers, visible, with_more_results
from tilewright.quantization.options import QuantizeFields, QuantizeOptions
from tilewright.quantization.quantizer import prepared

CALIBRATION = range(1, 7)
TEST = range(101, 104)
"""Seeds of inputs."""
_LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")
Values = dict[str, list[np.ndarray]]
"""Results of layers by name, one for each test input; the model's own are under its outputs' names."""


@dataclass(frozen=True)
class Comparison:
    """Signal to noise in decibels by layer, ours and onnxruntime's, and of the model's own results."""

    model: str
    ours: dict[str, float]
    theirs: dict[str, float]
    result_ours: float
    result_theirs: float

    @property
    def mean_lead(self) -> float:
        """How many decibels we are ahead on average: the ratio of geometric means."""
        return float(np.mean([self.ours[name] - self.theirs[name] for name in self.ours])) if self.ours else 0.0

    @property
    def behind(self) -> list[str]:
        """Layers where onnxruntime's quantiser makes less noise, by more than a twentieth of a decibel."""
        return [name for name in self.ours if self.ours[name] < self.theirs[name] - 0.05]


def _our_values(function: Function, feeds: Sequence[Feed]) -> Values:
    layers = find_layers(visible(function))
    wide = with_more_results(function, [layer.call for layer in layers])
    exe = tw.compile(infer_types(IRModule({function.name: wide})), threads=1)
    values: Values = {}
    for feed in feeds:
        results = [np.asarray(item) for item in exe(*(feed[param.name] for param in function.params))]
        own = len(results) - len(layers)
        for place, item in enumerate(results[:own]):
            values.setdefault(f"output {place}", []).append(item)
        for layer, item in zip(layers, results[own:], strict=True):
            values.setdefault(layer.name, []).append(item)
    return values


def _original_names(model: onnx.ModelProto, optimized: onnx.ModelProto) -> dict[str, str]:
    """Layers of an optimised model by the names that they had: fused ones are known by their weights."""
    layers = [node for node in model.graph.node if node.op_type in _LAYERS]
    own, by_weight = {node.name for node in layers}, {node.input[1]: node.name for node in layers}
    return {
        node.name: node.name if node.name in own else by_weight.get(node.input[1], node.name)
        for node in optimized.graph.node
        if node.op_type in _LAYERS
    }


def _their_values(model: onnx.ModelProto, names: Mapping[str, str], feeds: Sequence[Feed]) -> Values:
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    own = [item.name for item in wide.graph.output]
    named = {node.output[0]: names[node.name] for node in wide.graph.node if node.name in names}
    more = [name for name in named if name not in own]
    wide.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in more)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(wide.SerializeToString(), settings)
    values: Values = {}
    for feed in feeds:
        for place, (name, item) in enumerate(zip([*own, *more], session.run([*own, *more], dict(feed)), strict=True)):
            if place < len(own):
                values.setdefault(f"output {place}", []).append(item)
            if name in named:
                values.setdefault(named[name], []).append(item)
    return values


def _decibels(signals: Sequence[np.ndarray], exact: Sequence[np.ndarray], rounded: Sequence[np.ndarray]) -> float:
    signal = sum(float((item.astype(np.float64) ** 2).sum()) for item in signals)
    noise = sum(float(((a.astype(np.float64) - b) ** 2).sum()) for a, b in zip(exact, rounded, strict=True))
    return float(10 * np.log10(signal / max(noise, 1e-30 * signal, 1e-300)))


def _results(exact: Values, rounded: Values) -> float:
    keys = [key for key in exact if key.startswith("output ") and exact[key][0].dtype.kind == "f"]
    a, b = ([item for key in keys for item in values[key]] for values in (exact, rounded))
    return _decibels(a, a, b)


def compare(name: str, options: QuantizeFields | None = None) -> Comparison:
    """Quantise a model both ways and run both."""
    model = zoo.build(name)
    calibration, feeds = ([zoo.inputs(name, seed) for seed in seeds] for seeds in (CALIBRATION, TEST))
    quantized = tw.quantize(model, iter(calibration), threads=1, **(options or {}))
    main = quantized.module["main"]
    assert isinstance(main, Function)
    exact, ours = _our_values(prepared(model, QuantizeOptions()), feeds), _our_values(main, feeds)
    with tempfile.TemporaryDirectory() as folder:
        file = onnxruntime_static(model.SerializeToString(), calibration, Path(folder))
        float_model = onnx.load(Path(folder) / "prepared.onnx")
        names = _original_names(model, float_model)
        their_exact = _their_values(float_model, names, feeds)
        theirs = _their_values(onnx.load_from_string(file), names, feeds)
    common = _common(exact, their_exact, theirs)
    return Comparison(
        name,
        {layer: _decibels(their_exact[layer], exact[layer], ours[layer]) for layer in common},
        {layer: _decibels(their_exact[layer], their_exact[layer], theirs[layer]) for layer in common},
        _results(exact, ours),
        _results(their_exact, theirs),
    )


def _common(*values: Mapping[str, object]) -> list[str]:
    return [name for name in values[0] if all(name in item for item in values) and not name.startswith("output ")]


def main(arguments: Sequence[str]) -> int:
    """Print the comparison of a model."""
    print(json.dumps(asdict(compare(arguments[0]))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
