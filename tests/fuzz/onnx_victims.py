"""Small valid ONNX models of many kinds, for mutation: built in code, or the onnx package's own node cases."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, STRING, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BOOL
_RANDOM = np.random.default_rng(11)


def _data(*shape: int) -> np.ndarray:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[str],
    stored: dict[str, np.ndarray] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(value, name) for name, value in (stored or {}).items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(list(nodes), "victim", list(inputs), results, tensors)
    opsets = [helper.make_opsetid("", 21), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=list(functions))


def _value(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def network() -> onnx.ModelProto:
    """Many kinds of nodes, attributes and initializers, of constant shape."""
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "b", "b", "b", "v"], ["n"], epsilon=1e-3),
        helper.make_node("LeakyRelu", ["n"], ["l"], alpha=0.1),
        helper.make_node("MaxPool", ["l"], ["m"], kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("Shape", ["m"], ["s"]),
        helper.make_node("Slice", ["s", "zero", "one"], ["s0"]),
        helper.make_node("Concat", ["s0", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["m", "shape"], ["r"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("LSTM", ["t", "lw", "lr"], ["", "h"], hidden_size=2, direction="forward"),
        helper.make_node("Resize", ["m", "", "scales"], ["z"], mode="linear"),
        helper.make_node("Pad", ["z", "pads"], ["p"], mode="reflect"),
        helper.make_node("ReduceMean", ["p", "axes"], ["a"], keepdims=0),
        helper.make_node("Softmax", ["a"], ["y"], axis=-1),
        helper.make_node("Einsum", ["a", "a"], ["e"], equation="ij,kj->ik"),
        helper.make_node("Range", ["from", "to", "by"], ["g"]),
    ]
    stored = {
        "w": _data(3, 2, 3, 3),
        "b": _data(3),
        "v": np.abs(_data(3)),
        "zero": np.array([0]),
        "one": np.array([1]),
        "rest": np.array([3, -1]),
        "lw": _data(1, 8, 3),
        "lr": _data(1, 8, 2),
        "scales": np.array([1, 1, 2, 2], np.float32),
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]),
        "axes": np.array([2, 3]),
        "from": np.array(0),
        "to": np.array(5),
        "by": np.array(1),
    }
    return _model(nodes, [_value("x", [1, 2, 8, 8])], ["y", "h", "e", "g"], stored)


def open_shapes() -> onnx.ModelProto:
    """Symbolic dimensions, shape arithmetic, results sized by data, a local function."""
    double = helper.make_function(
        "local", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 21)]
    )
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["e"], axis=0),
        helper.make_node("Double", ["e"], ["d"], domain="local"),
        helper.make_node("Shape", ["d"], ["s"]),
        helper.make_node("Gather", ["s", "i"], ["last"], axis=0),
        helper.make_node("Concat", ["minus", "last"], ["target"], axis=0),
        helper.make_node("Reshape", ["d", "target"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["m"]),
        helper.make_node("NonZero", ["m"], ["places"]),
        helper.make_node("TopK", ["m", "k"], ["best", "at"], axis=-1),
        helper.make_node("Unique", ["at"], ["u", "", "inverse", ""], sorted=1),
        helper.make_node("Expand", ["best", "wide"], ["x"]),
        helper.make_node("Where", ["mask", "x", "zero"], ["y"]),
    ]
    stored = {
        "table": _data(9, 4),
        "i": np.array([2]),
        "minus": np.array([-1]),
        "w": _data(4, 3),
        "k": np.array([2]),
        "wide": np.array([1, 1, 1]),
        "mask": np.array(True),
        "zero": np.array(0, np.float32),
    }
    inputs = [_value("ids", ["batch", "length"], INT64)]
    return _model(nodes, inputs, ["y", "places", "u", "inverse"], stored, [double], ["local"])


def control_flow() -> onnx.ModelProto:
    """Branches, loops and scans, with graphs that capture values."""

    def graph(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.GraphProto:
        results = [helper.make_empty_tensor_value_info(name) for name in outputs]
        return helper.make_graph(nodes, "inner", inputs, results)

    then = graph([helper.make_node("Neg", ["x"], ["t"])], [], ["t"])
    other = graph([helper.make_node("Abs", ["x"], ["o"])], [], ["o"])
    turn = graph(
        [
            helper.make_node("Add", ["carried", "x"], ["next"]),
            helper.make_node("Identity", ["going"], ["on"]),
            helper.make_node("Identity", ["next"], ["out"]),
        ],
        [_value("i", [], INT64), _value("going", [], BOOL), _value("carried", [3])],
        ["on", "next", "out"],
    )
    step = graph(
        [helper.make_node("Mul", ["state", "item"], ["new"]), helper.make_node("Identity", ["new"], ["kept"])],
        [_value("state", []), _value("item", [])],
        ["new", "kept"],
    )
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["b"], then_branch=then, else_branch=other),
        helper.make_node("Loop", ["turns", "yes", "b"], ["final", "all"], body=turn),
        helper.make_node("Scan", ["one", "x"], ["end", "products"], body=step, num_scan_inputs=1),
    ]
    stored = {"zero": np.array(0, np.float32), "yes": np.array(True), "one": np.array(1, np.float32)}
    inputs = [_value("x", [3]), _value("turns", [], INT64)]
    return _model(nodes, inputs, ["final", "all", "end", "products"], stored)


def texts_and_sequences() -> onnx.ModelProto:
    """Strings, sequences and optionals among inputs and outputs."""
    nodes = [
        helper.make_node("StringSplit", ["words"], ["parts", "counts"], delimiter=","),
        helper.make_node("StringConcat", ["words", "words"], ["twice"]),
        helper.make_node("RegexFullMatch", ["twice"], ["matches"], pattern="[a-z]+"),
        helper.make_node("SequenceInsert", ["items", "x"], ["longer"]),
        helper.make_node("SequenceAt", ["longer", "place"], ["item"]),
        helper.make_node("ConcatFromSequence", ["longer"], ["whole"], axis=0),
        helper.make_node("SplitToSequence", ["whole"], ["split"], axis=1, keepdims=0),
        helper.make_node("OptionalHasElement", ["maybe"], ["there"]),
    ]
    maybe = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, ["n"]))
    inputs = [
        _value("words", ["n"], STRING),
        helper.make_tensor_sequence_value_info("items", FLOAT, ["rows", 2]),
        _value("x", [1, 2]),
        _value("place", [], INT64),
        helper.make_value_info("maybe", maybe),
    ]
    return _model(nodes, inputs, ["parts", "counts", "matches", "item", "split", "there"])


def quantised_and_classic() -> onnx.ModelProto:
    """Operators of onnxruntime and of ai.onnx.ml, quantised forms."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "point"], ["q"]),
        helper.make_node("QLinearAdd", ["q", "scale", "point", "q", "scale", "point", "scale", "point"], ["a"],
                         domain="com.microsoft"),
        helper.make_node("DequantizeLinear", ["a", "scale", "point"], ["d"]),
        helper.make_node("FusedMatMul", ["d", "w"], ["m"], domain="com.microsoft", alpha=0.5, transB=1),
        helper.make_node("SkipLayerNormalization", ["r", "r", "gamma"], ["n"], domain="com.microsoft"),
        helper.make_node("Attention", ["n", "aw", "ab"], ["t"], domain="com.microsoft", num_heads=2),
        helper.make_node("Scaler", ["m"], ["s"], domain="ai.onnx.ml", offset=[0.5], scale=[2.0]),
        helper.make_node("LinearClassifier", ["s"], ["label", "scores"], domain="ai.onnx.ml",
                         coefficients=[1.0, 2.0, 3.0, -1.0, 0.5, 1.0], classlabels_strings=["a", "b"]),
        helper.make_node("ZipMap", ["scores"], ["z"], domain="ai.onnx.ml", classlabels_strings=["a", "b"]),
    ]  # fmt: skip
    stored = {
        "scale": np.array(0.1, np.float32),
        "point": np.array(3, np.uint8),
        "w": _data(3, 4),
        "gamma": _data(4),
        "r": _data(1, 2, 4),
        "aw": _data(4, 12),
        "ab": _data(12),
    }
    domains = ["com.microsoft", "ai.onnx.ml"]
    return _model(nodes, [_value("x", [2, 4])], ["t", "label", "z"], stored, domains=domains)


def sparse_and_small() -> onnx.ModelProto:
    """A sparse initializer, four-bit numbers, a constant node."""
    values = numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "sparse")
    places = numpy_helper.from_array(np.array([[0, 1], [2, 0]]), "places")
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(_data(4), "value")),
        helper.make_node("MatMul", ["sparse", "c"], ["m"]),
        helper.make_node("DequantizeLinear", ["four", "scale"], ["d"]),
        helper.make_node("Add", ["d", "x"], ["y"]),
    ]
    model = _model(nodes, [_value("x", [3])], ["m", "y"], {"scale": np.array(0.5, np.float32)})
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3, 4]))
    model.graph.initializer.append(helper.make_tensor("four", TensorProto.INT4, [3], [1, -2, 7]))
    return model


def built() -> list[onnx.ModelProto]:
    """The models that are built here."""
    return [
        network(),
        open_shapes(),
        control_flow(),
        texts_and_sequences(),
        quantised_and_classic(),
        sparse_and_small(),
    ]


def node_cases() -> list[onnx.ModelProto]:
    """The onnx package's own cases (it takes ten seconds to make them); later inputs are stored in half of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    models: list[onnx.ModelProto] = []
    for index, case in enumerate(cases):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        values = case.data_sets[0][0]
        if index % 2 and len(values) == len(model.graph.input):
            for info, value in list(zip(model.graph.input, values, strict=True))[1:]:
                if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
                    model.graph.initializer.append(numpy_helper.from_array(value, info.name))
        models.append(model)
    return models
