"""CNTK 2 models, written with the importer's own schema, against numpy and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests
import tilewright as tw
from bench.cntk_writer import BATCH, SEQUENCE, Network, Shape, dictionary
from tests.requirements import need_module
from tilewright.frontend.cntk import context, from_cntk
from tilewright.frontend.cntk.context import converted_operators
from tilewright.frontend.cntk.dictionary import FREE, Axis
from tilewright.frontend.cntk.model import OPERATORS, PLACEHOLDER
from tilewright.frontend.formats import identify
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UserError

Array = Any
torch = need_module("torch")
RANDOM = np.random.default_rng(0)


def run(source: bytes, *values: Array) -> list[Array]:
    found = evaluate(from_cntk(source), *values)
    return list(found) if isinstance(found, tuple) else [found]


def at(number: int) -> Axis:
    return Axis(number, "", False)


def test_a_dense_network_and_its_names() -> None:
    net = Network()
    weight, bias = RANDOM.standard_normal((4, 3)), RANDOM.standard_normal(3)
    x = net.input("features", (4,))
    product = net.call("Times", net.parameter(weight), x, outputRank=1)
    y = net.call("ReLU", net.call("Plus", product, net.parameter(bias)), uid="hidden")
    source = net.save(y, net.call("Softmax", y, uid="chances"))
    module = from_cntk(source)
    assert [param.name for param in module["main"].params] == ["features"]
    assert module.attributes["output_names"] == ("hidden", "chances")
    assert identify(source).key == "cntk"
    rows = RANDOM.standard_normal((5, 4)).astype(np.float32)
    hidden, chances = tw.compile(module)(rows)
    expected = np.maximum(rows @ weight + bias, 0)
    np.testing.assert_allclose(hidden, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(chances, np.exp(expected) / np.exp(expected).sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize(("size", "stride", "kernel"), [(7, 2, 3), (8, 2, 3), (8, 3, 4), (6, 1, 4), (9, 4, 3)])
def test_windows_are_centred_as_cntk_does_it(size: int, stride: int, kernel: int) -> None:
    weight = RANDOM.standard_normal((4, 2, kernel, kernel)).astype(np.float32)
    image = RANDOM.standard_normal((2, 2, size, size)).astype(np.float32)
    net = Network()
    x = net.input("x", (2, size, size))
    options: dict[str, Any] = {"autoPadding": [True, True, False], "lowerPad": Shape((0,)), "upperPad": Shape((0,))}
    y = net.call("Convolution", net.parameter(weight), x, strides=Shape((stride, stride, 2)), sharing=[True], **options)
    pooled = net.call(
        "Pooling",
        x,
        poolingType=1,
        poolingWindowShape=Shape((kernel, kernel)),
        strides=Shape((stride, stride)),
        **options,
    )
    found, mean = run(net.save(y, pooled), image)
    # The centre of the first window lies as far from the begin as that of the last from the end, or one less.
    count = (size - 1) // stride + 1
    start = (size - 1 - (count - 1) * stride) // 2 - (kernel - 1) // 2
    wide = np.pad(image, ((0, 0), (0, 0), (9, 9), (9, 9)))
    ones = np.pad(np.ones_like(image), ((0, 0), (0, 0), (9, 9), (9, 9)))
    places = [9 + start + stride * step for step in range(count)]
    for row, down in enumerate(places):
        for column, across in enumerate(places):
            window = (slice(None), slice(None), slice(down, down + kernel), slice(across, across + kernel))
            np.testing.assert_allclose(
                found[:, :, row, column], np.einsum("nchw,ochw->no", wide[window], weight), rtol=1e-4, atol=1e-4
            )
            np.testing.assert_allclose(
                mean[:, :, row, column], wide[window].sum((2, 3)) / ones[window].sum((2, 3)), rtol=1e-4, atol=1e-5
            )


def test_transposed_convolution_and_normalisation() -> None:
    weight = RANDOM.standard_normal((2, 3, 4, 4)).astype(np.float32)
    image = RANDOM.standard_normal((1, 2, 5, 5)).astype(np.float32)
    net = Network()
    x = net.input("x", (2, 5, 5))
    y = net.call(
        "Convolution",
        net.parameter(weight),
        x,
        strides=Shape((2, 2, 3)),
        sharing=[True],
        transpose=True,
        autoPadding=[False],
        lowerPad=Shape((1, 1, 0)),
        upperPad=Shape((1, 1, 0)),
        outputShape=Shape((0,)),
    )
    tables = [RANDOM.uniform(0.5, 2, 3) for _ in range(4)]
    y = net.call("BatchNormalization", y, *map(net.parameter, tables), spatial=True, epsilon=1e-3)
    (found,) = run(net.save(y), image)
    expected = torch.nn.functional.conv_transpose2d(torch.from_numpy(image), torch.from_numpy(weight), None, 2, 1)
    scale, bias, mean, variance = (torch.from_numpy(item.astype(np.float32)) for item in tables)
    expected = torch.nn.functional.batch_norm(expected, mean, variance, scale, bias, eps=1e-3)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


X = RANDOM.standard_normal((2, 3, 4)).astype(np.float32)


@pytest.mark.parametrize(
    ("operator", "attributes", "expected"),
    [
        (
            "ReduceElements",
            {"axis": at(0), "reductionOpName": "LogSum"},
            lambda x: np.log(np.exp(x).sum(2, keepdims=True)),
        ),
        (
            "ReduceElements",
            {"axis": at(1), "reductionOpName": "Max", "reductionKeepDimensions": False},
            lambda x: x.max(1),
        ),
        ("ReduceElements", {"axis": at(-1), "reductionOpName": "Argmax"}, lambda x: x.argmax(1)[:, None]),
        ("Slice", {"axis": at(0), "beginIndex": 1, "endIndex": 3}, lambda x: x[:, :, 1:3]),
        ("Slice", {"axis": at(1), "beginIndex": 1, "endIndex": 0}, lambda x: x[:, 1:]),
        ("Reshape", {"newShape": Shape((2, (1 << 64) - 1))}, lambda x: x.reshape(2, 6, 2)),
        ("Reshape", {"newShape": Shape((2, 2)), "beginAxis": at(0), "endAxis": at(1)}, lambda x: x.reshape(2, 3, 2, 2)),
        ("TransposeAxes", {"axis1": at(0), "axis2": at(1)}, lambda x: x.transpose(0, 2, 1)),
        ("LogSoftmax", {"axis": at(1)}, lambda x: x - np.log(np.exp(x).sum(1, keepdims=True))),
        (
            "Pad",
            {"paddingHead": [1, 0], "paddingFoot": [0, 2], "paddingMode": 2},
            lambda x: np.pad(x, ((0, 0), (0, 2), (1, 0)), "symmetric"),
        ),
        ("Dropout", {"dropoutRate": 0.5}, lambda x: x),
        ("ELU", {}, lambda x: np.where(x < 0, np.exp(x) - 1, x)),
    ],
)
def test_operators_on_one_input(operator: str, attributes: dict[str, Any], expected: Any) -> None:
    net = Network()
    y = net.call(operator, net.input("x", (3, 4)), **attributes)
    (found,) = run(net.save(y), X)
    np.testing.assert_allclose(found, expected(X), rtol=1e-5, atol=1e-6)


def test_operators_that_broadcast_and_join() -> None:
    net = Network()
    x, row = net.input("x", (3, 4)), net.parameter(np.arange(4))
    y = net.call("ElementTimes", x, row)
    outputs = [
        net.call("Splice", y, x, axis=at(1)),
        net.call("Greater", x, net.constant(0.5)),
        net.call("Select", net.call("Less", x, net.constant(0.0)), y, x),
        net.call("Clip", x, net.constant(-0.5), net.constant(0.5)),
        net.call(
            "OneHot",
            net.call("ReduceElements", x, axis=at(0), reductionOpName="Argmax", reductionKeepDimensions=False),
            numClass=4,
            onehotAxis=at(0),
        ),
        net.call(
            "Gather",
            net.call("ReduceElements", x, axis=at(0), reductionOpName="Argmax", reductionKeepDimensions=False),
            net.parameter(np.arange(8).reshape(4, 2)),
        ),
    ]
    found = run(net.save(*outputs), X)
    best = X.argmax(2)
    expected = [
        np.concatenate([X * np.arange(4), X], 1),
        X > 0.5,
        np.where(X < 0, X * np.arange(4), X),
        np.clip(X, -0.5, 0.5),
        np.eye(4)[best],
        np.arange(8).reshape(4, 2)[best],
    ]
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, np.asarray(theirs, np.float32), rtol=1e-6)


def recurrent(direction: str, offset: int = 1) -> tuple[Network, str, Array, Array]:
    """h(t) = tanh(W x(t) + R h(t - offset)), with the cycle broken by a placeholder."""
    net = Network()
    weight, again = RANDOM.standard_normal((4, 3)), RANDOM.standard_normal((3, 3)) / 2
    x = net.input("x", (4,), sequence=True)
    # The cycle goes through the output of `state`, which the file knows as a placeholder.
    net.variables.append(
        {
            "version": 1,
            "type": "Variable",
            "uid": "state_Output_0",
            "kind": PLACEHOLDER,
            "data_type": 1,
            "dynamic_axis": [SEQUENCE, BATCH],
            "is_sparse": False,
            "needs_gradient": False,
            "shape": Shape((3,)),
        }
    )
    past = net.call(direction, "state_Output_0", net.constant(0.1), offset=offset, uid="past")
    total = net.call("Plus", net.call("Times", net.parameter(weight), x), net.call("Times", net.parameter(again), past))
    y = net.call("Tanh", total, uid="state")
    return net, y, weight, again


@pytest.mark.parametrize(("direction", "offset"), [("PastValue", 1), ("PastValue", 2), ("FutureValue", 1)])
def test_recurrences_are_loops_over_the_sequence(direction: str, offset: int) -> None:
    net, y, weight, again = recurrent(direction, offset)
    data = RANDOM.standard_normal((2, 6, 4)).astype(np.float32)
    (found,) = run(net.save(y), data)
    expected = np.zeros((2, 6, 3))
    steps = range(6) if direction == "PastValue" else range(5, -1, -1)
    for step in steps:
        before = step - offset if direction == "PastValue" else step + offset
        state = expected[:, before] if 0 <= before < 6 else np.full((2, 3), 0.1)
        expected[:, step] = np.tanh(data[:, step] @ weight + state @ again)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_compiled_recurrence_takes_any_length() -> None:
    net, y, _, _ = recurrent("PastValue")
    source = net.save(y)
    exe = tw.compile(source)
    for steps in (1, 5):
        data = RANDOM.standard_normal((1, steps, 4)).astype(np.float32)
        np.testing.assert_allclose(exe(data), run(source, data)[0], rtol=1e-5, atol=1e-6)


def test_shifts_and_parts_of_sequences() -> None:
    net = Network()
    x = net.input("x", (2,), sequence=True)
    shifted = net.call("PastValue", x, net.constant(7.0), offset=2)
    zeros = net.call("ReconcileDynamicAxis", net.constant(0.0), x)
    flags = net.call("FutureValue", zeros, net.constant(1.0), offset=1)
    where = net.call("Where", flags, newSequenceAxisLengthScalingFactor=0, newSequenceAxisLengthAdditiveFactor=1)
    last = net.call("GatherPacked", x, net.call("PackedIndex", x, where))
    total = net.call(
        "ReduceElements",
        net.call("UnpackSequence", x),
        axis=at(-1),
        reductionOpName="Sum",
        reductionKeepDimensions=False,
    )
    data = RANDOM.standard_normal((3, 5, 2)).astype(np.float32)
    found = run(net.save(shifted, last, total), data)
    np.testing.assert_allclose(found[0], np.concatenate([np.full((3, 2, 2), 7), data[:, :-2]], 1))
    np.testing.assert_allclose(found[1], data[:, -1])
    np.testing.assert_allclose(found[2], data.sum(1), rtol=1e-5)


@pytest.mark.parametrize(("kind", "both"), [("lstm", True), ("gru", False), ("rnnTanh", False)])
def test_stacks_of_recurrent_layers(kind: str, both: bool) -> None:
    torch.manual_seed(0)
    made = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnnTanh": torch.nn.RNN}[kind]
    cell = made(4, 3, num_layers=2, bidirectional=both, batch_first=True)
    ends = ["", "_reverse"] if both else [""]
    names = [f"weight_{part}_l{layer}{end}" for layer in (0, 1) for end in ends for part in ("ih", "hh")]
    names += [f"bias_{part}_l{layer}{end}" for layer in (0, 1) for end in ends for part in ("ih", "hh")]
    flat = np.concatenate([getattr(cell, name).detach().numpy().ravel() for name in names])
    net = Network()
    y = net.call(
        "OptimizedRNNStack",
        net.input("x", (4,), sequence=True),
        net.parameter(flat),
        hiddenSize=3,
        numLayers=2,
        bidirectional=both,
        recurrentOp=kind,
    )
    data = RANDOM.standard_normal((2, 5, 4)).astype(np.float32)
    (found,) = run(net.save(y), data)
    np.testing.assert_allclose(found, cell(torch.from_numpy(data))[0].detach(), rtol=1e-4, atol=1e-5)


def test_maxima_of_regions() -> None:
    net = Network()
    x, rois = net.input("x", (2, 6, 8)), net.input("rois", (3, 4))
    y = net.call("ROIPooling", x, rois, poolingType=0, roiOutputShape=Shape((3, 2)), spatialScale=0.5)
    image = RANDOM.standard_normal((1, 2, 6, 8)).astype(np.float32)
    boxes = np.float32([[[0, 0, 15, 11], [4, 2, 9, 7], [13, 9, 40, 30]]])
    (found,) = run(net.save(y), image, boxes)
    expected = np.zeros((1, 3, 2, 2, 3), np.float32)
    for region, (x1, y1, x2, y2) in enumerate(np.floor(boxes[0] * 0.5 + 0.5)):
        high, wide = max(y2 - y1 + 1, 1) / 2, max(x2 - x1 + 1, 1) / 3
        for row in range(2):
            for column in range(3):
                down = slice(int(y1 + np.floor(row * high)), int(y1 + np.ceil((row + 1) * high)))
                across = slice(int(x1 + np.floor(column * wide)), int(x1 + np.ceil((column + 1) * wide)))
                part = image[0, :, down, across]
                expected[0, region, :, row, column] = part.max((1, 2)) if part.size else 0
    np.testing.assert_allclose(found, expected)


def test_blocks_are_taken_apart() -> None:
    net = Network()
    x = net.input("x", (4,))
    net.variable(PLACEHOLDER, (4,), [BATCH], "inside")
    net.call("Negate", "inside", uid="inner")
    net.functions.append(
        {
            "version": 1,
            "type": "PrimitiveFunction",
            "uid": "block",
            "op": OPERATORS.index("Block"),
            "name": "dense",
            "inputs": [x],
            "attributes": {},
            "block_function_op_name": "Dense",
            "block_function_composite": {"version": 1, "type": "CompositeFunction", "root": "inner", "uid": "c"},
            "block_function_composite_arguments_map_keys": ["inside"],
            "block_function_composite_arguments_map_values": [x],
        }
    )
    (found,) = run(net.save(net.call("Abs", "block_Output_0")), -X[:, 0])
    np.testing.assert_allclose(found, np.abs(X[:, 0]))


def test_free_dimensions_are_open() -> None:
    net = Network()
    source = net.save(net.call("Exp", net.input("x", (FREE, 2))))
    (found,) = run(source, X[:, :, :2])
    np.testing.assert_allclose(found, np.exp(X[:, :, :2]), rtol=1e-6)
    assert from_cntk(source, shapes={"x": (1, 5, 2)})["main"].params[0].type.static_shape == (1, 5, 2)


@pytest.mark.parametrize(
    "path", sorted((Path(tests.__path__[0]) / "fixtures" / "cntk").glob("*.dnn")), ids=lambda path: path.stem
)
def test_files_are_recognised(path: Path) -> None:
    assert identify(path).key == "cntk"
    arrays = np.load(path.with_suffix(".npz"))
    (found,) = run(path.read_bytes(), arrays["x"])
    np.testing.assert_allclose(found, arrays["y"], rtol=1e-4, atol=1e-5)


def test_refusals_name_the_function_and_the_reason() -> None:
    net = Network()
    x = net.input("x", (4,))
    with pytest.raises(UserError, match="Assign is not supported: it changes a parameter") as found:
        from_cntk(net.save(net.call("Assign", net.parameter(np.zeros(4)), x, uid="write")))
    assert "'write' (Assign)" in str(found.value.where)
    net = Network()
    s = net.input("s", (4,), sequence=True)
    where = net.call(
        "PackedIndex", s, net.call("Where", net.call("ReduceElements", s, axis=at(0), reductionOpName="Sum"))
    )
    with pytest.raises(UserError, match="chosen by data"):
        from_cntk(net.save(net.call("GatherPacked", s, where)))
    with pytest.raises(UserError, match="is no CNTK function"):
        from_cntk(bytes(dictionary({"version": 1, "type": "Learner"}).SerializeToString()))
    with pytest.raises(UserError, match="first version"):
        from_cntk(b"B\0C\0N\0")
    net = Network()
    with pytest.raises(UserError, match="nothing gives 'absent' a value"):
        from_cntk(net.save(net.call("Exp", "absent")))


def test_every_operator_is_converted_or_refused_with_a_reason() -> None:
    structural = {"Block", "Combine"}
    assert set(OPERATORS) == {*converted_operators(), *structural, *context._REASONS}
    assert not set(converted_operators()) & set(context._REASONS)
