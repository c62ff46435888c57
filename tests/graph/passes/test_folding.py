"""Constant folding, common subexpressions, dead code, recognition, before and after."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tests.graph.helpers import function, op, random, var
from tests.graph.passes.checking import assert_becomes, program
from tilewright.graph.interpreter import apply_operator, evaluate, to_bfloat16
from tilewright.graph.ir.expr import Call, Constant, Function, GlobalVar, If, Let, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import is_call_to
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.passes.fold_constants import fold_but_bytes, fold_constants
from tilewright.graph.passes.recognize import recognize
from tilewright.ir.dtype import INT8, INT32
from tilewright.ir.function import ExternFunc, IRModule


def test_folds_what_does_not_depend_on_inputs():
    before = 'return add(x, reshape(add(constant([1.0, 2.0], "float32"), constant(3.0, "float32")), shape=(2, 1)))'
    assert_becomes(fold_constants, before, 'return add(x, constant([[4.0], [5.0]], "float32"))', x="f32[2, 3]")


def test_folds_tuples_and_branches():
    before = """
        parts = split(constant([1, 2, 3], "int64"), sizes=(1, 2), axis=0)
        if constant(False, "bool"):
            y = x
        else:
            y = parts[1]
        return y
    """
    assert_becomes(fold_constants, before, 'return constant([2, 3], "int64")', x="i64[2]")


def test_what_lies_between_is_gone_before_the_next_chain_is_computed():
    """Bytes of weights become words and bytes again: the words of all layers are never there together."""
    x = var("x", 256, 256, dtype="int8")
    value, count, size = x, 16, 256 * 256
    for seed in range(count):
        weight = constant(np.random.default_rng(seed).integers(-9, 9, (256, 256)).astype(np.int8))
        words = op("subtract", op("cast", weight, dtype=INT32), constant(np.int32(seed)))
        value = op("add", value, op("transpose", op("cast", words, dtype=INT8), axes=(1, 0)))
    module = infer_types(IRModule([function([x], value)]))
    tracemalloc.start()
    try:
        folded = fold_constants(module)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert all(isinstance(call.args[1], Constant) for call in post_order(folded["main"]) if is_call_to(call, "add"))
    assert peak < count * size + 12 * size
    data = random(0, 256, 256).astype(np.int8)
    np.testing.assert_array_equal(evaluate(folded, data), evaluate(module, data))


def test_what_two_chains_begin_with_is_computed_once(monkeypatch):
    computed = []

    def counted(item, values):
        computed.append(item.callee.name)
        return apply_operator(item, values)

    monkeypatch.setattr("tilewright.graph.passes.fold_constants.apply_operator", counted)
    start = op("negative", op("exp", constant(random(0, 4))))
    body = op("add", op("add", var("x", 4), op("sin", start)), op("cos", start))
    x = body.args[0].args[0]
    folded = fold_constants(infer_types(IRModule([function([x], body)])))
    assert sorted(computed) == ["cos", "exp", "negative", "sin"]
    assert not [item for item in post_order(folded["main"]) if is_call_to(item, "exp")]


def test_bytes_of_weights_stay_until_their_products_are_found(monkeypatch):
    monkeypatch.setattr("tilewright.graph.passes.fold_constants.SMALL_BYTES", 8)
    weights = 'subtract(cast(constant([[1, 2], [3, 4]], "int8"), dtype=int32), {})'
    before = weights.format('add(constant(1, "int32"), constant(2, "int32"))')
    after = weights.format('constant(3, "int32")')
    assert_becomes(fold_but_bytes, f"return matmul(x, {before})", f"return matmul(x, {after})", x="i32[1, 2]")
    folded = 'constant([[-2, -1], [0, 1]], "int32")'
    assert_becomes(fold_constants, f"return matmul(x, {before})", f"return matmul(x, {folded})", x="i32[1, 2]")
    twice = f"return add(matmul(x, {after}), matmul(negative(x), {after}))"
    module = infer_types(program(twice, x="i32[1, 2]"))
    same = eliminate_common_subexpressions(module)
    assert sum(is_call_to(item, "cast") for item in post_order(same["main"])) == 2, "as it is of large constants"


def test_large_growth_is_not_folded():
    x = var("x", 300, 300)
    big = op("broadcast_to", constant(1.0, "float32"), shape=(300, 300))
    module = infer_types(IRModule([function([x], op("add", x, big))]))
    assert isinstance(fold_constants(module)["main"].body.args[1], Call)
    small = op("broadcast_to", constant(1.0, "float32"), shape=(3, 3))
    module = infer_types(IRModule([function([], small)]))
    assert isinstance(fold_constants(module)["main"].body, Constant)


def test_tables_that_are_computed_are_folded_up_to_the_size_of_a_layer():
    x = var("x", 300, 300)
    column, row = constant(random(0, 300, 1)), constant(random(1, 1, 300))
    table = op("sin", op("add", op("broadcast_to", column, shape=(300, 300)), row))
    module = infer_types(IRModule([function([x], op("add", x, op("sin", op("add", column, row))))]))
    assert isinstance(fold_constants(module)["main"].body.args[1], Constant)
    repeated = infer_types(IRModule([function([x], op("add", x, table))]))
    assert isinstance(fold_constants(repeated)["main"].body.args[1], Call)
    large = op("add", constant(random(0, 3000, 1)), constant(random(1, 1, 3000)))
    module = infer_types(IRModule([function([], large)]))
    assert isinstance(fold_constants(module)["main"].body, Call)


def test_folds_bfloat16_with_its_rounding():
    values = np.asarray([1.0, 3.140625], np.float32)
    half = constant(to_bfloat16(values), "bfloat16")
    module = infer_types(IRModule([function([], op("multiply", half, half))]))
    folded = fold_constants(module)["main"].body
    assert folded.dtype.name == "bfloat16"
    np.testing.assert_array_equal(folded.data, to_bfloat16(values * values))


def test_equal_nodes_become_one():
    before = 'return add(nn.relu(x), add(nn.relu(x), add(constant(1.0, "float32"), constant(1.0, "float32"))))'
    after = """
        r = nn.relu(x)
        return add(r, add(r, add(constant(1.0, "float32"), constant(1.0, "float32"))))
    """
    result = assert_becomes(eliminate_common_subexpressions, before, after, x="f32[2]")
    constants = [item for item in post_order(result["main"]) if isinstance(item, Constant)]
    assert len(constants) == 1


def test_swapped_inputs_are_equal_where_the_order_does_not_matter():
    after = "s = add(x, y)\nreturn multiply(s, s)"
    assert_becomes(
        eliminate_common_subexpressions, "return multiply(add(x, y), add(y, x))", after, x="f32[2]", y="f32[2]"
    )
    minus = "return multiply(subtract(x, y), subtract(y, x))"
    assert_becomes(eliminate_common_subexpressions, minus, minus, x="f32[2]", y="f32[2]")


def test_different_attributes_are_different():
    before = "return add(sum(x, axes=(0,)), sum(x, axes=(1,)))"
    assert_becomes(eliminate_common_subexpressions, before, before, x="f32[2, 2]")


def test_unused_lets_and_functions_go():
    x = var("x", 4)
    a, b, c = Var("a"), Var("b"), Var("c")
    body = Let(a, op("exp", x), Let(b, op("nn.relu", a), Let(c, op("tanh", x), c)))
    helper = function([Var("p", x.annotation)], Call(GlobalVar("used"), (x,)), "unused")
    p = Var("p", x.annotation)
    used = function([p], Call(GlobalVar("deep"), (p,)), "used", result_type=x.annotation)
    q = Var("q", x.annotation)
    deep = function([q], q, "deep")
    main = function([x], Let(Var("d"), op("exp", x), Call(GlobalVar("used"), (body,))))
    module = IRModule([main, used, deep, ExternFunc("outside")])
    infer_types(module)
    with_unused = module.with_functions({**module.functions, "unused": helper})
    result = eliminate_dead_code(with_unused)
    assert set(result.functions) == {"main", "used", "deep", "outside"}
    lets = [item.var for item in post_order(result["main"]) if isinstance(item, Let)]
    assert lets == [c]
    data = random(0, 4)
    np.testing.assert_array_equal(evaluate(result, data), np.tanh(data))
    no_entry = IRModule([used, deep])
    assert eliminate_dead_code(no_entry).functions.keys() == no_entry.functions.keys()


def test_let_needed_only_inside_a_recursive_function_stays():
    n, x = var("n", dtype="int64"), var("x", 4)
    y, loop, count = Var("y"), Var("loop"), Var("count", n.annotation)
    again = op("add", y, Call(loop, (op("subtract", count, constant(1, "int64")),)))
    body = Function("", (count,), If(op("greater", count, constant(0, "int64")), again, y), x.annotation)
    main = function([n, x], Let(y, op("nn.relu", x), Let(loop, body, Call(loop, (n,)))))
    module = infer_types(IRModule([main]))
    data = random(0, 4)
    expected = evaluate(module, np.asarray(2), data)
    np.testing.assert_array_equal(evaluate(eliminate_dead_code(module), np.asarray(2), data), expected)


LAYER_NORM = """
    d = subtract(x, mean(x, axes=(2,), keepdims=True))
    v = add(mean(multiply(d, d), axes=(2,), keepdims=True), constant(0.001, "float32"))
"""


def test_layer_norm_is_recognised():
    after = f"return nn.layer_norm(x, scale, bias, axis=2, epsilon={float(np.float32(0.001))})"
    kinds = {"x": "f32[2, 3, 8]", "scale": "f32[8]", "bias": "f32[8]"}
    assert_becomes(
        recognize, LAYER_NORM + "\n    return add(multiply(divide(d, sqrt(v)), scale), bias)", after, **kinds
    )
    assert_becomes(
        recognize, LAYER_NORM + "\n    return add(bias, multiply(scale, multiply(rsqrt(v), d)))", after, **kinds
    )
    before = program(LAYER_NORM + "\n    return add(multiply(divide(d, sqrt(v)), scale), bias)", **kinds)
    data = [random(0, 2, 3, 8), random(1, 8), random(2, 8)]
    np.testing.assert_allclose(evaluate(recognize(before), *data), evaluate(before, *data), rtol=1e-5, atol=1e-5)


def rms_norm(kind: str) -> str:
    return f"""
    y = {"cast(x, dtype=float32)" if kind == "f16" else "x"}
    r = add(mean(multiply(y, y), axes=(2,), keepdims=True), constant(0.001, "float32"))
"""


RMS_NORM_EPSILON = float(np.float32(0.001))


@pytest.mark.parametrize("body", ["multiply(y, rsqrt(r))", "divide(y, sqrt(r))"])
def test_rms_norm_is_recognised(body):
    kinds = {"x": "f32[2, 3, 8]", "scale": "f32[8]"}
    after = f"return nn.rms_norm(x, scale, axis=2, epsilon={RMS_NORM_EPSILON})"
    assert_becomes(recognize, rms_norm("f32") + f"\n    return multiply(scale, {body})", after, **kinds)
    before = program(rms_norm("f32") + f"\n    return multiply({body}, scale)", **kinds)
    data = [random(0, 2, 3, 8), random(1, 8)]
    np.testing.assert_allclose(evaluate(recognize(before), *data), evaluate(before, *data), rtol=1e-5, atol=1e-5)


def test_rms_norm_of_halves_is_one_operator():
    """Converted before the scale, or after it: sums are wide, and there is one rounding."""
    normal = "multiply(y, rsqrt(r))"
    first = rms_norm("f16") + f"\n    return multiply(cast({normal}, dtype=float16), scale)"
    last = rms_norm("f16") + f"\n    return cast(multiply({normal}, scale), dtype=float16)"
    after = f"return nn.rms_norm(x, scale, axis=2, epsilon={RMS_NORM_EPSILON})"
    assert_becomes(recognize, first, after, rtol=2e-3, x="f16[2, 3, 8]", scale="f16[8]")
    assert_becomes(recognize, last, after, rtol=2e-3, x="f16[2, 3, 8]", scale="f32[8]")


def test_what_is_no_rms_norm_is_left_alone():
    """A scale that makes the result larger, a mean over other axes, a norm that others read."""
    kinds = {"x": "f32[2, 1, 8]", "scale": "f32[2, 4, 8]"}
    before = program(rms_norm("f32") + "\n    return multiply(multiply(y, rsqrt(r)), scale)", **kinds)
    assert is_call_to(recognize(before)["main"].body, "multiply")
    across = rms_norm("f32").replace("axes=(2,)", "axes=(1,)") + "\n    return multiply(y, rsqrt(r))"
    assert is_call_to(recognize(program(across, x="f32[2, 3, 8]"))["main"].body, "multiply")


def test_other_norms_are_left_alone():
    kinds = {"x": "f32[2, 3, 8]", "scale": "f32[3, 8]", "bias": "f32[8]"}
    text = LAYER_NORM + "\n    return add(multiply(divide(d, sqrt(v)), scale), bias)"
    assert_becomes(recognize, text, text, **kinds)
    over_middle = text.replace("axes=(2,)", "axes=(1,)")
    assert_becomes(recognize, over_middle, over_middle, **{**kinds, "scale": "f32[8]"})


SCALED = 'multiply(x, constant(0.125, "float32"))'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("erf({})", "erf({})"),
        ("nn.softmax({}, axis=1)", "nn.softmax({}, axis=1)"),
        ("nn.softmax(add({}, m), axis=1)", "nn.softmax(add({}, m), axis=1)"),
    ],
)
def test_quotients_before_smooth_functions_become_products(before: str, after: str):
    kinds = {"x": "f32[2, 8]", "m": "f32[8]"}
    quotient = 'divide(x, constant(8.0, "float32"))'
    assert_becomes(recognize, f"return {before.format(quotient)}", f"return {after.format(SCALED)}", **kinds)
    odd = program(f"return {before.format(quotient)}".replace("8.0", "5.7"), **kinds)
    data = [random(0, 2, 8), random(1, 8)]
    np.testing.assert_allclose(evaluate(recognize(odd), *data), evaluate(odd, *data), rtol=1e-6)


@pytest.mark.parametrize("divisor", ["0.0", "1e-45", "1e38"])
def test_quotients_by_extreme_numbers_stay(divisor: str):
    text = f'return erf(divide(x, constant({divisor}, "float32")))'
    assert_becomes(recognize, text, text, x="f32[2, 8]")


def test_quotients_before_steps_stay():
    text = 'return floor(divide(x, constant(49.0, "float32")))'
    assert_becomes(recognize, text, text, x="f32[2, 8]")


@pytest.mark.parametrize(
    "one", [fold_constants, eliminate_common_subexpressions, eliminate_dead_code, recognize], ids=lambda f: f.__name__
)
def test_tuple_results_survive(one):
    assert_becomes(one, "return (x, nn.relu(x))", "return (x, nn.relu(x))", x="f32[4]")
