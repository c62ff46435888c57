"""Matrix products and Einsum against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from tests.frontend.onnx.helpers import check, data, import_one, operators_of
from tilewright.support.errors import UserError


@pytest.mark.parametrize(
    ("a", "b"),
    [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((3,), (3, 4)), ((2, 3), (3,)), ((3,), (3,)),
     ((5, 2, 3), (3,)), ((3,), (5, 3, 4))],
)  # fmt: skip
def test_matmul(a, b):
    check("MatMul", data(*a), data(*b))


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_gemm_transposes(trans_a, trans_b):
    a, b = data(*((3, 2) if trans_a else (2, 3))), data(*((4, 3) if trans_b else (3, 4)))
    check("Gemm", a, b, data(4), transA=trans_a, transB=trans_b)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 1), (2, 4)])
def test_gemm_scales(shape):
    check("Gemm", data(2, 3), data(3, 4), data(*shape), alpha=0.5, beta=2.0)


def test_gemm_without_a_third_input():
    check("Gemm", data(2, 3), data(3, 4))
    check("Gemm", data(2, 3), data(3, 4), data(4), beta=0.0)
    assert operators_of(import_one("Gemm", data(2, 3), data(3, 4), data(4))) == ["add", "matmul"]


def test_gemm_refuses_what_is_no_matrix():
    with pytest.raises(UserError, match="Gemm multiplies matrices"):
        import_one("Gemm", data(2, 3, 4), data(4, 5))
    with pytest.raises(UserError, match="does not broadcast to the product"):
        import_one("Gemm", data(1, 3), data(3, 4), data(2, 4))


def test_matmul_errors_name_the_node_and_the_dimensions():
    with pytest.raises(UserError, match=r"(?s)inner dimensions.*3 and 5.*the_MatMul.*MatMul, domain ai.onnx, opset 21"):
        import_one("MatMul", data(2, 3), data(5, 4))
    with pytest.raises(UserError, match="at least one dimension"):
        import_one("MatMul", data(2, 3), data())


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
        ("bhid,bhjd->bhij", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("...ij,...jk->...ik", [(2, 5, 2, 3), (2, 5, 3, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ij->i", [(2, 3)]),
        ("ij->", [(2, 3)]),
        ("i,i->", [(3,), (3,)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ii->i", [(3, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("ab,b->ab", [(2, 3), (3,)]),
        ("...j,j->...", [(2, 4, 3), (3,)]),
    ],
)
def test_einsum(equation, shapes):
    check("Einsum", *(data(*shape) for shape in shapes), equation=equation)


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3)], "does not fit 1 inputs"),
        ("ijk->i", [(2, 3)], "does not fit an input"),
        ("ij->ik", [(2, 3)], "which no input has"),
        ("ij,jk->ik", [(2, 3), (4, 5)], "is 3 in one input and 4 in another"),
        ("i+j->i", [(2, 3)], "not a term"),
        ("ij->ii", [(2, 2)], "not the result"),
        ("ii->i", [(2, 3)], "one letter but two sizes"),
    ],
)
def test_einsum_refuses(equation, shapes, message):
    with pytest.raises(UserError, match=message):
        import_one("Einsum", *(data(*shape) for shape in shapes), equation=equation)


def test_gemm_of_integers_scales_in_floats():
    a, b = data(2, 3, dtype="int32"), data(3, 4, dtype="int32")
    assert "cast" in operators_of(import_one("Gemm", a, b, np.array([1], np.int32), alpha=0.5))
