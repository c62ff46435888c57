"""Writes the OpenVINO models that the tests read: `python -m bench.openvino_fixtures` (needs openvino).

Each model is small, with what OpenVINO's CPU plugin gives in float32 for inputs that are kept beside it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.openvino_cases import numbers, own_cases
from tilewright.cli import own_runtimes

_FOLDER = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "openvino"
_OWN = (
    "lstm_sequence bidirectional", "gru_sequence after forward", "non_max_suppression True", "detection_output",
    "fake_quantize channels", "interpolate linear_onnx half_pixel", "strided_slice", "gather batch", "topk index",
    "embedding_segments", "deformable", "region_yolo", "irdft size", "stft 2", "istft True False 30", "istft one",
    "inverse True", "extract_image_patches same_upper", "nv12_to_rgb bytes", "i420_to_bgr planes", "roi_pooling max",
    "roi_pooling bilinear 3", "grn", "ctc_greedy_decoder True", "ctc_greedy_decoder_seq_len blank", "segment_max ZERO",
    "segment_max", "multiclass_nms score 5",
)  # fmt: skip


def _network() -> Any:
    import openvino
    from openvino import opset13 as ops

    image = ops.parameter([-1, 3, 12, 12], np.float32, name="image")
    image.output(0).get_tensor().set_names({"image"})
    x = ops.convolution(image, ops.constant(numbers(8, 3, 3, 3)), [2, 2], [1, 1], [1, 1], [1, 1])
    x = ops.hswish(ops.add(x, ops.constant(numbers(1, 8, 1, 1))))
    weight = ops.constant(numbers(8, 1, 1, 3, 3).astype(np.float16))
    deep = ops.group_convolution(x, ops.convert(weight, "f32"), [1, 1], [1, 1], [1, 1], [1, 1])
    x = ops.multiply(ops.sigmoid(deep), x)
    mean = ops.reduce_mean(x, ops.constant(np.int64([2, 3])), False)
    codes = ops.constant(np.arange(32).reshape(4, 8) % 16, openvino.Type.u4)
    packed = ops.subtract(ops.convert(codes, "f32"), ops.constant(np.float32(8)))
    weight = ops.multiply(packed, ops.constant(numbers(4, 1)))
    scores = ops.softmax(ops.matmul(mean, weight, False, True), 1)
    scores.output(0).get_tensor().set_names({"scores"})
    return openvino.Model([ops.result(scores)], [image], "network")


def _loops() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    import openvino
    from openvino import opset13 as ops

    data = ops.parameter([5, 2], np.float32, name="data")
    row, total = ops.parameter([1, 2], np.float32, name="row"), ops.parameter([1, 2], np.float32, name="total")
    sum_of = ops.add(row, total)
    body = openvino.Model(
        [ops.result(sum_of), ops.result(ops.multiply(sum_of, ops.constant(np.float32(2))))], [row, total]
    )
    iterator = ops.tensor_iterator()
    iterator.set_body(body)
    iterator.set_sliced_input(row, data.output(0), 0, 1, 1, -1, 0)
    iterator.set_merged_input(total, ops.constant(np.zeros((1, 2), np.float32)).output(0), sum_of.output(0))
    last = iterator.get_iter_value(body.results[0].output(0), -1)
    every = iterator.get_concatenated_slices(body.results[1].output(0), 0, 1, 1, -1, 0)
    model = openvino.Model([ops.result(last), ops.result(every)], [data], "iterator")
    yield "iterator", model, {"data": numbers(5, 2)}
    for name, turns in (("loop", ops.constant(np.int64(-1))), ("loop_counted", None)):
        yield name, *_loop(turns)
    condition, x = ops.parameter([], np.bool_, name="condition"), ops.parameter([2, 3], np.float32, name="x")
    branch = ops.if_op(condition.output(0))
    inner = [ops.parameter([2, 3], np.float32) for _ in range(2)]
    bodies = [
        openvino.Model([ops.result(ops.negative(inner[0]))], [inner[0]]),
        openvino.Model([ops.result(ops.exp(inner[1]))], [inner[1]]),
    ]
    branch.set_then_body(bodies[0])
    branch.set_else_body(bodies[1])
    branch.set_input(x.output(0), inner[0], inner[1])
    result = branch.set_output(bodies[0].results[0], bodies[1].results[0])
    model = openvino.Model([ops.result(result)], [condition, x], "branch")
    yield "branch", model, {"condition": np.array(False), "x": numbers(2, 3)}


def _loop(turns: Any) -> tuple[Any, dict[str, Any]]:
    """A loop that doubles as long as a sum is small, or for as many turns as an input says."""
    import openvino
    from openvino import opset13 as ops

    x = ops.parameter([3], np.float32, name="x")
    count = ops.parameter([], np.int64, name="count")
    value = ops.parameter([3], np.float32)
    doubled = ops.multiply(value, ops.constant(np.float32(2)))
    total = ops.reduce_sum(doubled, ops.constant(np.int64([0])), False)
    going = ops.less(total, ops.constant(np.float32(50))) if turns is not None else ops.constant(np.array(True))
    body = openvino.Model([ops.result(going), ops.result(doubled)], [value])
    loop = ops.loop((turns if turns is not None else count).output(0), ops.constant(np.array(True)).output(0))
    loop.set_function(body)
    loop.set_special_body_ports([-1, 0])
    loop.set_merged_input(value, x.output(0), doubled.output(0))
    result = loop.get_iter_value(body.results[1].output(0), -1)
    parameters = [x] if turns is not None else [x, count]
    inputs: dict[str, Any] = {"x": numbers(3, low=0.5)} | ({} if turns is not None else {"count": np.array(4)})
    return openvino.Model([ops.result(result)], parameters, "loop"), inputs


def models() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, model and inputs of each fixture."""
    yield "network", _network(), {"image": numbers(2, 3, 12, 12)}
    yield from _loops()
    for name, build, inputs in own_cases():
        if name in _OWN:
            yield name.replace(" ", "_"), build(), inputs


def main() -> int:
    """Write all files."""
    import openvino

    _FOLDER.mkdir(parents=True, exist_ok=True)
    for name, model, inputs in models():
        path = _FOLDER / f"{name}.xml"
        openvino.save_model(model, path, compress_to_fp16=False)
        text = re.sub(r"\t*<rt_info>.*</rt_info>\n", "", path.read_text(), flags=re.DOTALL)
        path.write_text(text)
        outputs = own_runtimes.openvino(path, inputs).outputs
        np.savez(path.with_suffix(".npz"), **inputs, **{f"result_{at}": value for at, value in enumerate(outputs)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
