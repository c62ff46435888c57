"""Products of two computed matrices in panels: scheduled against unscheduled programs, and compiled against numpy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tests.topi.test_schedule_cpu import compare, kernel
from tests.topi.test_turned_columns import TURNED
from tests.topi.test_turned_columns import product as product_of
from tilewright.target import Target
from tilewright.tir.stmt import LoopKind
from tilewright.topi.schedule.cpu import panel_product
from tilewright.topi.schedule.cpu.strategy import schedule_cpu

NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1)
AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)
ENDS = [lambda x, y: x, lambda x, y: op("nn.relu", op("add", x, y))]


@pytest.fixture
def small_sizes(monkeypatch):
    """Thresholds low enough for programs that are interpreted."""
    for name, value in {"_LEAST_SIZE": 8, "_LEAST_WORK": 1 << 9, "_MOST_DEPTH": 12}.items():
        monkeypatch.setattr(panel_product, name, value)


def kernel_of(rows, columns, depth, turned=(False, False), end=ENDS[0]):
    """The unscheduled program of a product, and of what is done with its results."""
    a = var("a", *((depth, rows) if turned[0] else (rows, depth)))
    b = var("b", *((columns, depth) if turned[1] else (depth, columns)))
    c = var("c", rows, columns)
    body = end(op("matmul", a, b, transpose_a=turned[0], transpose_b=turned[1]), c)
    return kernel([a, b] if end is ENDS[0] else [a, b, c], body, on_cpu=True)


def scheduled(func, target=NEON):
    """The program that this template makes."""
    made = schedule_cpu(func, target)
    assert made.templates[0].name == "panel-product"
    return made.func


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("end", ENDS, ids=["alone", "epilogue"])
@pytest.mark.parametrize("depth", [9, 12, 31], ids=["whole", "full", "parts"])
@pytest.mark.parametrize("turned", TURNED, ids=str)
@pytest.mark.parametrize("target", [NEON, AVX512], ids=["neon", "avx512"])
def test_the_meaning_stays(target, turned, depth, end):
    func = kernel_of(19, 14, depth, turned, end)
    compare(func, scheduled(func, target))


@pytest.mark.usefixtures("small_sizes")
@pytest.mark.parametrize("depth", [12, 25])
@pytest.mark.parametrize(("rows", "columns"), [(64, 12), (12, 100)])
def test_blocks_of_the_larger_matrix_are_shared_out(rows, columns, depth):
    func = kernel_of(rows, columns, depth)
    compare(func, scheduled(func, NEON.replace(cores=2, l2_bytes=4096)))


def test_cores_take_blocks():
    text = str(scheduled(kernel_of(256, 128, 4096), NEON.replace(cores=2)))
    assert LoopKind.PARALLEL.value in text


@pytest.mark.parametrize(
    ("sizes", "target", "reason"),
    [
        ((256, 256, 16), NEON, "small"),
        ((256, 256, 256), Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell"), "lanes"),
        ((256, 256, 256), AVX512.replace(cores=16), "too few blocks"),
    ],
)
def test_what_it_is_not_for(sizes, target, reason):
    (choice,) = schedule_cpu(kernel_of(*sizes), target).templates
    assert choice.name != "panel-product"
    assert reason in next(item.reason for item in choice.passed_over if item.name == "panel-product")


def test_a_square_is_one_matrix():
    a = var("a", 256, 256)
    (choice,) = schedule_cpu(kernel([a], op("matmul", a, a, transpose_b=True)), NEON).templates
    assert any(item.name == "panel-product" and "one matrix" in item.reason for item in choice.passed_over)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("turned_a", "turned_b"), TURNED)
def test_compiled(turned_a, turned_b, threads):
    module, (a, b) = product_of(150, 133, 2200, turned_a, turned_b)
    wanted = (a.T if turned_a else a) @ (b.T if turned_b else b)
    np.testing.assert_allclose(tw.compile(module, threads=threads)(a, b), wanted, rtol=1e-3, atol=1e-3)


def test_compiled_with_an_epilogue():
    a, b, c = var("a", 700, 130), var("b", 90, 700), var("c", 130)
    product = op("matmul", a, b, transpose_a=True, transpose_b=True)
    body = op("nn.relu", op("add", product, op("reshape", c, shape=(130, 1))))
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape, np.float32) for shape in ((700, 130), (90, 700), (130,))]
    got = tw.compile(tw.IRModule([function([a, b, c], body)]), threads=2)(*arrays)
    wanted = np.maximum(arrays[0].T @ arrays[1].T + arrays[2][:, None], 0)
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)
