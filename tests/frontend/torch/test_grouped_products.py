"""Grouped products: the layers of mixtures of experts, whose rows are sorted by the expert they go to."""

from __future__ import annotations

import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.support.errors import UnsupportedError

torch = need_module("torch")


class Experts(torch.nn.Module):
    """Each row times the matrix of its expert; experts may be left without rows."""

    def __init__(self, dtype):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 16, 24, dtype=dtype))

    def forward(self, x, expert):
        """Rows in the order of their experts; those of expert 4 go to none."""
        order = torch.argsort(expert, stable=True)
        counts = torch.histc(expert[order].float(), bins=4, min=0, max=3)
        return self.product(x[order], counts.cumsum(0, dtype=torch.int32)), order

    def product(self, rows, offsets):
        """The grouped product as torch has it."""
        return torch._grouped_mm(rows, self.weight, offs=offsets)


def expected(model, x, expert):
    order = torch.argsort(expert, stable=True)
    rows = [x[n] @ model.weight[expert[n]] if expert[n] < 4 else torch.zeros(24, dtype=x.dtype) for n in order.tolist()]
    return torch.stack(rows)


def check_sizes(model, dtype, tolerance, last=3):
    tokens = torch.export.Dim("tokens")
    inputs = [
        (torch.randn(count, 16, dtype=dtype), torch.randint(0, last + 1, (count,)) // 2 * 2 + last % 2)
        for count in (10, 33)
    ]
    imported = from_torch(model, inputs[0], dynamic_shapes=({0: tokens}, {0: tokens}))
    exe = tw.compile(imported, threads=1)
    for x, expert in inputs:
        with torch.no_grad():
            torch.testing.assert_close(exe(x, expert)[0], expected(model, x, expert), rtol=tolerance, atol=tolerance)


def test_torchs_own():
    check_sizes(Experts(torch.bfloat16).eval(), torch.bfloat16, 0.05)


def test_the_one_of_transformers_and_rows_of_no_expert():
    with torch.library._scoped_library("transformers", "FRAGMENT") as library:
        library.define("grouped_mm_fallback(Tensor input, Tensor weight, Tensor offs) -> Tensor")
        library.impl("grouped_mm_fallback", lambda x, w, offs: x.new_empty(x.shape[0], w.shape[2]), "Meta")

        class Spelled(Experts):
            def product(self, rows, offsets):
                return torch.ops.transformers.grouped_mm_fallback(rows, self.weight, offsets)

        check_sizes(Spelled(torch.float32).eval(), torch.float32, 1e-5, last=4)


def test_other_forms_are_refused(wrap):
    def two_matrices(x, y):
        return torch._grouped_mm(x, y, offs=torch.tensor([8, 16], dtype=torch.int32))

    inputs = torch.randn(16, 16, dtype=torch.bfloat16), torch.randn(16, 16, dtype=torch.bfloat16)
    with pytest.raises(UnsupportedError, match="a grouped product of 2 and 2 dimensions"):
        from_torch(wrap(two_matrices), inputs)
