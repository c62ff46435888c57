"""What torch took for granted about sizes while it exported: a run of other sizes is refused, as torch refuses it."""

from __future__ import annotations

import random
from typing import Any

import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend.torch.conditions import _Reader
from tilewright.graph.ir.dimensions import value_of
from tilewright.ir.expr import Var
from tilewright.support.errors import UnsupportedError, UserError

torch = need_module("torch")

DYNAMIC = torch.export.Dim.DYNAMIC


class Longer(torch.nn.Module):
    """Asks for a size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x) * 2 if x.shape[1] > 10 else x * 3


class Divided(torch.nn.Module):
    """Asks whether a size can be divided, and compares two of them, in a list of inputs."""

    def forward(self, pair: list[torch.Tensor], scale: torch.Tensor) -> torch.Tensor:
        first, second = pair
        if first.shape[1] % 4 == 0 and second.shape[0] != 3:
            return (first @ second) * scale
        return first @ second + scale


class Several(torch.nn.Module):
    """Asks for the size of one of any number of inputs."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return inputs[0] * inputs[1].sum() if inputs[1].shape[0] > 10 else inputs[0]


class Pool(torch.nn.Module):
    """Whether the last window begins within the image depends on the size."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.max_pool2d(x, 2, 3, 1, ceil_mode=True)


class Plain(torch.nn.Module):
    """Asks nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)


class Chosen(torch.nn.Module):
    """Asks for a size, and gives what only a run knows the size of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[0] > 10
        return torch.nonzero(x)


def outcome(run: Any, inputs: tuple[Any, ...], *refusals: type[Exception]) -> Any:
    """The result, or None where it is refused."""
    try:
        return run(*inputs)
    except refusals:
        return None


CASES: list[tuple[torch.nn.Module, Any, Any, list[Any]]] = [
    (Longer(), lambda n: (torch.randn(2, n),), {"x": {1: DYNAMIC}}, [12, 11, 10, 7, 40]),
    (Pool(), lambda n: (torch.randn(1, 1, n, 9),), {"x": {2: DYNAMIC}}, [9, 10, 11, 12, 13, 30]),
    (Plain(), lambda n: (torch.randn(2, n),), {"x": {1: torch.export.Dim("n", min=4, max=20)}}, [4, 9, 20, 3, 21]),
    (Plain(), lambda n: (torch.randn(2, n),), {"x": {1: torch.export.Dim("n")}}, [8, 2, 1]),
    (
        Divided(),
        lambda n: ([torch.randn(3, n), torch.randn(n, 5)], torch.randn(5)),
        {"pair": [{1: DYNAMIC}, {0: DYNAMIC}], "scale": None},
        [8, 12, 10, 4, 3],
    ),
    (
        Several(),
        lambda n: (torch.randn(3), torch.randn(n)),
        (({0: DYNAMIC}, {0: DYNAMIC}),),
        [12, 11, 10, 7],
    ),
    (Chosen(), lambda n: (torch.ones(n),), {"x": {0: DYNAMIC}}, [12, 11, 10, 7]),
]


@pytest.mark.parametrize(("model", "inputs", "dynamic", "sizes"), CASES, ids=lambda item: type(item).__name__)
def test_sizes_that_torch_refuses_are_refused(model: Any, inputs: Any, dynamic: Any, sizes: list[int]) -> None:
    first = inputs(sizes[0])
    program = torch.export.export(model, first, dynamic_shapes=dynamic, strict=False)
    flat = torch.utils._pytree.tree_leaves
    executable = tw.compile(tw.frontend.from_torch(program))
    taken = []
    for size in sizes:
        given = inputs(size)
        expected = outcome(program.module(), given, AssertionError, RuntimeError)
        found = outcome(executable, tuple(item.numpy() for item in flat(given)), UserError)
        assert (found is None) == (expected is None), f"a size of {size}"
        if expected is not None:
            torch.testing.assert_close(torch.from_numpy(found), expected)
        taken.append(expected is not None)
    assert any(taken)
    if not isinstance(model, Plain) or len(sizes) > 3:
        assert not all(taken), "some sizes are beyond what was exported"


def test_what_was_declared_a_multiple_must_be_one() -> None:
    dynamic = {"x": {1: 4 * torch.export.Dim("quarter")}}
    executable = tw.compile(tw.frontend.from_torch(Plain(), (torch.randn(2, 8),), dynamic_shapes=dynamic))
    executable(torch.randn(2, 12).numpy())
    with pytest.raises(UserError, match="which they are not for x_1 = 10"):
        executable(torch.randn(2, 10).numpy())


def test_the_error_says_what_is_needed() -> None:
    program = tw.frontend.from_torch(Longer(), (torch.randn(2, 12),), dynamic_shapes={"x": {1: DYNAMIC}})
    with pytest.raises(UserError, match=r"needs max\(.*11.*\) and x_1 to be equal, which they are not for x_1 = 7"):
        tw.compile(program)(torch.randn(2, 7).numpy())


def test_conditions_are_read_as_python_reads_them() -> None:
    """Random conditions: the two sizes of a pair are equal where the condition holds, and only there."""
    draw = random.Random(5)
    n, m = Var("n"), Var("m")
    terms = ["L['x'].size()[0]", "L['y'][1].size()[2]", "3", "7"]

    def size(depth: int) -> str:
        if depth == 0 or draw.random() < 0.3:
            return draw.choice(terms)
        if draw.random() < 0.2:
            return f"{draw.choice(['max', 'min'])}({size(depth - 1)}, {size(depth - 1)})"
        operator = draw.choice(["+", "-", "*", "//", "%"])
        right = draw.choice(["2", "3", "5"]) if operator in "//%" else size(depth - 1)
        return f"({size(depth - 1)} {operator} {right})"

    def condition(depth: int) -> str:
        if depth and draw.random() < 0.4:
            return f"({condition(depth - 1)} {draw.choice(['and', 'or'])} {condition(depth - 1)})"
        if depth and draw.random() < 0.2:
            return f"not {condition(depth - 1)}"
        parts = [size(2)]
        for _ in range(draw.choice([1, 1, 2])):
            parts += [draw.choice(["<", "<=", ">", ">=", "==", "!="]), size(2)]
        return " ".join(parts)

    class Sized:
        def __init__(self, *sizes: int) -> None:
            self.sizes = sizes

        def size(self) -> tuple[int, ...]:
            return self.sizes

    held = 0
    for _ in range(300):
        text = condition(2)
        left, right = _Reader({"L['x']": "a", "L['y'][1]": "c"}, {"a": (n,), "c": (1, 2, m)}, text).pair()
        for _ in range(6):
            values = {n: draw.randrange(20), m: draw.randrange(20)}
            holds = eval(text, {"L": {"x": Sized(values[n]), "y": [None, Sized(1, 2, values[m])]}})
            assert (value_of(left, values) == value_of(right, values)) == holds, (text, values)
            held += holds
    assert 200 < held < 1600


@pytest.mark.parametrize(
    "text", ["L['x'].stride()[0] == 1", "L['z'].size()[0] > 2", "sqrt(L['x'].size()[0]) > 2", "L['x'].size()[0]"]
)
def test_conditions_that_are_not_understood_are_refused(text: str) -> None:
    with pytest.raises(UnsupportedError, match="is not understood"):
        _Reader({"L['x']": "a"}, {"a": (Var("n"),)}, text).pair()
