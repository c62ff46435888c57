"""`tw.build` of programs that users wrote: one that contradicts itself is the user's to mend, and says where."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.script import parse_script

TEXT = """
@script.function
def f(A: Buffer[(16,), "float32"], B: Buffer[(16,), "float32"]):
    for i in range(16):
        with block("b"):
            v = spatial(16, i)
            reads(A[v])
            writes(B[v])
            B[v] = A[v] + 1.0
"""


def written(text: str) -> PrimFunc:
    func = parse_script(text)
    assert isinstance(func, PrimFunc)
    return func


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("= A[v] +", "= A[v + 1] +", "block b reads A outside the regions that it lists"),
        ("= A[v] +", "= B[0] +", "block b reads buffer B, which its reads do not list"),
        ("writes(B[v])", "writes(A[v])", "block b writes buffer B, which its writes do not list"),
    ],
)
@pytest.mark.parametrize("as_module", [False, True])
def test_regions_that_are_not_true(before: str, after: str, message: str, as_module: bool) -> None:
    """What comes later trusts the regions: buffers are shrunk to them."""
    tw.build(written(TEXT))
    func = written(TEXT.replace(before, after))
    with pytest.raises(UserError, match=message):
        tw.build(tw.IRModule({"f": func}) if as_module else func)


def test_two_blocks_of_one_name() -> None:
    loop = TEXT[TEXT.index("    for") :]
    with pytest.raises(UserError, match="two blocks are named b"):
        tw.build(written(TEXT + loop.lstrip("\n")))
