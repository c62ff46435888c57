"""`tw.quantize`: quantised models against float32, the interpreter and onnxruntime; options, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tilewright as tw
from tests.integration.small_models import FLOAT, model
from tests.quantization.networks import IMAGE, exact_session, images, perceptron, residual_network
from tests.requirements import need_module
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Function
from tilewright.onnx_writer import to_onnx
from tilewright.quantization.data import Input, feeds
from tilewright.quantization.layers import Sources, find_layers, visible
from tilewright.quantization.observers import OBSERVERS
from tilewright.quantization.options import QuantizeOptions
from tilewright.quantization.quantizer import Quantized
from tilewright.support.errors import UserError

MODEL = residual_network().SerializeToString()


def text_of(quantized: Quantized) -> str:
    """The quantised graph, printed."""
    return str(quantized.module)


@pytest.fixture(scope="module")
def static() -> Quantized:
    """The residual network in 8 bits."""
    return tw.quantize(MODEL, images(), threads=1)


def test_static_network_is_close(static: Quantized) -> None:
    assert static.report.decibels > 25
    assert all(layer.quantized for layer in static.report.layers)
    assert [layer.name for layer in static.report.layers] == ["conv1", "shortcut", "conv2", "depthwise", "fc"]


def test_fixed_point_is_close(static: Quantized) -> None:
    quantized = tw.quantize(MODEL, images(), threads=1, arithmetic="fixed_point")
    assert text_of(quantized).count("qnn.fixed_point") >= 3 and "uint8" not in text_of(quantized)
    ours, floats = tw.compile(quantized.module, threads=1), tw.compile(static.module, threads=1)
    for x in images(3, seed=5):
        result = np.asarray(ours(x[None]))
        np.testing.assert_allclose(result, evaluate(quantized.module, x[None]), rtol=1e-4, atol=1e-5)
        assert np.abs(result - np.asarray(floats(x[None]))).max() < 0.05 * np.abs(result).max()


@pytest.mark.parametrize("options", [{"scheme": "dynamic"}, {"scheme": "weights"}, {"weight_bits": 4}])
def test_fixed_point_is_for_integers_of_8_bits(options: dict[str, object]) -> None:
    with pytest.raises(UserError, match="fixed point is for the scheme 'static' in 8 bits"):
        QuantizeOptions(arithmetic="fixed_point", **options)  # type: ignore[arg-type]


def test_static_network_means_the_same_everywhere(static: Quantized) -> None:
    """Compiled code, the interpreter and onnxruntime on the written file round alike."""
    exported = to_onnx(static.module)
    onnx.checker.check_model(onnx.load_from_string(exported), full_check=True)
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(exported, settings)
    ours, again = tw.compile(static.module, threads=1), tw.compile(exported, threads=1)
    for x in images(3, seed=5):
        result = np.asarray(ours(x[None]))
        np.testing.assert_allclose(result, evaluate(static.module, x[None]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(result, session.run(None, {"image": x[None]})[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(result, np.asarray(again(x[None])))


def test_integers_between_kernels(static: Quantized) -> None:
    """What moves values moves integers in the compiled model, and the sum reads one quantised operand."""
    text = text_of(static)
    assert text.count("qnn.quantize") == 8
    compiled = str(tw.Compilation(static.module, options=tw.CompileOptions(threads=1)).optimized)
    pools = [line for line in compiled.splitlines() if "= nn.max_pool2d(" in line]
    assert len(pools) == 2
    assert all("uint8" in line for line in pools)
    (concat,) = [line for line in compiled.splitlines() if "= concatenate(" in line]
    assert "uint8" in concat


def test_sources_share_parameters_where_values_move() -> None:
    module = tw.frontend.from_onnx(MODEL)
    main = module["main"]
    assert isinstance(main, Function)
    order = visible(main)
    layers = find_layers(order)
    sources = Sources(order, layers)
    (depthwise,) = [layer for layer in layers if layer.name == "depthwise"]
    joined = sources.group(depthwise.activations[0])
    assert sum(sources.group(item) == joined for item in sources.values.values()) == 2


@pytest.mark.parametrize("observer", OBSERVERS)
def test_observers(observer: str) -> None:
    assert tw.quantize(MODEL, images(), threads=1, observer=observer).report.decibels > 20


def test_few_bits_and_better_rounding() -> None:
    """Fewer bits, more noise; groups, learned rounding and bias correction, less."""

    def decibels(**options: object) -> float:
        data = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32) @ mixing
        return tw.quantize(
            perceptron().SerializeToString(), data, threads=1, scheme="weights", **options
        ).report.decibels  # type: ignore[arg-type]

    mixing = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32) ** 3
    eight, four, two = (decibels(weight_bits=bits) for bits in (8, 4, 2))
    assert eight > four + 15 > two + 25
    assert decibels(weight_bits=4, rounding="learned") > four + 2
    assert decibels(weight_bits=4, per_channel=False) < four + 0.5


def test_groups_of_inputs_have_scales_of_their_own() -> None:
    """Weights that differ in size along the inputs lose far less with a scale for each group."""
    skewed, sizes = perceptron(), np.logspace(0, -2, 64, dtype=np.float32)
    first = skewed.graph.initializer[0]
    first.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(first) * sizes[:, None], first.name))
    data = np.random.default_rng(2).standard_normal((32, 64)).astype(np.float32) / sizes
    whole, grouped = (
        tw.quantize(skewed.SerializeToString(), data, threads=1, scheme="weights", weight_bits=4, group=group)
        for group in (0, 16)
    )
    assert grouped.report.decibels > whole.report.decibels + 6
    exported = exact_session(to_onnx(grouped.module))
    ours = np.asarray(tw.compile(grouped.module, threads=1)(data))
    np.testing.assert_allclose(ours, exported.run(None, {"x": data})[0], rtol=1e-3, atol=1e-3)


def test_affine_weights_use_all_levels() -> None:
    """Weights that lie on one side of zero lose half as much with a zero point; other runtimes read the same."""
    shifted = perceptron()
    first = shifted.graph.initializer[0]
    first.CopyFrom(onnx.numpy_helper.from_array(np.abs(onnx.numpy_helper.to_array(first)), first.name))
    data = np.random.default_rng(2).standard_normal((32, 64)).astype(np.float32)
    symmetric, affine = (
        tw.quantize(shifted.SerializeToString(), data, threads=1, scheme="weights", weight_bits=4, group=16, affine=yes)
        for yes in (False, True)
    )
    assert affine.report.decibels > symmetric.report.decibels + 3
    exported = exact_session(to_onnx(affine.module))
    ours = np.asarray(tw.compile(affine.module, threads=1)(data))
    np.testing.assert_allclose(ours, exported.run(None, {"x": data})[0], rtol=1e-3, atol=1e-3)
    with pytest.raises(UserError, match="zero points of weights"):
        QuantizeOptions(affine=True)


def test_dynamic_ranges() -> None:
    """Inputs of any range are quantised by their own range, as onnxruntime quantises them."""
    quantized = tw.quantize(
        perceptron().SerializeToString(), np.ones((16, 64), np.float32), threads=1, scheme="dynamic"
    )
    exe, exact = tw.compile(quantized.module, threads=1), tw.compile(perceptron().SerializeToString(), threads=1)
    for factor in (1e-3, 1.0, 1e3):
        x = np.random.default_rng(4).standard_normal((5, 64)).astype(np.float32) * np.float32(factor)
        ours, theirs = np.asarray(exe(x)), np.asarray(exact(x))
        assert np.abs(ours - theirs).max() < 0.03 * np.abs(theirs).max()
    np.testing.assert_array_equal(np.asarray(exe(np.zeros((2, 64), np.float32))), 0.0)


def test_max_drop_keeps_sensitive_layers() -> None:
    free = tw.quantize(MODEL, images(), threads=1)
    limit = -(free.report.metric_after or 0.0) / 4
    held = tw.quantize(MODEL, images(), threads=1, max_drop=limit)
    assert 0 < len(held.report.kept) < 5
    assert held.report.metric_after is not None
    assert held.report.metric_after >= -limit
    noise = {layer.name: layer.decibels or 0.0 for layer in held.report.layers}
    assert max(noise[name] for name in held.report.kept) <= min(
        value for name, value in noise.items() if name not in held.report.kept
    )
    impossible = tw.quantize(MODEL, images(2), threads=1, max_drop=0.0)
    assert len(impossible.report.kept) == 5
    assert impossible.report.decibels == float("inf")


def test_metric_of_the_user() -> None:
    quantized = tw.quantize(MODEL, images(), threads=1, metric=lambda runs: float(len(runs)))
    assert (quantized.report.metric_before, quantized.report.metric_after) == (6.0, 6.0)


def test_equalisation_is_exact_in_float32() -> None:
    """With no layer quantised, an equalised model computes what the model did; quantised per tensor, it is closer."""
    skewed = residual_network()
    for item in skewed.graph.initializer:
        if item.name == "w1":
            values = onnx.numpy_helper.to_array(item) * np.logspace(-2, 0, 8, dtype=np.float32)[:, None, None, None]
            item.CopyFrom(onnx.numpy_helper.from_array(values, "w1"))
    names = ["conv2", "shortcut", "depthwise", "fc"]
    data = skewed.SerializeToString()
    held = tw.quantize(data, images(2), threads=1, equalize=True, max_drop=0.0, skip=names)
    x = images(1)
    np.testing.assert_allclose(
        np.asarray(tw.compile(held.module, threads=1)(x)),
        np.asarray(tw.compile(data, threads=1)(x)),
        rtol=1e-3,
        atol=1e-4,
    )


def test_report_is_written(static: Quantized, tmp_path: Path) -> None:
    static.report.write(tmp_path / "report.html")
    static.report.write(tmp_path / "report.json")
    assert "depthwise" in (tmp_path / "report.html").read_text()
    assert '"scheme": "static"' in (tmp_path / "report.json").read_text()
    assert "conv1" in str(static.report)


def test_calibration_data(tmp_path: Path) -> None:
    """Every way to give the same data gives the same runs."""
    data = images(4)
    np.savez(tmp_path / "data.npz", image=data)
    np.save(tmp_path / "data.npy", data)
    (tmp_path / "folder").mkdir()
    for place, item in enumerate(data):
        np.save(tmp_path / "folder" / f"{place}.npy", item[None])
    forms = [
        data,
        {"image": data},
        ({"image": item[None]} for item in data),
        ((item[None],) for item in data),
        [item[None] for item in data],
        str(tmp_path / "data.npz"),
        tmp_path / "data.npy",
        tmp_path / "folder",
    ]
    for form in forms:
        runs = feeds(form, [Input("image", IMAGE)])
        np.testing.assert_array_equal(np.concatenate([run[0] for run in runs]), data)


def test_images_are_read(tmp_path: Path) -> None:
    image = need_module("PIL.Image")
    image.new("RGB", (40, 30), (255, 0, 0)).save(tmp_path / "red.png")
    (run,) = feeds(tmp_path, [Input("image", IMAGE)])
    np.testing.assert_array_equal(run[0][0, :, 0, 0], [1.0, 0.0, 0.0])
    assert run[0].shape == IMAGE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "no calibration data"),
        (np.zeros((0, 3, 12, 12), np.float32), "takes 1 examples at a time"),
        ({"picture": np.zeros(IMAGE)}, "lacks the input 'image'"),
        ([(np.zeros(IMAGE), 1)], "the model has 1 inputs"),
        ("data.txt", "is no calibration data"),
        (5, "calibration data cannot be"),
        (np.full(IMAGE, np.nan, np.float32), "infinite or no number"),
    ],
)
def test_bad_data_is_refused(data: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tw.quantize(MODEL, data, threads=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "int8"}, "no scheme 'int8'"),
        ({"weight_bits": 9}, "2 to 8 bits"),
        ({"group": 32}, "scheme 'weights'"),
        ({"observer": "median"}, "no observer 'median'"),
        ({"skip": "fc"}, "list of names"),
        ({"max_drop": -1.0}, "not negative"),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        QuantizeOptions(**options)  # type: ignore[arg-type]


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UserError, match="no option 'bits'"):
        tw.quantize(MODEL, images(), bits=4)  # type: ignore[call-arg]
    with pytest.raises(UserError, match="no layer 'conv9' to skip"):
        tw.quantize(MODEL, images(), skip=["conv9"])


def test_skipped_layers_stay(static: Quantized) -> None:
    quantized = tw.quantize(MODEL, images(), threads=1, skip=["depthwise", "fc"])
    assert [layer.name for layer in quantized.report.layers] == ["conv1", "shortcut", "conv2"]
    assert text_of(quantized).count("qnn.quantize") < text_of(static).count("qnn.quantize")


def test_few_bits_of_activations() -> None:
    """Weights of two bits and activations of one or two: the integers that the interpreter computes, by any kernel."""
    random = np.random.default_rng(4)
    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["a"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="conv2", pads=[1, 1, 1, 1], strides=[2, 2]),
    ]
    weights = {name: random.standard_normal((64, 64, 3, 3)).astype(np.float32) / 24 for name in ("w1", "w2")}
    network = model(nodes, {"image": (FLOAT, (1, 64, 6, 6))}, {"c": (FLOAT, (1, 64, 3, 3))}, weights)
    data = random.standard_normal((4, 64, 6, 6)).astype(np.float32)
    for bits in (1, 2):
        quantized = tw.quantize(
            network.SerializeToString(), data, threads=1, weight_bits=2, activation_bits=bits, correct_bias=False
        )
        expected = evaluate(quantized.module, data[:1])
        np.testing.assert_allclose(np.asarray(tw.compile(quantized.module, threads=1)(data[:1])), expected, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activation_bits": 9}, "1 to 8 bits, not 9"),
        ({"activation_bits": 1, "activations": "int8"}, "2 to 8 bits, not 1"),
        ({"activation_bits": 2, "scheme": "dynamic"}, "no activations of 2 bits"),
    ],
)
def test_bits_that_activations_cannot_have(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        tw.quantize(MODEL, images(), threads=1, **options)  # type: ignore[arg-type]
