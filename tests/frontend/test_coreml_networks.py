"""Core ML's networks, trees, linear models and pipelines against numpy and torch; whole files of coremltools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests
import tilewright as tw
from tests.frontend.coreml_models import dictionary, feature, layer, message, model, network, number, results, weights
from tests.requirements import need_module
from tilewright.frontend.coreml import from_coreml
from tilewright.frontend.formats import identify
from tilewright.support.errors import UserError

FIXTURES = Path(tests.__path__[0]) / "fixtures" / "coreml"
torch = need_module("torch")
RANDOM = np.random.default_rng(0)
IMAGE = RANDOM.standard_normal((3, 6, 6)).astype(np.float32)


def old(layers: list[Any], data: Any, shape: tuple[int, ...] = ()) -> Any:
    """A network of five dimensions on one input `x`."""
    source = network(layers, {"x": data.shape}, exact=False, shapes={"y": shape})
    return results(from_coreml(source), data)[0]


def border(top: int, bottom: int, left: int, right: int) -> Any:
    edges = [message("EdgeSizes", startEdgeSize=top, endEdgeSize=bottom)]
    return message("BorderAmounts", borderAmounts=[*edges, message("EdgeSizes", startEdgeSize=left, endEdgeSize=right)])


def test_convolutions_of_old_networks() -> None:
    table = RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float32)
    bias = RANDOM.standard_normal(4).astype(np.float32)
    own: dict[str, Any] = {"kernelSize": [3, 3], "stride": [2, 2], "weights": weights(table), "outputChannels": 4}
    padded = message("ValidPadding", paddingAmounts=border(1, 1, 1, 1))
    found = old(
        [layer("convolution", ["x"], ["y"], kernelChannels=3, hasBias=True, bias=weights(bias), valid=padded, **own)],
        IMAGE,
    )
    image = torch.from_numpy(IMAGE)[None]
    expected = torch.nn.functional.conv2d(image, torch.from_numpy(table), torch.from_numpy(bias), 2, 1)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    turned = np.ascontiguousarray(table.transpose(1, 0, 2, 3))
    own["weights"] = weights(turned)
    found = old([layer("convolution", ["x"], ["y"], kernelChannels=3, isDeconvolution=True, **own)], IMAGE)
    expected = torch.nn.functional.conv_transpose2d(image, torch.from_numpy(turned), None, 2)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_weights_of_few_bits() -> None:
    codes = RANDOM.integers(0, 16, (3, 5)).astype(np.uint8)
    packed = np.packbits(((codes.ravel()[:, None] >> np.arange(4)) & 1).ravel(), bitorder="little").tobytes()
    table = RANDOM.standard_normal(16).astype(np.float32)
    scale, bias = np.float32([0.5, 2, 3]), np.float32([-1, 0, 1])
    linear = message("LinearQuantizationParams", scale=scale, bias=bias)
    data = RANDOM.standard_normal(5).astype(np.float32)
    for quantization, dense in (
        ({"linearQuantization": linear}, codes * scale[:, None] + bias[:, None]),
        ({"lookupTableQuantization": message("LookUpTableQuantizationParams", floatValue=table)}, table[codes]),
    ):
        stored = message(
            "WeightParams", rawValue=packed, quantization=message("QuantizationParams", numberOfBits=4, **quantization)
        )
        found = old([layer("innerProduct", ["x"], ["y"], inputChannels=5, outputChannels=3, weights=stored)], data)
        np.testing.assert_allclose(found, dense @ data, rtol=1e-5, atol=1e-6)
    half = message("WeightParams", float16Value=table[:15].astype(np.float16).tobytes())
    found = old([layer("innerProduct", ["x"], ["y"], inputChannels=5, outputChannels=3, weights=half)], data)
    np.testing.assert_allclose(found, table[:15].astype(np.float16).reshape(3, 5).astype(np.float32) @ data, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "fields", "expected"),
    [
        (
            "pooling",
            {
                "type": 0,
                "kernelSize": [3, 3],
                "stride": [2, 2],
                "includeLastPixel": message("ValidCompletePadding", paddingAmounts=[0, 0]),
            },
            lambda x: torch.nn.functional.max_pool2d(torch.from_numpy(x)[None], 3, 2, ceil_mode=True)[0],
        ),
        ("pooling", {"type": 1, "globalPooling": True}, lambda x: x.mean((1, 2), keepdims=True)),
        (
            "lrn",
            {"alpha": 0.5, "beta": 0.75, "localSize": 3, "k": 2.0},
            lambda x: torch.nn.functional.local_response_norm(torch.from_numpy(x)[None], 3, 0.5, 0.75, 2.0)[0],
        ),
        (
            "mvn",
            {"acrossChannels": False, "normalizeVariance": True, "epsilon": 1e-9},
            lambda x: (x - x.mean((1, 2), keepdims=True)) / x.std((1, 2), keepdims=True),
        ),
        ("softmax", {}, lambda x: torch.softmax(torch.from_numpy(x), 0)),
        ("upsample", {"scalingFactor": [2, 3]}, lambda x: x.repeat(2, 1).repeat(3, 2)),
        (
            "upsample",
            {"scalingFactor": [2, 2], "mode": 1, "linearUpsampleMode": 2},
            lambda x: torch.nn.functional.interpolate(torch.from_numpy(x)[None], scale_factor=2, mode="bilinear")[0],
        ),
        (
            "resizeBilinear",
            {"targetSize": [4, 9], "mode": message("SamplingMode", samplingMethod=0)},
            lambda x: torch.nn.functional.interpolate(
                torch.from_numpy(x)[None], (4, 9), mode="bilinear", align_corners=True
            )[0],
        ),
        ("crop", {"cropAmounts": border(1, 2, 0, 3)}, lambda x: x[:, 1:-2, :-3]),
        (
            "padding",
            {"paddingAmounts": border(1, 0, 2, 1), "reflection": message("Nothing")},
            lambda x: np.pad(x, ((0, 0), (1, 0), (2, 1)), "reflect"),
        ),
        (
            "reorganizeData",
            {"mode": 0, "blockSize": 2},
            lambda x: x.reshape(3, 3, 2, 3, 2).transpose(2, 4, 0, 1, 3).reshape(12, 3, 3),
        ),
        ("permute", {"axis": [0, 3, 1, 2]}, lambda x: x.transpose(2, 0, 1)),
        ("flatten", {"mode": 1}, lambda x: x.transpose(1, 2, 0).ravel()),
        (
            "reshape",
            {"targetShape": [6, 3, 6], "mode": 1},
            lambda x: x.transpose(1, 2, 0).reshape(3, 6, 6).transpose(2, 0, 1),
        ),
        ("slice", {"startIndex": 1, "endIndex": -1, "stride": 2, "axis": 2}, lambda x: x[:, :, 1:-1:2]),
        ("reduce", {"mode": 3, "axis": 2, "epsilon": 10.0}, lambda x: np.log(x + 10).sum(0, keepdims=True)),
        ("unary", {"type": 2, "scale": 2.0, "shift": 9.0, "epsilon": 0.5}, lambda x: 1 / (2 * x + 9.5)),
        (
            "activation",
            {"PReLU": message("ActivationPReLU", alpha=weights([0.1, 0.2, 0.3]))},
            lambda x: np.where(x < 0, x * np.float32([0.1, 0.2, 0.3]).reshape(3, 1, 1), x),
        ),
        (
            "activation",
            {"scaledTanh": message("ActivationScaledTanh", alpha=2.0, beta=0.5)},
            lambda x: 2 * np.tanh(x / 2),
        ),
        (
            "scale",
            {"shapeScale": [3], "scale": weights([1, 2, 3]), "hasBias": True, "shapeBias": [1], "bias": weights([7])},
            lambda x: x * np.float32([1, 2, 3]).reshape(3, 1, 1) + 7,
        ),
        (
            "batchnorm",
            {
                "channels": 3,
                "gamma": weights([1, 2, 3]),
                "beta": weights([3, 2, 1]),
                "computeMeanVar": True,
                "instanceNormalization": True,
                "epsilon": 1e-9,
            },
            lambda x: (
                (x - x.mean((1, 2), keepdims=True))
                / x.std((1, 2), keepdims=True)
                * np.float32([1, 2, 3]).reshape(3, 1, 1)
                + np.float32([3, 2, 1]).reshape(3, 1, 1)
            ),
        ),
    ],
)
def test_layers_of_old_networks(kind: str, fields: dict[str, Any], expected: Any) -> None:
    found = old([layer(kind, ["x"], ["y"], **fields)], IMAGE)
    wanted = np.asarray(expected(IMAGE))
    assert found.size == wanted.size
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("both", [False, True])
def test_memory_over_a_sequence(both: bool) -> None:
    torch.manual_seed(0)
    cell = torch.nn.LSTM(4, 5, bidirectional=both)
    names = ("inputGate", "forgetGate", "blockInput", "outputGate")

    def tables(end: str) -> Any:
        parts: dict[str, Any] = {}
        for at, name in enumerate(names):
            rows = slice(5 * at, 5 * at + 5)
            parts[f"{name}WeightMatrix"] = weights(getattr(cell, f"weight_ih_l0{end}")[rows].detach())
            parts[f"{name}RecursionMatrix"] = weights(getattr(cell, f"weight_hh_l0{end}")[rows].detach())
            bias = getattr(cell, f"bias_ih_l0{end}")[rows] + getattr(cell, f"bias_hh_l0{end}")[rows]
            parts[f"{name}BiasVector"] = weights(bias.detach())
        return message("LSTMWeightParams", **parts)

    functions = [message("ActivationParams", **{name: message("Nothing")}) for name in ("sigmoid", "tanh", "tanh")]
    own: dict[str, Any] = {
        "params": message("LSTMParams", sequenceOutput=True, hasBiasVectors=True, cellClipThreshold=50000.0)
    }
    if both:
        kind = "biDirectionalLSTM"
        own |= {
            "weightParams": [tables(""), tables("_reverse")],
            "activationsForwardLSTM": functions,
            "activationsBackwardLSTM": functions,
        }
    else:
        kind = "uniDirectionalLSTM"
        own |= {"weightParams": tables(""), "activations": functions}
    source = network(
        [layer(kind, ["x"], ["y"], inputVectorSize=4, outputVectorSize=5, **own)], {"x": (4,)}, exact=False
    )
    data = RANDOM.standard_normal((7, 2, 4)).astype(np.float32)
    module = from_coreml(source, shapes={"x": (7, 2, 4)})
    found = results(module, data)[0]
    expected = cell(torch.from_numpy(data))[0].detach()
    np.testing.assert_allclose(found.reshape(expected.shape), expected, rtol=1e-4, atol=1e-5)
    open_module = from_coreml(source, shapes={"x": ("sequence", 1, None)})
    assert results(open_module, data[:, :1])[0].shape[0] == 7


@pytest.mark.parametrize("reps", [(2,), (3, 2), (2, 1, 3)])
def test_repetitions_may_be_fewer_or_more_than_dimensions(reps: tuple[int, ...]) -> None:
    module = from_coreml(network([layer("tile", ["x"], ["y"], reps=reps)], {"x": (6, 6)}))
    np.testing.assert_array_equal(results(module, IMAGE[0])[0], np.tile(IMAGE[0], reps))


def test_branches_and_loops_overwrite_values() -> None:
    one = layer("loadConstantND", [], ["one"], shape=[1], data=weights([1]))
    then = message("NeuralNetwork", layers=[layer("addBroadcastable", ["x", "one"], ["y"])])
    other = message("NeuralNetwork", layers=[layer("multiplyBroadcastable", ["x", "x"], ["y"])])
    layers = [
        one,
        layer("greaterThan", ["x"], ["c"], alpha=2.0),
        layer("branch", ["c"], [], ifBranch=then, elseBranch=other),
    ]
    module = from_coreml(network(layers, {"x": (1,)}))
    assert [float(results(module, np.float32([value]))[0][0]) for value in (1.5, 3)] == [2.25, 4]
    condition = message("NeuralNetwork", layers=[layer("lessThan", ["y"], ["go"], alpha=100.0)])
    body = message("NeuralNetwork", layers=[layer("multiply", ["y"], ["z"], alpha=2.0), layer("copy", ["z"], ["y"])])
    loop = layer("loop", [], [], conditionVar="go", conditionNetwork=condition, bodyNetwork=body)
    module = from_coreml(network([layer("copy", ["x"], ["y"]), loop], {"x": (1,)}))
    assert results(module, np.float32([3]))[0].tolist() == [192]


def tree(nodes: list[dict[str, Any]], count: int, base: list[float]) -> Any:
    made = [
        message(
            "TreeNode",
            **{
                **node,
                "evaluationInfo": [
                    message("EvaluationInfo", evaluationIndex=at, evaluationValue=v)
                    for at, v in node.get("evaluationInfo", [])
                ],
            },
        )
        for node in nodes
    ]
    return message("TreeEnsembleParameters", nodes=made, numPredictionDimensions=count, basePredictionValue=base)


TREE = [
    {
        "treeId": 0,
        "nodeId": 5,
        "nodeBehavior": 1,
        "branchFeatureIndex": 1,
        "branchFeatureValue": 0.5,
        "trueChildNodeId": 1,
        "falseChildNodeId": 2,
        "missingValueTracksTrueChild": True,
    },
    {"treeId": 0, "nodeId": 1, "nodeBehavior": 6, "evaluationInfo": [(0, 1.0)]},
    {"treeId": 0, "nodeId": 2, "nodeBehavior": 6, "evaluationInfo": [(0, -2.0)]},
]


def test_trees_of_rows() -> None:
    own = message("TreeEnsembleRegressor", treeEnsemble=tree(TREE, 1, [10.0]))
    source = model([feature("x", (2,))], [number("y")], treeEnsembleRegressor=own, label="y")
    rows = np.float32([[0, 0.4], [0, 0.5], [0, np.nan]])
    assert results(from_coreml(source), rows)[0].tolist() == [11, 8, 11]
    own = message(
        "TreeEnsembleClassifier",
        treeEnsemble=tree(TREE, 1, [0.0]),
        postEvaluationTransform=2,
        stringClassLabels=message("StringVector", vector=["no", "yes"]),
    )
    source = model(
        [feature("x", (2,))],
        [number("label", "stringType"), dictionary("chances")],
        treeEnsembleClassifier=own,
        label="label",
        chances="chances",
    )
    module = from_coreml(source)
    labels, chances = results(module, rows)
    assert list(labels) == ["yes", "no", "yes"]
    np.testing.assert_allclose(chances[:, 1], 1 / (1 + np.exp([-1, 2, -1])))
    assert module.attributes["class_labels"] == ("no", "yes")


def test_a_pipeline_of_features_and_a_linear_model() -> None:
    def part(inputs: list[Any], outputs: list[Any], **own: Any) -> Any:
        made = message("Model")
        made.ParseFromString(model(inputs, outputs, **own))
        return made

    categories = message("OneHotEncoder", stringCategories=message("StringVector", vector=["a", "b"]), handleUnknown=1)
    imputer = message("Imputer", imputedDoubleValue=5.0, replaceDoubleValue=float("nan"))
    columns = [
        message("InputColumn", inputColumn=name, inputDimensions=size) for name, size in (("filled", 1), ("hot", 2))
    ]
    scaler = message("Scaler", shiftValue=[-1.0, 0.0, 0.0], scaleValue=[2.0])
    linear = message("GLMRegressor", weights=[message("DoubleVector", vector=[1.0, 10.0, 100.0])], offset=[0.5])
    models = [
        part([number("n")], [number("filled")], imputer=imputer),
        part([number("kind", "stringType")], [feature("hot", (2,))], oneHotEncoder=categories),
        part(
            [number("filled"), feature("hot", (2,))],
            [feature("all", (3,))],
            featureVectorizer=message("FeatureVectorizer", inputList=columns),
        ),
        part([feature("all", (3,))], [feature("scaled", (3,))], scaler=scaler),
        part([feature("scaled", (3,))], [number("y")], glmRegressor=linear, label="y"),
    ]
    pipeline = message("PipelineRegressor", pipeline=message("Pipeline", models=models))
    source = model([number("n"), number("kind", "stringType")], [number("y")], pipelineRegressor=pipeline)
    found = results(from_coreml(source), np.array([3.0, np.nan]), np.array(["b", "?"], dtype=object))[0]
    np.testing.assert_allclose(found, [0.5 + 2 * (2 + 100), 0.5 + 2 * 4])


def test_a_category_that_is_not_known_is_an_error_where_the_model_says_so() -> None:
    own = message("OneHotEncoder", int64Categories=message("Int64Vector", vector=[3, 5]))
    source = model([number("n", "int64Type")], [feature("y", (2,))], oneHotEncoder=own)
    exe = tw.compile(source)
    assert exe(np.int64([5, 3])).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(UserError, match="a category is not known to the model"):
        exe(np.int64([5, 4]))


def test_support_vectors_and_neighbours() -> None:
    vectors = RANDOM.standard_normal((4, 2))
    rows = RANDOM.standard_normal((5, 2))
    dense = message("DenseSupportVectors", vectors=[message("DoubleVector", vector=row) for row in vectors])
    kernel = message("Kernel", rbfKernel=message("RBFKernel", gamma=0.5))
    alpha = np.array([1.0, -2.0, 0.5, 0.25])
    own = message(
        "SupportVectorRegressor",
        kernel=kernel,
        denseSupportVectors=dense,
        coefficients=message("Coefficients", alpha=alpha),
        rho=0.75,
    )
    source = model([feature("x", (2,), 65600)], [number("y")], supportVectorRegressor=own, label="y")
    kernels = np.exp(-0.5 * ((rows[:, None] - vectors) ** 2).sum(-1))
    np.testing.assert_allclose(results(from_coreml(source), rows)[0], kernels @ alpha - 0.75)
    index = message(
        "NearestNeighborsIndex",
        floatSamples=[message("FloatVector", vector=row) for row in vectors],
        numberOfDimensions=2,
    )
    own = message(
        "KNearestNeighborsClassifier",
        nearestNeighborsIndex=index,
        numberOfNeighbors=message("Int64Parameter", defaultValue=1),
        int64ClassLabels=message("Int64Vector", vector=[7, 8, 7, 9]),
    )
    source = model([feature("x", (2,), 65600)], [number("y", "int64Type")], kNearestNeighborsClassifier=own, label="y")
    nearest = ((rows[:, None] - vectors.astype(np.float32)) ** 2).sum(-1).argmin(1)
    assert results(from_coreml(source), rows)[0].tolist() == np.array([7, 8, 7, 9])[nearest].tolist()


@pytest.mark.parametrize("path", sorted(FIXTURES.glob("*.npz")), ids=lambda path: path.stem)
def test_files_of_coremltools(path: Path) -> None:
    found = [item for item in (path.with_suffix(".mlmodel"), path.with_suffix(".mlpackage")) if item.exists()]
    assert identify(found[0]).key == "coreml"
    arrays = np.load(path)
    inputs = {name[3:]: arrays[name] for name in arrays.files if name.startswith("in_")}
    module = tw.load_model(found[0])
    outputs = dict(zip(module.attributes["output_names"], tw.compile(module).run(inputs), strict=True))
    tolerance = 2e-2 if path.stem.endswith("_half") else 1e-4
    for name in arrays.files:
        if name.startswith("out_"):
            wanted, ours = arrays[name], np.asarray(outputs[name[4:]])
            if wanted.dtype.kind in "UO":
                assert ours.item() == wanted.item()
            else:
                np.testing.assert_allclose(ours.reshape(wanted.shape), wanted, rtol=tolerance, atol=tolerance)


def test_palettes_are_near_the_weights_they_stand_for() -> None:
    arrays = np.load(FIXTURES / "recurrent.npz")
    found = results(from_coreml(FIXTURES / "palettes.mlpackage"), arrays["in_x"])[0]
    assert 0 < np.abs(found - arrays["out_y"]).max() < 0.1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (model([feature("x", (1,))], [feature("y", ())]), "is of a kind that is not known"),
        (
            model([number("x")], [number("y")], visionFeaturePrint=message("Nothing")),
            "visionFeaturePrint are not supported",
        ),
        (network([layer("custom", ["x"], ["y"])], {"x": (1,)}), "layers of the kind custom are not supported"),
        (network([layer("sin", ["z"], ["y"])], {"x": (1,)}), "nothing produces its input 'z'"),
        (network([layer("loopBreak", [], [])], {"x": (1,)}), "the layer loopBreak"),
        (
            network([layer("innerProduct", ["x"], ["y"], inputChannels=2, outputChannels=2)], {"x": (2,)}),
            "weights are there",
        ),
    ],
)
def test_refusals_say_what_and_where(source: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said) as found:
        from_coreml(source)
    assert found.value.where or "known" in str(found.value.hint) or "Core ML" in str(found.value.hint)
