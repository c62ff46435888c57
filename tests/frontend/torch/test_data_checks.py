"""Indices and divisors that are data: refused where torch refuses, negative indices taken where torch takes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.requirements import need_module

torch = need_module("torch")

import tilewright as tw  # noqa: E402
from tilewright.frontend import from_torch  # noqa: E402
from tilewright.support.errors import UserError  # noqa: E402

X = torch.arange(20.0).reshape(5, 4)
ROWS = torch.tensor([4, 0, 2])


class Of(torch.nn.Module):  # type: ignore[misc]
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any, i: Any) -> Any:
        return self.function(x, i)


CASES: dict[str, Callable[..., Any]] = {
    "embedding": lambda x, i: torch.nn.functional.embedding(i, x),
    "gather": lambda x, i: x.gather(0, i[:, None].expand(3, 4)),
    "index_select": lambda x, i: x.index_select(0, i),
    "index": lambda x, i: x[i],
    "two_indices": lambda x, i: x[i, 1],
    "take": lambda x, i: x[:, 0].contiguous().take(i),
    "scatter": lambda x, i: x.scatter(0, i[:, None].expand(3, 4), x[:3]),
    "index_add": lambda x, i: x.index_add(0, i, x[:3]),
    "index_put": lambda x, i: x.index_put((i,), x[:3]),
}


@pytest.mark.parametrize("name", CASES)
def test_refuses_what_torch_refuses(name: str) -> None:
    module = Of(CASES[name])
    exe = tw.compile(from_torch(module, (X, ROWS)), threads=1)
    torch.testing.assert_close(exe(X, ROWS), module(X, ROWS))
    for wrong in (5, -1, -6, 100):
        indices = ROWS.clone()
        indices[1] = wrong
        try:
            want = module(X, indices)
        except (IndexError, RuntimeError):
            with pytest.raises(UserError, match=rf"the index {wrong} \(.*is out of range for axis 0 of size 5"):
                exe(X, indices)
        else:
            torch.testing.assert_close(exe(X, indices), want)


@pytest.mark.parametrize("name", ["floor_divide", "remainder", "fmod"])
def test_whole_numbers_divided_by_zero(name: str) -> None:
    exe = tw.compile(from_torch(Of(getattr(torch, name)), (ROWS, ROWS + 1)), threads=1)
    torch.testing.assert_close(exe(ROWS, ROWS + 1), getattr(torch, name)(ROWS, ROWS + 1))
    with pytest.raises(UserError, match="a divisor of an integer division is zero: element 1 of the divisors"):
        exe(ROWS, ROWS)


def test_masks_need_no_check() -> None:
    module = Of(lambda x, i: x[torch.tensor([True, False, True, False, True])] + x[i])
    assert len(tw.compile(from_torch(module, (X, ROWS)), threads=1).model.checks) == 1


def test_unchecked_through_torch_compile() -> None:
    compiled = torch.compile(Of(CASES["embedding"]), backend="tilewright", options={"threads": 1, "unchecked": True})
    torch.testing.assert_close(compiled(X, ROWS), X[ROWS])
    assert compiled(X, ROWS + 3).shape == (3, 4)
