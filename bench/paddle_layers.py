"""Layers, detection operators and control flow of PaddlePaddle for `bench.frontends`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.paddle_cases import numbers, whole

Function = Callable[..., Any]


def _windows(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    functional = paddle.nn.functional
    image = numbers(2, 4, 9, 10)
    for name, options in (
        ("plain", {}),
        ("strides", {"stride": 2, "padding": 1}),
        ("dilation", {"dilation": 2, "padding": [1, 2]}),
        ("uneven", {"padding": [0, 1, 2, 3]}),
        ("same", {"padding": "SAME", "stride": 2}),
        ("valid", {"padding": "VALID"}),
    ):
        yield f"conv2d {name}", lambda x, w, o=options: functional.conv2d(x, w, **o), [image, numbers(6, 4, 3, 3)]
        if name not in ("same", "valid"):
            yield (
                f"conv2d_transpose {name}",
                lambda x, w, o=options: functional.conv2d_transpose(x, w, **o),
                [image, numbers(4, 6, 3, 3)],
            )
    yield "conv2d groups", lambda x, w: functional.conv2d(x, w, groups=2), [image, numbers(6, 2, 3, 3)]
    yield "depthwise", lambda x, w: functional.conv2d(x, w, groups=4, padding=1), [image, numbers(4, 1, 3, 3)]
    yield (
        "conv2d last",
        lambda x, w: functional.conv2d(x, w, data_format="NHWC"),
        [numbers(2, 9, 10, 4), numbers(6, 4, 3, 3)],
    )
    yield (
        "conv2d_transpose size",
        lambda x, w: functional.conv2d_transpose(x, w, stride=2, output_size=[20, 21]),
        [image, numbers(4, 6, 3, 3)],
    )
    yield (
        "conv2d_transpose extra",
        lambda x, w: functional.conv2d_transpose(x, w, stride=2, output_padding=1),
        [image, numbers(4, 6, 3, 3)],
    )
    yield "conv1d", lambda x, w: functional.conv1d(x, w, padding=1), [numbers(2, 4, 9), numbers(6, 4, 3)]
    yield "conv3d", lambda x, w: functional.conv3d(x, w, padding=1), [numbers(1, 2, 4, 5, 6), numbers(3, 2, 3, 3, 3)]
    for kind in ("max", "avg"):
        pool = getattr(functional, f"{kind}_pool2d")
        yield f"{kind}_pool2d", lambda x, f=pool: f(x, 3, 2, 1), [image]
        yield f"{kind}_pool2d ceil", lambda x, f=pool: f(x, 3, 2, 0, ceil_mode=True), [image]
        yield f"{kind}_pool2d last", lambda x, f=pool: f(x, 2, 2, data_format="NHWC"), [image]
        function = getattr(functional, f"{kind}_pool1d")
        yield f"{kind}_pool1d", lambda x, f=function: f(x, 3, 2), [numbers(2, 4, 9)]
        function = getattr(functional, f"{kind}_pool3d")
        yield f"{kind}_pool3d", lambda x, f=function: f(x, 2, 2), [numbers(1, 2, 4, 6, 6)]
        adaptive = getattr(functional, f"adaptive_{kind}_pool2d")
        for size in (1, 3, [2, 5]):
            yield f"adaptive_{kind}_pool2d {size}", lambda x, f=adaptive, s=size: f(x, s), [image]
    yield "avg_pool2d inclusive", lambda x: functional.avg_pool2d(x, 3, 2, 1, exclusive=False), [image]
    yield (
        "avg_pool2d inclusive ceil",
        lambda x: functional.avg_pool2d(x, 3, 2, 1, exclusive=False, ceil_mode=True),
        [image],
    )
    yield "max_pool2d mask", lambda x: functional.max_pool2d(x, 2, 2, return_mask=True), [image]
    yield "adaptive_max mask", lambda x: functional.adaptive_max_pool2d(x, 3, return_mask=True), [image]
    yield (
        "unpool",
        lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, 2, return_mask=True), 2, 2),
        [numbers(1, 2, 6, 8)],
    )


def _resampling(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    interpolate = paddle.nn.functional.interpolate
    image = numbers(1, 2, 5, 6)
    for mode in ("nearest", "bilinear", "bicubic"):
        for size in ([8, 9], [3, 4]):
            for corners, align in ((False, 0), (False, 1), (True, 0)):
                if mode == "nearest" and corners:
                    continue
                options = {"mode": mode, "align_corners": corners, "align_mode": align, "size": size}
                yield f"{mode} {size} {corners} {align}", lambda x, o=options: interpolate(x, **o), [image]
        yield f"{mode} scale", lambda x, m=mode: interpolate(x, scale_factor=2.0, mode=m), [image]
    yield "linear", lambda x: interpolate(x, size=[7], mode="linear", data_format="NCW"), [numbers(1, 2, 5)]
    yield (
        "trilinear",
        lambda x: interpolate(x, size=[4, 5, 6], mode="trilinear", data_format="NCDHW"),
        [numbers(1, 2, 3, 4, 5)],
    )
    yield (
        "interpolate last",
        lambda x: interpolate(x, size=[7, 8], mode="bilinear", data_format="NHWC"),
        [numbers(1, 5, 6, 2)],
    )
    yield (
        "interpolate by shape",
        lambda x, y: interpolate(x, size=paddle.shape(y)[2:], mode="bilinear"),
        [image, numbers(1, 2, 9, 7)],
    )
    sample = paddle.nn.functional.grid_sample
    for mode in ("bilinear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            yield (
                f"grid_sample {mode} {padding}",
                lambda x, g, m=mode, p=padding: sample(x, g, m, p),
                [image, numbers(1, 4, 3, 2, low=-1.2, high=1.2)],
            )
    yield "affine_grid", lambda t: paddle.nn.functional.affine_grid(t, [1, 2, 4, 5]), [numbers(1, 2, 3)]


def _normalizations(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    image = numbers(2, 4, 5, 6)
    yield "batch_norm", paddle.nn.BatchNorm2D(4), [image]
    yield "batch_norm last", paddle.nn.BatchNorm2D(4, data_format="NHWC"), [numbers(2, 5, 6, 4)]
    yield "layer_norm", paddle.nn.LayerNorm([5, 6]), [image]
    yield "layer_norm last", paddle.nn.LayerNorm(6), [image]
    yield "instance_norm", paddle.nn.InstanceNorm2D(4), [image]
    yield "group_norm", paddle.nn.GroupNorm(2, 4), [image]
    yield "local response", lambda x: paddle.nn.functional.local_response_norm(x, 3), [image]
    yield "label_smooth", paddle.nn.functional.label_smooth, [numbers(3, 5)]
    yield "prelu channels", paddle.nn.PReLU(4), [image]


def _recurrent(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    data = numbers(2, 5, 3)
    for kind in ("LSTM", "GRU", "SimpleRNN"):
        for options in ({}, {"num_layers": 2}, {"direction": "bidirect"}, {"num_layers": 2, "direction": "bidirect"}):
            yield f"{kind} {options}", getattr(paddle.nn, kind)(3, 4, **options), [data]
        yield f"{kind} lengths", _with_lengths(paddle, kind), [data, np.int64([5, 3])]
    yield "RNN relu", paddle.nn.SimpleRNN(3, 4, activation="relu"), [data]
    for kind in ("LSTMCell", "GRUCell", "SimpleRNNCell"):
        yield kind, getattr(paddle.nn, kind)(3, 4), [numbers(2, 3)]


def _with_lengths(paddle: Any, kind: str) -> Any:
    class WithLengths(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(paddle.nn, kind)(3, 4, direction="bidirect")

        def forward(self, x: Any, lengths: Any) -> Any:
            return self.layer(x, sequence_length=lengths)

    return WithLengths()


def _detection(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    ops = paddle.vision.ops
    for options in ({}, {"clip_bbox": False}, {"scale_x_y": 1.2}):
        yield (
            f"yolo_box {options}",
            lambda x, s, o=options: ops.yolo_box(x, s, [10, 13, 16, 30], 3, 0.3, 8, **o),
            [numbers(2, 16, 4, 5), np.int32([[40, 50], [64, 64]])],
        )
    yield (
        "yolo_box aware",
        lambda x, s: ops.yolo_box(x, s, [10, 13, 16, 30], 3, 0.3, 8, iou_aware=True),
        [numbers(2, 18, 4, 5), np.int32([[40, 50], [64, 64]])],
    )
    yield (
        "prior_box",
        lambda x, i: ops.prior_box(x, i, [8.0, 16.0], [16.0, 32.0], [2.0], flip=True, clip=True),
        [numbers(1, 2, 3, 4), numbers(1, 3, 30, 40)],
    )
    yield (
        "prior_box ordered",
        lambda x, i: ops.prior_box(x, i, [8.0], [16.0], [2.0], min_max_aspect_ratios_order=True),
        [numbers(1, 2, 3, 4), numbers(1, 3, 30, 40)],
    )
    boxes = np.float32([[1, 1, 5, 6], [0, 2, 7, 7], [2, 0, 8, 4]])
    yield (
        "box_coder",
        lambda p, t: ops.box_coder(p, [0.1, 0.1, 0.2, 0.2], t, "decode_center_size", axis=0),
        [boxes, numbers(2, 3, 4)],
    )
    yield (
        "box_coder pixels",
        lambda p, t: ops.box_coder(p, [0.1, 0.1, 0.2, 0.2], t, "decode_center_size", box_normalized=False),
        [boxes, numbers(2, 3, 4)],
    )
    for aligned in (True, False):
        yield (
            f"roi_align {aligned}",
            lambda x, b, n, a=aligned: ops.roi_align(x, b, n, 2, sampling_ratio=2, aligned=a),
            [numbers(2, 3, 8, 8), boxes, np.int32([2, 1])],
        )
    yield (
        "deform_conv2d",
        lambda x, o, w: ops.deform_conv2d(x, o, w, padding=1),
        [numbers(1, 2, 5, 5), numbers(1, 18, 5, 5), numbers(3, 2, 3, 3)],
    )
    yield (
        "deform_conv2d mask",
        lambda x, o, w, m: ops.deform_conv2d(x, o, w, padding=1, mask=m),
        [numbers(1, 2, 5, 5), numbers(1, 18, 5, 5), numbers(3, 2, 3, 3), numbers(1, 9, 5, 5)],
    )
    yield (
        "nms",
        lambda b, s: _multiclass(paddle, b, s),
        [_boxes(2, 20), np.random.default_rng(3).random((2, 3, 20)).astype(np.float32)],
    )
    for gaussian in (False, True):
        scores = np.random.default_rng(3).random((2, 3, 20)).astype(np.float32)
        yield f"matrix_nms {gaussian}", _matrix(paddle, gaussian), [_boxes(2, 20), scores]


def _matrix(paddle: Any, gaussian: bool) -> Function:
    def suppress(boxes: Any, scores: Any) -> Any:
        options = {"use_gaussian": gaussian, "return_index": True, "background_label": 0}
        return paddle.vision.ops.matrix_nms(boxes, scores, 0.1, 0.2, 15, 8, **options)

    return suppress


def _boxes(images: int, count: int) -> Any:
    random = np.random.default_rng(5)
    corners = random.random((images, count, 2)) * 10
    return np.concatenate([corners, corners + 1 + random.random((images, count, 2)) * 5], -1).astype(np.float32)


def _multiclass(paddle: Any, boxes: Any, scores: Any) -> Any:
    from paddle import _C_ops

    if paddle.framework.in_pir_mode():
        return _C_ops.multiclass_nms3(boxes, scores, None, 0.1, 15, 8, 0.4, True, 1.0, 0)
    helper = paddle.base.layer_helper.LayerHelper("multiclass_nms3")
    kinds = (boxes.dtype, "int32", "int32")
    results = [helper.create_variable_for_type_inference(dtype=kind) for kind in kinds]
    options = {
        "score_threshold": 0.1,
        "nms_top_k": 15,
        "keep_top_k": 8,
        "nms_threshold": 0.4,
        "normalized": True,
        "nms_eta": 1.0,
        "background_label": 0,
    }
    names = ("Out", "Index", "NmsRoisNum")
    helper.append_op(
        type="multiclass_nms3",
        inputs={"BBoxes": boxes, "Scores": scores},
        attrs=options,
        outputs=dict(zip(names, results, strict=True)),
    )
    return results


def _control(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    def loop(x: Any, n: Any) -> Any:
        def body(i: Any, value: Any) -> list[Any]:
            return [i + 1, value * 2 + paddle.cast(i, "float32")]

        return paddle.static.nn.while_loop(lambda i, value: i < n, body, [paddle.zeros([1], "int64"), x])

    def branch(x: Any) -> Any:
        return paddle.static.nn.cond(paddle.sum(x) > 0, lambda: (x - 1, x * x), lambda: (x + 1, x * 3))

    for function, inputs in ((loop, [numbers(2, 3), np.int64([3])]), (branch, [numbers(2, 3)])):
        yield function.__name__, function, inputs


def _models(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    layer = paddle.nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0)
    yield "transformer encoder", paddle.nn.TransformerEncoder(layer, 2), [numbers(2, 6, 16)]
    yield "attention", paddle.nn.MultiHeadAttention(16, 4), [numbers(2, 6, 16)]
    yield (
        "decoder layer",
        paddle.nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0),
        [numbers(2, 6, 16), numbers(2, 5, 16)],
    )
    models = paddle.vision.models
    for name in "resnet18 mobilenet_v1 mobilenet_v2 mobilenet_v3_small shufflenet_v2_x0_5 squeezenet1_1".split():
        yield name, getattr(models, name)(pretrained=False, num_classes=10), [numbers(1, 3, 64, 64)]
    yield "LeNet", models.LeNet(), [numbers(1, 1, 28, 28)]
    yield "embedding network", _classifier(paddle), [whole(2, 7)]


def _classifier(paddle: Any) -> Any:
    class Classifier(paddle.nn.Layer):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table, self.recurrent = paddle.nn.Embedding(5, 8), paddle.nn.LSTM(8, 6, direction="bidirect")
            self.dense = paddle.nn.Linear(12, 3)

        def forward(self, ids: Any) -> Any:
            states, _ = self.recurrent(self.table(ids))
            return paddle.nn.functional.softmax(self.dense(states.mean(axis=1)))

    return Classifier()


def layers(paddle: Any) -> Iterator[tuple[str, Function, list[Any]]]:
    """Name, function or layer, and inputs of each case."""
    for family in (_windows, _resampling, _normalizations, _recurrent, _detection, _control, _models):
        yield from family(paddle)
