"""The converter of Fourier transforms: along the last dimensions, one after the other (`core/fourier.py`)."""

from __future__ import annotations

from tilewright.frontend.core.builder import dtype_of, rank_of, sizes_of
from tilewright.frontend.core.complex_values import Complex
from tilewright.frontend.core.fourier import real_from_half, transform
from tilewright.frontend.stablehlo.builder import StableBuilder, Tensor, each_part
from tilewright.frontend.stablehlo.complex_numbers import whole
from tilewright.frontend.stablehlo.program import Operation
from tilewright.frontend.stablehlo.registry import converter
from tilewright.graph.ir.expr import GraphExpr
from tilewright.support.errors import UnsupportedError, UserError


@converter("fft", of_complex="taken")
def fft(b: StableBuilder, operation: Operation, x: Tensor) -> Tensor:
    """Transforms of complex numbers, of real ones to half a spectrum, and back."""
    kind = b.word_of("fft_type", "FFT")
    lengths = b.list_of("fft_length")
    parts = each_part(x)
    rank = rank_of(parts[0])
    axes = list(range(rank - len(lengths), rank))
    if 0 in sizes_of(parts[0]) or 0 in lengths:
        shape = [size or 0 for size in b.result.shape]
        zeros = [b.empty(shape, dtype_of(parts[0])) if 0 in shape else b.filled(0, shape, dtype_of(parts[0]))] * 2
        return Complex(zeros[0], zeros[1]) if b.result.is_complex else zeros[0]
    match kind:
        case "FFT" | "IFFT":
            value = whole(b, x)
            for axis, length in zip(axes, lengths, strict=True):
                value = _complex(b, value, axis, length, backward=kind == "IFFT")
            return value
        case "RFFT":
            if not isinstance(x, GraphExpr):
                raise UserError("RFFT of complex numbers")
            half = transform(b, x, None, lengths[-1] // 2 + 1)
            value = Complex(half[0], half[1])
            for axis, length in zip(axes[:-1], lengths[:-1], strict=True):
                value = _complex(b, value, axis, length, backward=False)
            return value
        case "IRFFT":
            value = whole(b, x)
            for axis, length in zip(axes[:-1], lengths[:-1], strict=True):
                value = _complex(b, value, axis, length, backward=True)
            samples = real_from_half(b, value.real, value.imaginary, lengths[-1])
            return b.multiply(samples, 1 / lengths[-1])
    raise UnsupportedError(f"a Fourier transform of kind {kind}")


def _complex(b: StableBuilder, value: Complex, axis: int, length: int, *, backward: bool) -> Complex:
    """Along one axis; back, divided by the length."""
    rank = rank_of(value.real)
    order = [at for at in range(rank) if at != axis] + [axis]
    parts = [b.transpose(part, order) for part in value.parts]
    found = transform(b, parts[0], parts[1], length, backward)
    back = [order.index(at) for at in range(rank)]
    scaled = [b.multiply(part, 1 / length) if backward else part for part in found]
    return Complex(b.transpose(scaled[0], back), b.transpose(scaled[1], back))
