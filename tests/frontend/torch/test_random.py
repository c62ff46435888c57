"""Programs that draw random numbers: from a seed, or where nothing comes of it."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.requirements import need_module
from tilewright.frontend import from_torch
from tilewright.graph.interpreter import evaluate
from tilewright.support.errors import UnsupportedError, UserError

torch = need_module("torch")
nn = torch.nn

X = torch.zeros(40, 50)
DRAWS = {
    "rand": (lambda x: torch.rand(40, 50) + x, 0.5, 12**-0.5),
    "rand of doubles": (lambda x: torch.rand_like(x, dtype=torch.float64), 0.5, 12**-0.5),
    "rand of halves": (lambda x: torch.rand_like(x, dtype=torch.float16), 0.5, 12**-0.5),
    "randn": (lambda x: torch.randn_like(x), 0.0, 1.0),
    "randn of doubles": (lambda x: torch.randn_like(x, dtype=torch.float64), 0.0, 1.0),
    "normal": (lambda x: torch.normal(x + 3, 2.0), 3.0, 2.0),
    "normal in place": (lambda x: x.clone().normal_(3, 2), 3.0, 2.0),
    "uniform": (lambda x: x.clone().uniform_(-1, 3), 1.0, 4 * 12**-0.5),
    "exponential": (lambda x: x.clone().exponential_(2.0), 0.5, 0.5),
    "bernoulli": (lambda x: torch.bernoulli(x + 0.25), 0.25, (0.25 * 0.75) ** 0.5),
    "bernoulli of a number": (lambda x: x.clone().bernoulli_(0.25), 0.25, (0.25 * 0.75) ** 0.5),
    "randint": (lambda x: torch.randint(-3, 7, (40, 50)), 1.5, (99 / 12) ** 0.5),
    "dropout": (lambda x: nn.functional.dropout(x + 1, 0.2, training=True), 1.0, (0.25) ** 0.5),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_their_distribution(name, wrap):
    function, mean, deviation = DRAWS[name]
    drawn = evaluate(from_torch(wrap(function), (X,), seed=3), X.numpy()).astype(np.float64)
    assert drawn.shape == (40, 50)
    assert abs(drawn.mean() - mean) < 5 * deviation / np.sqrt(drawn.size)
    assert abs(drawn.std() / deviation - 1) < 0.1
    again = evaluate(from_torch(wrap(function), (X,), seed=3), X.numpy())
    np.testing.assert_array_equal(again, drawn)
    other = evaluate(from_torch(wrap(function), (X,), seed=4), X.numpy())
    assert not np.array_equal(other, drawn)


def test_uniform_numbers_reach_neither_end_too_often(wrap):
    drawn = evaluate(from_torch(wrap(lambda x: torch.rand(300, 300) + 0 * x.sum()), (X,), seed=0), X.numpy())
    assert 0 <= drawn.min() < 1e-3 and 0.999 < drawn.max() < 1
    counts = np.histogram(drawn, 20, (0, 1))[0]
    assert np.abs(counts / drawn.size * 20 - 1).max() < 0.1
    pairs = np.corrcoef(drawn.reshape(-1)[:-1], drawn.reshape(-1)[1:])[0, 1]
    assert abs(pairs) < 0.02


def test_two_draws_of_a_program_differ(wrap):
    first, second = evaluate(
        from_torch(wrap(lambda x: (torch.rand_like(x), torch.rand_like(x))), (X,), seed=0), X.numpy()
    )
    assert abs(np.corrcoef(first.reshape(-1), second.reshape(-1))[0, 1]) < 0.1


def test_a_permutation_has_every_number_once(wrap):
    drawn = evaluate(from_torch(wrap(lambda x: torch.randperm(50) + 0 * x[0].long()), (X,), seed=0), X.numpy())
    assert sorted(drawn) == list(range(50)) and list(drawn) != sorted(drawn)


def test_a_seed_that_is_an_input(wrap):
    rows = torch.export.Dim("rows")
    module = from_torch(wrap(lambda x: torch.randn_like(x)), (X,), dynamic_shapes=(({0: rows},),), seed="input")
    assert [param.name for param in module["main"].params] == ["inputs_0", "seed"]
    exe = tw.compile(module, threads=1)
    for count in (40, 7):
        draws = [exe(np.zeros((count, 50), np.float32), np.asarray(seed)) for seed in (1, 2, 1)]
        np.testing.assert_array_equal(draws[0], draws[2])
        assert not np.array_equal(draws[0], draws[1])
        expected = evaluate(module, np.zeros((count, 50), np.float32), np.asarray(1))
        np.testing.assert_allclose(draws[0], expected, rtol=1e-4, atol=1e-5)


def test_draws_that_nothing_comes_of_need_no_seed(check):
    class Layers(nn.Module):
        def forward(self, x):
            chance = torch.rand([])
            return x + 1 if not self.training or chance > 2 else x

    check(Layers().eval(), torch.randn(3))


@pytest.mark.parametrize("seed", [1.5, True, "now"])
def test_other_seeds_are_refused(seed, wrap):
    with pytest.raises(UserError, match="the seed is"):
        from_torch(wrap(lambda x: torch.rand_like(x)), (X,), seed=seed)


def test_without_a_seed_the_error_says_what_to_do(wrap):
    with pytest.raises(UnsupportedError, match=r"draw no random numbers(.|\n)*node 'rand_like'(.|\n)*seed=0"):
        from_torch(wrap(lambda x: torch.rand_like(x)), (X,))
