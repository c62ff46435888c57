"""Spectra of signals: `STFTSpectrogram`, a convolution with waves that the file has as weights."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.frontend.core.builder import rank_of, size_at, sizes_of
from tilewright.frontend.core.elementary import atan2
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.convolution import convolved
from tilewright.frontend.keras.layer import Layer, variables
from tilewright.frontend.keras.registry import Slot, layer
from tilewright.frontend.keras.values import KerasBuilder
from tilewright.frontend.keras.windows import extents_of, padded
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UserError

_MODES = ("log", "magnitude", "psd", "real", "imag", "angle", "stft")
_LEAST = 1e-7


def _kernels(item: Layer) -> Sequence[Slot]:
    return variables(1 if item.option("mode") in ("real", "imag") else 2)


@layer("STFTSpectrogram", variables=_kernels)
def stft_spectrogram(call: LayerCall) -> GraphExpr:
    """Frequencies of each frame of a signal: their strength, parts or angles."""
    b, options = call.builder, call.layer
    mode = options.text("mode", "log")
    if mode not in _MODES:
        raise UserError(f"the mode {mode!r} is not known", hint=f"one of {', '.join(_MODES)}")
    data = call.data(3)
    data = b.transpose(data, (0, 2, 1)) if not options.channels_first else data  # batch, channels, time
    parts = [_waves(call, data, f"vars/{number}") for number in range(1 if mode in ("real", "imag") else 2)]
    return _arranged(call, _strength(b, parts, mode))


def _waves(call: LayerCall, data: GraphExpr, path: str) -> GraphExpr:
    """How much of each wave is in each frame: (batch, channels, frames, waves)."""
    b, options = call.builder, call.layer
    batch, channels, time = sizes_of(data)
    length = options.integer("frame_length")
    step = options.option("frame_step")
    kernel = call.weight(path)
    if rank_of(kernel) != 3 or size_at(kernel, 0) != length:
        raise UserError(f"the weights {path} of shape {sizes_of(kernel)} do not fit frames of {length}")
    extents = extents_of((length,), (length // 2 if step is None else options.integer("frame_step"),), (1,))
    rows = b.reshape(data, (product((batch, channels)), time, 1))
    wide, extents = padded(b, rows, extents, options.text("padding", "valid"), False)
    result = convolved(b, wide, kernel, extents, 1, False)
    return b.reshape(result, (batch, channels, *sizes_of(result)[1:]))


def _strength(b: KerasBuilder, parts: Sequence[GraphExpr], mode: str) -> GraphExpr:
    if mode in ("real", "imag"):
        return parts[0]
    real, imaginary = parts
    if mode == "angle":
        return atan2(b, imaginary, real)
    if mode == "stft":
        return b.concatenate([real, imaginary], 3)
    power = b.add(b.multiply(real, real), b.multiply(imaginary, imaginary))
    if mode == "psd":
        last = size_at(power, 3)
        inner = b.slice_axis(power, 3, 1, last - 1)
        return b.add(power, b.call("pad", inner, before=(0, 0, 0, 1), after=(0, 0, 0, 1)))
    result = b.call("sqrt", b.binary("maximum", power, _LEAST))
    return b.call("log", b.binary("maximum", result, _LEAST)) if mode == "log" else result


def _arranged(call: LayerCall, value: GraphExpr) -> GraphExpr:
    """(batch, channels, frames, waves) in the order of the layer."""
    b, first = call.builder, call.layer.channels_first
    batch, channels, frames, waves = sizes_of(value)
    if call.layer.flag("expand_dims"):
        return value if first else b.transpose(value, (0, 2, 3, 1))
    if first:
        return b.reshape(b.transpose(value, (0, 1, 3, 2)), (batch, product((channels, waves)), frames))
    return b.reshape(b.transpose(value, (0, 2, 1, 3)), (batch, frames, product((channels, waves))))
