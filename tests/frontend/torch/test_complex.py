"""Complex numbers within a model, spectra, and signals put together from spectra, against torch."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.torch_backend import FallbackWarning

torch = need_module("torch")

pairs = torch.view_as_real
_ROTATION = torch.polar(torch.ones(10, 4), torch.arange(40.0).reshape(10, 4))


def _arithmetic(x, y):
    z = torch.complex(x, y)
    several = [z + 1, 1 - z, z - x, z * 2j, x * z, z / (z + 3), z / 2, z.reciprocal(), z.exp(), z**3, -z]
    several += [z.conj() * z, torch.where(x > 0, z, z * 2), z @ z.T, torch.einsum("ij,kj->ik", z, z), z.sum(0)]
    several += [torch.stack([z, z + 1]), torch.cat([z, x.to(torch.complex64)]), z.mean(1), z.T, z[1:], z.unbind(0)[1]]
    return (*map(pairs, several), z.angle(), z.abs(), z.real, z.imag)


def _rotated(x):
    z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return pairs(z * _ROTATION[: x.shape[1], None]).flatten(3)


def _spectrum(x, **keywords):
    return torch.stft(x, 64, 16, window=torch.hann_window(64), return_complex=True, **keywords)


def _narrow(x):
    return torch.stft(x, 64, 20, win_length=50, window=torch.hamming_window(50), return_complex=True)


CASES = {
    "arithmetic": (_arithmetic, [(4, 5), (4, 5)], None),
    "rotary embedding": (_rotated, [(2, 10, 3, 8)], {1: 7}),
    "magnitudes of windows": (lambda x: _spectrum(x).abs(), [(2, 400)], {0: 3, 1: 555}),
    "whole spectra of windows": (
        lambda x: (pairs(_spectrum(x, onesided=False)), pairs(_spectrum(x, center=False, normalized=True))),
        [(2, 400)],
        None,
    ),
    "signals of spectra": (
        lambda x: (
            torch.istft(_spectrum(x), 64, 16, window=torch.hann_window(64)),
            torch.istft(_spectrum(x, onesided=False), 64, 16, window=torch.hann_window(64), onesided=False),
            torch.istft(_spectrum(x, normalized=True), 64, 16, window=torch.hann_window(64), normalized=True),
            torch.istft(_narrow(x), 64, 20, win_length=50, window=torch.hamming_window(50)),
            torch.istft(_spectrum(x[0]), 64, 16, window=torch.hann_window(64), length=380),
            torch.istft(_spectrum(x), 64, 16, window=torch.hann_window(64), length=450),
        ),
        [(2, 400)],
        None,
    ),
    "a signal of any length": (
        lambda x: torch.istft(_spectrum(x), 64, 16, window=torch.hann_window(64)), [(2, 400)], {1: 720}
    ),
    "images": (lambda x: (torch.fft.rfft2(x, norm="ortho").abs(), torch.fft.irfft2(torch.fft.rfft2(x), s=(12, 9))),
               [(2, 12, 9)], None),
    "mixing of tokens": (lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, [(2, 12, 10)], {1: 7}),
    "convolution by spectra": (
        lambda x, y: torch.fft.irfft(torch.fft.rfft(x, n=64) * torch.fft.rfft(y, n=64), n=64)[..., :30],
        [(2, 30), (1, 30)],
        None,
    ),
    "long convolution by spectra": (
        lambda x: torch.fft.irfft(torch.fft.rfft(x, n=8192) * 2, n=8192)[..., :4000], [(2, 4000)], None
    ),
    "lengths with factors": (
        lambda x: (pairs(torch.fft.fft(x)), pairs(torch.fft.ifft(torch.complex(x, -x))),
                   torch.fft.irfft(torch.fft.rfft(x), n=1500), torch.fft.irfft(torch.fft.rfft(x)[..., :713], n=1425)),
        [(2, 1500)],
        None,
    ),
    "one signal": (
        lambda x: (pairs(torch.fft.fft(x)), pairs(torch.fft.ifft(torch.complex(x, -x))), pairs(torch.fft.rfft(x)),
                   torch.fft.irfft(torch.fft.rfft(x), n=31), torch.fft.hfft(torch.complex(x, 2 * x))),
        [(16,)],
        None,
    ),
    "one long signal": (lambda x: torch.fft.irfft(torch.fft.rfft(x) * 2, n=1500), [(1500,)], None),
    "one signal of any length": (lambda x: (torch.fft.fft(x).real, torch.fft.irfft(torch.fft.rfft(x), n=x.shape[0])),
                                 [(16,)], {0: 21}),
    "windows": (
        lambda x: (x * torch.hamming_window(8), x * torch.blackman_window(8), x * torch.hann_window(8, periodic=False)),
        [(3, 8)],
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name, wrap):
    function, shapes, others = CASES[name]
    module = wrap(function)
    generator = torch.Generator().manual_seed(0)
    given = tuple(torch.randn(*shape, generator=generator) for shape in shapes)
    dynamic = None if others is None else ((dict.fromkeys(others, torch.export.Dim.DYNAMIC),),)
    exported = torch.export.export(module, given, dynamic_shapes=dynamic)
    compiled = tw.compile(tw.frontend.from_torch(exported), threads=1)
    calls = [given]
    if others is not None:
        shape = [others.get(axis, size) for axis, size in enumerate(shapes[0])]
        calls.append((torch.randn(*shape, generator=generator),))
    for arguments in calls:
        expected, found = module(*arguments), compiled(*(item.numpy() for item in arguments))
        several = isinstance(expected, (tuple, list))
        for actual, wanted in zip(found if several else [found], expected if several else [expected], strict=True):
            scale = float(wanted.abs().max())
            np.testing.assert_allclose(actual, wanted.numpy(), rtol=1e-4, atol=3e-5 * scale)


def test_a_captured_complex_output_is_left_to_torch():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: torch.view_as_complex(x) * 2, backend="tilewright", fullgraph=True)
    x = torch.randn(3, 2)
    with pytest.warns(FallbackWarning, match="is complex"):
        found = compiled(x)
    torch.testing.assert_close(found, torch.view_as_complex(x) * 2)
