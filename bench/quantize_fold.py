"""One fold of `bench.quantize`: trains a network, quantises it in every way, and counts right answers on test images.

    python -m bench.quantize_fold mnist_cnn 0 FOLDER        # one line of JSON for each way, as it is done

Quantisation sees images of the training part that the network was not trained on, never test images.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from torch import nn

import tilewright as tw
from bench import quantize_networks as networks
from bench.quantize_networks import Fold, Images
from bench.quantize_peers import CALIBRATED, onnxruntime_static, torch_pt2e
from tilewright.frontend import from_torch
from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.dtype import INT8, UINT8
from tilewright.ir.function import IRModule
from tilewright.onnx_writer import to_onnx
from tilewright.quantization.apply import Plan, apply_plan
from tilewright.quantization.layers import Layer, Sources, find_layers, visible
from tilewright.quantization.options import QuantizeFields
from tilewright.quantization.parameters import Parameters
from tilewright.quantization.weights import QuantizedWeight

MAX_DROP = 0.004
"""What the mixed form may lose of its accuracy on calibration images: two of five hundred."""
SCHEMES: dict[str, QuantizeFields] = {
    "int8": {},
    "W3A8 mixed": {"weight_bits": 3, "max_drop": MAX_DROP},
    "int4 weights": {"scheme": "weights", "weight_bits": 4},
    "int4 weights, learned": {"scheme": "weights", "weight_bits": 4, "rounding": "learned"},
    "int4 weights, groups of 16, learned": {"scheme": "weights", "weight_bits": 4, "rounding": "learned", "group": 16},
    "int8 dynamic": {"scheme": "dynamic"},
    "W3A8": {"weight_bits": 3},
    "int3 weights": {"scheme": "weights", "weight_bits": 3},
    "int3 weights, learned": {"scheme": "weights", "weight_bits": 3, "rounding": "learned"},
}
"""Options of `tw.quantize` by the name of a row."""
OF_ONE_FOLD = ("int8 dynamic", "W3A8", "int3 weights", "int3 weights, learned")
"""Rows (and that of pt2e) of the first fold alone: they show a tendency, and half a point there is five images."""


@dataclass(frozen=True)
class Answer:
    """A way of quantising on one fold: how many test images it gets right, and what else there is to say."""

    way: str
    right: int
    images: int
    note: str = ""
    broken: str = ""
    """What a promise of the quantiser says that was not kept."""


Classifier = Callable[[np.ndarray], Any]


def _answer(way: str, classify: Classifier, images: Images, note: str = "", broken: str = "") -> Answer:
    logits = np.asarray(classify(images.pixels))
    return Answer(way, int((logits.argmax(1) == images.labels).sum()), len(images.labels), note, broken)


def imported(network: nn.Module, images: Images) -> IRModule:
    """A network as a graph whose batch is open; in float32, whatever it was trained in."""
    for part in network.modules():
        if isinstance(part, (networks.Layer, networks.Rounded)):
            part.low_bits = False
    batch = torch.export.Dim("batch", min=1, max=1 << 20)
    return from_torch(network, (torch.from_numpy(images.pixels[:4]),), dynamic_shapes=({0: batch},))


def _quantized(way: str, module: IRModule, fold: Fold) -> Answer:
    data = fold.calibration

    def accuracy(runs: list[list[np.ndarray]]) -> float:
        answers = np.concatenate([outputs[0].argmax(1) for outputs in runs])
        return float((answers == data.labels[: len(answers)]).mean())

    count = len(data.labels) // 20 * 20
    batches = data.pixels[:count].reshape(-1, 20, *data.pixels.shape[1:])
    result = tw.quantize(module, iter(batches), metric=accuracy, threads=1, **SCHEMES[way])
    report, broken = result.report, ""
    assert report.metric_before is not None and report.metric_after is not None
    limit = SCHEMES[way].get("max_drop")
    if limit is not None and report.metric_before - report.metric_after > limit:
        broken = f"the metric fell from {report.metric_before} to {report.metric_after}, more than {limit}"
    note = f"{report.decibels:.1f} dB"
    if report.kept:
        note += f", {len(report.kept)} of {len(report.layers)} layers in float32"
    return _answer(way, tw.compile(result.module, threads=1), fold.test, note, broken)


def _low_bit_module(network: nn.Module, images: Images) -> IRModule:
    """The graph of a network that was trained in 2 bits, rounded by the steps that were learned."""
    readers = networks.reads(network, torch.from_numpy(images.pixels[:1]))
    module = infer_types(imported(network, images))
    main = module["main"]
    assert isinstance(main, Function)
    order = visible(main)
    parts = [part for part in network.modules() if isinstance(part, networks.Layer)]
    layers = [layer for layer in find_layers(order) if layer.weight is not None]
    sources = Sources(order, layers)
    weights, activations = {}, {}
    for layer in layers:
        part = _trained(layer, parts)
        weights[layer.name] = _low_bit_weight(layer, part)
        activations[sources.group(layer.activations[0])] = _low_bit_activation(readers[part])
    plan = Plan(layers, sources, activations, weights)
    return infer_types(IRModule({"main": apply_plan(main, plan)}))


def _trained(layer: Layer, parts: Sequence[networks.Layer]) -> networks.Layer:
    """The part of the network that a layer of the graph was: the one with its weight."""
    assert layer.weight is not None
    values = layer.weight.data
    for part in parts:
        own = part.operation.weight.detach().numpy()
        if own.size == values.size and any(np.array_equal(values, item) for item in (own, own.T)):
            return part
    raise AssertionError(f"no part has the weight of {layer.name}")


def _low_bit_weight(layer: Layer, part: networks.Layer) -> QuantizedWeight:
    assert layer.weight is not None
    shape = [1] * layer.weight.data.ndim
    shape[layer.output_axis] = -1
    scale = part.rounding.step.detach().numpy().reshape(shape)
    bits = part.rounding.high.bit_length() + 1
    parameters = Parameters(scale, np.asarray(0, np.int8), INT8, bits)
    return QuantizedWeight(parameters.integers(layer.weight.data), parameters)


def _low_bit_activation(rounded: networks.Rounded) -> Parameters:
    step = rounded.rounding.step.detach().numpy().reshape(())
    return Parameters(step, np.asarray(rounded.zero, np.uint8), UINT8, rounded.bits)


def _torch(network: nn.Module) -> Classifier:
    def classify(pixels: np.ndarray) -> Any:
        with torch.no_grad():
            return network(torch.from_numpy(pixels)).numpy()

    return classify


def _in_low_bits(name: str, network: nn.Module, fold: Fold, folder: Path) -> Iterator[Answer]:
    low = networks.fit_low_bits(name, network, fold.train, folder)
    yield _answer("W2A2 in torch", _torch(low), fold.test)
    yield _answer("W2A2 trained", tw.compile(_low_bit_module(low, fold.test), threads=1), fold.test)


def _by_onnxruntime(module: IRModule, fold: Fold) -> Answer:
    data = fold.calibration.pixels[:CALIBRATED]
    with tempfile.TemporaryDirectory() as folder:
        file = onnxruntime_static(to_onnx(module), [{"x": item[None]} for item in data], Path(folder))
    session = onnxruntime.InferenceSession(file)
    return _answer("onnxruntime int8", lambda pixels: session.run(None, {"x": pixels})[0], fold.test)


def _by_torch(network: nn.Module, fold: Fold) -> Iterator[Answer]:
    program, quantized = torch_pt2e(network, fold.calibration.pixels[:CALIBRATED])
    theirs, exe = _torch(program), tw.compile(from_torch(quantized), threads=1)
    yield _answer("pt2e in torch", theirs, fold.test)
    exact = bool(np.array_equal(np.asarray(exe(fold.test.pixels)), theirs(fold.test.pixels)))
    yield _answer("pt2e int8", exe, fold.test, "bit-equal to torch" if exact else "within rounding of torch")


def answers(name: str, number: int, folder: Path, known: Sequence[str] = ()) -> Iterator[Answer]:
    """Every way on one fold, but those that are known."""
    fold = networks.fold_of(networks.load(name), number)
    network = networks.fit(name, fold.train, folder)
    if "torch" not in known:
        yield _answer("torch", _torch(network), fold.test)
    module = imported(network, fold.test)
    if "float32" not in known:
        yield _answer("float32", tw.compile(module, threads=1), fold.test)
    for way in SCHEMES:
        if way not in known and (number == 0 or way not in OF_ONE_FOLD):
            yield _quantized(way, module, fold)
    if not {"W2A2 trained", "W2A2 in torch"} <= set(known):
        yield from _in_low_bits(name, network, fold, folder)
    if "onnxruntime int8" not in known:
        yield _by_onnxruntime(module, fold)
    if number == 0 and not {"pt2e int8", "pt2e in torch"} <= set(known):
        yield from _by_torch(network, fold)


def main(arguments: Sequence[str]) -> int:
    """Print the answers of one fold."""
    name, number, folder, *known = arguments
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    for answer in answers(name, int(number), Path(folder), known):
        print(json.dumps(asdict(answer)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
