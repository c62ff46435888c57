"""Text helpers."""

from __future__ import annotations

import pytest

from tilewright.support import text


def test_table_sets_numbers_right_and_words_left() -> None:
    assert text.table(("name", "us"), [("conv", "12.5"), ("relu_0", "3")]) == (
        "name      us\n------  ----\nconv    12.5\nrelu_0     3"
    )
    assert text.table(("a",), []) == "a\n-"


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (3 * 2**30, "3.00 GiB")]
)
def test_bytes(value: float, expected: str) -> None:
    assert text.human_bytes(value) == expected


def test_counts_rates_and_seconds() -> None:
    assert text.human_count(12) == "12"
    assert text.human_count(11689512) == "11.69 M"
    assert text.human_rate(3.2e10, "FLOP/s") == "32.00 GFLOP/s"
    assert text.human_rate(5, "B/s") == "5 B/s"
    assert [text.human_seconds(value) for value in (3e-9, 2.5e-6, 0.00123, 1.5, 125)] == [
        "3 ns",
        "2.50 us",
        "1.23 ms",
        "1.50 s",
        "2 min 5 s",
    ]


def test_indent_plural_shorten() -> None:
    assert text.indent("a\n\nb", 2) == "  a\n\n  b"
    assert text.plural(1, "input") == "1 input"
    assert text.plural(0, "input") == "0 inputs"
    assert text.shorten("abcdefgh", 6) == "abc..."
    assert text.shorten("abc", 6) == "abc"


def test_types_have_their_article() -> None:
    assert [text.kind_of(value) for value in (1, [], None, IndexError())] == [
        "an int",
        "a list",
        "a NoneType",
        "an IndexError",
    ]
