"""What programs assert of values and of sizes that data decides: a run is refused where torch refuses it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.grids import rare
from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.support.errors import UnsupportedError, UserError

torch = need_module("torch")

DYNAMIC = torch.export.Dim.DYNAMIC
LINE = torch.arange(1.0, 7.0)


def check(model: Any, inputs: tuple[Any, ...], others: list[tuple[Any, ...]], dynamic: Any = None) -> list[str]:
    """Runs of one export by torch and compiled: the same results, or both refuse; gives our messages."""
    program = torch.export.export(model, inputs, dynamic_shapes=dynamic, strict=False)
    executable = tw.compile(from_torch(program))
    messages = []
    for given in [inputs, *others]:
        try:
            expected = program.module()(*given)
        except (AssertionError, RuntimeError):
            with pytest.raises(UserError) as caught:
                executable(*given)
            messages.append(str(caught.value))
            continue
        torch.testing.assert_close(executable(*given), expected)
    return messages


class Positive(torch.nn.Module):
    """Asserts something of a tensor, in its own words."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "all positive, please")
        return x * 2


class Unsaid(torch.nn.Module):
    """Asserts without a word, in a program that torch takes apart."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async(x.sum())
        return x.clone().add_(1)


class Counted(torch.nn.Module):
    """Asserts something of a size that data decides."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.nonzero(x)
        torch._check(places.shape[0] >= 2)
        torch._check(places.shape[0] != 4)
        return places * 2


class Held(torch.nn.Module):
    """Asserts something of a number that a tensor holds, and computes with it."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> tuple[torch.Tensor, ...]:
        number = n.item()
        torch._check(number != 0)
        return x[0] * number, n // number, x.double() - number, x.half().sum() + number, x.int() + number


class Ranges(torch.nn.Module):
    """Bounds a number that a tensor holds, and a size that data decides."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        number, places = n.item(), torch.nonzero(x)
        torch.ops.aten.sym_constrain_range.default(number, min=2, max=5)
        torch.ops.aten.sym_constrain_range.default(places.shape[0], min=3)
        return places * number


class Fixed(torch.nn.Module):
    """Asserts that a number is one that torch then computes with."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        number = n.item()
        torch._check(number == 3)
        return x * number


class Truth(torch.nn.Module):
    """Asserts a truth value that a tensor holds."""

    def forward(self, x: torch.Tensor, flag: torch.Tensor) -> torch.Tensor:
        torch._check(flag.item())
        return x * 2


class AllOf(torch.nn.Module):
    """Asserts that a condition holds for every element."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._check_tensor_all(x > 0, lambda: "positive")
        return x * 2


class Branch(torch.nn.Module):
    """Asserts in one branch only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def small(x: torch.Tensor) -> torch.Tensor:
            torch._assert_async((x < 100).all(), "too large")
            return x * 2

        return torch.cond(x.sum() > 0, small, lambda x: x * 3, (x,))


class Turns(torch.nn.Module):
    """Asserts in every turn of a loop."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def body(number: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            torch._assert_async((x < 100).all(), "too large")
            return number + 1, x * 2

        return torch.while_loop(lambda number, x: number < 4, body, (torch.tensor(0), x))[1]


def test_the_message_of_an_assertion_is_torchs() -> None:
    (message,) = check(Positive(), (LINE,), [(LINE - 3,), (LINE * 2,)])
    assert "all positive, please" in message
    assert "_assert_async" in message
    assert "Expected Tensor with single nonzero value" in check(Unsaid(), (LINE,), [(LINE - 3.5,)])[0]


def test_sizes_that_data_decides() -> None:
    keep = [torch.tensor([1.0] * n + [0.0] * (6 - n)) for n in range(7)]
    assert len(check(Counted(), (LINE,), [(item,) for item in keep])) == 3


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.float32, torch.float64])
def test_numbers_that_tensors_hold(dtype: Any) -> None:
    numbers = [torch.tensor(value, dtype=dtype) for value in (2, 0, 1, -5)]
    (message,) = check(Held(), (LINE, numbers[0]), [(LINE, number) for number in numbers])
    wanted = "Runtime assertion failed for expression Ne" if dtype.is_floating_point else "division is zero"
    assert wanted in message


def test_bounds_of_numbers() -> None:
    few = torch.tensor([0.0, 0, 0, 0, 1, 1])
    numbers = [torch.tensor(value) for value in (2, 5, 1, 6)]
    assert len(check(Ranges(), (LINE, torch.tensor(3)), [(LINE, number) for number in numbers])) == 2
    assert check(Ranges(), (LINE, torch.tensor(3)), [(few, torch.tensor(3))])


def test_what_a_number_was_asserted_to_be() -> None:
    (message,) = check(Fixed(), (LINE, torch.tensor(3)), [(LINE, torch.tensor(4))])
    assert "the program is for a number that is 3" in message
    assert check(Truth(), (LINE, torch.tensor(True)), [(LINE, torch.tensor(False))])
    assert check(AllOf(), (LINE,), [(LINE - 3,)])


def test_assertions_hold_where_they_are_made() -> None:
    (message,) = check(Branch(), (LINE,), [(-LINE,), (LINE * 100,), (-LINE * 200,)])
    assert "too large" in message
    assert len(check(Turns(), (LINE,), [(LINE * 2,), (LINE * 3,)])) == 1


def test_a_captured_graph_asserts_too() -> None:
    for model in (Positive(), Unsaid()):
        compiled = torch.compile(model, backend="tilewright")
        torch.testing.assert_close(compiled(LINE), model(LINE))
        with pytest.raises(UserError):
            compiled(LINE - 3.5)


class Checked(torch.nn.Module):
    """Checks a condition on a whole number, a float, a size that varies and one that data decides."""

    def __init__(self, condition: str) -> None:
        super().__init__()
        self.condition = eval(f"lambda k, f, n, c: {condition}")

    def forward(self, x: torch.Tensor, whole: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        places = torch.nonzero(x)
        torch._check(self.condition(whole.item(), real.item(), x.shape[0], places.shape[0]))
        return x * 2


def random_condition(draw: random.Random) -> str:
    def number(depth: int) -> str:
        if depth == 0 or draw.random() < 0.3:
            return draw.choice(["k", "k", "n", "c", "3", "7"])
        operator = draw.choice(["+", "-", "*", "//", "%"])
        right = draw.choice(["2", "3", "5"]) if operator in "//%" else number(depth - 1)
        return f"({number(depth - 1)} {operator} {right})"

    relation = draw.choice(["<", "<=", ">", ">=", "==", "!="])
    if draw.random() < 0.3:
        return f"f * {draw.choice(['2', '0.5', '-1'])} {relation} {draw.choice(['1.5', '0.0', 'f + 1'])}"
    # A condition on the sizes of inputs alone is a guard, and has tests of its own.
    return f"{draw.choice(['k', 'c'])} + {number(2)} {relation} {number(2)}"


@pytest.mark.parametrize("count", [5, *rare(24)])
def test_random_conditions_are_checked_as_torch_checks_them(count: int) -> None:
    draw = random.Random(11)
    outcomes = {True: 0, False: 0}
    programs = 0
    while programs < count:
        condition = random_condition(draw)
        given = LINE.clone(), torch.tensor(draw.randrange(-9, 20)), torch.tensor(draw.uniform(-3, 3))
        try:
            program = torch.export.export(
                Checked(condition), given, dynamic_shapes=({0: DYNAMIC}, None, None), strict=False
            )
        except Exception:
            continue  # torch knows already that it does not hold, or does not export the arithmetic
        programs += 1
        executable = tw.compile(from_torch(program))
        for _ in range(20):
            length = draw.randrange(3, 12)
            x = torch.from_numpy(np.array([draw.randrange(3) for _ in range(length)], np.float32))
            inputs = x, torch.tensor(draw.randrange(-9, 20)), torch.tensor(draw.uniform(-3, 3))
            try:
                expected = program.module()(*inputs)
            except (AssertionError, RuntimeError):
                expected = None
            try:
                found = executable(*inputs)
            except UserError:
                found = None
            assert (found is None) == (expected is None), (condition, inputs)
            if expected is not None:
                torch.testing.assert_close(found, expected)
            outcomes[expected is not None] += 1
    assert min(outcomes.values()) > 15, outcomes


class Cut(torch.nn.Module):
    """Has a size that a tensor holds."""

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        end = n.item()
        torch._check(end >= 0)
        torch._check(end <= x.shape[0])
        return x[:end] * 2


class Sized(torch.nn.Module):
    """Branches on a size that varies."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.shape[0] > 4, lambda x: x * 2, lambda x: x * 3, (x,))


class Silent(torch.nn.Module):
    """Asserts, and computes nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "all positive, please")
        return torch.ones(3)


@pytest.mark.parametrize(
    ("model", "inputs", "dynamic", "message"),
    [
        (Cut(), (LINE, torch.tensor(3)), None, "the argument 'end' is a number that a tensor holds"),
        (Sized(), (LINE,), ({0: DYNAMIC},), "numbers computed from dimensions that vary"),
        (Silent(), (LINE,), None, "conditions on a program that computes no tensor"),
    ],
)
def test_what_is_refused(model: Any, inputs: Any, dynamic: Any, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        from_torch(model, inputs, dynamic_shapes=dynamic)


def test_an_assertion_that_never_holds_is_refused_at_once() -> None:
    class Never(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._assert_async(torch.zeros(1), "never")
            return x * 2

    with pytest.raises(UserError, match="never"):
        from_torch(Never(), (LINE,))
