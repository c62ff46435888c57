"""Kernels of large batches on GPUs: grouped convolutions, shallow products, vectors of halves and their functions."""

from __future__ import annotations

import re
import subprocess
from math import erf
from pathlib import Path

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.on_device import require_nvrtc
from tests.requirements import C_COMPILERS, need_tool
from tests.topi.test_schedule_tensor_core import WGMMA, arrays, product, text
from tilewright import te
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.backends.cuda.dialect import CudaDialect
from tilewright.backends.cuda.target import KIND
from tilewright.ir import intrinsics
from tilewright.te.program import create_prim_func
from tilewright.tir.function import CONSTANTS, PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.topi.registry import apply_operator
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.strategy import schedule_gpu
from tilewright.topi.schedule.gpu.tile_choice import Shape, ranked_tiles
from tilewright.topi.schedule.packing import packing_of


def convolution(
    size: int, channels: int, groups: int, stride: int = 1, dtype: str = "float16", images: int = 2
) -> PrimFunc:
    """A 3x3 convolution (NHWC) with bias and ReLU."""
    x = te.placeholder((images, size, size, channels), dtype, "x")
    w = te.placeholder((3, 3, channels // groups, channels), dtype, "w")
    bias = te.placeholder((channels,), dtype, "bias")
    (y,) = apply_operator(
        "nn.conv2d",
        [x, w],
        strides=(stride, stride),
        padding=(1, 1, 1, 1),
        groups=groups,
        data_layout="NHWC",
        kernel_layout="HWIO",
    )
    z = te.compute(y.shape, lambda *i: te.maximum(y[i] + bias[i[-1]], te.const(0.0, dtype)), "z")
    func = create_prim_func([x, w, bias, z], "convolution")
    return func.replace(attributes={**func.attributes, CONSTANTS: (1, 2)})


def assert_same(func: PrimFunc, scheduled: PrimFunc) -> None:
    """Both programs give the same results; constants are stored as the second one wants them."""
    given = arrays(func)
    expected = [array.copy() for array in given]
    interpret(func, *expected)
    order = {
        number: [int(step[0]) for step in index_map.encode()] for number, index_map in packing_of(scheduled).items()
    }
    packed = [np.ascontiguousarray(array.transpose(order[n])) if n in order else array for n, array in enumerate(given)]
    interpret(scheduled, *packed)
    np.testing.assert_allclose(packed[-1].astype(np.float32), expected[-1].astype(np.float32), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("channels", "groups", "stride"), [(32, 2, 1), (32, 2, 2)])
def test_groups_are_products_of_a_batch(channels: int, groups: int, stride: int) -> None:
    """Channels in both operands would leave no columns: groups become an axis of their own."""
    func = convolution(4, channels, groups, stride)
    scheduled = schedule_gpu(func, WGMMA)
    assert [choice.name for choice in scheduled.templates] == ["tensor_core_product"]
    assert_same(func, scheduled.func)


@pytest.mark.parametrize(("channels", "groups", "stride"), [(48, 2, 1), (32, 4, 2), (16, 4, 1)])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_groups_of_one_image_are_products_of_a_batch(channels: int, groups: int, stride: int, dtype: str) -> None:
    """The axis of images is in no index then."""
    func = convolution(5, channels, groups, stride, dtype, images=1)
    scheduled = schedule_gpu(func, WGMMA)
    products = "tensor_core_product" if dtype == "float16" else "register_tile_product"
    assert [choice.name for choice in scheduled.templates] == [products]
    assert_same(func, scheduled.func)


def test_groups_without_an_epilogue_are_products_of_a_batch() -> None:
    """The convolution writes the result itself."""
    x, w = te.placeholder((1, 4, 4, 16), "float32", "x"), te.placeholder((1, 1, 8, 16), "float32", "w")
    (y,) = apply_operator("nn.conv2d", [x, w], groups=2, data_layout="NHWC", kernel_layout="HWIO")
    func = create_prim_func([x, w, y], "convolution")
    scheduled = schedule_gpu(func, WGMMA)
    assert [choice.name for choice in scheduled.templates] == ["register_tile_product"]
    assert_same(func, scheduled.func)


@pytest.mark.parametrize("groups", [4, 12])
def test_narrow_groups_stay_as_they_are(groups: int) -> None:
    """Three channels are too few for tiles, and one is a depthwise convolution."""
    func = convolution(4, 12, groups)
    scheduled = schedule_gpu(func, WGMMA)
    assert not any("product" in choice.name for choice in scheduled.templates)
    assert_same(func, scheduled.func)


def test_what_warp_groups_read_is_fenced() -> None:
    """Without a pipeline too: its one step is written by threads, and read on another path (a race without)."""
    func = product(128, 64, 64, "float16", "float16")
    kernel = text(schedule_gpu(func, WGMMA, Choices(given={"group_tile": (2, 64, 3, 8, 1)})).func, WGMMA)
    assert "wgmma" in kernel
    assert re.search(r"tw_fence_async\(\);\s*__syncthreads\(\);", kernel)


def test_threads_write_eight_halves_at_once() -> None:
    """Sums of warp groups lie so that a thread has eight neighbours."""
    func = product(64, 32, 64, "float16", "float16")
    func = func.replace(attributes={**func.attributes, CONSTANTS: (1,)})
    scheduled = schedule_gpu(func, WGMMA, Choices(given={"group_tile": (1, 32, 4, 8, 1)})).func
    assert_same(func, scheduled)
    kernel = text(scheduled, WGMMA)
    assert re.search(r"\*\(uint4\*\)\(d_ \+", kernel)
    require_nvrtc()
    compile_cuda(kernel, "sm_90a")


def residual(rows: int, depth: int, columns: int) -> PrimFunc:
    """A product with computed weights [depth, columns], to which another value is added, or nothing of it is kept."""
    x, w = te.placeholder((rows, depth), "float16", "x"), te.placeholder((depth, columns), "float16", "w")
    other, mask = te.placeholder((rows, columns), "float16", "other"), te.placeholder((rows, columns), "bool", "mask")
    (y,) = apply_operator("matmul", [x, w])
    (added,) = apply_operator("add", [other, y])
    zero = te.const(0.0, "float16")
    z = te.compute(added.shape, lambda *i: te.select(mask[i], zero, added[i]), "z")
    return create_prim_func([x, w, other, mask, z], "residual")


@pytest.mark.parametrize(("rows", "depth", "tile"), [(128, 64, (1, 64, 3, 8, 1)), (128, 128, (2, 128, 3, 8, 1))])
def test_halves_with_weights_along_columns_are_written_in_rows(rows: int, depth: int, tile: tuple[int, ...]) -> None:
    """By way of shared memory: a thread reads and writes 16 bytes of a row, not four."""
    func = residual(rows, depth, 128)
    scheduled = schedule_gpu(func, WGMMA, Choices(given={"group_tile": tile})).func
    assert_same(func, scheduled)
    kernel = text(scheduled, WGMMA)
    assert re.search(r"\*\(uint4\*\)\(z_ \+", kernel) and re.search(r"\*\(const uint4\*\)\(other_ \+", kernel)
    assert not re.search(r"ushort2\*\)\((z|other)_", kernel)
    require_nvrtc()
    compile_cuda(kernel, "sm_90a")


def test_copies_of_one_step_do_not_wait_for_each_other() -> None:
    """Columns of several panels: which one a copy fills is a digit of its number."""
    kernel = text(
        schedule_gpu(residual(128, 64, 128), WGMMA, Choices(given={"group_tile": (1, 128, 3, 8, 1)})).func, WGMMA
    )
    assert not re.search(r"\n    __syncthreads", kernel)


def test_heads_of_a_row_are_read_as_vectors() -> None:
    """Reshaped and turned: eight neighbours of a head are neighbours of the row too."""
    x = te.placeholder((64, 8, 3 * 64), "float16", "x")
    (part,) = apply_operator("slice", [x], begin=(0, 0, 64), end=(64, 8, 128), strides=(1, 1, 1))
    (heads,) = apply_operator("reshape", [part], shape=(64, 32, 16))
    z = te.compute((32, 64, 16), lambda h, t, d: heads[t, h, d], "z")
    func = create_prim_func([x, z], "heads")
    scheduled = schedule_gpu(func, WGMMA.replace(cores=2)).func
    assert_same(func, scheduled)
    assert re.search(r"\*\(const uint4\*\)\(x_ \+", text(scheduled, WGMMA))


def test_vectors_of_a_concatenation_are_loads() -> None:
    """One load from the part that it is in, not a choice for each element."""
    a, b = (te.placeholder((64, 32, width), "float16", name) for width, name in ((64, "a"), (32, "b")))
    (joined,) = apply_operator("concatenate", [a, b], axis=2)
    z = te.compute(joined.shape, lambda *i: joined[i] * te.const(2.0, "float16"), "z")
    scheduled = schedule_gpu(create_prim_func([a, b, z], "joined"), WGMMA.replace(cores=4)).func
    assert re.search(r"\*\(const \w+4\*\)\(\(\w+ \? a_ \+ \w+ : b_ \+ \w+\)\)", text(scheduled, WGMMA))


def test_channels_of_an_image_are_written_together() -> None:
    """Four planes are read by neighbouring threads each, and a pixel is one store."""
    x = te.placeholder((2, 4, 32, 32), "float32", "x")
    z = te.compute((2, 32, 32, 4), lambda n, y, w, c: x[n, c, y, w] + te.const(1.0, "float32"), "z")
    func = create_prim_func([x, z], "moved")
    scheduled = schedule_gpu(func, WGMMA.replace(cores=2)).func
    assert "*(float4*)(z_" in text(scheduled, WGMMA)
    assert_same(func, scheduled)


def test_values_of_halves_are_rounded_where_they_are_stored() -> None:
    """What follows a product is computed in float32."""
    kernel = text(schedule_gpu(convolution(8, 32, 1), WGMMA).func, WGMMA)
    stores = [line for line in kernel.splitlines() if re.search(r"\(z_ \+", line) and "make_" in line]
    assert stores and all("tw_half_value(tw_half_bits" not in line for line in stores)


def test_rounds_of_blocks_count() -> None:
    """A last block that has a multiprocessor to itself is slow: three at a time are better than two and one."""
    tile = ranked_tiles(Shape(1, 4096, 768, 3072), WGMMA)[0]
    blocks = -(-4096 // tile.block_rows) * -(-768 // tile.block_columns)
    assert tile.threads * min(3, -(-blocks // 132)) >= 256


# ---------------------------------------------------------------- functions with the digits of halves


def test_functions_of_halves_are_known() -> None:
    """Every function that the target names has a meaning and a text."""
    for name in KIND.capabilities.half_mathematics:
        assert f"half_{name}" in intrinsics.table and f"half_{name}" in CudaDialect.half_functions


_SHIM = """
#include <math.h>
#include <stdio.h>
%s
int main(void) { float x; while (fread(&x, 4, 1, stdin) == 1) { float y = f(x); fwrite(&y, 4, 1, stdout); } return 0; }
"""


@pytest.mark.parametrize("name", sorted(CudaDialect.half_functions))
def test_functions_of_halves_are_as_precise_as_halves(name: str, tmp_path: Path) -> None:
    """The text, with its two instructions as C has them: all halves, infinities and NaN included."""
    compiler = need_tool("c-compiler", *C_COMPILERS)
    body = CudaDialect.half_functions[name]
    body = re.sub(r'asm\("ex2[^"]*" : "=f"\((\w)\) : "f"\((.*?)\)\);', r"\1 = exp2f(\2);", body)
    body = re.sub(r'asm\("rcp[^"]*" : "=f"\((\w)\) : "f"\((.*?)\)\);', r"\1 = 1.0f / (\2);", body)
    assert "asm" not in body
    (tmp_path / "f.c").write_text(_SHIM % f"static float f(float x) {{ {body} }}")
    subprocess.run([compiler, "-O1", "-o", tmp_path / "f", tmp_path / "f.c", "-lm"], check=True)
    with np.errstate(all="ignore"):
        given = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    done = subprocess.run([tmp_path / "f"], input=given.tobytes(), capture_output=True, check=True).stdout
    found = np.frombuffer(done, np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = {
            "half_exp": np.exp,
            "half_tanh": np.tanh,
            "half_sigmoid": lambda x: 1 / (1 + np.exp(-x)),
            "half_erf": np.vectorize(erf),
            "half_erf_plus_one": lambda x: 1 + np.vectorize(erf)(x),
        }[name](given.astype(np.float64))
    assert np.array_equal(np.isnan(found), np.isnan(exact))
    # Half of the last digit of a half is 2**-12 of it; results below the least normal half are rounded more.
    usual = np.isfinite(exact) & (np.abs(exact) < 65536)
    error, size = np.abs(found - exact)[usual], np.maximum(np.abs(exact), 2.0**-14)[usual]
    if name == "half_erf_plus_one":
        # A factor of x, which is what GELU is: near 0 it has the digits of 1.
        assert error.max() < 2e-6
    else:
        assert (error / size).max() < 2.0**-15
