"""Products in 8-bit floats: which ones, what they give, and who refuses them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.passes.checking import assert_becomes
from tilewright.graph.interpreter import evaluate
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import Operator, call
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes.float8_products import float8_products
from tilewright.ir.dtype import FLOAT8_E4M3, FLOAT16
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.target import Target

HOPPER = Target("cuda -arch=sm_90a")
OPTIONS = GraphOptions(target=HOPPER, half=FLOAT16, float8=True)


def weight(depth: int, columns: int, seed: int = 0) -> Constant:
    values = np.random.default_rng(seed).normal(size=(depth, columns)) / np.sqrt(depth)
    return constant(values.astype(np.float16))


def module_of(x: Var, body: GraphExpr) -> IRModule:
    return infer_types(IRModule({"main": Function("main", (x,), body)}))


def products(module: IRModule) -> list[str]:
    main = module["main"]
    assert isinstance(main, Function)
    calls = [item for item in post_order(main) if isinstance(item, Call) and isinstance(item.callee, Operator)]
    return [item.callee.name for item in calls if item.callee.name.endswith("matmul")]  # type: ignore[union-attr]


def test_before_and_after() -> None:
    """As text: programs that are parsed have no constants of 8-bit floats."""
    assert_becomes(
        lambda module: str(float8_products(module, OPTIONS)),
        "return matmul(nn.relu(matmul(x, const[0])), const[1])",
        """
        graph.module()

        @graph.function
        def main(x: Tensor[(8, 16), "float16"]):
            v0 = matmul(x, const[0])  # float16[8, 32]
            v1 = nn.relu(v0)  # float16[8, 32]
            v2 = clip(v1, minimum=-448.0, maximum=448.0)  # float16[8, 32]
            v3 = cast(v2, dtype=float8_e4m3fn)  # float8_e4m3fn[8, 32]
            v4 = qnn.matmul(v3, const[1])  # float32[8, 32]
            v5 = multiply(v4, const[2])  # float32[8, 32]
            v6 = cast(v5, dtype=float16)  # float16[8, 32]
            return v6
        """,
        constants=[weight(16, 32).data, weight(32, 32, 1).data],
        x="f16[8, 16]",
    )


def test_what_another_product_gives_is_rounded_in_its_kernel() -> None:
    x = Var("x", tensor_type((16, 64), "float16"))
    first = call("matmul", x, weight(64, 96))
    # Read twice on the way, as activations are.
    active = call("multiply", first, call("sigmoid", first))
    before = module_of(x, call("matmul", active, weight(96, 48, 1)))
    after = float8_products(before, OPTIONS)
    assert products(after) == ["matmul", "qnn.matmul"]
    main = after["main"]
    assert isinstance(main, Function)
    assert any(isinstance(item, Constant) and item.dtype is FLOAT8_E4M3 for item in post_order(main))
    given = np.random.default_rng(2).normal(size=(16, 64)).astype(np.float16)
    wanted, found = (np.asarray(evaluate(m, given), np.float32) for m in (before, after))
    assert 0 < np.abs(found - wanted).max() < 0.06 * np.abs(wanted).max()


def test_values_beyond_the_range_saturate() -> None:
    x = Var("x", tensor_type((16, 64), "float16"))
    scaled = call("multiply", call("matmul", x, weight(64, 64)), constant(np.float16(5000.0)))
    after = float8_products(module_of(x, call("matmul", scaled, weight(64, 32, 1))), OPTIONS)
    given = np.ones((16, 64), np.float16)
    assert products(after) == ["matmul", "qnn.matmul"] and np.isfinite(np.asarray(evaluate(after, given))).all()


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "small"), [(16, 64, 64, False), (4096, 1024, 1024, True), (4096, 1000, 1024, False)]
)
def test_operands_of_large_products_are_rounded_by_a_kernel(rows: int, depth: int, columns: int, small: bool) -> None:
    x = Var("x", tensor_type((rows, depth), "float16"))
    after = float8_products(module_of(x, call("matmul", x, weight(depth, columns))), OPTIONS)
    assert products(after) == ["qnn.matmul" if small else "matmul"]


def test_a_value_that_others_read_is_not() -> None:
    x = Var("x", tensor_type((16, 64), "float16"))
    first = call("matmul", x, weight(64, 64))
    body = call("add", call("matmul", first, weight(64, 64, 1)), first)
    assert products(float8_products(module_of(x, body), OPTIONS)) == ["matmul", "matmul"]


def test_targets_that_do_not_multiply_them_are_refused() -> None:
    x = Var("x", tensor_type((16, 64), "float32"))
    module = module_of(x, call("matmul", x, constant(np.ones((64, 32), np.float32))))
    for target in ("llvm", "cuda -arch=sm_80"):
        with pytest.raises(UserError, match="needs products of 8-bit floats, which"):
            tw.Compilation(module, target=target, precision="float8")
    compilation = tw.Compilation(module, target="cuda -arch=sm_90a", precision="float8")
    assert compilation.optimized is not None
