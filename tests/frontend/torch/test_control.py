"""`torch.cond`, `while_loop` and `scan`, interpreted and compiled."""

from __future__ import annotations

import pytest

from tests.requirements import need_module

torch = need_module("torch")
higher_order = need_module("torch._higher_order_ops")


def test_cond(check):
    def model(x):
        return torch.cond(x.sum() > 0, lambda v: (v + 1, v.sum()), lambda v: (v * 2, v.amax()), (x,))

    for compiled in (False, True):
        check(model, torch.ones(3, 4), compiled=compiled)
        check(model, -torch.ones(3, 4), compiled=compiled)


def test_while_loop(check):
    def model(x, limit):
        def going(turn, y):
            return (turn < limit) & (y.sum() < 100)

        def body(turn, y):
            return turn + 1, y * 2 + limit

        return higher_order.while_loop(going, body, (torch.zeros((), dtype=torch.int64), x))

    for limit in (3, 50):
        check(model, torch.ones(2, 3), torch.tensor(limit), compiled=True)


@pytest.mark.parametrize("steps", [5, 70])
def test_scan(steps, check):
    def model(x):
        return higher_order.scan(lambda carry, v: (carry + v, carry * v), torch.zeros(4), x, dim=0)

    check(model, torch.randn(steps, 4), compiled=True, tolerance=1e-4)
