"""LAPACK's routines as JAX calls them, on matrices of any size: text by hand against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.frontend.stablehlo.helpers import body, run
from tilewright.frontend import from_stablehlo


def _call(routine, config, operands, results):
    given = ", ".join(f"%a{at}: tensor<{kind}>" for at, kind in enumerate(operands))
    kinds = ", ".join(f"tensor<{kind}>" for kind in results)
    names = ", ".join(f"%a{at}" for at in range(len(operands)))
    wanted = [at for at, kind in enumerate(results) if "complex" not in kind]
    shown = ", ".join(f"tensor<{results[at]}>" for at in wanted)
    taken = ", ".join(f"tensor<{kind}>" for kind in operands)
    return body(
        f"({given}) -> ({shown})",
        f"%0:{len(results)} = stablehlo.custom_call @lapack_{routine}_ffi({names}) "
        f"{{mhlo.backend_config = {{{config}}}}} : ({taken}) -> ({kinds})",
        f"return {', '.join(f'%0#{at}' for at in wanted)} : {shown}",
    )


def _numbers(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("rows", [4, 40])
def test_a_matrix_without_a_factor_is_said_to_have_none(rows):
    base = _numbers(rows, rows)
    good = base @ base.T + rows * np.eye(rows, dtype=np.float32)
    text = _call("spotrf", "uplo = 76 : ui8", [f"2x{rows}x{rows}xf32"], [f"2x{rows}x{rows}xf32", "2xi32"])
    factor, info = run(text, np.stack([good, -good]))
    np.testing.assert_allclose(np.tril(factor[0]), np.linalg.cholesky(good), rtol=1e-4, atol=1e-4)
    assert info[0] == 0
    assert info[1] != 0


@pytest.mark.parametrize("rows", [3, 40])
def test_exchanged_rows_are_counted_from_one(rows):
    text = _call("sgetrf", "", [f"{rows}x{rows}xf32"], [f"{rows}x{rows}xf32", f"{rows}xi32", "i32"])
    a = _numbers(rows, rows)
    packed, pivots, _ = run(text, a)
    order = np.arange(rows)
    for step, place in enumerate(pivots - 1):
        order[[step, place]] = order[[place, step]]
    np.testing.assert_allclose((np.tril(packed, -1) + np.eye(rows)) @ np.triu(packed), a[order], atol=1e-4)


def test_eigenvalues_of_any_matrix_compiled():
    results = ["2x5xf32", "2x5xf32", "2x5x5xcomplex<f32>", "2x5x5xcomplex<f32>", "2xi32"]
    text = _call("sgeev", "compute_left = 78 : ui8, compute_right = 86 : ui8", ["2x5x5xf32"], results)
    a = _numbers(2, 5, 5)
    real, imaginary, _ = tw.compile(from_stablehlo(text), threads=1)(a)
    np.testing.assert_allclose(real + 1j * imaginary, np.linalg.eigvals(a), rtol=1e-4, atol=1e-5)


def test_eigenvalues_of_nothing():
    results = ["0xf32", "0xf32", "0x0xcomplex<f32>", "0x0xcomplex<f32>", "i32"]
    text = _call("sgeev", "compute_left = 78 : ui8, compute_right = 78 : ui8", ["0x0xf32"], results)
    real, imaginary, info = run(text, np.zeros((0, 0), np.float32))
    assert real.shape == imaginary.shape == (0,)
    assert info == 0
