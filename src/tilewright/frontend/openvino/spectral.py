"""Converters of Fourier transforms, whole and of windows that move over a signal."""

from __future__ import annotations

import math

from tilewright.frontend.core.builder import dtype_of, rank_of, size_at, sizes_of
from tilewright.frontend.openvino.context import NodeContext
from tilewright.frontend.openvino.registry import converter
from tilewright.graph.ir.dimensions import add, minimum, multiply, subtract
from tilewright.graph.ir.expr import GraphExpr
from tilewright.ir.dtype import INT64


@converter("DFT", "IDFT", "RDFT", "IRDFT")
def fourier(node: NodeContext) -> GraphExpr:
    """The Fourier transform of complex numbers (pairs along the last axis) along axes, its inverse, or those of reals.

    Of reals the second half of the last axis that is named is left out: it mirrors the first.
    """
    b, x, kind = node.builder, node.input(0), node.layer.kind
    x = b.expand_dims(x, (rank_of(x),)) if kind == "RDFT" else x
    axes = node.known(1, "the axes")
    lengths = node.known(2, "the lengths") if node.has_input(2) else (-1,) * len(axes)
    named = list(zip(axes, lengths, strict=True))
    # The half is made of reals, and reals of the half: one is the first step, the other the last.
    order = list(reversed(named)) if kind == "RDFT" else named
    halved = {"RDFT": 0, "IRDFT": len(order) - 1}.get(kind)
    for step, (axis, length) in enumerate(order):
        place = b.constant(node.axis(axis, rank_of(x) - 1), INT64)
        wanted = None if length == -1 else b.constant(length, INT64)
        x = node.onnx("DFT", x, wanted, place, inverse=kind in ("IDFT", "IRDFT"), onesided=step == halved)
    return b.select(x, rank_of(x) - 1, 0) if kind == "IRDFT" else x


def _frame_window(node: NodeContext, length: int) -> GraphExpr:
    """The window, in the middle of a frame that is longer."""
    b, window = node.builder, node.input(1)
    missing = length - size_at(window, 0)
    return b.call("pad", window, before=(missing // 2,), after=(missing - missing // 2,)) if missing else window


@converter("STFT")
def of_frames(node: NodeContext) -> GraphExpr:
    """Half spectra of windows that move over signals."""
    b, signal = node.builder, node.input(0)
    is_single = rank_of(signal) == 1
    signal = b.expand_dims(signal, (0,)) if is_single else signal
    length, step = node.known(2, "the length of frames")[0], node.known(3, "the step")[0]
    result = node.onnx("STFT", signal, b.constant(step, INT64), _frame_window(node, length), b.constant(length, INT64))
    result = b.transpose(result, (0, 2, 1, 3)) if node.flag("transpose_frames") else result
    return b.select(result, 0, 0) if is_single else result


@converter("ISTFT")
def from_frames(node: NodeContext) -> GraphExpr:
    """The signals whose frames have these half spectra: frames are added up, and divided by what windows add up to."""
    b, spectra = node.builder, node.input(0)
    is_single = rank_of(spectra) == 3
    spectra = b.expand_dims(spectra, (0,)) if is_single else spectra
    length, step = node.known(2, "the length of frames")[0], node.known(3, "the step")[0]
    frames = node.onnx(
        "DFT", spectra, b.constant(length, INT64), b.constant(1, INT64), inverse=True, onesided=True
    )  # (batch, length, frames, 1)
    count, window = sizes_of(spectra)[2], b.reshape(_frame_window(node, length), (length, 1))
    samples = add(multiply(subtract(count, 1), step), length)
    size = b.shape_tensor([1, samples])
    block = b.constant([1, length], INT64)

    def overlapped(parts: GraphExpr) -> GraphExpr:
        joined = node.onnx("Col2Im", parts, size, block, strides=(1, step))
        return b.reshape(joined, (sizes_of(parts)[0], samples))

    signal = overlapped(b.multiply(b.select(frames, 3, 0), window))
    weight = overlapped(b.broadcast_to(b.reshape(b.multiply(window, window), (1, length, 1)), (1, length, count)))
    begin = length // 2 if node.flag("center") else 0
    end = subtract(samples, begin)
    wanted = node.known(4, "the length of the signal")[0] if node.has_input(4) else None
    if wanted is not None:
        end = minimum(samples, begin + wanted)
    signal, weight = (b.slice_axis(value, 1, begin, end) for value in (signal, weight))
    # Where no window reaches, the signal is 0.
    signal = b.divide(signal, b.where(b.compare("equal", weight, 0), b.scalar(1, dtype_of(weight)), weight))
    if node.flag("normalized"):
        signal = b.multiply(signal, math.sqrt(length))
    if wanted is not None:
        missing = subtract(wanted, subtract(end, begin))
        signal = signal if missing == 0 else b.call("pad", signal, before=(0, 0), after=(0, missing))
    return b.select(signal, 0, 0) if is_single else signal
