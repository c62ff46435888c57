"""Operators of `com.microsoft` against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import tilewright as tw
from tests.frontend.onnx.helpers import data, make_model, run_onnxruntime, run_tilewright
from tilewright.frontend import from_onnx
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.support.errors import UserError

BYTE = np.uint8


def model_of(op_type, values, outputs, constants=(), opset=17, domain="com.microsoft", **attributes):
    names = ["" if value is None else f"x{index}" for index, value in enumerate(values)]
    results = [name if name is None else f"y{index}" for index, name in enumerate(outputs)]
    results = ["" if name is None else name for name in results]
    node = helper.make_node(op_type, names, results, name="node", domain=domain, **attributes)
    given = {names[i]: value for i, value in enumerate(values) if value is not None and i not in constants}
    stored = {names[i]: value for i, value in enumerate(values) if value is not None and i in constants}
    model = make_model([node], given, [name for name in results if name], stored, opset, domains={"com.microsoft": 1})
    return model, given


def check(op_type, *values, outputs=(1,), tolerance=1e-5, steps=0, only=None, **options):
    """Compare all outputs; `steps` is how far whole numbers may be apart, `only` compares a part of the outputs."""
    model, given = model_of(op_type, values, outputs, **options)
    ours, theirs = run_tilewright(model, given), run_onnxruntime(model, given)
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        mine, other = (item if only is None else item[only] for item in (mine, other))
        if other.dtype.kind in "iu":
            assert np.abs(mine.astype(np.int64) - other.astype(np.int64)).max() <= steps
        else:
            np.testing.assert_allclose(mine, other, rtol=tolerance, atol=tolerance)


def scale(value=0.05):
    return np.array(value, np.float32)


def zero(value=3, dtype=BYTE):
    return np.array(value, dtype)


def bytes_of(*shape, dtype=BYTE):
    info = np.iinfo(dtype)
    return data(*shape, dtype=np.dtype(dtype).name, low=info.min, high=info.max)


def test_activations():
    x = data(2, 5)
    check("Gelu", x)
    check("QuickGelu", x, alpha=1.5)
    check("BiasGelu", x, data(5))
    check("FastGelu", x)
    check("FastGelu", x, data(5))


@pytest.mark.parametrize("batch", [0, 1])
def test_fused_matmul(batch):
    a, b = (data(2, 3, 4), data(2, 4, 5)) if not batch else (data(3, 2, 4), data(4, 2, 5))
    check("FusedMatMul", a, b, alpha=0.5, transBatchA=batch, transBatchB=batch)


def test_fused_matmul_transposed():
    check("FusedMatMul", data(2, 4, 3), data(5, 4), transA=1, transB=1)
    check("FusedMatMul", data(4, 2, 3), data(2, 4, 5), transA=1, transBatchA=1)


@pytest.mark.parametrize(
    ("name", "params"),
    [("Relu", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4]), ("Tanh", [])],
)
def test_fused_conv(name, params):
    options = {"activation_params": params} if params else {}
    check("FusedConv", data(1, 2, 5, 5), data(3, 2, 3, 3), data(3), activation=name, pads=[1, 1, 1, 1], **options)


def test_fused_conv_with_a_sum():
    values = [data(1, 2, 5, 5), data(3, 2, 3, 3), data(3), data(1, 3, 3, 3)]
    check("FusedConv", *values, activation="Relu", constants=(1, 2))


def test_fused_gemm():
    check("FusedGemm", data(3, 4), data(4, 5), data(5), activation="LeakyRelu", activation_alpha=0.3, alpha=0.5)


def test_skip_layer_normalization():
    x, skip, gamma, beta, bias = data(2, 3, 8), data(2, 3, 8), data(8), data(8), data(8)
    check("SkipLayerNormalization", x, skip, gamma, beta, bias, epsilon=1e-5)
    check("SkipLayerNormalization", x, skip, gamma, outputs=(1, None, None, 1))
    check("SkipSimplifiedLayerNormalization", x, skip, gamma, bias, outputs=(1, None, None, 1))
    check("SimplifiedLayerNormalization", x, gamma, domain="", axis=-1, epsilon=1e-5)


def test_embed_layer_normalization():
    ids, segments = data(2, 4, dtype="int32", low=0, high=9), data(2, 4, dtype="int32", low=0, high=1)
    tables = [data(10, 6), data(5, 6), data(2, 6)]
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], np.int32)
    check("EmbedLayerNormalization", ids, segments, *tables, data(6), data(6), mask, outputs=(1, 1))
    check("EmbedLayerNormalization", ids, None, *tables[:2], None, data(6), data(6), outputs=(1, 1))


@pytest.mark.parametrize(("bits", "block"), [(4, 16), (4, 32), (8, 32)])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_matmul_few_bits(bits, block, with_zeros):
    depth, count = 40, 6
    blocks = -(-depth // block)
    packed = bytes_of(count, blocks, block * bits // 8)
    scales = data(count * blocks, low=0.1, high=0.5)
    zeros = bytes_of(count * (-(-blocks * bits // 8))) if with_zeros else None
    values = [data(3, depth), packed, scales] + ([zeros] if with_zeros else [])
    constants = range(1, len(values))
    check("MatMulNBits", *values, constants=constants, tolerance=1e-3, K=depth, N=count, bits=bits, block_size=block)


@pytest.mark.parametrize(("level", "row_bits"), [(0, 0), (1, 0), (2, 16), (3, 16), (4, 8)])
def test_accuracy_levels_of_products_with_few_bits(level, row_bits):
    """What a level says of the data is kept for the processors that are quicker with fewer bits."""
    values = [data(1, 256), bytes_of(128, 8, 16), data(1024, low=0.1, high=0.5)]
    attributes = {"K": 256, "N": 128, "bits": 4, "block_size": 32, "accuracy_level": level}
    model, given = model_of("MatMulNBits", values, (1,), constants=(1, 2), **attributes)
    (product,) = (item for item in post_order(from_onnx(model)["main"]) if is_call_to(item, "matmul"))
    assert product.attributes.row_bits == row_bits
    ours, (theirs,) = tw.compile(model, threads=1)(values[0]), run_onnxruntime(model, given)
    # Numbers of 8 bits are rounded by both, each with steps of its own.
    assert np.abs(ours - theirs).max() < (2e-2 if level == 4 else 1e-4) * np.abs(theirs).max()


@pytest.mark.parametrize("mask_kind", ["none", "ends", "raw", "square", "ends and starts"])
@pytest.mark.parametrize("unidirectional", [0, 1])
def test_attention(mask_kind, unidirectional):
    batch, length, width = 2, 5, 8
    mask = {
        "none": None,
        "ends": np.array([5, 3], np.int32),
        "ends and starts": np.array([5, 4, 0, 1], np.int32),
        "raw": np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32),
        "square": np.tril(np.ones((2, 5, 5), np.int32)),
    }[mask_kind]
    values = [data(batch, length, width), data(width, 24), data(24), mask]
    check("Attention", *values, num_heads=2, unidirectional=unidirectional, tolerance=1e-4)


def test_attention_with_a_past():
    past = data(2, 2, 2, 3, 4)
    values = [data(2, 1, 8), data(8, 24), data(24), None, past]
    check("Attention", *values, outputs=(1, 1), num_heads=2, unidirectional=1, tolerance=1e-4)


def test_attention_with_a_bias_of_the_scores():
    values = [data(2, 3, 8), data(8, 24), data(24), None, None, data(1, 2, 3, 3)]
    check("Attention", *values, num_heads=2, tolerance=1e-4)


def test_attention_of_given_sizes():
    values = [data(2, 3, 8), data(8, 8 + 8 + 12), data(28)]
    check("Attention", *values, num_heads=2, qkv_hidden_sizes=[8, 8, 12], scale=0.3, tolerance=1e-4)


def test_multi_head_attention():
    query, key, value = data(2, 3, 8), data(2, 5, 8), data(2, 5, 12)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.int32)
    check("MultiHeadAttention", query, key, value, num_heads=2, tolerance=1e-4)
    check("MultiHeadAttention", query, key, value, data(28), mask, num_heads=2, tolerance=1e-4)
    check("MultiHeadAttention", query, key, value, None, None, data(1, 2, 3, 5), num_heads=2, tolerance=1e-4)


def test_multi_head_attention_with_a_cache():
    query, past = data(2, 1, 8), data(2, 2, 4, 4)
    values = [query, data(2, 1, 8), data(2, 1, 8), None, None, None, past, data(2, 2, 4, 4)]
    check("MultiHeadAttention", *values, outputs=(1, 1, 1), num_heads=2, unidirectional=1, tolerance=1e-4)


def rotary(count, half):
    angles = np.arange(count)[:, None] / 10 ** np.arange(half)[None]
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@pytest.mark.parametrize("options", [{}, {"local_window_size": 2}, {"softcap": 0.7}, {"scale": 0.2}])
def test_group_query_attention_of_a_prompt(options):
    length = 4
    values = [data(2, length, 32), data(2, length, 16), data(2, length, 16), None, None]
    lengths, total = np.array([length - 1, length - 1], np.int32), np.array(length, np.int32)
    check("GroupQueryAttention", *values, lengths, total, outputs=(1, 1, 1), constants=(6,), num_heads=4,
          kv_num_heads=2, tolerance=1e-4, **options)  # fmt: skip


@pytest.mark.parametrize("interleaved", [0, 1])
def test_group_query_attention_of_the_next_token(interleaved):
    past = data(1, 2, 3, 16)
    values = [data(1, 1, 64), data(1, 1, 32), data(1, 1, 32), past, data(1, 2, 3, 16)]
    lengths, total = np.array([3], np.int32), np.array(4, np.int32)
    check("GroupQueryAttention", *values, lengths, total, *rotary(8, 8), outputs=(1, 1, 1), constants=(6,),
          num_heads=4, kv_num_heads=2, do_rotary=1, rotary_interleaved=interleaved, tolerance=1e-4)  # fmt: skip


def test_group_query_attention_packed():
    lengths, total = np.array([2], np.int32), np.array(3, np.int32)
    check("GroupQueryAttention", data(1, 3, 128), None, None, None, None, lengths, total, *rotary(8, 8),
          outputs=(1, 1, 1), constants=(6,), num_heads=4, kv_num_heads=2, do_rotary=1, tolerance=1e-4)  # fmt: skip


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved):
    tables = rotary(16, 4)
    places = np.array([[0, 1, 2], [4, 5, 6]])
    check("RotaryEmbedding", data(2, 3, 16), places, *tables, interleaved=interleaved)
    check("RotaryEmbedding", data(2, 2, 3, 8), places, *tables, interleaved=interleaved)
    check("RotaryEmbedding", data(2, 3, 16), np.array([5]), *tables, interleaved=interleaved)
    half = rotary(16, 2)
    check(
        "RotaryEmbedding", data(2, 3, 16), places, *half, interleaved=interleaved, num_heads=2, rotary_embedding_dim=4
    )


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("op_type", ["QLinearAdd", "QLinearMul"])
def test_quantised_sum_and_product(op_type, dtype):
    a, b = bytes_of(2, 3, 4, dtype=dtype), bytes_of(4, dtype=dtype)
    points = [zero(dtype=dtype), zero(5, dtype), zero(7, dtype)]
    check(op_type, a, scale(), points[0], b, scale(0.03), points[1], scale(0.1), points[2], steps=1)


def test_quantised_functions():
    x = bytes_of(2, 3, 4)
    check("QLinearSigmoid", x, scale(), zero(120), scale(1 / 256), zero(0), constants=(1, 2, 3, 4), steps=1)
    check("QLinearLeakyRelu", x, scale(), zero(120), scale(0.06), zero(100), constants=(1, 2, 3, 4), alpha=0.2, steps=1)
    check("QLinearGlobalAveragePool", bytes_of(1, 3, 4, 4), scale(), zero(), scale(0.04), zero(9), steps=1)
    check(
        "QLinearGlobalAveragePool",
        bytes_of(1, 4, 4, 3),
        scale(),
        zero(),
        scale(0.04),
        zero(9),
        channels_last=1,
        steps=1,
    )


def test_quantised_pools():
    x = bytes_of(1, 3, 6, 6)
    window = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    check("QLinearAveragePool", x, scale(), zero(), scale(0.04), zero(9), steps=1, **window)
    last = bytes_of(1, 6, 6, 3)
    check("QLinearAveragePool", last, scale(), zero(), scale(0.04), zero(9), steps=1, channels_last=1, **window)
    check("NhwcMaxPool", last, **window)


def test_quantised_concat_and_where():
    triples = [bytes_of(2, 3), scale(0.03), zero(), bytes_of(2, 4), scale(0.06), zero(11)]
    check("QLinearConcat", scale(), zero(8), *triples, axis=1, steps=1)
    condition = data(2, 3, dtype="bool")
    values = [condition, bytes_of(2, 3), scale(0.03), zero(), bytes_of(2, 3), scale(0.06), zero(11), scale(), zero(8)]
    check("QLinearWhere", *values, constants=(2, 3, 5, 6, 7, 8), steps=1)


@pytest.mark.parametrize("stored", [True, False])
def test_quantised_gemm(stored):
    a, b = bytes_of(3, 8), bytes_of(8, 5, dtype=np.int8)
    bias = data(5, dtype="int32", low=-100, high=100)
    result = [scale(2.0), zero(100)] if stored else [None, None]
    values = [a, scale(), zero(), b, scale(0.02), zero(1, np.int8), bias, *result]
    check("QGemm", *values, constants=(3, 4, 5, 6), steps=1, tolerance=1e-4)


def test_products_of_bytes_as_floats():
    a, b = bytes_of(3, 8), bytes_of(8, 5)
    check("MatMulIntegerToFloat", a, b, scale(), scale(0.02), zero(), zero(5), data(5), tolerance=1e-4)
    columns = data(5, low=0.01, high=0.1)
    check("MatMulIntegerToFloat", a, b, scale(), columns, zero(), constants=(1, 3), tolerance=1e-4)
    check("DynamicQuantizeMatMul", data(3, 8), b, scale(0.02), zero(7), data(5), constants=(1, 2, 3), tolerance=1e-3)


def test_sixteen_bit_quantisation():
    check("QuantizeLinear", data(2, 3), scale(0.001), zero(1000, np.uint16), steps=1)
    check("DequantizeLinear", bytes_of(2, 3, dtype=np.int16), scale(), zero(-5, np.int16))


@pytest.mark.parametrize(
    ("op_type", "values", "attributes", "message"),
    [
        ("FusedConv", [data(1, 2, 5, 5), data(3, 2, 3, 3)], {"activation": "Magic"}, "the activation 'Magic'"),
        (
            "MatMulNBits",
            [data(3, 8), bytes_of(2, 1, 8), data(2)],
            {"K": 8, "N": 2, "bits": 3, "block_size": 16},
            "3 bits",
        ),
        ("Attention", [data(1, 2, 8), data(8, 24), data(24)], {"num_heads": 3}, "does not divide into 3 heads"),
        ("MultiHeadAttention", [data(1, 2, 2, 3, 4)], {"num_heads": 2}, "packed"),
        ("GroupQueryAttention", [data(1, 2, 8)] * 3, {"num_heads": 3, "kv_num_heads": 2}, "do not share"),
        ("RotaryEmbedding", [data(1, 2, 8), np.array([0]), *rotary(4, 8)], {"num_heads": 1}, "tables of 8 angles"),
        ("QLinearConcat", [scale(), zero(), bytes_of(2)], {"axis": 0}, "triples"),
        ("Inverse", [data(3, 3)], {}, "unknown operator Inverse in the domain com.microsoft"),
    ],
)
def test_what_is_refused(op_type, values, attributes, message):
    with pytest.raises(UserError, match=message):
        from_onnx(model_of(op_type, values, (1,), **attributes)[0])


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(("kind", "direction"), [(np.int8, "forward"), (BYTE, "bidirectional")])
def test_dynamic_quantize_lstm(kind, direction, columns):
    """The input is rounded to 8 bits; onnxruntime rounds the state too, so that it is some hundredths off."""
    directions, hidden, features = 2 if direction == "bidirectional" else 1, 6, 5
    zero = 60 if kind is BYTE else 0
    x, bias = data(4, 2, features), data(directions, 8 * hidden)
    weights = [
        data(directions, size, 4 * hidden, dtype=kind.__name__, low=zero - 60, high=zero + 60)
        for size in (features, hidden)
    ]
    shape = (directions, 4 * hidden) if columns else (directions,)
    scales = [data(*shape, low=0.005, high=0.01) for _ in weights]
    zeros = [np.full(shape, zero, kind) for _ in weights]
    values = [x, *weights, bias, None, None, None, None, scales[0], zeros[0], scales[1], zeros[1]]
    options = {"hidden_size": hidden, "direction": direction}
    model, given = model_of("DynamicQuantizeLSTM", values, (1, 1, 1), constants=[1, 2, 3, 8, 9, 10, 11], **options)
    ours, theirs = run_tilewright(model, given), run_onnxruntime(model, given)
    spread = (slice(None), None) if columns else (slice(None), None, None)
    floats = [
        np.ascontiguousarray(((w.astype(np.float32) - zero) * scale[spread]).transpose(0, 2, 1))
        for w, scale in zip(weights, scales, strict=True)
    ]
    low, high = min(x.min(), 0), max(x.max(), 0)
    step = np.float32((high - low) / np.float32(255))
    x = (np.rint(x / step) * step).astype(np.float32)
    plain, given = model_of("LSTM", [x, *floats, bias], (1, 1, 1), constants=[1, 2, 3], domain="", **options)
    exact = run_onnxruntime(plain, given)
    for mine, rounded, wanted in zip(ours, theirs, exact, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(mine, rounded, atol=0.05)


@pytest.mark.parametrize("columns", [False, True])
def test_gemm_of_integers_by_channel(columns):
    """Scales and zero points of the rows of a matrix that is turned lie along its rows."""
    a, b = bytes_of(3, 8), data(5, 8, dtype="int8", low=-60, high=60)
    factors, zeros = (data(5, low=0.01, high=0.02), np.zeros(5, np.int8)) if columns else (scale(), np.int8(0))
    values = [a, scale(), zero(), b, factors, zeros, None, np.float32(0.05), zero()]
    model, given = model_of("QGemm", values, (1,), constants=range(1, 9), transB=1)
    np.testing.assert_array_equal(run_tilewright(model, given)[0], run_onnxruntime(model, given)[0])


def test_a_quantized_lstm_needs_fitting_scales():
    values = [data(4, 2, 3), data(1, 3, 8, dtype="int8"), data(1, 2, 8, dtype="int8"), None, None, None, None, None]
    values += [data(1, 1, 1), None, data(1), None]
    model, _ = model_of("DynamicQuantizeLSTM", values, (1,), constants=[1, 2, 8, 10], hidden_size=2)
    with pytest.raises(UserError, match="weights W need 3 dimensions and scales of 1 or 2"):
        from_onnx(model)
