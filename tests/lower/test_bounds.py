"""Bounds of kernels: what is far from them is found, fused patterns are not, and whoever compiles hears of it."""

from __future__ import annotations

import random
import warnings

import pytest

import tilewright as tw
from tests.graph.helpers import op, var
from tests.lower.fused_patterns import Pattern, all_patterns
from tests.topi.test_schedule_cpu import kernel
from tilewright.graph.ir.expr import Function
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.dtype import DataType
from tilewright.ir.function import IRModule
from tilewright.lower.bounds import FAR, Bound, bound_of
from tilewright.lower.far_kernels import FarKernel, find_far_kernels, warn_of_far_kernels
from tilewright.target import Target
from tilewright.topi.schedule.template import PassedOver, TemplateChoice

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server")
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
TARGETS = {"avx512": AVX512, "neon": NEON}
INT32 = DataType.of("int32")
TINY = 4000
"""Cycles below which it does not matter how a kernel is scheduled."""
SAMPLE = 40


def far(pattern: Pattern, target: Target) -> list[str]:
    """The kernels of a pattern that are far from their bounds."""
    compilation = tw.Compilation(pattern.module(), target, threads=1)
    bounds = {kernel.symbol: compilation.bound_of(kernel) for kernel in compilation.kernels}
    assert all(bound.least > 0 for bound in bounds.values())
    return [
        f"{symbol}: {bound.factor:.1f}: {bound.reason}"
        for symbol, bound in bounds.items()
        if bound.factor > FAR and bound.estimate > TINY
    ]


def patterns_of(target: str) -> list[Pattern]:
    """Some patterns, others for each target."""
    return random.Random(target).sample(list(all_patterns()), SAMPLE // len(TARGETS))


@pytest.mark.parametrize("target", TARGETS)
def test_fused_patterns_are_near_their_bounds(target: str) -> None:
    found = {str(pattern): far(pattern, TARGETS[target]) for pattern in patterns_of(target)}
    assert {name: kernels for name, kernels in found.items() if kernels} == {}


@pytest.mark.grid
@pytest.mark.parametrize("followers", [("swish", "swish"), ("gelu", "gelu"), ("mixed", "square"), ("quantize", "gelu")])
@pytest.mark.parametrize("head", ["matmul", "conv3x3", "byte_matmul"])
def test_epilogues_that_read_a_value_twice(head: str, followers: tuple[str, str]) -> None:
    """They are part of the contraction's kernel, which has a template for contractions."""
    compilation = tw.Compilation(Pattern(head, followers, False).module(), AVX512, threads=1)
    kernel = max(compilation.kernels, key=lambda item: compilation.bound_of(item).least)
    assert compilation.bound_of(kernel).factor < 2
    assert any(choice.name in ("contraction", "dot-product", "winograd") for choice in compilation.templates_of(kernel))


@pytest.mark.fuzz
@pytest.mark.parametrize("target", TARGETS)
def test_all_fused_patterns_are_near_their_bounds(target: str) -> None:
    found = {str(pattern): far(pattern, TARGETS[target]) for pattern in all_patterns()}
    assert {name: kernels for name, kernels in found.items() if kernels} == {}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["uint8", "int32", "float32"])
def test_sums_of_short_rows_use_vectors(dtype: str, target: str) -> None:
    """Of as many elements as there are partial results, too: each is one of them."""
    for length in (16, 32, 48, 64, 96, 128, 256):
        x, zero = var("x", 1024, length, dtype=dtype), var("zero", dtype=dtype)
        distances = op("subtract", op("cast", x, dtype=INT32), op("cast", zero, dtype=INT32))
        total = op("sum", distances if dtype != "float32" else op("subtract", x, zero), axes=(1,), keepdims=False)
        module = infer_types(IRModule([Function("main", (x, zero), total)]))
        compilation = tw.Compilation(module, TARGETS[target], threads=1)
        bounds = [compilation.bound_of(kernel) for kernel in compilation.kernels]
        assert all(bound.factor <= FAR for bound in bounds), (length, bounds)


@pytest.mark.parametrize("template", ["reduction", ""])
def test_a_contraction_under_a_generic_template_is_far(template: str) -> None:
    x, w = var("x", 400, 384), var("w", 384, 512)
    func = kernel([x, w], op("matmul", x, w))
    choice = TemplateChoice(template, (PassedOver("contraction", "other stages read the contraction"),))
    bound = bound_of(func, func, [choice], AVX512)
    assert bound.factor > FAR
    assert "other stages read the contraction" in bound.reason
    assert "no sums in registers" in bound.reason


def test_functions_of_single_elements_are_far() -> None:
    x = var("x", 256, 256)
    func = kernel([x], op("exp", op("tanh", op("sigmoid", x))))
    bound = bound_of(func, func, [TemplateChoice("")], AVX512)
    assert bound.factor > FAR
    assert "without vectors" in bound.reason


def test_devices_have_no_bounds() -> None:
    x = var("x", 8, 8)
    func = kernel([x], op("nn.relu", x))
    assert bound_of(func, func, [TemplateChoice("")], Target("cuda -arch=sm_90a")) == Bound()


def test_only_what_takes_a_good_part_of_a_model_is_worth_a_word() -> None:
    bounds = {
        "slow": Bound(1e6, 9e6, "it waits"),
        "rare": Bound(1e3, 9e4, "it waits"),
        "tiny": Bound(10.0, 900.0, "it waits"),
        "good": Bound(5e6, 6e6),
    }
    uses = {"slow": 2, "rare": 1, "tiny": 1, "good": 1}
    kernels = find_far_kernels(bounds, uses, {"slow": ("/conv", "/relu", "/add")})
    assert [item.symbol for item in kernels] == ["slow"]
    assert kernels[0].factor == 9
    assert str(kernels[0]).startswith("/conv, /relu, ... (kernel slow): about 9 times slower than it could be, 75% of")


def test_whoever_compiles_is_warned_once() -> None:
    warn = FarKernel("k", ("/MatMul",), 12.0, 0.8, "a contraction under the reduction template")
    with pytest.warns(
        RuntimeWarning, match=r"1 kernel will be slow on this processor: /MatMul .* inspect --stage bounds"
    ):
        warn_of_far_kernels((warn,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_far_kernels(())


def test_a_model_knows_its_far_kernels() -> None:
    x = var("x", 64, 96)
    function = infer_types(Function("main", (x,), op("nn.relu", x)))
    assert isinstance(function, Function)
    assert tw.Compilation(IRModule([function]), threads=1).far_kernels == ()
