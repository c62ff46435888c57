"""What is refused or wrong: errors name the operation, its place in the user's program, the reason and the remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.frontend.stablehlo.helpers import body
from tilewright.frontend import from_jax, from_stablehlo
from tilewright.support.errors import MissingDependencyError, UnsupportedError, UserError

FOLDER = Path(__file__).parent / "fixtures"


def _refused(text):
    with pytest.raises(UserError) as caught:
        from_stablehlo(text)
    return str(caught.value)


def test_a_refusal_names_operation_place_reason_and_remedy():
    text = body(
        "(%a: tensor<2x2xf32>) -> tensor<2x2xf32>",
        "%0 = stablehlo.custom_call @lapack_sgehrd_ffi(%a) : (tensor<2x2xf32>) -> tensor<2x2xf32> "
        'loc("jit(f)/hessenberg"("model.py":12:4))',
        "return %0 : tensor<2x2xf32>",
    )
    assert _refused(text) == (
        "the custom call @lapack_sgehrd_ffi is not supported: a routine of LAPACK that has no counterpart here\n"
        "  where: node 'jit(f)/hessenberg' (stablehlo.custom_call), model.py:12\n"
        "  hint: compute it outside of the compiled function, or with operations of jax.numpy and jax.lax"
    )


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('%0 = "stablehlo.all_reduce"(%a) : (tensor<2xf32>) -> tensor<2xf32>', "exchanges values between devices"),
        ("%0 = stablehlo.unheard_of %a : tensor<2xf32>", "stablehlo.unheard_of is not supported"),
        ("%0 = stablehlo.add %a, %b : tensor<2xf32>", "%b is not defined"),
        ("%0 = stablehlo.add %a, : tensor<2xf32>", "add"),
        ("%0 = stablehlo.reshape %a : (tensor<2xf32>) -> tensor<3xf32>", "reshape"),
        ("%0 = stablehlo.transpose %a, dims = [1] : (tensor<2xf32>) -> tensor<2xf32>", "is no order of 1 dimensions"),
        ("%0 = call @nowhere(%a) : (tensor<2xf32>) -> tensor<2xf32>", "there is no function @nowhere"),
        ("%0 = stablehlo.convert %a : (tensor<2xf32>) -> tensor<2x!quant.uniform<i8:f32, 0.5>>", "quant"),
    ],
)
def test_wrong_operations(line, message):
    text = body("(%a: tensor<2xf32>) -> tensor<2xf32>", line, "return %0 : tensor<2xf32>")
    assert message in _refused(text)


def test_complex_inputs_are_refused_with_a_remedy():
    text = body("(%a: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>>", "return %a : tensor<2xcomplex<f32>>")
    assert "take the real and the imaginary part" in _refused(text)


@pytest.mark.parametrize(
    "text", ["module {", "module { func.func @f() { ", "module {}\n", "func.func @f(%a) {}\n", "\0\n"]
)
def test_broken_text_is_an_error_of_the_users(text):
    with pytest.raises(UserError):
        from_stablehlo(text)


def test_bytes_that_are_no_program():
    with pytest.raises(UserError, match="neither"):
        from_stablehlo(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read"):
        from_stablehlo("no/such/file.mlir")
    with pytest.raises(UnsupportedError, match="version 99"):
        from_stablehlo(b"ML\xefR" + bytes([99 << 1 | 1]) + b"x\0")


@pytest.mark.parametrize("name", ["control", "mlp"])
def test_damaged_bytecode_is_an_error_or_another_program(name):
    data = (FOLDER / f"{name}.mlirbc").read_bytes()
    random = np.random.default_rng(0)
    for turn in range(60):
        broken = bytearray(data)
        if turn % 3 == 0:
            del broken[int(random.integers(len(broken))) :]
        else:
            for place in random.integers(len(broken), size=1 + turn % 4):
                broken[place] = int(random.integers(256))
        try:
            from_stablehlo(bytes(broken))
        except UserError:
            continue


def test_damaged_text_is_an_error_or_another_program():
    text = (FOLDER / "places.mlir").read_text()
    random = np.random.default_rng(1)
    for _ in range(40):
        at = int(random.integers(len(text)))
        broken = text[:at] + str(random.choice(list("<>(){}[]%#@,:x0? "))) + text[at + int(random.integers(4)) :]
        try:
            from_stablehlo(broken)
        except UserError:
            continue


def test_without_jax_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(MissingDependencyError, match=r"tilewright\[jax\]"):
        from_jax(lambda x: x, np.ones(3))
