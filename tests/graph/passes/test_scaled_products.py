"""Products of 8-bit floats with scales: of tensors, of rows and columns, of blocks; what a pass makes of them."""

from __future__ import annotations

from functools import partial

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tests.graph.ops.running import infer
from tests.graph.passes.checking import assert_becomes, program
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ops.scaled_products import spread_scales
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.scaled_products import scaled_products
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.target import Target

HOPPER = Target("cuda -arch=sm_90a")
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
SMALL = "float8_e4m3fn"


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "scale_a", "scale_b"),
    [
        (5, 7, 9, (1, 1), (1, 1)),
        (5, 7, 9, (5, 1), (7, 1)),
        (5, 200, 9, (5, 1), (2, 1)),
        (9, 200, 300, (9, 3), (2, 3)),
        (9, 30, 256, (1, 2), (30, 1)),
    ],
)
def test_compiled_and_interpreted(
    rows: int, columns: int, depth: int, scale_a: tuple[int, int], scale_b: tuple[int, int]
) -> None:
    """Against float64; scales of every kind, blocks of which the last is a part."""
    module = program(
        "return qnn.scaled_matmul(a, b, s, t)",
        a=f"{SMALL}[{rows}, {depth}]",
        b=f"{SMALL}[{columns}, {depth}]",
        s=f"f32{list(scale_a)}",
        t=f"f32{list(scale_b)}",
    )
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(n, depth)).astype(ml_dtypes.float8_e4m3fn) for n in (rows, columns))
    scales = [random.uniform(0.5, 2, shape).astype(np.float32) for shape in (scale_a, scale_b)]
    left = a.astype(np.float64) * spread_scales(scales[0], 128, depth, 1)
    right = b.astype(np.float64) * spread_scales(spread_scales(scales[1], 128, columns, 0), 128, depth, 1)
    wanted = left @ right.T
    interpreted = evaluate(module, a.view(np.uint8), b.view(np.uint8), *scales)
    for found in (interpreted, tw.compile(module, threads=1)(a, b, *scales)):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_scaled_products() -> None:
    """Scales of rows and columns go to results; rows become whole tiles of warp groups; else all in floats."""
    assert_becomes(
        partial(scaled_products, options=GraphOptions(target=HOPPER)),
        "return qnn.scaled_matmul(a, b, s, t)",
        """
        product = qnn.matmul(a, transpose(b, axes=(1, 0)))
        return multiply(product, multiply(s, transpose(t, axes=(1, 0))))
        """,
        a=f"{SMALL}[4, 16]",
        b=f"{SMALL}[8, 16]",
        s="f32[4, 1]",
        t="f32[8, 1]",
    )
    blocks = {"a": f"{SMALL}[60, 256]", "b": f"{SMALL}[64, 256]", "s": "f32[60, 2]", "t": "f32[1, 2]"}
    assert_becomes(
        partial(scaled_products, options=GraphOptions(target=HOPPER)),
        "return qnn.scaled_matmul(a, b, s, t)",
        """
        rows = pad(a, before=(0, 0), after=(4, 0), value=0.0)
        scales = pad(s, before=(0, 0), after=(4, 0), value=0.0)
        return slice(qnn.scaled_matmul(rows, b, scales, t), begin=(0, 0), end=(60, 64), strides=(1, 1))
        """,
        **blocks,
    )
    assert_becomes(
        partial(scaled_products, options=GraphOptions(target=NEON)),
        "return qnn.scaled_matmul(a, b, s, t)",
        """
        of_rows = broadcast_to(reshape(s, shape=(60, 2, 1)), shape=(60, 2, 128))
        rows = multiply(cast(a, dtype=float32), reshape(of_rows, shape=(60, 256)))
        of_columns = broadcast_to(reshape(t, shape=(1, 2, 1)), shape=(1, 2, 128))
        columns = multiply(cast(b, dtype=float32), reshape(of_columns, shape=(1, 256)))
        return matmul(rows, columns, transpose_b=True)
        """,
        **blocks,
    )


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ((("float32", 4, 8), (SMALL, 6, 8), ("float32", 1, 1), ("float32", 1, 1)), "8-bit floats"),
        (((SMALL, 4, 8), (SMALL, 6, 9), ("float32", 1, 1), ("float32", 1, 1)), "inner dimensions"),
        (((SMALL, 4, 8), (SMALL, 6, 8), ("float16", 1, 1), ("float32", 1, 1)), "scale_a must be float32"),
        (((SMALL, 4, 8), (SMALL, 6, 8), ("float32", 3, 1), ("float32", 1, 1)), "scale_a has 3 scales"),
        (((SMALL, 4, 300), (SMALL, 300, 300), ("float32", 4, 3), ("float32", 4, 3)), "scale_b has 4 scales"),
        (((SMALL, 4, 300), (SMALL, 6, 300), ("float32", 4, 2), ("float32", 1, 1)), "give 1 or 3"),
    ],
)
def test_what_does_not_fit(types: tuple[tuple[str, int, int], ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        infer("qnn.scaled_matmul", *(tensor_type((rows, columns), kind) for kind, rows, columns in types))
