"""Models made with OpenVINO's own operator sets for `bench.frontends`: what no ONNX operator becomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

_RANDOM = np.random.default_rng(0)


def numbers(*shape: int, low: float = -2.0, high: float = 2.0) -> Any:
    """Random float32."""
    return _RANDOM.uniform(low, high, shape).astype(np.float32)


def _case(name: str, build: Callable[..., Any], *arrays: Any) -> tuple[str, Callable[[], Any], dict[str, Any]]:
    """A function of parameters as a model: its results are all outputs of what it gives."""
    import openvino
    from openvino import opset13 as ops

    inputs = {f"x{at}": array for at, array in enumerate(arrays)}

    def model() -> Any:
        parameters = []
        for key, array in inputs.items():
            parameter = ops.parameter(list(array.shape), array.dtype, name=key)
            parameter.output(0).get_tensor().set_names({key})
            parameters.append(parameter)
        result = build(*parameters)
        outputs = [output for item in (result if isinstance(result, list) else [result]) for output in item.outputs()]
        return openvino.Model([ops.result(output) for output in outputs], parameters, "model")

    return name, model, inputs


def _plain() -> Iterator[Any]:
    from openvino import opset1, opset4, opset8, opset9, opset13
    from openvino import opset13 as ops

    x = numbers(2, 3, 4)
    for name in "hswish hsigmoid mish softsign softplus swish".split():
        builder = {
            "hswish": opset4.hswish,
            "hsigmoid": opset13.hsigmoid,
            "mish": opset4.mish,
            "softsign": opset9.softsign,
            "softplus": opset4.softplus,
            "swish": opset4.swish,
        }[name]
        yield _case(name, builder, x)
    yield _case("round away", lambda a: ops.round(a, "half_away_from_zero"), x * 2)
    yield _case("squared_difference", opset1.squared_difference, x, numbers(3, 4))
    yield _case("floor_mod", opset1.floor_mod, x, numbers(3, 4, low=0.5))
    yield _case("mod", opset1.mod, x, numbers(3, 4, low=0.5))
    yield _case("divide ints", lambda a, b: opset1.divide(a, b), np.int32([[7, -7]]), np.int32([[2], [-3]]))
    yield _case("clamp", lambda a: opset1.clamp(a, -0.5, 1.0), x)
    yield _case("normalize_l2 add", lambda a: opset1.normalize_l2(a, np.int64([1]), 1e-3, "add"), x)
    yield _case("normalize_l2 max", lambda a: opset1.normalize_l2(a, np.int64([1, 2]), 1e-3, "max"), x)
    yield _case("mvn", lambda a: ops.mvn(a, np.int64([1, 2]), True, 1e-3, "outside_sqrt"), x)
    yield _case("mvn inside", lambda a: ops.mvn(a, np.int64([2]), True, 1e-3, "inside_sqrt"), x)
    yield _case(
        "fake_quantize",
        lambda a: opset1.fake_quantize(a, np.float32(-1), np.float32(1), np.float32(0), np.float32(2), 16),
        x,
    )
    yield _case(
        "fake_quantize channels",
        lambda a: opset1.fake_quantize(
            a, np.float32([[[-1], [-2], [0]]]), np.float32([[[1], [2], [1]]]), np.float32(-1), np.float32(2), 256
        ),
        x,
    )
    yield _case("reduce_l1", lambda a: opset4.reduce_l1(a, np.int64([1]), True), x)
    yield _case("shuffle_channels", lambda a: ops.shuffle_channels(a, 1, 2), numbers(1, 4, 3, 3))
    yield _case("depth_to_space", lambda a: ops.depth_to_space(a, "depth_first", 2), numbers(1, 8, 2, 3))
    yield _case("depth_to_space 3d", lambda a: ops.depth_to_space(a, "blocks_first", 2), numbers(1, 8, 2, 3, 2))
    yield _case("space_to_depth", lambda a: ops.space_to_depth(a, "blocks_first", 2), numbers(1, 2, 4, 6))
    yield _case("space_to_depth depth", lambda a: ops.space_to_depth(a, "depth_first", 2), numbers(1, 2, 4, 6))
    yield _case(
        "batch_to_space",
        lambda a: ops.batch_to_space(a, np.int64([1, 1, 2, 2]), np.int64([0, 0, 1, 0]), np.int64([0, 0, 0, 1])),
        numbers(8, 2, 2, 3),
    )
    yield _case(
        "space_to_batch",
        lambda a: ops.space_to_batch(a, np.int64([1, 1, 2, 2]), np.int64([0, 0, 1, 0]), np.int64([0, 0, 1, 0])),
        numbers(2, 2, 4, 6),
    )
    yield _case("roll", lambda a: ops.roll(a, np.int64([1, -2]), np.int64([1, 2])), x)
    yield _case("pad symmetric", lambda a: ops.pad(a, np.int64([0, 1, 2]), np.int64([0, 2, 1]), "symmetric"), x)
    yield _case(
        "broadcast explicit",
        lambda a: ops.broadcast(a, np.int64([3, 2, 4]), np.int64([1, 2]), "explicit"),
        numbers(2, 4),
    )
    yield _case(
        "broadcast both", lambda a: ops.broadcast(a, np.int64([2, 1, 1]), broadcast_spec="BIDIRECTIONAL"), numbers(3, 4)
    )
    yield _case(
        "strided_slice",
        lambda a: ops.strided_slice(
            a,
            np.int64([1, 0]),
            np.int64([2, -1]),
            np.int64([1, 1]),
            [0, 0],
            [0, 1],
            [0, 0],
            [1, 0],
            [0, 0],
        ),
        x,
    )
    yield _case(
        "strided_slice new axis",
        lambda a: ops.strided_slice(
            a, np.int64([0, 1]), np.int64([1, 2]), np.int64([1, 1]), [0, 0], [0, 0], [1, 0], [0, 0], [0, 0]
        ),
        x,
    )
    yield _case(
        "strided_slice ellipsis",
        lambda a: ops.strided_slice(
            a, np.int64([0, 3]), np.int64([0, 0]), np.int64([1, -1]), [1, 1], [1, 1], [0, 0], [0, 0], [1, 0]
        ),
        x,
    )
    yield _case("variadic_split", lambda a: ops.variadic_split(a, np.int64(2), np.int64([1, -1])), x)
    yield _case(
        "gather batch", lambda a, i: opset8.gather(a, i, np.int64(1), batch_dims=1), x, np.int64([[0, 2], [1, -1]])
    )
    yield _case(
        "scatter_update", lambda a, u: ops.scatter_update(a, np.int64([2, 0]), u, np.int64(1)), x, numbers(2, 2, 4)
    )
    yield _case("scatter_nd_update", lambda a, u: ops.scatter_nd_update(a, np.int64([[1, 0]]), u), x, numbers(1, 4))
    yield _case("topk index", lambda a: ops.topk(a, np.int64(3), 2, "max", "index"), x)
    yield _case("bucketize", lambda a: ops.bucketize(a, np.float32([-1, 0, 1])), x)
    yield _case("one_hot", lambda a: ops.one_hot(a, np.int64(4), np.float32(2), np.float32(-1), 1), np.int64([0, 3, 1]))
    yield _case("eye", lambda a: ops.add(a, ops.eye(np.int64(3), np.int64(4), np.int64(1), "f32")), x)
    yield _case("select", lambda c, a, b: ops.select(c, a, b), x > 0, x, numbers(3, 4))
    for form in ("erf", "tanh"):
        yield _case(f"gelu {form}", lambda a, f=form: ops.gelu(a, f), x)
    attention = ops.scaled_dot_product_attention
    yield _case(
        "attention",
        lambda q, k, v: attention(q, k, v, causal=True),
        numbers(1, 2, 4, 8),
        numbers(1, 2, 4, 8),
        numbers(1, 2, 4, 8),
    )
    yield _case(
        "group_normalization",
        lambda a: ops.group_normalization(a, np.float32([1, 2, 3, 4]), np.float32([0, 1, 0, 1]), 2, 1e-3),
        numbers(2, 4, 5),
    )


def _embeddings() -> Iterator[Any]:
    from openvino import opset3

    table, fixed = numbers(5, 3), opset3.constant
    indices, pairs = fixed(np.int64([0, 2, 4, 1])), fixed(np.int64([[0, 2], [4, 1]]))
    yield _case("embedding_bag_packed", lambda t: opset3.embedding_bag_packed_sum(t, pairs), table)
    yield _case(
        "embedding_bag_packed weights",
        lambda t, w: opset3.embedding_bag_packed_sum(t, pairs, w),
        table,
        numbers(2, 2),
    )
    yield _case(
        "embedding_bag_offsets",
        lambda t: opset3.embedding_bag_offsets_sum(t, indices, fixed(np.int64([0, 2, 2])), fixed(np.int64(0))),
        table,
    )
    yield _case(
        "embedding_segments",
        lambda t: opset3.embedding_segments_sum(
            t, indices, fixed(np.int64([0, 0, 2, 2])), fixed(np.int64(3)), fixed(np.int64(1))
        ),
        table,
    )


def _windows() -> Iterator[Any]:
    from openvino import opset1, opset8
    from openvino import opset13 as ops

    image = numbers(1, 4, 7, 8)
    for auto in ("explicit", "same_upper", "same_lower", "valid"):
        yield _case(
            f"convolution {auto}",
            lambda a, w, p=auto: opset1.convolution(a, w, [2, 2], [1, 0], [0, 1], [1, 1], p),
            image,
            numbers(3, 4, 3, 3),
        )
    yield _case(
        "group_convolution",
        lambda a, w: opset1.group_convolution(a, w, [1, 1], [1, 1], [1, 1], [1, 1]),
        image,
        numbers(2, 3, 2, 3, 3),
    )
    yield _case(
        "backprop",
        lambda a, w: opset1.convolution_backprop_data(
            a, w, strides=[2, 2], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1], output_padding=[1, 0]
        ),
        image,
        numbers(4, 3, 3, 3),
    )
    yield _case(
        "backprop size",
        lambda a, w: opset1.convolution_backprop_data(
            a, w, output_shape=np.int64([14, 15]), strides=[2, 2], auto_pad="same_upper"
        ),
        image,
        numbers(4, 3, 3, 3),
    )
    yield _case(
        "group backprop",
        lambda a, w: opset1.group_convolution_backprop_data(
            a, w, strides=[2, 2], pads_begin=[0, 0], pads_end=[0, 0], dilations=[1, 1]
        ),
        image,
        numbers(2, 2, 3, 3, 3),
    )
    yield _case(
        "deformable",
        lambda a, o, w: opset8.deformable_convolution(a, o, w, [1, 1], [1, 1], [1, 1], [1, 1]),
        image,
        numbers(1, 18, 7, 8),
        numbers(3, 4, 3, 3),
    )
    for rounding in ("floor", "ceil"):
        yield _case(
            f"max_pool {rounding}", lambda a, r=rounding: opset1.max_pool(a, [2, 2], [0, 0], [0, 0], [3, 3], r), image
        )
        for exclude in (True, False):
            yield _case(
                f"avg_pool {rounding} {exclude}",
                lambda a, r=rounding, e=exclude: opset1.avg_pool(a, [2, 2], [1, 1], [1, 1], [3, 3], e, r),
                image,
            )
    yield _case("max_pool places", lambda a: opset8.max_pool(a, [2, 2], [1, 1], [0, 0], [0, 0], [2, 2], axis=2), image)
    yield _case("adaptive_avg_pool", lambda a: opset8.adaptive_avg_pool(a, np.int64([3, 5])), image)
    yield _case("adaptive_max_pool", lambda a: opset8.adaptive_max_pool(a, np.int64([3, 5]), "i32"), image)
    for mode in ("nearest", "linear_onnx", "cubic", "linear"):
        for places in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "tf_half_pixel_for_nn"):
            yield _case(
                f"interpolate {mode} {places}",
                lambda a, m=mode, p=places: ops.interpolate(
                    a, np.int64([5, 13]), m, "sizes", coordinate_transformation_mode=p, axes=np.int64([2, 3])
                ),
                image,
            )
    for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil", "simple"):
        yield _case(
            f"interpolate {nearest}",
            lambda a, n=nearest: ops.interpolate(
                a, np.float32([1.7, 2.0]), "nearest", "scales", nearest_mode=n, axes=np.int64([2, 3])
            ),
            image,
        )
    for mode in ("bilinear_pillow", "bicubic_pillow"):
        yield _case(
            f"interpolate {mode}",
            lambda a, m=mode: ops.interpolate(a, np.int64([5, 13]), m, "sizes", axes=np.int64([2, 3])),
            image,
        )


def _recurrent() -> Iterator[Any]:
    from openvino import opset5

    batch, steps, features, size = 2, 5, 3, 4
    data, lengths = numbers(batch, steps, features), np.int32([5, 3])
    for direction in ("forward", "reverse", "bidirectional"):
        sides = 2 if direction == "bidirectional" else 1
        state = [numbers(batch, sides, size) for _ in range(2)]
        weights = [numbers(sides, 4 * size, width) for width in (features, size)] + [numbers(sides, 4 * size)]
        yield _case(
            f"lstm_sequence {direction}",
            lambda x, h, c, n=lengths, w=weights, d=direction: opset5.lstm_sequence(x, h, c, n, *w, size, d),
            data,
            *state,
        )
        gates = [numbers(sides, 3 * size, width) for width in (features, size)] + [numbers(sides, 3 * size)]
        yield _case(
            f"gru_sequence {direction}",
            lambda x, h, n=lengths, w=gates, d=direction: opset5.gru_sequence(x, h, n, *w, size, d),
            data,
            state[0],
        )
        after = [*gates[:2], numbers(sides, 4 * size)]
        yield _case(
            f"gru_sequence after {direction}",
            lambda x, h, n=lengths, w=after, d=direction: opset5.gru_sequence(
                x, h, n, *w, size, d, linear_before_reset=True
            ),
            data,
            state[0],
        )
        one = [numbers(sides, size, width) for width in (features, size)] + [numbers(sides, size)]
        yield _case(
            f"rnn_sequence {direction}",
            lambda x, h, n=lengths, w=one, d=direction: opset5.rnn_sequence(x, h, n, *w, size, d),
            data,
            state[0],
        )
    cell = [numbers(4 * size, features), numbers(4 * size, size), numbers(4 * size)]
    from openvino import opset4

    yield _case(
        "lstm_cell",
        lambda x, h, c: opset4.lstm_cell(x, h, c, *cell, size),
        numbers(2, features),
        numbers(2, size),
        numbers(2, size),
    )
    gates = [numbers(3 * size, features), numbers(3 * size, size), numbers(3 * size)]
    yield _case("gru_cell", lambda x, h: opset4.gru_cell(x, h, *gates, size), numbers(2, features), numbers(2, size))


def _detection() -> Iterator[Any]:
    from openvino import opset1, opset5, opset9
    from openvino import opset13 as ops

    random = np.random.default_rng(4)
    corners = random.random((2, 12, 2)) * 4
    boxes = np.concatenate([corners, corners + 1 + random.random((2, 12, 2)) * 3], -1).astype(np.float32)
    scores = random.random((2, 3, 12)).astype(np.float32)
    for ordered in (True, False):
        yield _case(
            f"non_max_suppression {ordered}",
            lambda a, s, o=ordered: opset9.non_max_suppression(
                a, s, np.int64(4), np.float32(0.4), np.float32(0.1), sort_result_descending=o
            ),
            boxes,
            scores,
        )
    yield _case(
        "non_max_suppression 5",
        lambda a, s: opset5.non_max_suppression(a, s, np.int64(4), np.float32(0.4), np.float32(0.1)),
        boxes,
        scores,
    )
    for mode in ("asymmetric", "half_pixel", "half_pixel_for_nn"):
        yield _case(
            f"roi_align {mode}",
            lambda a, r, m=mode: opset9.roi_align(a, r, np.int32([0, 0]), 2, 2, 2, 0.5, "avg", m),
            numbers(1, 3, 8, 8),
            np.float32([[1, 1, 9, 12], [0, 2, 7, 7]]),
        )
    options = {
        "min_size": [8.0, 16.0],
        "max_size": [16.0, 30.0],
        "aspect_ratio": [2.0],
        "flip": True,
        "clip": True,
        "step": 0.0,
        "offset": 0.5,
        "variance": [0.1, 0.1, 0.2, 0.2],
    }
    priors = lambda: opset1.prior_box(ops.constant(np.int64([3, 4])), ops.constant(np.int64([30, 40])), options)  # noqa: E731
    yield _case("prior_box", lambda a: ops.multiply(a, priors()), np.float32([1]))
    yield _case(
        "region_yolo",
        lambda a: opset1.region_yolo(a, 4, 3, 2, False, [0, 1], 1, 3, [1.0, 2.0, 3.0, 4.0]),
        numbers(1, 16, 3, 4),
    )
    yield _case(
        "region_yolo softmax",
        lambda a: opset1.region_yolo(a, 4, 3, 2, True, [0, 1], 1, 3, [1.0, 2.0, 3.0, 4.0]),
        numbers(1, 16, 3, 4),
    )
    yield _case("reorg_yolo", lambda a: ops.reorg_yolo(a, [2]), numbers(1, 8, 4, 6))
    anchors = np.concatenate([boxes[:1] / 8, np.full((1, 12, 4), 0.1, np.float32)]).reshape(1, 2, 48).astype(np.float32)
    attributes = {
        "num_classes": 3,
        "background_label_id": 0,
        "top_k": 10,
        "keep_top_k": [6],
        "code_type": "caffe.PriorBoxParameter.CENTER_SIZE",
        "share_location": True,
        "nms_threshold": 0.4,
        "confidence_threshold": 0.2,
        "normalized": True,
    }
    yield _case(
        "detection_output",
        lambda b, s: opset1.detection_output(b, s, ops.constant(anchors), attributes),
        numbers(2, 48),
        random.random((2, 36)).astype(np.float32),
    )


def _suppression() -> Iterator[Any]:
    from openvino import opset9

    random = np.random.default_rng(5)
    corners = random.random((2, 12, 2)) * 4
    boxes = np.concatenate([corners, corners + 1 + random.random((2, 12, 2)) * 3], -1).astype(np.float32)
    scores = random.random((2, 3, 12)).astype(np.float32)
    for order, kept, pixels in (("classid", -1, False), ("score", 5, True), ("score", -1, False)):
        options = {
            "sort_result_type": order, "iou_threshold": 0.3, "score_threshold": 0.1, "nms_top_k": 8,
            "keep_top_k": kept, "background_class": 1, "normalized": not pixels, "output_type": "i64",
        }  # fmt: skip
        yield _case(
            f"multiclass_nms {order} {kept}",
            lambda a, s, o=options: opset9.multiclass_nms(a, s, None, **o),
            boxes,
            scores,
        )


def _signals() -> Iterator[Any]:
    from openvino import opset9, opset15, opset16

    pairs = numbers(2, 5, 4, 2)
    # Its plugin reads what nothing wrote where it should fill up with zeros: sizes are no larger than the data.
    for name, axes, sizes in (("", [1], None), (" size", [1, 2], [4, 5]), (" odd", [-1, 0], [3, 2])):
        lengths = None if sizes is None else np.int64(sizes)
        yield _case(f"irdft{name}", lambda a, x=axes, s=lengths: opset9.irdft(a, np.int64(x), s), pairs)
    yield _case("rdft axes", lambda a: opset9.rdft(a, np.int64([0, 2]), np.int64([2, 3])), numbers(3, 2, 4))
    window = numbers(12, low=0.5)
    for shape, turned in (((40,), False), ((2, 41), True)):
        yield _case(
            f"stft {len(shape)}",
            lambda a, t=turned: opset15.stft(a, window, np.int64(16), np.int64(6), t),
            numbers(*shape),
        )
    for center, normalized, length in ((False, False, None), (True, True, None), (True, False, 30), (False, True, 60)):
        wanted = None if length is None else np.int64(length)
        yield _case(
            f"istft {center} {normalized} {length}",
            lambda a, c=center, n=normalized, w=wanted: opset16.istft(a, window, np.int64(16), np.int64(4), c, n, w),
            numbers(2, 9, 7, 2),
        )
    yield _case(
        "istft one", lambda a: opset16.istft(a, window, np.int64(12), np.int64(5), True, False), numbers(7, 6, 2)
    )


def _images() -> Iterator[Any]:
    from openvino import opset1, opset2, opset3, opset8, opset14

    yield _case("grn", lambda a: opset1.grn(a, 0.1), numbers(2, 3, 4, 5))
    for adjoint in (False, True):
        yield _case(f"inverse {adjoint}", lambda a, j=adjoint: opset14.inverse(a, j), numbers(2, 4, 4))
    for pad in ("valid", "same_upper", "same_lower"):
        yield _case(
            f"extract_image_patches {pad}",
            lambda a, p=pad: opset3.extract_image_patches(a, [3, 2], [2, 3], [1, 2], p),
            numbers(2, 3, 9, 10),
        )
    for name in ("nv12_to_rgb", "nv12_to_bgr", "i420_to_rgb", "i420_to_bgr"):
        convert = getattr(opset8, name)
        whole = numbers(2, 6, 6, 1, low=0, high=255)
        yield _case(name, convert, whole)
        yield _case(f"{name} bytes", convert, whole.astype(np.uint8))
        shapes = [(2, 4, 6, 1), (2, 2, 3, 2)] if name[0] == "n" else [(2, 4, 6, 1), (2, 2, 3, 1), (2, 2, 3, 1)]
        yield _case(f"{name} planes", convert, *(numbers(*shape, low=0, high=255) for shape in shapes))
    regions = np.float32([[0, 1, 2, 6, 7], [1, 0, 0, 7, 3], [0, 3, 3, 3, 3]])
    yield _case(
        "roi_pooling max", lambda a, r: opset2.roi_pooling(a, r, [2, 3], 0.7, "max"), numbers(2, 3, 8, 9), regions
    )
    for rows in (1, 3):
        yield _case(
            f"roi_pooling bilinear {rows}",
            lambda a, r, n=rows: opset2.roi_pooling(a, r, [n, 2], 1.0, "bilinear"),
            numbers(2, 3, 8, 9),
            regions / np.float32([1, 8, 8, 8, 8]),
        )


def _decoders() -> Iterator[Any]:
    from openvino import opset1, opset6, opset16

    lengths = np.array([9, 5], np.int32)
    scores = numbers(2, 9, 3)
    for merge in (False, True):
        yield _case(
            f"ctc_greedy_decoder_seq_len {merge}",
            lambda a, n, m=merge: opset6.ctc_greedy_decoder_seq_len(a, n, None, m),
            scores,
            lengths,
        )
        mask = (np.arange(9)[:, None] < lengths).astype(np.float32)
        yield _case(
            f"ctc_greedy_decoder {merge}",
            lambda a, n, m=merge: opset1.ctc_greedy_decoder(a, n, m),
            scores.transpose(1, 0, 2).copy(),
            mask,
        )
    yield _case(
        "ctc_greedy_decoder_seq_len blank",
        lambda a, n: opset6.ctc_greedy_decoder_seq_len(a, n, np.int32(0), True, "i64", "i64"),
        scores,
        lengths,
    )
    for fill in ("ZERO", "LOWEST"):
        yield _case(
            f"segment_max {fill}",
            lambda a, f=fill: opset16.segment_max(a, np.int64([0, 0, 2, 3]), np.int64(5), f),
            numbers(4, 3),
        )
    yield _case("segment_max", lambda a: opset16.segment_max(a, np.int64([0, 0, 2, 3]), None, "ZERO"), numbers(4, 3))


def own_cases() -> Iterator[tuple[str, Callable[[], Any], dict[str, Any]]]:
    """Name, what makes the model, and inputs of each case."""
    for family in (
        _plain,
        _embeddings,
        _windows,
        _recurrent,
        _detection,
        _signals,
        _images,
        _decoders,
        _suppression,
    ):
        yield from family()
