"""Kernels for GPUs that a processor plays: tiles of single threads, whole rows, and no barriers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topi.differential import operator_program, random_array, results_of, run_reference
from tilewright.backends.backend import lower
from tilewright.ir.expr import Call
from tilewright.ir.visit import find_all
from tilewright.target import Target
from tilewright.tir.interpreter import interpret
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.matrix_form import MatrixForm, Product
from tilewright.topi.schedule.gpu.private_tiles import private_tiles
from tilewright.topi.schedule.gpu.strategy import schedule_gpu

SOFTWARE = Target("webgpu -mattr=+software")
Shapes = list[tuple[int, ...]]


def _check(name: str, shapes: Shapes, choices: Choices, **attributes: Any) -> list[str]:
    """Schedule and run a program, as it is scheduled and as it is lowered; the templates that it got."""
    rng = np.random.default_rng(0)
    arrays = [random_array(rng, shape) for shape in shapes]
    scheduled = schedule_gpu(operator_program(name, arrays, **attributes), SOFTWARE, choices)
    got = results_of(scheduled.func, arrays)
    lowered = lower(scheduled.func, SOFTWARE)
    assert not [call for call in find_all(lowered.body, Call) if call.name == "barrier"]
    interpret(lowered, *[array.reshape(-1) for array in (*arrays, *got)])
    for one, other in zip(got, run_reference(name, arrays, **attributes), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)
    return [choice.name for choice in scheduled.templates]


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_products_of_odd_sizes(data: st.DataObject) -> None:
    rows, columns, steps = (data.draw(st.integers(least, 21)) for least in (4, 4, 8))
    batch = data.draw(st.sampled_from([(), (3,)]))
    choices = Choices(answer=lambda question: data.draw(st.sampled_from(question.options)))
    names = _check("matmul", [(*batch, rows, steps), (*batch, steps, columns)], choices)
    assert names == ["private_tile_product"]


@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_convolutions_test_no_borders_in_their_sums(data: st.DataObject) -> None:
    """A padded image is a stage of its own."""
    size, channels, outputs = data.draw(st.integers(4, 9)), data.draw(st.integers(1, 5)), data.draw(st.integers(4, 9))
    step = data.draw(st.integers(1, 2))
    layout = {"padding": (1, 1, 1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO", "strides": (step, step)}
    choices = Choices(answer=lambda question: data.draw(st.sampled_from(question.options)))
    names = _check("nn.conv2d", [(1, size, size + 1, channels), (3, 3, channels, outputs)], choices, **layout)
    assert names == ["private_tile_product", "elementwise"]


@pytest.mark.parametrize(
    ("name", "shapes", "attributes"),
    [
        ("nn.softmax", [(5, 100)], {"axis": 1}),
        ("nn.layer_norm", [(6, 40), (40,), (40,)], {"axis": 1}),
        ("sum", [(7, 300)], {"axes": (1,)}),
        ("matmul", [(1, 80), (80, 20)], {}),
        ("transpose", [(40, 33)], {"axes": [1, 0]}),
    ],
)
def test_threads_do_whole_rows_and_sums(name: str, shapes: Shapes, attributes: dict[str, Any]) -> None:
    _check(name, shapes, Choices(), **attributes)


@pytest.mark.parametrize(
    ("rows", "columns", "line", "tile"),
    [
        (3136, 64, 56, (8, 8)),
        (784, 128, 28, (7, 8)),
        (49, 512, 7, (7, 8)),
        (128, 384, 128, (8, 8)),
        (128, 4, 128, (8, 4)),
    ],
)
def test_rows_of_a_thread_are_of_one_line(rows: int, columns: int, line: int, tile: tuple[int, int]) -> None:
    form = MatrixForm(*[None] * 4, 1, rows, columns, 64)  # type: ignore[arg-type]
    product = Product(None, None, (), (0, 1), (2,), (3,), (rows // line, line, columns, 64))  # type: ignore[arg-type]
    assert private_tiles(form, product)[0] == tile
