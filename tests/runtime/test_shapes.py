"""Symbolic extents at run time."""

from __future__ import annotations

import pytest

from tilewright.runtime.core import shapes
from tilewright.support.errors import CompilerBug, UserError


def test_symbols_and_trailing() -> None:
    assert shapes.symbols("min(m, 4) + n * m") == ["m", "n"]
    assert shapes.trailing_symbols([("n", 4), None, ("m + n", "k")], ["k"]) == ["n", "m"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("n", 10), ("2 * n + 1", 21), ("(n + 3) // 4", 3), ("n % 4", 2), ("max(n - 20, 0)", 0), ("-n + m", -7)],
)
def test_evaluate(text: str, value: int) -> None:
    assert shapes.evaluate(text, {"n": 10, "m": 3}) == value


def test_unknown_symbols_have_no_value() -> None:
    assert shapes.evaluate("n", {}) is None
    assert shapes.evaluate("n + 1", {}) is None
    assert shapes.evaluate(5, {}) == 5


@pytest.mark.parametrize("text", ["n +", "f(n)", "n ** 2", "'a'"])
def test_other_texts_are_our_bug(text: str) -> None:
    with pytest.raises(CompilerBug, match="not arithmetic"):
        shapes.evaluate(text, {"n": 2, "f": 1})


def test_binding() -> None:
    values: dict[str, int] = {}
    shapes.bind_shape(("n", 4, "m"), (3, 4, 5), values, "x")
    assert values == {"n": 3, "m": 5}
    shapes.bind_shape(("n + 1",), (4,), values, "y")
    with pytest.raises(UserError, match=r"y has the shape \[5\], expected \[n \+ 1\]: axis 0 must be 4"):
        shapes.bind_shape(("n + 1",), (5,), values, "y")
    with pytest.raises(UserError, match=r"axis 0 must be 3 \(n = 3 here\), not 2"):
        shapes.bind_shape(("n",), (2,), values, "z")
    with pytest.raises(UserError, match=r"\(1 dimensions\), expected \[n, 4\]"):
        shapes.bind_shape(("n", 4), (3,), values, "z")
