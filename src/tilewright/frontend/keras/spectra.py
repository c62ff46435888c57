"""Spectra of signals.

`STFTSpectrogram` is a convolution with waves that the file has as weights; `MelSpectrogram` transforms windows of the
signal, and sums its frequencies up in bands that are as wide as the ear hears them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.frontend.core.builder import LARGEST_MADE, rank_of, size_at, sizes_of
from tilewright.frontend.core.elementary import atan2
from tilewright.frontend.core.fourier import transform
from tilewright.frontend.keras.context import LayerCall
from tilewright.frontend.keras.convolution import convolved
from tilewright.frontend.keras.layer import Layer, variables
from tilewright.frontend.keras.registry import Slot, layer
from tilewright.frontend.keras.values import KerasBuilder
from tilewright.frontend.keras.windows import extents_of, padded
from tilewright.graph.ir.dimensions import product
from tilewright.graph.ir.expr import GraphExpr
from tilewright.graph.ir.op import Array
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.support.errors import UnsupportedError, UserError

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


_WINDOWS = {"hann": (0.5, 0.5), "hamming": (0.54, 0.46)}
"""The mean of a window, and how far it swings."""


@layer("MelSpectrogram")
def mel_spectrogram(call: LayerCall) -> GraphExpr:
    """The strength of bands of frequencies in each frame: (..., bands, frames)."""
    b, options = call.builder, call.layer
    data = b.cast(call.input(0), FLOAT32)
    *outer, time = sizes_of(data)
    if not isinstance(time, int):
        raise UnsupportedError("a mel spectrogram of signals of open length", hint="give the shapes of inputs")
    length, step = options.integer("fft_length", 2048), options.integer("sequence_stride", 512)
    if not 1 < length <= 2 * time or step < 1:
        raise UserError(f"frames of {length} samples, {step} apart, of a signal of {time}")
    places = np.arange(0, time + length // 2 * 2 - length + 1, step)[:, None] + np.arange(length) - length // 2
    # The signal is reflected at its ends.
    turned = np.abs(places)
    turned = np.where(turned >= time, 2 * (time - 1) - turned, turned)
    frames = b.call("take", data, b.constant(turned, INT64), axis=len(outer))
    windowed = b.multiply(frames, b.constant(_window(call, length), FLOAT32))
    real, imaginary = transform(b, windowed, None, length // 2 + 1)
    strength = b.call("sqrt", b.add(b.multiply(real, real), b.multiply(imaginary, imaginary)))
    strength = b.call("power", strength, b.constant_like(options.number("mag_exp", 2.0), strength))
    bands = b.call("matmul", strength, b.constant(_bands(call, length // 2 + 1), FLOAT32))
    if options.flag("power_to_db", True):
        bands = _in_decibels(call, bands)
    rank = rank_of(bands)
    return b.cast(b.transpose(bands, (*range(rank - 2), rank - 1, rank - 2)), options.dtype)


def _window(call: LayerCall, length: int) -> Array:
    """The window of a frame, in the middle of the samples that are transformed."""
    size = call.layer.option("sequence_length")
    size = length if size is None else call.layer.integer("sequence_length")
    name = call.layer.option("window", "hann")
    if name not in (None, *_WINDOWS) or not 0 < size <= length:
        raise UserError(
            f"a window {name!r} of {size} samples", hint=f"one of {', '.join(_WINDOWS)}, of {length} at most"
        )
    mean, swing = _WINDOWS.get(name, (1.0, 0.0))
    window = mean - swing * np.cos(2 * np.pi * np.arange(size) / size)
    before = (length - size) // 2
    return np.pad(window, (before, length - size - before)).astype(np.float32)


def _bands(call: LayerCall, frequencies: int) -> Array:
    """How much each frequency counts in each band: triangles that overlap by halves; the lowest frequency in none."""
    options = call.layer
    rate, count = options.number("sampling_rate", 16000), options.integer("num_mel_bins", 128)
    low = options.number("min_freq", 20.0)
    high = rate // 2 if options.option("max_freq") is None else options.number("max_freq", 0.0)
    if not 0 <= low < high or count < 1 or count * frequencies > LARGEST_MADE:
        raise UserError(f"{count} bands from {low} to {high} Hz")
    edges = np.linspace(_mel(np.float32(low)), _mel(np.float32(high)), count + 2, dtype=np.float32)
    places = _mel(np.linspace(0, rate / 2, frequencies, dtype=np.float32)[1:])[:, None]
    rising = (places - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - places) / (edges[2:] - edges[1:-1])
    return np.pad(np.maximum(np.minimum(rising, falling), 0), ((1, 0), (0, 0))).astype(np.float32)


def _mel(hertz: Array | np.float32) -> Array:
    return np.asarray(np.float32(1127.0) * np.log(np.float32(1.0) + hertz / np.float32(700.0)), np.float32)


def _in_decibels(call: LayerCall, value: GraphExpr) -> GraphExpr:
    """Ten times the logarithm; what is far below the greatest of all is raised."""
    b, options = call.builder, call.layer
    least = options.number("min_power", 1e-10)
    factor = 10.0 / math.log(10.0)
    logs = b.multiply(b.call("log", b.binary("maximum", value, least)), factor)
    logs = b.subtract(logs, 10.0 * math.log10(max(abs(options.number("ref_power", 1.0)), least)))
    greatest = b.call("max", logs, axes=tuple(range(rank_of(logs))), keepdims=True)
    return b.call("maximum", logs, b.subtract(greatest, options.number("top_db", 80.0)))
