"""Operators against torch: promotion of types, odd arguments, and families that the models do not reach."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module

torch = need_module("torch")
nn = torch.nn

INTEGERS = torch.tensor([[5, -3, 0], [7, -8, 2]])
FLOATS = torch.tensor([[0.5, -2.0, math.nan], [math.inf, 3.25, -0.0]])
BYTES = torch.tensor([[250, 3, 0], [7, 8, 2]], dtype=torch.uint8)
TRUTH = torch.tensor([[True, False, True], [False, False, True]])

CASES = {
    "integers divide to floats": (lambda a, b: a / (b + 10), INTEGERS, INTEGERS),
    "integers and floats add": (lambda a, b: a + b, INTEGERS, FLOATS),
    "scalars raise the kind only": (lambda a, b: (a + 2.5, b * 2, a + True), INTEGERS, FLOATS),
    "bytes wrap": (lambda a: (a + 10, a - 5, a * 2), BYTES),
    "bytes and integers of 8 bits": (lambda a, b: a + b.to(torch.int8), BYTES, INTEGERS),
    "a scalar tensor does not widen": (lambda a, b: a * b, FLOATS, torch.tensor(2.0, dtype=torch.float64)),
    "truth values add, multiply and compare": (lambda a, b: (a + b, a * b, a < b, a & b, ~a), TRUTH, ~TRUTH),
    "divisions round as asked": (
        lambda a, b: (torch.div(a, b, rounding_mode="floor"), torch.div(a, b, rounding_mode="trunc"), a % b),
        INTEGERS,
        torch.tensor([[3, -2, 5], [-4, 3, -2]]),
    ),
    "floats divide down": (lambda a: (a // 0.3, a % -0.7, torch.fmod(a, 0.7)), torch.tensor([1.0, -1.0, 0.9, -0.3])),
    "comparisons of mixed kinds": (lambda a, b: (a > b, a == b, a <= 0.5, a != True), INTEGERS, FLOATS),  # noqa: E712
    "NaN in extremes": (
        lambda a, b: (torch.maximum(a, b), torch.fmin(a, b), a.clamp(-1, 1), torch.sign(a)),
        FLOATS,
        FLOATS.flip(0),
    ),
    "NaN in searches": (lambda a: (a.max(1), a.argmin(0), a.sort(1), a.nan_to_num(), a.median()), FLOATS),
    "signs of zero": (
        lambda a: (torch.signbit(a), torch.copysign(torch.ones(()), a), torch.atan2(a, -a.abs())),
        FLOATS,
    ),
    "narrow conversions keep low bits": (
        lambda a: (a.to(torch.uint8), a.to(torch.int8)),
        torch.tensor([300.7, -1.5, 127.0]),
    ),
    "sums of integers and truth": (
        lambda a, b: (a.sum(), b.sum(1), a.prod(0), b.any(), a.float().mean()),
        INTEGERS,
        TRUTH,
    ),
    "moments": (
        lambda a: (a.std(0), a.var(1, correction=0), *torch.var_mean(a, (0, 1)), a.norm(3)),
        torch.randn(4, 5),
    ),
    "running extremes": (lambda a: (*a.cummax(1), *a.cummin(0), a.logcumsumexp(1)), torch.randn(3, 7)),
    "indices": (lambda a, i: (a[i], a[:, i], a[i, i], a[..., None, i]), torch.randn(3, 4), torch.tensor([0, 2, -1])),
    "indices apart": (lambda a, i: a[i, :, i], torch.randn(3, 4, 3), torch.tensor([[0, 2], [1, 1]])),
    "writes by index": (
        lambda a, i, v: (a.index_put((i,), v), a.index_add(0, i, v), a.index_put((i, i), v[:, 0], accumulate=True)),
        torch.randn(4, 4),
        torch.tensor([0, 2, 2]),
        torch.randn(3, 4),
    ),
    "scatter": (
        lambda a, i, v: (
            a.scatter(1, i, v),
            a.scatter_add(0, i, v),
            a.scatter_reduce(1, i, v, "amax", include_self=False),
            a.scatter_reduce(1, i, v, "mean"),
        ),
        torch.randn(3, 4),
        torch.tensor([[0, 1, 1, 2], [2, 0, 1, 1]]),
        torch.randn(2, 4),
    ),
    "order": (
        lambda a: (*a.topk(2, 1), *a.kthvalue(2, 0), *a.mode(1), torch.searchsorted(a[0].sort()[0], a)),
        torch.tensor([[3.0, 1.0, 3.0, 2.0], [0.5, 0.5, 9.0, 1.0]]),
    ),
    "views": (
        lambda a: (
            a.as_strided((3, 2), (1, 4), 2),
            a.unfold(1, 2, 1),
            a.diagonal(1),
            torch.diag_embed(a),
            a.roll((1, -1), (0, 1)),
            a.tril(-1),
            a.rot90(),
        ),
        torch.randn(4, 4),
    ),
    "padding": (
        lambda a: (
            tuple(torch.nn.functional.pad(a, (1, 2), mode=mode) for mode in ("reflect", "replicate", "circular"))
            + (torch.nn.functional.pad(a, (-1, 2), value=5.0),)
        ),
        torch.randn(2, 3, 4),
    ),
    "samples at a grid in three dimensions": (
        lambda a: (
            torch.nn.functional.grid_sample(a, a.permute(0, 2, 3, 4, 1), align_corners=False),
            torch.nn.functional.grid_sample(
                a, a.permute(0, 2, 3, 4, 1), "nearest", padding_mode="reflection", align_corners=True
            ),
        ),
        torch.randn(2, 3, 2, 4, 5),
    ),
    "resampling": (
        lambda a: (
            tuple(
                torch.nn.functional.interpolate(a, size=(5, 7), mode=mode)
                for mode in ("nearest", "bilinear", "bicubic")
            )
            + (torch.nn.functional.interpolate(a, scale_factor=0.5, mode="bilinear", antialias=True),)
        ),
        torch.randn(1, 2, 4, 6),
    ),
    "pools": (
        lambda a: (
            *torch.nn.functional.max_pool2d(a, 3, 2, 1, ceil_mode=True, return_indices=True),
            torch.nn.functional.avg_pool2d(a, 3, 2, 1, ceil_mode=True),
            torch.nn.functional.avg_pool2d(a, 2, count_include_pad=False, padding=1),
            torch.nn.functional.adaptive_avg_pool2d(a, (3, 2)),
            torch.nn.functional.adaptive_max_pool2d(a, (2, 3)),
        ),
        torch.randn(2, 3, 6, 7),
    ),
    "convolutions": (
        lambda a, w: (
            torch.nn.functional.conv3d(a, w, stride=2, padding=1),
            torch.nn.functional.conv_transpose3d(a, w.transpose(0, 1), stride=2, padding=1, output_padding=1),
            torch.nn.functional.conv2d(a[:, :, 0], w[:, :, 0], padding="same", dilation=2),
            torch.nn.functional.conv1d(a[:, :, 0, 0], w[:, :, 0, 0], padding="same"),
        ),
        torch.randn(1, 2, 4, 5, 6),
        torch.randn(3, 2, 2, 3, 3),
    ),
    "normalisations": (
        lambda a: (
            torch.nn.functional.group_norm(a, 2),
            torch.nn.functional.instance_norm(a),
            torch.nn.functional.rms_norm(a, (5,)),
            torch.nn.functional.layer_norm(a, (4, 5)),
        ),
        torch.randn(2, 4, 4, 5),
    ),
    "small systems": (
        lambda a: (
            torch.linalg.solve(a, a.sum(-1, keepdim=True)),
            torch.linalg.det(a),
            torch.linalg.inv(a),
            *torch.linalg.qr(a),
            torch.linalg.cholesky(a @ a.mT + torch.eye(4)),
            *torch.linalg.lu(a),
        ),
        torch.randn(2, 4, 4),
    ),
    "systems too large to unroll": (
        lambda a: (
            torch.linalg.solve(a, a.sum(-1, keepdim=True)),
            torch.linalg.slogdet(a),
            *torch.linalg.qr(a[:, :, :36]),
            torch.linalg.cholesky(a @ a.mT),
            *torch.linalg.lu(a[:, :, :35]),
            torch.linalg.solve_triangular(a, a[..., :2], upper=True),
        ),
        torch.randn(2, 40, 40) + 12 * torch.eye(40),
    ),
    "spectra": (
        lambda a: (
            torch.linalg.svdvals(a),
            torch.linalg.eigvalsh(a @ a.mT),
            torch.linalg.pinv(a[:, :3]),
            torch.linalg.norm(a[0], 2),
        ),
        torch.randn(2, 4, 4),
    ),
    "results sized by data": (
        lambda a: (a[a > 0], a.nonzero(), torch.masked_select(a, a < 1), *torch.unique(a.round(), return_counts=True)),
        torch.randn(3, 5),
    ),
    "histograms": (
        lambda a: (torch.histc(a, 5), torch.histc(a, 4, -1, 1), torch.nonzero_static(a, size=4)),
        torch.randn(12),
    ),
    "made tensors": (
        lambda a: (
            torch.arange(3, 9, 2) + a,
            torch.linspace(0, 1, 5),
            torch.eye(3),
            torch.full_like(a, 7),
            a.new_zeros(2),
        ),
        INTEGERS[0],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_like_torch(name, check):
    function, *inputs = CASES[name]
    check(lambda *values: torch.utils._pytree.tree_leaves(function(*values)), *inputs, tolerance=1e-4)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_places_of_a_grid_in_double_precision_stay_there(padding, check):
    def samples(image, grid):
        sample = torch.nn.functional.grid_sample
        modes = ("nearest", "bilinear", "bicubic")
        return [sample(image, grid, mode, padding, aligned) for mode in modes for aligned in (False, True)]

    image, grid = torch.randn(2, 2, 4, 5, dtype=torch.float64), torch.randn(2, 3, 3, 2, dtype=torch.float64)
    check(samples, image, grid, tolerance=1e-12)


def test_results_sized_by_data_compile(check):
    check(lambda a: (a[a > 0] * 2, a.nonzero()), torch.randn(3, 5), compiled=True)


def test_several_tensors_selected_by_one_mask(check):
    def selected(boxes, scores):
        kept = scores > 0.5
        return boxes[kept] * 2, scores[kept], boxes[kept] * scores[kept][:, None]

    check(selected, torch.randn(9, 4), torch.rand(9), compiled=True)


def test_what_is_outside_a_histogram_writes_nowhere():
    """Results lie in the middle of an array: nothing around them may change."""

    class Histogram(torch.nn.Module):
        def forward(self, x):
            return torch.histc(x, bins=4, min=-1, max=1)

    exe = tw.compile(tw.frontend.from_torch(Histogram(), (torch.randn(5, 3),)), threads=1)
    around = np.full(12, 7, np.float32)
    exe(np.linspace(-9, 9, 15, dtype=np.float32).reshape(5, 3), out=around[4:8])
    np.testing.assert_array_equal(around[[0, 1, 2, 3, 8, 9, 10, 11]], 7)
    assert around[4:8].sum() == 1


SPECIAL = {
    "lgamma digamma erfc erfinv i0 sinc": (-4.75, 4.75),
    "special.erfcx special.log_ndtr special.i1e special.bessel_j0 special.bessel_j1 special.airy_ai": (-30.0, 30.0),
    "special.bessel_y0 special.bessel_y1 special.modified_bessel_k0 special.scaled_modified_bessel_k1": (0.01, 40.0),
    "special.ndtri": (1e-12, 1.0 - 1e-6),
}


@pytest.mark.parametrize("names", SPECIAL)
def test_special_functions(names, check):
    low, high = SPECIAL[names]
    points = torch.linspace(low, high, 997)
    if "erfinv" in names:
        points = torch.cat([points, torch.linspace(-1, 1, 101), torch.tensor([0.9999999, 1e-12, 1.0])])

    def all_of_them(x):
        return [eval(f"torch.{name}", {"torch": torch})(x) for name in names.split()]

    check(all_of_them, points, tolerance=3e-5)
