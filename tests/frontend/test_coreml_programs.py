"""Core ML programs: operations against numpy and torch, compressed weights, blobs, branches and loops, refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontend.coreml_models import block, message, named, op, program, results, value
from tilewright.frontend.coreml import from_coreml
from tilewright.frontend.coreml.blobs import unpacked
from tilewright.support.errors import UserError

Array = Any
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((2, 4, 6)).astype(np.float32)
IMAGE = RANDOM.standard_normal((1, 2, 4, 6)).astype(np.float32)


def run(kind: str, data: Mapping[str, Array], count: int = 1, **arguments: Any) -> list[Array]:
    """One operation whose tensor arguments are inputs of the program."""
    outputs = [f"y{at}" for at in range(count)]
    operation = op(kind, outputs, **{name: f"%{name}" for name in data}, **arguments)
    kinds = {name: array.dtype.name for name, array in data.items()}
    source = program([operation], {name: array.shape for name, array in data.items()}, outputs, kinds)
    return results(from_coreml(source), *data.values())


def softmax(x: Array, axis: int) -> Array:
    exponentials = np.exp(x - x.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


CASES: dict[str, tuple[Mapping[str, Array], dict[str, Any], Callable[..., Array]]] = {
    "relu": ({"x": X}, {}, lambda x: np.maximum(x, 0)),
    "log": ({"x": np.abs(X)}, {"epsilon": 0.5}, lambda x: np.log(x + 0.5)),
    "rsqrt": ({"x": np.abs(X)}, {"epsilon": 0.5}, lambda x: 1 / np.sqrt(x + 0.5)),
    "mod": ({"x": X, "y": X[:1] + 3}, {}, np.mod),
    "clip": ({"x": X}, {"alpha": -0.5, "beta": 0.25}, lambda x: np.clip(x, -0.5, 0.25)),
    "gelu": ({"x": X}, {"mode": "SIGMOID_APPROXIMATION"}, lambda x: x / (1 + np.exp(-1.702 * x))),
    "prelu": (
        {"x": X},
        {"alpha": np.float32([0.1, 0.2, 0.3, 0.4])},
        lambda x: np.where(x < 0, x * np.float32([0.1, 0.2, 0.3, 0.4])[:, None], x),
    ),
    "softmax": ({"x": X}, {"axis": 1}, lambda x: softmax(x, 1)),
    "clamped_relu": (
        {"x": X},
        {"alpha": 0.1, "beta": 0.5},
        lambda x: np.minimum(np.where(x < 0, 0.1 * x, x), 0.5),
    ),
    "linear": (
        {"x": X},
        {"weight": np.ones((3, 6), np.float32), "bias": np.float32([1, 2, 3])},
        lambda x: x @ np.ones((6, 3), np.float32) + np.float32([1, 2, 3]),
    ),
    "matmul": ({"x": X, "y": X}, {"transpose_y": True}, lambda x, y: x @ y.transpose(0, 2, 1)),
    "reduce_log_sum_exp": ({"x": X}, {"axes": [-1]}, lambda x: np.log(np.exp(x).sum(-1))),
    "reduce_argmax": ({"x": X}, {"axis": 1, "keep_dims": True}, lambda x: x.argmax(1, keepdims=True)),
    "layer_norm": (
        {"x": X},
        {"axes": [-1], "gamma": np.full(6, 2, np.float32), "epsilon": 0.0},
        lambda x: 2 * (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True),
    ),
    "l2_norm": ({"x": X}, {"epsilon": 0.0}, lambda x: x / np.sqrt((x * x).sum())),
    "cumsum": ({"x": X}, {"axis": 2, "reverse": True}, lambda x: x[:, :, ::-1].cumsum(2)[:, :, ::-1]),
    "slice_by_index": (
        {"x": X},
        {
            "begin": [0, -1, 5],
            "end": [0, 0, 0],
            "stride": [1, 1, -2],
            "begin_mask": [True, False, False],
            "end_mask": [True, False, True],
            "squeeze_mask": [False, True, False],
        },
        lambda x: x[:, -1, 5::-2],
    ),
    "slice_by_size": ({"x": X}, {"begin": [0, 1, 2], "size": [-1, 2, 3]}, lambda x: x[:, 1:3, 2:5]),
    "sliding_windows": (
        {"x": X},
        {"axis": 2, "size": 3, "stride": 2},
        lambda x: np.stack([x[:, :, at : at + 3] for at in (0, 2)], axis=2),
    ),
    "pad": (
        {"x": X},
        {"pad": [1, 0, 2, 1], "mode": "replicate"},
        lambda x: np.pad(x, ((0, 0), (1, 0), (2, 1)), "edge"),
    ),
    "band_part": ({"x": X}, {"lower": 0, "upper": -1}, np.triu),
    "tile": ({"x": X}, {"reps": [1, 2, 1]}, lambda x: np.tile(x, (1, 2, 1))),
    "reverse": ({"x": X}, {"axes": [1]}, lambda x: x[:, ::-1]),
    "gather": ({"x": X, "indices": np.int32([[0, 3], [-1, 1]])}, {"axis": 1}, lambda x, i: x[:, i]),
    "gather_along_axis": (
        {"x": X, "indices": np.zeros((2, 1, 6), np.int32) + 2},
        {"axis": 1},
        lambda x, i: np.take_along_axis(x, i, 1),
    ),
    "argsort": ({"x": X}, {"axis": 2, "ascending": True}, lambda x: np.argsort(x, 2)),
    "one_hot": (
        {"indices": np.int32([0, 2])},
        {"one_hot_vector_size": 3, "on_value": 5.0, "off_value": -1.0},
        lambda i: np.eye(3)[i] * 6 - 1,
    ),
    "pixel_unshuffle": (
        {"x": IMAGE},
        {"downscale_factor": 2},
        lambda x: x.reshape(1, 2, 2, 2, 3, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 8, 2, 3),
    ),
    "crop": ({"x": IMAGE}, {"crop_height": [1, 0], "crop_width": [0, 2]}, lambda x: x[:, :, 1:, :-2]),
    "resize_nearest_neighbor": (
        {"x": IMAGE},
        {"target_size_height": 2, "target_size_width": 9},
        lambda x: x[:, :, [0, 2]][:, :, :, np.arange(9) * 6 // 9],
    ),
    "upsample_bilinear": (
        {"x": IMAGE},
        {"scale_factor_height": 1, "scale_factor_width": 2, "align_corners": True},
        lambda x: np.stack([np.interp(np.arange(12) * 5 / 11, np.arange(6), row) for row in x.reshape(-1, 6)]).reshape(
            1, 2, 4, 12
        ),
    ),
    "resample": (
        {"x": IMAGE, "coordinates": np.float32([[[[0, 0], [5, 3], [2.5, 1]]]])},
        {
            "sampling_mode": "bilinear",
            "padding_mode": "border",
            "padding_value": 0.0,
            "coordinates_mode": "unnormalized",
            "align_corners": True,
        },
        lambda x, c: np.stack([x[:, :, 0, 0], x[:, :, 3, 5], (x[:, :, 1, 2] + x[:, :, 1, 3]) / 2], -1)[:, :, None],
    ),
    "dequantize": (
        {"input": np.int8([[1, -2], [3, 4]]).astype(np.int32)},
        {"scale": np.float32([0.5, 2]), "zero_point": np.int32([1, 0]), "axis": 0},
        lambda q: (q - [[1], [0]]) * np.float32([[0.5], [2]]),
    ),
}


@pytest.mark.parametrize("kind", CASES)
def test_operations_give_what_numpy_gives(kind: str) -> None:
    data, arguments, expected = CASES[kind]
    (found,) = run(kind, data, **arguments)
    wanted = np.asarray(expected(*data.values()))
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["same", "same_lower", "valid", "custom"])
def test_windows_are_padded_as_said(kind: str) -> None:
    x = RANDOM.standard_normal((1, 2, 7)).astype(np.float32)
    weight = RANDOM.standard_normal((3, 2, 3)).astype(np.float32)
    pads = {"same": (0, 1), "same_lower": (1, 0), "valid": (0, 0), "custom": (2, 1)}[kind]
    if kind.startswith("same"):
        x = x[:, :, :6]
    (found,) = run("conv", {"x": x}, weight=weight, strides=[2], pad_type=kind, pad=list(pads))
    padded = np.pad(x, ((0, 0), (0, 0), pads))
    windows = np.lib.stride_tricks.sliding_window_view(padded, 3, 2)[:, :, ::2]
    np.testing.assert_allclose(found, np.einsum("nctk,ock->not", windows, weight), rtol=1e-5, atol=1e-5)
    options = {"kernel_sizes": [3], "strides": [2], "pad_type": kind, "pad": list(pads)}
    (mean,) = run("avg_pool", {"x": x}, exclude_padding_from_average=False, **options)
    np.testing.assert_allclose(mean, windows.mean(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("add", [2, 0, 5]), ("sub", [0, 0, -1]), ("update", [1, 0, 3]), ("mul", [1, 0, 6]), ("max", [1, 0, 3])],
)
def test_scatter_joins_updates_by_its_mode(mode: str, expected: list[int]) -> None:
    data = {"data": np.float32([1, 0, 2]), "indices": np.int32([0, 2]), "updates": np.float32([1, 3])}
    (found,) = run("scatter", data, axis=0, mode=mode)
    assert found.tolist() == expected


def test_boxes_that_overlap_better_ones_are_left_out() -> None:
    boxes = np.float32([[[0, 0, 2, 2], [0.1, 0, 2, 2], [5, 5, 2, 2], [9, 9, 1, 1]]])
    scores = np.float32([[[0.2, 0.5], [0.9, 0.1], [0.1, 0.7], [0.05, 0.01]]])
    arguments = {"iou_threshold": 0.5, "score_threshold": 0.1, "max_boxes": 3}
    chosen, kept, places, count = run("non_maximum_suppression", {"boxes": boxes, "scores": scores}, 4, **arguments)
    assert places.tolist() == [[1, 2, -1]]
    assert count.tolist() == [2]
    assert chosen[0, 0].tolist() == boxes[0, 1].tolist()
    assert not kept[0, 2].any()
    apart = run(
        "non_maximum_suppression", {"boxes": boxes, "scores": scores}, 4, per_class_suppression=True, **arguments
    )
    assert apart[2].tolist() == [[1, 2, 0]]


def test_weights_that_are_compressed() -> None:
    table = np.float32([0.5, -1, 2, 7])
    codes = np.array([3, 0, 1, 2, 2, 1], np.uint8)
    packed = np.packbits(((codes[:, None] >> np.arange(2)) & 1).ravel(), bitorder="little")
    operations = [
        op(
            "constexpr_lut_to_dense",
            "a",
            attributes={"lut": value(table), "indices": value(packed), "shape": value(np.int32([2, 3]))},
        ),
        op(
            "constexpr_affine_dequantize",
            "b",
            attributes={
                "quantized_data": value(np.int8([[1, 2, 3], [4, 5, 6]])),
                "scale": value(np.float32([0.5, 2])),
                "zero_point": value(np.int8([1, 0])),
                "axis": value(0),
            },
        ),
        op(
            "constexpr_sparse_to_dense",
            "c",
            attributes={
                "nonzero_data": value(np.float32([9, 8])),
                "mask": value(np.uint8([0b100010])),
                "shape": value(np.int32([2, 3])),
            },
        ),
        op(
            "constexpr_blockwise_shift_scale",
            "d",
            data=value_of(np.int8([[1, 2, 3, 4]])),
            scale=np.float32([[10, 100]]),
        ),
        op(
            "constexpr_lut_to_dense",
            "e",
            indices=value_of(np.uint8([[0, 1], [1, 0]])),
            lut=np.float32([[[[1, 2], [3, 4]]]]),
            vector_axis=1,
        ),
        op("add", "s", x="%a", y="%b"),
        op("add", "t", x="%s", y="%c"),
        op("matmul", "y", x="%x", y="%t"),
        op("mul", "z", x="%one", y="%d"),
        op("mul", "v", x="%one", y="%e"),
    ]
    source = program(operations, {"x": (1, 2), "one": (1,)}, ["y", "z", "v"])
    y, z, v = results(from_coreml(source), np.float32([[1, 10]]), np.float32([1]))
    dense = np.float32([[7, 0.5, -1], [2, 2, -1]]) + np.float32([[0, 0.5, 1], [8, 10, 12]]) + [[0, 9, 0], [0, 0, 8]]
    np.testing.assert_allclose(y, [[1, 10]] @ dense)
    assert z.tolist() == [[10, 20, 300, 400]]
    assert v.tolist() == [[1, 2, 3, 4], [3, 4, 1, 2]]


def value_of(array: Array) -> Array:
    return array


def test_integers_of_few_bits_are_packed_from_the_lowest_on() -> None:
    for bits in (1, 2, 3, 4, 6):
        codes = RANDOM.integers(0, 1 << bits, 11).astype(np.uint8)
        content = np.packbits(((codes[:, None] >> np.arange(bits)) & 1).ravel(), bitorder="little").tobytes()
        assert unpacked(content, bits, 11).tolist() == codes.tolist()


def test_branches_and_loops_by_data() -> None:
    sides = [block([op("add", "p", x="%x", y=1.0)], ["p"]), block([op("mul", "q", x="%x", y=2.0)], ["q"])]
    operations = [
        op("reduce_sum", "total", x="%x", axes=[0]),
        op("greater", "positive", x="%total", y=0.0),
        op("cond", "y", blocks=sides, pred="%positive"),
    ]
    module = from_coreml(program(operations, {"x": (2,)}))
    assert results(module, np.float32([1, 2]))[0].tolist() == [2, 3]
    assert results(module, np.float32([-1, -2]))[0].tolist() == [-2, -4]
    condition = block([op("less", "go", x="%a", y=100.0)], ["go"], [named("a")])
    body = block([op("mul", "twice", x="%b", y="%step")], ["twice"], [named("b")])
    loop = op("while_loop", "y", blocks=[condition, body], loop_vars="%x")
    module = from_coreml(program([loop], {"x": (), "step": ()}))
    assert results(module, np.float32(3), np.float32(2))[0] == 192


def test_blobs_of_a_package(tmp_path: Path) -> None:
    numbers = np.float16([1, 2, 3, 4])
    operation = op("const", "w")
    constant = message("Value", type=value(numbers, "float16").type)
    constant.blobFileValue.fileName = "@model_path/weights/weight.bin"
    constant.blobFileValue.offset = 64
    operation.attributes["val"].CopyFrom(constant)
    source = program([operation, op("cast", "v", x="%w", dtype="fp32"), op("mul", "y", x="%x", y="%v")], {"x": (4,)})
    folder = tmp_path / "m.mlpackage" / "Data" / "com.apple.CoreML"
    (folder / "weights").mkdir(parents=True)
    (folder / "model.mlmodel").write_bytes(source)
    entries = '{"itemInfoEntries": {"A": {"path": "com.apple.CoreML/model.mlmodel"}}, "rootModelIdentifier": "A"}'
    (tmp_path / "m.mlpackage" / "Manifest.json").write_text(entries)
    header = struct.pack("<II", 1, 2) + bytes(56)
    blob = struct.pack("<IIQQQ", 0xDEADBEEF, 1, 8, 128, 0) + bytes(32) + numbers.tobytes()
    weights = folder / "weights" / "weight.bin"
    weights.write_bytes(header + blob)
    module = from_coreml(tmp_path / "m.mlpackage")
    assert results(module, np.ones(4, np.float32))[0].tolist() == [1, 2, 3, 4]
    for content, said in ((header + blob[:-2], "is damaged"), (header, "there is no blob at byte 64")):
        weights.write_bytes(content)
        with pytest.raises(UserError, match=said):
            from_coreml(tmp_path / "m.mlpackage")
    weights.unlink()
    with pytest.raises(UserError, match="cannot read the weights"):
        from_coreml(tmp_path / "m.mlpackage")
    with pytest.raises(UserError, match="needs its file of weights") as found:
        from_coreml(source)
    assert "package" in str(found.value.hint)


@pytest.mark.parametrize(
    ("operation", "said"),
    [
        (op("fft", "y", x="%x"), "the operation fft is not supported"),
        (op("read_state", "y", input="%x"), "keeps state between calls"),
        (op("relu", "y", x="%z"), "nothing produces 'z'"),
        (op("clip", "y", x="%x", alpha="%x", beta=1.0), "is computed from the inputs"),
        (op("conv", "y", x="%x", weight=1.0), "needs data of at least 3 dimensions"),
        (op("make_list", "y", elem_shape=[2]), "a list that grows"),
        (op("transpose", "y", x="%x", perm=[0, 0]), "is no order of 1 dimensions|out of range"),
    ],
)
def test_refusals_name_the_operation_and_its_place(operation: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as found:
        from_coreml(program([operation], {"x": (3,)}))
    assert f"'y' ({operation.type})" in str(found.value.where)
