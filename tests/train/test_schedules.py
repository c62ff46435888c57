"""Learning rates by the number of the step, against torch's schedulers."""

from __future__ import annotations

import pickle

import pytest

from tests.requirements import need_module
from tilewright.support.errors import UserError
from tilewright.train import Constant, Cosine, OneCycle, StepDecay, WarmUp


def torch_rates(make, steps: int) -> list[float]:
    torch = need_module("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.5)
    scheduler = make(torch.optim.lr_scheduler, optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def test_as_torch() -> None:
    for ours, make in (
        (StepDecay(0.5, every=3, factor=0.2), lambda s, o: s.StepLR(o, 3, 0.2)),
        (Cosine(0.5, 20, least=0.1), lambda s, o: s.CosineAnnealingLR(o, 20, 0.1)),
        (OneCycle(0.5, 21), lambda s, o: s.OneCycleLR(o, 0.5, total_steps=21)),
        (OneCycle(0.5, 21, rise=0.5), lambda s, o: s.OneCycleLR(o, 0.5, total_steps=21, pct_start=0.5)),
    ):
        assert [ours(step) for step in range(20)] == pytest.approx(torch_rates(make, 20), rel=1e-6), ours


def test_rates_rise_first_and_stay_at_the_end() -> None:
    rate = WarmUp(Cosine(1.0, 4), 4)
    assert [rate(step) for step in range(4)] == [0.25, 0.5, 0.75, 1.0]
    assert rate(4) == 1.0 and rate(8) == pytest.approx(0) and rate(100) == pytest.approx(0)
    assert WarmUp(0.5, 2)(7) == 0.5 and Constant(0.5)(7) == 0.5
    assert OneCycle(1.0, 10)(1000) == pytest.approx(OneCycle(1.0, 10)(9))
    assert pickle.loads(pickle.dumps(rate)) == rate


def test_wrong_numbers_are_refused() -> None:
    for make, message in (
        (lambda: StepDecay(0.1, every=0), "every must be a whole number of at least 1, not 0"),
        (lambda: Cosine(0.1, 0), "steps must be"),
        (lambda: WarmUp(0.1, True), "steps must be"),
        (lambda: OneCycle(0.1, 10, rise=1.5), "the share of rising steps is between 0 and 1"),
    ):
        with pytest.raises(UserError, match=message):
            make()
