"""Views by strides see the storage as torch lays it out, whatever the order of a tensor's axes is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.torch_backend import FallbackWarning

torch = need_module("torch")

VIEWS: dict[str, Callable[..., object]] = {
    "dense": lambda a: a.as_strided((3, 2), (1, 5), 2),
    "transposed": lambda a: a.transpose(0, 2).as_strided((2, 3, 4), (1, 2, 5)),
    "permuted, computed": lambda a: (a * 2).permute(1, 2, 0).as_strided((5, 4), (3, 2), 1),
    "a slice, with its offset": lambda a: a[1:, :, 2:].as_strided((2, 2), (1, 4)),
    "a slice of a transposed tensor": lambda a: a.transpose(0, 1)[2].as_strided((2, 2), (12, 1)),
    "expanded": lambda a: a[:, :1].expand(-1, 3, -1).as_strided((2, 4), (12, 1)),
    "overlapping": lambda a: a.flatten().as_strided((11, 4), (2, 1)),
    "written": lambda a: torch.as_strided_scatter((a + 1).transpose(0, 2), a[0], (3, 4), (4, 1), 4),
    "an element": lambda a: a.transpose(0, 2).as_strided((), (), 3),
    "nothing": lambda a: a.as_strided((0, 3), (1, 1)),
}


class _Model(torch.nn.Module):
    def __init__(self, view: Callable[..., object]) -> None:
        super().__init__()
        self.view = view

    def forward(self, a: torch.Tensor) -> object:
        return self.view(a)


@pytest.mark.parametrize("name", VIEWS)
def test_elements_are_those_of_the_storage(name: str) -> None:
    a = torch.arange(24.0).reshape(2, 3, 4)
    model = _Model(VIEWS[name])
    result = tw.compile(from_torch(model, (a,)), threads=1)(a.numpy())
    torch.testing.assert_close(torch.from_numpy(result), model(a))


def test_captured_graphs_and_open_sizes() -> None:
    def windows(a: torch.Tensor) -> torch.Tensor:
        keys = (a + 1).transpose(0, 1)  # laid out (length, batch, width), as attention in windows has it
        batch, length, width = keys.shape
        chunks = keys.reshape(batch, length // 4, 4, width)
        step = keys.stride()
        return chunks.as_strided((batch, length // 2 - 1, 4, width), (step[0], step[1] * 2, step[1], step[2])) * 2

    compiled = torch.compile(windows, backend="tilewright", dynamic=True)
    for batch, length in ((2, 8), (3, 12), (5, 16)):
        a = torch.randn(length, batch, 6)
        torch.testing.assert_close(compiled(a), windows(a))


def test_what_lies_beyond_the_tensor_is_left_to_torch() -> None:
    def neighbours(a: torch.Tensor) -> torch.Tensor:
        return (a * 3).t()[1:2].as_strided((2, 3), (3, 1), 0) + 1

    a = torch.arange(6.0).reshape(2, 3)
    with pytest.warns(FallbackWarning, match="a strided view of elements beyond its tensor"):
        result = torch.compile(neighbours, backend="tilewright")(a)
    torch.testing.assert_close(result, neighbours(a))


def test_results_have_the_strides_that_torch_gives_them() -> None:
    def results(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = (a + b).transpose(0, 2)
        return (
            a.permute(1, 0, 2),  # of an input
            total,  # of what is computed
            total[1:, :, ::2],
            total.exp(),  # computed in that order
            a[0].as_strided((3, 3), (2, 1)),  # overlapping
            a,
            b.expand(2, -1, -1, -1),
            *(a * b).split(2, 1),
        )

    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(results, backend="tilewright", dynamic=dynamic)
        for length in (4, 6):
            a, b = torch.randn(2, length, 5), torch.randn(2, length, 5)
            for result, expected in zip(compiled(a, b), results(a, b), strict=True):
                torch.testing.assert_close(result, expected)
                assert result.stride() == expected.stride()


def test_a_view_of_an_input_shares_its_memory() -> None:
    def view(a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a.t()[1:], a + 1

    a = torch.zeros(3, 4)
    part, _ = torch.compile(view, backend="tilewright", dynamic=True)(a)
    part.fill_(2.0)
    torch.testing.assert_close(a.sum(), torch.tensor(18.0))
