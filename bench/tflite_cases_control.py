"""Cases of control flow, variables, recurrent layers, tables, spectra and custom operators."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.tflite_cases import Case, add, case, fixed, numbers
from bench.tflite_writer import Graph, Tensor, write

_TANH = 4


def _body(name: str, operator: str, factor: float) -> Graph:
    """x -> operator(x, factor)."""
    graph = Graph(name)
    x = graph.input("x", (2, 3))
    y = graph.add(operator, [x, graph.constant(np.float32(factor))], [Tensor("y", (2, 3))])
    return graph.output(y)


def _if(condition: bool) -> Case:
    graph = Graph()
    chosen, x = graph.input("chosen", (), "bool"), graph.input("x", (2, 3))
    y = graph.add("IF", [chosen, x], [Tensor("y", (2, 3))], {"then_subgraph_index": 1, "else_subgraph_index": 2})
    model = write([graph.output(y), _body("then", "MUL", 3.0), _body("else", "ADD", 5.0)])
    return Case("IF", model, [np.array(condition), numbers(2, 3)])


case("IF")(lambda: _if(True))
case("IF/else")(lambda: _if(False))


@case("WHILE")
def _while() -> Case:
    """Doubles x as often as an input says."""
    graph = Graph()
    count, x = graph.input("count", (), "int32"), graph.input("x", (2, 3))
    outputs = [Tensor("turns", (), "int32"), Tensor("y", (2, 3))]
    graph.add("WHILE", [count, x], outputs, {"cond_subgraph_index": 1, "body_subgraph_index": 2})
    test = Graph("test")
    turns = test.input("n", (), "int32")
    test.input("x", (2, 3))
    test.output(test.add("GREATER", [turns, test.constant(np.int32(0))], [Tensor("going", (), "bool")]))
    body = Graph("body")
    n, value = body.input("n", (), "int32"), body.input("x", (2, 3))
    less = body.add("SUB", [n, body.constant(np.int32(1))], [Tensor("less", (), "int32")])
    twice = body.add("ADD", [value, value], [Tensor("twice", (2, 3))])
    return Case("WHILE", write([graph.output(2, 3), test, body.output(less, twice)]), [np.int32(3), numbers(2, 3)])


@case("VAR_HANDLE/CALL_ONCE")
def _variables() -> Case:
    """A variable that is initialised once, read, and assigned."""
    graph = Graph()
    x = graph.input("x", (2, 3))
    graph.add("CALL_ONCE", [], [], {"init_subgraph_index": 1})
    handle = graph.add("VAR_HANDLE", [], [Tensor("h", (), "resource")], {"shared_name": "v"})
    before = graph.add("READ_VARIABLE", [handle], [Tensor("before", (2, 3))])
    total = graph.add("ADD", [before, x], [Tensor("total", (2, 3))])
    graph.add("ASSIGN_VARIABLE", [handle, total], [])
    after = graph.add("READ_VARIABLE", [handle], [Tensor("after", (2, 3))])
    start = Graph("start")
    inner = start.add("VAR_HANDLE", [], [Tensor("h", (), "resource")], {"shared_name": "v"})
    start.add("ASSIGN_VARIABLE", [inner, start.constant(numbers(2, 3, seed=7))], [])
    return Case("VAR_HANDLE", write([graph.output(before, after), start]), [numbers(2, 3)])


def _lstm_inputs(extra: str = "") -> list[Any]:
    """Inputs of an LSTM of 3 features, 4 units and a batch of 2, after the data."""

    def weight(*shape: int, seed: int) -> Any:
        return fixed(numbers(*shape, seed=seed, low=-0.7, high=0.7))

    outputs = 3 if "projection" in extra else 4
    entering = [weight(4, 3, seed=at) for at in range(4)]
    recurrent = [weight(4, outputs, seed=10 + at) for at in range(4)]
    peepholes = [weight(4, seed=20 + at) if "peephole" in extra else None for at in range(3)]
    biases = [weight(4, seed=30 + at) for at in range(4)]
    if "coupled" in extra:
        entering[0] = recurrent[0] = peepholes[0] = biases[0] = None
    projection = [weight(3, 4, seed=40), None] if "projection" in extra else [None, None]
    norms = [weight(4, seed=50 + at) for at in range(4)] if "norm" in extra else []
    states = ["state", "cell"]
    return [*entering, *recurrent, *peepholes, *biases, *projection, *states, *norms]


def _lstm(operator: str, data: np.ndarray, extra: str, options: dict[str, Any]) -> Case:
    graph = Graph()
    places = [graph.input("x", data.shape)]
    width = {"state": 3 if "projection" in extra else 4, "cell": 4}
    for item in _lstm_inputs(extra):
        if item is None:
            places.append(-1)
        elif isinstance(item, str):
            places.append(graph.tensor(Tensor(item, (2, width[item]), variable=True)))
        else:
            places.append(graph.constant(item.data))
    y = graph.add(operator, places, [Tensor("y", ())], {"fused_activation_function": _TANH, **options})
    return Case(operator, write([graph.output(y)]), [data])


for _extra in ("", "coupled", "peephole", "projection", "norm"):
    _clip = {"cell_clip": 0.3} if _extra == "peephole" else {}
    case(f"LSTM/{_extra}")(lambda extra=_extra, clip=_clip: _lstm("LSTM", numbers(2, 3), extra, clip))  # type: ignore[misc]
    case(f"UNIDIRECTIONAL_SEQUENCE_LSTM/{_extra}")(
        lambda extra=_extra, clip=_clip: _lstm(  # type: ignore[misc]
            "UNIDIRECTIONAL_SEQUENCE_LSTM", numbers(2, 5, 3), extra, {**clip, "time_major": 0}
        )
    )
case("UNIDIRECTIONAL_SEQUENCE_LSTM/time")(
    lambda: _lstm("UNIDIRECTIONAL_SEQUENCE_LSTM", numbers(5, 2, 3), "", {"time_major": 1})
)


@case("BIDIRECTIONAL_SEQUENCE_LSTM")
def _both_ways() -> Case:
    graph = Graph()
    places = [graph.input("x", (2, 5, 3))]
    for _ in range(2):
        for item in _lstm_inputs()[:17]:
            places.append(-1 if item is None else graph.constant(item.data))
    places += [graph.tensor(Tensor(f"state{at}", (2, 4), variable=True)) for at in range(4)]
    places += [-1] * 9
    options = {"fused_activation_function": _TANH, "merge_outputs": 1, "time_major": 0}
    y = graph.add("BIDIRECTIONAL_SEQUENCE_LSTM", places, [Tensor("y", ())], options)
    return Case("BIDIRECTIONAL_SEQUENCE_LSTM", write([graph.output(y)]), [numbers(2, 5, 3)])


def _rnn(operator: str, data: np.ndarray, options: dict[str, Any], ways: int = 1) -> Case:
    graph = Graph()
    places = [graph.input("x", data.shape)]
    for _ in range(ways):
        places += [graph.constant(numbers(*shape, low=-0.5, high=0.5)) for shape in ((4, 3), (4, 4), (4,))]
        places.append(graph.tensor(Tensor(f"state{len(places)}", (2, 4), variable=True)))
    places += [-1] * 3 if ways == 2 else []
    y = graph.add(operator, places, [Tensor("y", ())], {"fused_activation_function": _TANH, **options})
    return Case(operator, write([graph.output(y)]), [data])


case("RNN")(lambda: _rnn("RNN", numbers(2, 3), {}))
case("UNIDIRECTIONAL_SEQUENCE_RNN")(lambda: _rnn("UNIDIRECTIONAL_SEQUENCE_RNN", numbers(2, 5, 3), {"time_major": 0}))
case("BIDIRECTIONAL_SEQUENCE_RNN")(
    lambda: _rnn("BIDIRECTIONAL_SEQUENCE_RNN", numbers(2, 5, 3), {"time_major": 0, "merge_outputs": 1}, 2)
)


@case("SVDF")
def _svdf() -> Case:
    graph = Graph()
    places = [graph.input("x", (2, 3))]
    places += [graph.constant(numbers(*shape)) for shape in ((8, 3), (8, 5), (4,))]
    places.append(graph.tensor(Tensor("state", (2, 40), variable=True)))
    y = graph.add("SVDF", places, [Tensor("y", ())], {"rank": 2, "fused_activation_function": 1})
    return Case("SVDF", write([graph.output(y)]), [numbers(2, 3)])


@case("RFFT2D")
def _spectrum() -> Case:
    graph = Graph()
    x = graph.input("x", (2, 8, 16))
    pairs = graph.add("RFFT2D", [x, graph.constant(np.int32([8, 16]))], [Tensor("z", (), "complex64")])
    outputs = [graph.add(name, [pairs], [Tensor(name, ())]) for name in ("REAL", "IMAG", "COMPLEX_ABS")]
    outputs.append(graph.add("CAST", [pairs], [Tensor("cast", ())], {"in_data_type": 8, "out_data_type": 0}))
    return Case("RFFT2D", write([graph.output(*outputs)]), [numbers(2, 8, 16)], 1e-4)


@case("STABLEHLO_COMPOSITE")
def _composite() -> Case:
    graph = Graph()
    x = graph.input("x", (2, 3))
    options = {"name": "my.op", "decomposition_subgraph_index": 1, "composite_attributes": _flexbuffer({"n": 1})}
    y = graph.add("STABLEHLO_COMPOSITE", [x], [Tensor("y", (2, 3))], options)
    return Case("STABLEHLO_COMPOSITE", write([graph.output(y), _body("body", "MUL", 3.0)]), [numbers(2, 3)])


def _flexbuffer(options: dict[str, Any]) -> bytes:
    """A map of whole numbers and floats as a flexbuffer: what detectors store."""
    names = sorted(options)
    data = bytearray()
    keys = []
    for name in names:
        keys.append(len(data))
        data += name.encode() + b"\0"
    data += bytes(-len(data) % 4)
    data += len(names).to_bytes(4, "little")
    start = len(data)
    for place in keys:
        data += (len(data) - place).to_bytes(4, "little")
    data += (len(data) - start).to_bytes(4, "little") + (4).to_bytes(4, "little") + len(names).to_bytes(4, "little")
    root = len(data)
    for name in names:
        value = options[name]
        data += np.float32(value).tobytes() if isinstance(value, float) else int(value).to_bytes(4, "little")
    data += bytes((3 if isinstance(options[name], float) else 1) << 2 | 2 for name in names)
    data += bytes([len(data) - root, 9 << 2 | 2, 1])
    return bytes(data)


@case("TFLite_Detection_PostProcess")
def _detection() -> Case:
    options = {
        "max_detections": 3,
        "max_classes_per_detection": 1,
        "num_classes": 2,
        "use_regular_nms": 0,
        "nms_score_threshold": 0.0,
        "nms_iou_threshold": 0.5,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    }
    codes = np.float32([[[0, 0, 0, 0], [0, 1, 0, 0], [0, -1, 0, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]])
    scores = np.float32(
        [[[0, 0.9, 0.8], [0, 0.75, 0.72], [0, 0.6, 0.5], [0, 0.93, 0.95], [0, 0.5, 0.4], [0, 0.3, 0.2]]]
    )
    anchors = np.float32([[0.5, y, 1, 1] for y in (0.5, 0.5, 0.5, 10.5, 10.5, 100.5)])
    graph = Graph()
    places = [graph.input("codes", codes.shape), graph.input("scores", scores.shape), graph.constant(anchors)]
    outputs = [Tensor(name, ()) for name in ("boxes", "classes", "chances", "count")]
    graph.add("TFLite_Detection_PostProcess", places, outputs, custom=_flexbuffer(options))
    return Case("custom", write([graph.output(3, 4, 5, 6)]), [codes, scores], optimized=True)


for _name in ("ADD", "MAXIMUM", "MINIMUM", "MULTIPLY"):
    add(f"STABLEHLO_{_name}", f"STABLEHLO_{_name}", [numbers(2, 3), numbers(2, 3, seed=1)], shapes=[(2, 3)])
