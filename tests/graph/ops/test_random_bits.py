"""Random bits of keys: known answers, the same on every target, and as good as they look."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tests.requirements import need
from tilewright.frontend.core import randomness
from tilewright.frontend.core.arithmetic import ArithmeticBuilder
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Tuple
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ops.random_bits import folded_key, key_of, random_bits, threefry
from tilewright.ir.dtype import FLOAT64
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.support.errors import UserError


def test_known_answers() -> None:
    """Of Random123, which the generator comes from."""
    for key, counter, expected in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ):
        words = [np.array([word], np.uint32) for word in counter]
        found = threefry(np.array(key, np.uint32), *words)
        assert (int(found[0][0]), int(found[1][0])) == expected


def test_keys_are_those_of_jax() -> None:
    """jax.random.split(jax.random.key(42), 3), of jax 0.5 and later."""
    expected = [[1832780943, 270669613], [64467757, 2916123636], [2465931498, 255383827]]
    np.testing.assert_array_equal(folded_key(key_of(42), np.arange(3)), expected)


@pytest.mark.parametrize("target", ["native", "opencl"])
def test_every_target_has_the_same_bits(target: str) -> None:
    if target != "native":
        need(target)
    key, numbers = var("key", 2, dtype="uint32"), var("numbers", 3, dtype="uint32")
    results = (op("random.bits", key, shape=(7, 19)), op("random.fold_in", key, numbers))
    module = infer_types(IRModule([function([key, numbers], Tuple(results))]))
    value, given = key_of(0x1234_5678_9ABC_DEF0), np.array([0, 7, 0xFFFFFFFF], np.uint32)
    for found, expected in zip(
        tw.compile(module, target, threads=1)(value, given), evaluate(module, value, given), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(evaluate(module, value, given)[0], random_bits(value, (7, 19)))


def test_sizes_may_be_symbols() -> None:
    n = Symbol("n")
    key, x = var("key", 2, dtype="uint32"), var("x", n, 3)
    module = infer_types(IRModule([function([key, x], Tuple((op("random.bits", key, shape=(n, 3)), op("exp", x))))]))
    exe = tw.compile(module, threads=1)
    for rows in (1, 5):
        found = exe(key_of(3), np.zeros((rows, 3), np.float32))[0]
        np.testing.assert_array_equal(found, random_bits(key_of(3), (rows, 3)))


def drawn(build) -> np.ndarray:
    b = ArithmeticBuilder()
    key = var("key", 2, dtype="uint32")
    module = infer_types(IRModule([function([key], b.body(build(b, key)))]))
    first, second = evaluate(module, key_of(1)), evaluate(module, key_of(2))
    assert not np.array_equal(first, second)
    return first


def test_distributions() -> None:
    shape = (200, 100)
    for build, mean, deviation in (
        (lambda b, key: randomness.uniform(b, key, shape), 0.5, 12**-0.5),
        (lambda b, key: randomness.uniform(b, key, shape, FLOAT64), 0.5, 12**-0.5),
        (lambda b, key: randomness.normal(b, key, shape), 0.0, 1.0),
        (lambda b, key: randomness.exponential(b, key, shape), 1.0, 1.0),
        (lambda b, key: randomness.integers(b, key, shape, -3, 7), 1.5, (99 / 12) ** 0.5),
        (lambda b, key: randomness.bernoulli(b, key, shape, b.constant(0.3, "float32")), 0.3, 0.21**0.5),
    ):
        values = drawn(build).astype(np.float64)
        assert values.shape == shape and abs(values.mean() - mean) < 5 * deviation / values.size**0.5
        assert values.std() == pytest.approx(deviation, rel=0.03)
        assert abs(np.corrcoef(values.reshape(-1)[:-1], values.reshape(-1)[1:])[0, 1]) < 0.03
    logits = np.log(np.array([[1.0, 2.0, 7.0], [1.0, 1.0, 0.0]], np.float32) + 1e-30)
    counts = drawn(lambda b, key: randomness.categories(b, key, b.constant(logits), 4000))
    shares = [np.bincount(row, minlength=3) / 4000 for row in counts]
    np.testing.assert_allclose(shares, [[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]], atol=0.03)


def test_bits_are_balanced() -> None:
    bits = np.unpackbits(random_bits(key_of(7), (4096,)).view(np.uint8)).reshape(4096, 32)
    assert np.abs(bits.mean(axis=0) - 0.5).max() < 0.04
    assert len(np.unique(random_bits(key_of(7), (1 << 16,)))) > 65000


def test_wrong_keys_are_refused() -> None:
    for build, message in (
        (lambda: op("random.bits", var("k", 2, dtype="int32"), shape=(3,)), "a key is two words of uint32"),
        (lambda: op("random.bits", var("k", 3, dtype="uint32"), shape=(3,)), "a key is two words of uint32"),
        (lambda: op("random.fold_in", var("k", 2, dtype="uint32"), var("n", dtype="int64")), "numbers of uint32"),
    ):
        made = build()
        with pytest.raises(UserError, match=message):
            infer_types(IRModule([function(made.args, made)]))
