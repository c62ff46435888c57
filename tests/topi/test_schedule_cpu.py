"""Default CPU schedules keep the meaning of every kind of kernel, on shapes that divide and shapes that do not."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

import tilewright as tw
import tilewright.graph.ops
from tests.topi.scheduling import schedule_cpu
from tilewright.graph.ir.expr import Function, GraphExpr, Tuple, Var
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call, get_operator
from tilewright.ir import expr as ir
from tilewright.ir.dtype import DataType
from tilewright.ir.types import tensor_type
from tilewright.ir.visit import find_all, uses_any
from tilewright.lower.primitive import lower_primitive
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters
from tilewright.tir.annotations import ROW_VECTORS
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.stmt import Block, For, IterKind, LoopKind
from tilewright.topi.schedule.choices import Answer, Choices
from tilewright.topi.schedule.cpu.tiling import (
    Columns,
    padded_tile,
    padded_widths,
    register_tile,
    vector_length,
)
from tilewright.topi.schedule.packing import CONSTANTS, packing_of

TARGETS = {
    "avx512": Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=4),
    "neon": Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1").replace(cores=1),
}

MACHINE = cpu_parameters(Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512"))


def var(name: str, *shape: int, dtype: str = "float32") -> Var:
    return Var(name, tensor_type(shape, dtype))


def kernel(inputs: list[Var], body: GraphExpr, on_cpu: bool = False) -> PrimFunc:
    function = infer_types(Function("k", tuple(inputs), body))
    assert isinstance(function, Function)
    return lower_primitive(function, "k", on_cpu=on_cpu)


def check(func: PrimFunc, target: Target) -> PrimFunc:
    """The scheduled program computes what the unscheduled one computes; returns it."""
    for constants in ((), tuple(range(1, len(func.buffers) - 1))):
        scheduled = schedule_cpu(func.replace(attributes={CONSTANTS: constants}), target)
        compare(func, scheduled)
    return schedule_cpu(func, target)


def compare(func: PrimFunc, scheduled: PrimFunc) -> None:
    """Both programs give the same results; constants are given to the scheduled one as it wants them."""
    rng = np.random.default_rng(0)
    arrays = []
    for buffer in func.buffers:
        shape = buffer.static_shape
        assert shape is not None
        if buffer.dtype.is_float:
            arrays.append(rng.standard_normal(shape).astype(buffer.dtype.numpy()))
        else:
            arrays.append(rng.integers(0, 3, shape).astype(buffer.dtype.numpy()))
    before, after = [a.copy() for a in arrays], [a.copy() for a in arrays]
    packing = packing_of(scheduled)
    for number, index_map in packing.items():
        after[number] = index_map.rearrange(after[number])
    interpret(func, *before)
    interpret(scheduled, *after)
    for number, (expected, actual) in enumerate(zip(before, after, strict=True)):
        if number not in packing:
            np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def check_symbolic(make: Callable[[int | ir.Var], PrimFunc], sizes: Sequence[int], target: Target) -> PrimFunc:
    """The scheduled program of symbolic extents computes what programs of constant ones compute; returns it."""
    func = make(ir.Var("n"))
    scheduled = schedule_cpu(func, target)
    rng = np.random.default_rng(0)
    for size in sizes:
        plain = make(size)
        arrays = [rng.standard_normal(buffer.static_shape or ()).astype(np.float32) for buffer in plain.buffers]
        before, after = [a.copy() for a in arrays], [a.copy() for a in arrays]
        interpret(plain, *before)
        interpret(scheduled, *after)
        np.testing.assert_allclose(after[-1], before[-1], rtol=2e-5, atol=2e-5)
    return scheduled


def conv(data: Var, weight: Var, **attributes: object) -> GraphExpr:
    return call("nn.conv2d", data, weight, data_layout="NHWC", kernel_layout="HWIO", **attributes)


def kinds(func: PrimFunc) -> set[LoopKind]:
    return {loop.kind for loop in find_all(func.body, For)}


@pytest.mark.grid
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
class TestTemplates:
    @pytest.mark.parametrize("channels", [32, 16, 10, 7, 3, 1])
    @pytest.mark.parametrize("size", [6, 7])
    def test_convolution_with_epilogue(self, target: Target, channels: int, size: int) -> None:
        data, weight = var("x", 1, size, size, 3), var("w", 3, 3, 3, channels)
        bias, other = var("b", channels), var("r", 1, size, size, channels)
        body = call("nn.relu", call("add", call("add", conv(data, weight, padding=(1, 1, 1, 1)), bias), other))
        check(kernel([data, weight, bias, other], body), target)

    @pytest.mark.parametrize("rows", [1, 9])
    def test_product_with_a_column(self, target: Target, rows: int) -> None:
        data, weight, bias = var("x", rows, 300), var("w", 300, 1), var("b", 1)
        check(kernel([data, weight], call("matmul", data, weight)), target)
        body = call("nn.relu", call("add", call("matmul", data, weight), bias))
        check(kernel([data, weight, bias], body), target)

    @pytest.mark.parametrize("rows", [3, 9])
    def test_batches_of_products_with_rows(self, target: Target, rows: int) -> None:
        queries, keys, mask = var("q", 2, rows, 5), var("k", 2, 20, 5), var("m", rows, 20)
        function = infer_types(
            Function("k", (queries, keys, mask), call("add", call("matmul", queries, keys, transpose_b=True), mask))
        )
        assert isinstance(function, Function)
        func = lower_primitive(function, "k", on_cpu=True)
        assert ("matmul_turned" in {block.name for block in find_all(func.body, Block)}) is (rows > 3)
        compare(kernel([queries, keys, mask], function.body), schedule_cpu(func, target))

    def test_deep_product_with_a_column(self, target: Target) -> None:
        data, weight = var("x", 512, 768), var("w", 768, 1)
        func = kernel([data, weight], call("matmul", data, weight)).replace(attributes={CONSTANTS: (1,)})
        assert LoopKind.VECTORIZED in kinds(schedule_cpu(func, target))

    def test_strided_convolution_alone(self, target: Target) -> None:
        data, weight = var("x", 2, 7, 7, 4), var("w", 3, 3, 4, 16)
        check(kernel([data, weight], conv(data, weight, strides=(2, 2), padding=(1, 1, 1, 1))), target)

    def test_planar_convolution(self, target: Target) -> None:
        data, weight = var("x", 1, 4, 7, 9), var("w", 6, 4, 3, 3)
        check(kernel([data, weight], call("nn.conv2d", data, weight, padding=(1, 1, 1, 1))), target)

    def test_depthwise_convolution(self, target: Target) -> None:
        data, weight = var("x", 1, 7, 7, 16), var("w", 3, 3, 1, 16)
        body = call("clip", conv(data, weight, padding=(1, 1, 1, 1), groups=16), minimum=0.0, maximum=6.0)
        check(kernel([data, weight], body), target)

    def test_grouped_convolution(self, target: Target) -> None:
        data, weight = var("x", 1, 5, 5, 8), var("w", 3, 3, 4, 8)
        check(kernel([data, weight], conv(data, weight, groups=2)), target)

    def test_transposed_convolution(self, target: Target) -> None:
        data, weight = var("x", 1, 3, 4, 4), var("w", 3, 5, 4, 4)
        body = call("nn.relu", call("nn.conv2d_transpose", data, weight, strides=(2, 2), padding=(1, 1, 1, 1)))
        check(kernel([data, weight], body), target)

    @pytest.mark.parametrize(
        ("size", "kernel_size", "pad", "stride"),
        [(4, 4, 1, 2), (3, 4, 1, 2), (2, 2, 0, 2), (1, 4, 0, 2), (1, 4, 0, 4), (3, 3, 1, 1)],
    )
    def test_transposed_convolution_by_phases(
        self, target: Target, size: int, kernel_size: int, pad: int, stride: int
    ) -> None:
        data, weight = var("x", 1, size, size, 3), var("w", kernel_size, kernel_size, 3, 16)
        body = call(
            "nn.conv2d_transpose",
            data,
            weight,
            strides=(stride, stride),
            padding=(pad,) * 4,
            data_layout="NHWC",
            kernel_layout="HWIO",
        )
        func = kernel([data, weight], call("nn.relu", body))
        check(func, target)
        rng = np.random.default_rng(1)
        x, w = (rng.standard_normal(b.static_shape).astype(np.float32) for b in func.buffers[:2])
        out = np.zeros(func.buffers[2].static_shape, np.float32)
        interpret(func, x, w, out)
        expected = get_operator("nn.conv2d_transpose").reference([x, w], body.attributes)
        np.testing.assert_allclose(out, np.maximum(expected, 0), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize(("m", "k", "n"), [(8, 5, 48), (1, 7, 33), (5, 3, 16), (7, 1, 1), (13, 4, 31)])
    def test_matrix_product(self, target: Target, m: int, k: int, n: int) -> None:
        a, b, bias = var("a", m, k), var("b", k, n), var("c", n)
        check(kernel([a, b, bias], call("tanh", call("add", call("matmul", a, b), bias))), target)
        check(kernel([a, b], call("matmul", a, b)), target)
        transposed = var("b", n, k)
        check(kernel([a, transposed], call("matmul", a, transposed, transpose_b=True)), target)

    def test_matrix_product_in_blocks_of_rows(self, target: Target) -> None:
        small = target.replace(l2_bytes=4096)
        a, b, bias = var("a", 150, 5), var("b", 5, 70), var("c", 70)
        func = kernel([a, b, bias], call("nn.relu", call("add", call("matmul", a, b), bias)))
        check(func, small)
        plain, blocked = (schedule_cpu(func, item.replace(cores=1)) for item in (target, small))
        assert len(list(find_all(blocked.body, For))) == len(list(find_all(plain.body, For))) + 1

    @pytest.mark.parametrize("l2_bytes", [1 << 20, 2048])
    def test_matrix_product_of_symbolic_rows(self, target: Target, l2_bytes: int) -> None:
        def make(n: int | ir.Var) -> PrimFunc:
            a, b, bias = Var("a", tensor_type((2, n, 5), "float32")), var("b", 5, 33), var("c", 33)
            return kernel([a, b, bias], call("nn.relu", call("add", call("matmul", a, b), bias)))

        sizes = [0, 1, 7, 8, 29] if l2_bytes > 2048 else [3, 70]
        scheduled = check_symbolic(make, sizes, target.replace(l2_bytes=l2_bytes))
        assert LoopKind.VECTORIZED in kinds(scheduled)

    def test_matrix_products_of_symbolic_columns_and_depth(self, target: Target) -> None:
        def scores(n: int | ir.Var) -> PrimFunc:
            q, k = (Var(name, tensor_type(shape, "float32")) for name, shape in (("q", (2, n, 5)), ("k", (2, 5, n))))
            return kernel([q, k], call("matmul", q, k))

        def context(n: int | ir.Var) -> PrimFunc:
            p, v = (Var(name, tensor_type(shape, "float32")) for name, shape in (("p", (2, n, n)), ("v", (2, n, 20))))
            return kernel([p, v], call("matmul", p, v))

        for make in (scores, context):
            assert LoopKind.VECTORIZED in kinds(check_symbolic(make, [1, 16, 35], target))

    @pytest.mark.parametrize("name", ["batch", "image", "planar", "pointwise", "depthwise", "transposed", "pool"])
    def test_windows_of_symbolic_extents(self, target: Target, name: str) -> None:
        def make(n: int | ir.Var) -> PrimFunc:
            x = Var("x", tensor_type((n, 5, 5, 4) if name == "batch" else (1, n, n, 4), "float32"))
            if name == "pool":
                return kernel([x], call("nn.avg_pool2d", x, kernel=(3, 3), padding=(1, 1, 1, 1), layout="NHWC"))
            if name == "planar":
                x, weight = Var("x", tensor_type((1, 3, n, n), "float32")), var("w", 6, 3, 3, 3)
                return kernel([x, weight], call("nn.conv2d", x, weight, padding=(1, 1, 1, 1)))
            if name == "transposed":
                weight, layout = var("w", 4, 4, 4, 16), {"data_layout": "NHWC", "kernel_layout": "HWIO"}
                body = call("nn.conv2d_transpose", x, weight, strides=(2, 2), padding=(1, 1, 1, 1), **layout)
                return kernel([x, weight], body)
            weight = var("w", 1, 1, 4, 32) if name == "pointwise" else var("w", 3, 3, 4, 16)
            if name == "depthwise":
                weight = var("w", 3, 3, 1, 4)
            pad, groups = (0, 1)[name != "pointwise"], 4 if name == "depthwise" else 1
            body = call("nn.relu", conv(x, weight, padding=(pad,) * 4, groups=groups))
            return kernel([x, weight], body, on_cpu=name == "depthwise")

        check_symbolic(make, [1, 4, 9], target)

    @pytest.mark.parametrize("name", ["nn.softmax", "nn.layer_norm", "sum", "transpose", "tanh", "rows"])
    def test_other_kernels_of_symbolic_extents(self, target: Target, name: str) -> None:
        def make(n: int | ir.Var) -> PrimFunc:
            x = Var("x", tensor_type((2, 3, n) if name != "rows" else (2, n, 32), "float32"))
            if name == "nn.layer_norm":
                x = Var("x", tensor_type((2, n, 40), "float32"))
                scale, shift = var("s", 40), var("t", 40)
                return kernel([x, scale, shift], call(name, x, scale, shift))
            if name == "rows":
                factor = var("b", 32)
                return kernel([x, factor], call("tanh", call("multiply", x, factor)))
            if name == "sum":
                return kernel([x], call(name, x, axes=(2,)))
            if name == "transpose":
                return kernel([x], call(name, x, axes=(0, 2, 1)))
            return kernel([x], call(name, x))

        scheduled = check_symbolic(make, [1, 16, 70], target)
        assert LoopKind.VECTORIZED in kinds(scheduled)

    @pytest.mark.parametrize("stride", [1, 2])
    @pytest.mark.parametrize("axes", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
    def test_depthwise_convolution_of_symbolic_extents(
        self, target: Target, axes: tuple[int, ...], stride: int
    ) -> None:
        """Register tiles of whole windows, whatever is open: sums stay in memory of their own."""

        def make(n: int | ir.Var) -> PrimFunc:
            shape = tuple(n if axis in axes else size for axis, size in enumerate((2, 6, 5, 18)))
            data, weight, bias = Var("x", tensor_type(shape, "float32")), var("w", 3, 3, 1, 18), var("b", 18)
            product = conv(data, weight, groups=18, padding=(1, 1, 1, 1), strides=(stride, stride))
            return kernel([data, weight, bias], call("nn.relu", call("add", product, bias)), on_cpu=True)

        scheduled = check_symbolic(make, [1, 4, 9], target)
        (sums,) = (block for block in find_all(scheduled.body, Block) if block.name == "depthwise_conv2d")
        assert sums.writes[0].buffer.scope == "local"

    @pytest.mark.parametrize("width", [3, 16, 21, 48])
    @pytest.mark.parametrize(
        "attributes",
        [
            {"padding": (1, 1, 1, 1)},
            {"padding": (2, 0, 1, 3), "dilation": (2, 1)},
            {"strides": (2, 2), "padding": (1, 1, 1, 1)},
            {"padding": (0, 1, 2, 2), "strides": (1, 2)},
        ],
    )
    def test_depthwise_convolution_of_planes(self, target: Target, attributes: dict[str, object], width: int) -> None:
        data, weight, bias = var("x", 2, 3, 6, width), var("w", 6, 1, 3, 3), var("b", 6, 1, 1)
        product = call("nn.conv2d", data, weight, groups=3, **attributes)
        check(kernel([data, weight], product), target)
        func = kernel([data, weight, bias], call("nn.relu", call("add", product, bias)), on_cpu=True)
        scheduled = check(func, target)
        assert LoopKind.VECTORIZED in kinds(scheduled)
        for choices in ({"lines": 1}, {"vectors": 1}, {"lines": 2, "vectors": 1}):
            compare(func, schedule_cpu(func, target, Choices(choices)))

    @pytest.mark.parametrize("columns", [1, 2, 5, 12, 18, 36, 49, 50])
    def test_computed_columns_of_no_whole_vectors(self, target: Target, columns: int) -> None:
        """Sums of the last columns are guarded nowhere: guarded ones would not stay in registers."""
        a, b, c = var("a", 17, 6), var("b", 6, columns), var("c", columns)
        heads, others = var("h", 2, 16, 4), var("o", 2, 4, columns)
        for func in (
            kernel([a, b], call("matmul", a, b)),
            kernel([a, b, c], call("nn.relu", call("add", call("matmul", a, b), c))),
            kernel([heads, others], call("matmul", heads, others)),
        ):
            scheduled = schedule_cpu(func, target)
            compare(func, scheduled)
            (product,) = (block for block in find_all(scheduled.body, Block) if block.name == "matmul")
            *_, column = (item for item in product.iters if item.kind is IterKind.SPATIAL)
            assert columns == 1 or not uses_any(product.predicate, list(find_all(column.value, ir.Var)))

    def test_computed_columns_of_no_whole_vectors_and_symbolic_rows(self, target: Target) -> None:
        def make(n: int | ir.Var) -> PrimFunc:
            a, b = Var("a", tensor_type((n, 6), "float32")), var("b", 6, 19)
            return kernel([a, b], call("matmul", a, b))

        check_symbolic(make, [1, 16, 35], target)

    def test_batched_matrix_product(self, target: Target) -> None:
        a, b = var("a", 2, 3, 4, 5), var("b", 2, 3, 5, 16)
        check(kernel([a, b], call("matmul", a, b)), target)
        check(kernel([a, b], call("transpose", call("matmul", a, b), axes=(0, 2, 1, 3))), target)

    @pytest.mark.parametrize("columns", [32, 17, 1])
    def test_softmax_and_normalisation(self, target: Target, columns: int) -> None:
        x, scale, bias = var("x", 3, 4, columns), var("s", columns), var("b", columns)
        check(kernel([x], call("nn.softmax", x, axis=2)), target)
        check(kernel([x], call("nn.softmax", x, axis=1)), target)
        check(kernel([x, scale, bias], call("nn.layer_norm", x, scale, bias, axis=2, epsilon=1e-5)), target)

    @pytest.mark.parametrize("name", ["sum", "mean", "max"])
    @pytest.mark.parametrize("axes", [(1, 2), (3,), (0, 1, 2, 3), (0, 3)])
    def test_reductions(self, target: Target, name: str, axes: tuple[int, ...]) -> None:
        x = var("x", 2, 3, 5, 32)
        check(kernel([x], call(name, x, axes=axes, keepdims=True)), target)
        check(kernel([x], call("sqrt", call("abs", call(name, call("exp", x), axes=axes, keepdims=False)))), target)

    def test_layouts_of_small_images_change_in_whole_vectors(self, target: Target) -> None:
        data = var("x", 1, 6, 6, 20)
        scheduled = check(kernel([data], call("transpose", data, axes=(0, 3, 1, 2))), target)
        lanes = target.lanes(32)
        vectors = [loop.extent for loop in find_all(scheduled.body, For) if loop.kind is LoopKind.VECTORIZED]
        # Pixels are one axis of 36, not lines of six.
        assert [ir.const_value(extent) for extent in vectors] == [lanes]

    def test_elementwise_stages_walk_whole_planes(self, target: Target) -> None:
        data, scale = var("x", 2, 3, 5, 9), var("s", 3, 1, 1)
        scheduled = check(kernel([data, scale], call("multiply", data, scale)), target)
        # The rows and columns of a plane, and no axis that the scale moves along.
        assert [loop.extent.value for loop in find_all(scheduled.body, For) if isinstance(loop.extent, ir.IntImm)][
            :2
        ] == [2, 3]
        assert len(find_all(scheduled.body, For)) <= 4

    @pytest.mark.parametrize("shape", [(2, 3, 7, 9), (2, 3, 8, 16), (1, 2, 3, 5, 7)])
    def test_reduced_axes_side_by_side_are_one(self, target: Target, shape: tuple[int, ...]) -> None:
        data, scale, bias = var("x", *shape), var("s", shape[1], *(1,) * (len(shape) - 2)), var("b", 1)
        axes = tuple(range(2, len(shape)))
        scheduled = check(kernel([data], call("mean", data, axes=axes, keepdims=True)), target)
        assert LoopKind.VECTORIZED in kinds(scheduled)
        check(kernel([data], call("max", data, axes=axes)), target)
        check(kernel([data, scale, bias], call("nn.layer_norm", data, scale, bias, axis=2)), target)

    def test_pooling(self, target: Target) -> None:
        x = var("x", 1, 7, 7, 16)
        sizes = {"kernel": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "layout": "NHWC"}
        check(kernel([x], call("nn.max_pool2d", x, **sizes)), target)
        check(kernel([x], call("nn.avg_pool2d", x, **sizes)), target)

    def test_argmax(self, target: Target) -> None:
        x = var("x", 3, 19)
        check(kernel([x], call("argmax", x, axis=1, keepdims=False, select_last=False)), target)

    @pytest.mark.parametrize("shape", [(8, 64), (8, 100), (5, 33), (12, 40), (1, 200), (0, 40), (3, 0), (7, 1)])
    def test_rows(self, target: Target, shape: tuple[int, int]) -> None:
        x, scale, bias = var("x", *shape), var("s", shape[1]), var("b", shape[1])
        check(kernel([x], call("nn.softmax", x, axis=1)), target)
        check(kernel([x, scale, bias], call("nn.layer_norm", x, scale, bias, axis=1, epsilon=1e-5)), target)
        check(kernel([x], call("sum", x, axes=(1,), keepdims=False)), target)
        check(kernel([x], call("mean", x, axes=(1,), keepdims=True)), target)

    @pytest.mark.parametrize("shape", [(1, 5, 5, 64), (2, 3, 3, 20), (1, 4, 4, 3)])
    def test_reductions_that_keep_the_last_axis(self, target: Target, shape: tuple[int, ...]) -> None:
        x = var("x", *shape)
        check(kernel([x], call("mean", x, axes=(1, 2), keepdims=True)), target)
        check(kernel([x], call("sum", x, axes=(1, 2), keepdims=False)), target)
        check(kernel([x], call("nn.softmax", x, axis=1)), target)

    @pytest.mark.parametrize(
        ("shape", "axes"),
        [((40, 36), (1, 0)), ((1, 17, 5, 33), (0, 2, 3, 1)), ((1, 32, 3, 16), (0, 2, 3, 1)), ((3, 20, 2), (1, 2, 0))],
    )
    def test_transposes(self, target: Target, shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
        x = var("x", *shape)
        check(kernel([x], call("nn.relu", call("transpose", x, axes=axes))), target)

    @pytest.mark.parametrize("shape", [(64,), (3, 5), (2, 3, 17), (), (1, 1), (0, 4)])
    def test_elementwise_chain(self, target: Target, shape: tuple[int, ...]) -> None:
        x, y = var("x", *shape), var("y", *shape)
        check(kernel([x, y], call("sigmoid", call("multiply", call("add", x, y), y))), target)

    def test_broadcast_transpose_concatenate_split(self, target: Target) -> None:
        x, y = var("x", 4, 6), var("y", 6)
        check(kernel([x, y], call("transpose", call("add", x, y), axes=(1, 0))), target)
        check(kernel([x], call("concatenate", x, x, axis=0)), target)
        check(kernel([x], call("split", x, sizes=(2, 4), axis=1)), target)
        check(kernel([x, y], Tuple((call("exp", x), call("tanh", y)))), target)

    def test_gather(self, target: Target) -> None:
        table, rows = var("t", 10, 24), var("i", 2, 3, dtype="int64")
        check(kernel([table, rows], call("take", table, rows, axis=0)), target)


def test_contractions_use_vectors_registers_and_cores() -> None:
    data, weight = var("x", 1, 14, 14, 64), var("w", 3, 3, 64, 128)
    scheduled = schedule_cpu(
        kernel([data, weight], call("nn.relu", conv(data, weight, padding=(1, 1, 1, 1)))), TARGETS["avx512"]
    )
    assert {LoopKind.PARALLEL, LoopKind.VECTORIZED, LoopKind.UNROLLED} <= kinds(scheduled)


def test_one_core_has_no_parallel_loops() -> None:
    x = var("x", 512, 512)
    assert LoopKind.PARALLEL in kinds(schedule_cpu(kernel([x], call("exp", x)), TARGETS["avx512"]))
    assert LoopKind.PARALLEL not in kinds(schedule_cpu(kernel([x], call("exp", x)), TARGETS["neon"]))


def test_gathered_elements_are_moved_one_by_one_without_gathers() -> None:
    """Putting vectors together from anywhere costs more than storing each element, where no instruction does it."""
    x, places = Var("x", tensor_type((3, 20), "float32")), Var("i", tensor_type((17,), "int64"))
    along, across = (kernel([x, places], call("take", x, places, axis=axis)) for axis in (1, 0))
    for name, is_vector in (("neon", False), ("avx512", True)):
        assert (LoopKind.VECTORIZED in kinds(schedule_cpu(along, TARGETS[name]))) is is_vector
        assert LoopKind.VECTORIZED in kinds(schedule_cpu(across, TARGETS[name]))
    compare(along, schedule_cpu(along, TARGETS["neon"]))


def test_divisions_by_open_sizes_are_of_single_elements() -> None:
    x = Var("x", tensor_type((ir.Var("n"), ir.Var("m")), "float32"))
    turned = call("reshape", call("transpose", x, axes=(1, 0)), shape=(-1,))
    row = call("reshape", x, shape=(-1,))
    for item, is_vector in ((turned, False), (call("exp", turned), True), (row, True)):
        loops = find_all(schedule_cpu(kernel([x], item), TARGETS["avx512"]).body, For)
        lanes = [loop.extent for loop in loops if loop.kind is LoopKind.VECTORIZED]
        assert lanes == [ir.IntImm(32 if is_vector else 1)]


def test_narrow_numbers_are_not_turned_before_a_border() -> None:
    """What lies outside of the data must not be read: a copy of all that a tile reads would."""
    x = Var("x", tensor_type((20, 24), "int8"))
    padded = call("pad", call("transpose", x, axes=(1, 0)), before=(0, 0), after=(1, 1))
    func = kernel([x], call("cast", padded, dtype=DataType.of("float32")))
    compare(func, schedule_cpu(func, TARGETS["neon"]))


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("channels", [4, 96])
def test_copies_with_a_border_are_of_whole_lines(before: int, channels: int) -> None:
    """Not element by element, though indices are those of the data where only its end is padded; cores take lines."""
    data = Var("data", tensor_type((1, 40, 20, channels), "int8"))
    func = kernel([data], call("pad", data, before=(0, before, before, 0), after=(0, 1, 1, 0), value=3.0))
    scheduled = schedule_cpu(func, TARGETS["neon"].replace(cores=2))
    (pad,) = (block for block in find_all(scheduled.body, Block) if block.iters)
    assert isinstance(pad.iters[1].value, ir.Var)
    compare(func, scheduled)


def test_a_transpose_is_tiled() -> None:
    x = var("x", 512, 512)
    scheduled = schedule_cpu(kernel([x], call("transpose", x, axes=(1, 0))), TARGETS["neon"])
    assert [loop.extent.value for loop in find_all(scheduled.body, For)] == [128, 128, 4, 4]


def test_an_average_of_channels_is_in_vectors() -> None:
    x = var("x", 1, 7, 7, 2048)
    pool = call("nn.avg_pool2d", x, kernel=(7, 7), layout="NHWC")
    scheduled = schedule_cpu(kernel([x], pool), TARGETS["avx512"])
    inner = [loop for loop in find_all(scheduled.body, For) if not find_all(loop.body, For)]
    assert {loop.kind for loop in inner} == {LoopKind.VECTORIZED}


@pytest.mark.parametrize(
    ("rows", "columns", "lanes", "expected"),
    [(56, 64, 16, (14, 32)), (7, 512, 16, (7, 32)), (128, 768, 16, (8, 48))],
)
def test_register_tiles_fit_and_divide(rows: int, columns: int, lanes: int, expected: tuple[int, int]) -> None:
    tile = register_tile(rows, columns, lanes, 32, MACHINE)
    assert (tile.rows, tile.columns) == expected
    assert rows % tile.rows == 0 and columns % tile.columns == 0


def test_register_tile_of_awkward_sizes() -> None:
    for rows in (1, 2, 13, 97):
        for columns in (1, 3, 17, 97, 1000, 30011):
            tile = register_tile(rows, columns, 16, 32, MACHINE)
            assert 1 <= tile.rows <= rows
            assert tile.columns < columns + 16 and tile.rows * tile.vectors < 32


def _source(depth: int, columns: int, in_panels: bool) -> Callable[[int], Columns]:
    """Weights of a product of so many steps and columns, with 36 KB of the first cache level for them."""
    return lambda width: Columns(4, 4 * depth * (width if in_panels else columns) <= 36 << 10, in_panels)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "in_panels", "expected"),
    [
        # Lines of 28 pixels: four vectors meet six of them, though four are over.
        (28, 128, 512, False, (6, 4)),
        (999, 128, 256, False, (6, 4)),
        # Five and seven vectors have no divisors: two at a time and one at last, not one by one.
        (14, 80, 240, True, (14, 2)),
        (14, 112, 480, True, (14, 2)),
        # Panels that stay near may be wider.
        (14, 576, 96, True, (7, 3)),
        # Nothing over where that costs little: rows of sentences, of small images.
        (128, 768, 768, True, (8, 3)),
        (14, 512, 512, True, (14, 2)),
        (14, 64, 192, False, (14, 2)),
    ],
)
def test_padded_tiles_have_least_work(
    rows: int, columns: int, depth: int, in_panels: bool, expected: tuple[int, int]
) -> None:
    """What was quickest, or as quick as any, on an Emerald Rapids core."""
    tile = padded_tile(rows, columns, padded_widths(columns, 16), 32, _source(depth, columns, in_panels), MACHINE)
    assert (tile.rows, tile.vectors, tile.lanes) == (*expected, 16)


@pytest.mark.parametrize("registers", [16, 32])
def test_padded_tiles_fit_the_registers(registers: int) -> None:
    for rows, columns in itertools.product((4, 7, 13, 97), (1, 3, 17, 58, 97, 1000)):
        for depth, in_panels in itertools.product((16, 512), (False, True)):
            widths = padded_widths(columns, 8)
            found = padded_tile(rows, columns, widths, registers, _source(depth, columns, in_panels), MACHINE)
            assert 1 <= found.rows <= rows and found.lanes in widths and found.columns < columns + found.lanes
            assert found.rows * found.vectors + found.vectors < registers
    assert padded_tile(49, 64, [8], registers, _source(64, 64, False), MACHINE, heights=[7, 49]).rows == 7


def test_whole_panels_divide_the_columns() -> None:
    """A tile of open rows has one body: 256 columns in panels of 48 would be 288."""
    widths, source = padded_widths(256, 16), _source(1152, 256, True)
    cut, whole = (padded_tile(128, 256, widths, 32, source, MACHINE, whole_panels=panels) for panels in (False, True))
    assert 256 % cut.columns and 256 % whole.columns == 0


def test_tiles_of_arm_leave_room_for_vectors_of_rows() -> None:
    machine = cpu_parameters(TARGETS["neon"])
    for rows, columns in itertools.product((7, 28, 56, 97, 128), (24, 32, 96, 512, 768)):
        tile = register_tile(rows, columns, 4, 32, machine)
        assert tile.rows * tile.vectors + tile.vectors + tile.rows <= 32
    assert register_tile(196, 512, 4, 32, machine, heights=[7, 14]).rows == 7


@pytest.mark.parametrize(("target", "noted"), [("neon", True), ("avx512", False)])
def test_rows_are_in_vectors_where_multiply_adds_take_lanes(target: str, noted: bool) -> None:
    data, weight = var("x", 1, 7, 7, 16), var("w", 1, 1, 16, 24)
    func = kernel([data, weight], conv(data, weight)).replace(attributes={CONSTANTS: (1,)})
    scheduled = schedule_cpu(func, TARGETS[target])
    assert any(ROW_VECTORS.is_on(loop) for loop in find_all(scheduled.body, For)) == noted


def test_columns_past_the_last_fill_whole_vectors() -> None:
    # 116 columns are whole vectors of four only: eight full vectors with twelve idle elements do three times as much.
    assert register_tile(14, 116, 16, 32, MACHINE).lanes == 4
    assert register_tile(1, 116, 16, 32, MACHINE, widths=padded_widths(116, 16)).lanes == 16
    assert padded_tile(14, 116, padded_widths(116, 16), 32, _source(116, 116, False), MACHINE).lanes == 16
    # Half vectors without a rest are better than full ones that are half empty.
    assert padded_tile(14, 8, padded_widths(8, 16), 32, _source(116, 8, False), MACHINE).lanes == 8
    assert padded_widths(3, 16) == [3]
    assert padded_widths(7, 1) == [1]


@pytest.mark.parametrize("channels", [20, 24, 58, 116])
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_sums_of_a_partial_panel_have_no_guard(target: Target, channels: int) -> None:
    data, weight, bias = var("x", 1, 5, 4, 6), var("w", 1, 1, 6, channels), var("b", channels)
    func = kernel([data, weight, bias], call("nn.relu", call("add", conv(data, weight), bias)))
    scheduled = schedule_cpu(func.replace(attributes={CONSTANTS: (1, 2)}), target)
    compare(func, scheduled)
    sums = [block for block in find_all(scheduled.body, Block) if block.name.startswith("conv2d")]
    assert sums and all(block.predicate is ir.TRUE for block in sums)


def test_groups_are_not_computed_past_the_last() -> None:
    data, weight = var("x", 1, 5, 4, 12), var("w", 3, 3, 4, 60)
    func = kernel([data, weight], conv(data, weight, groups=3))
    compare(func, schedule_cpu(func.replace(attributes={CONSTANTS: (1,)}), TARGETS["avx512"]))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_images_that_are_turned_before_a_reduction(target: Target) -> None:
    """Two of them in one kernel, each by statements of its own, with blocks of one name."""
    x, y = var("x", 1, 16, 8, 8), var("y", 1, 16, 8, 8)
    total = call("add", *(call("transpose", image, axes=(0, 2, 3, 1)) for image in (x, y)))
    function = infer_types(Function("k", (x, y), call("nn.softmax", total, axis=3)))
    assert isinstance(function, Function)
    func = lower_primitive(function, "k", on_cpu=True)
    assert [block.name for block in find_all(func.body, Block) if block.name.startswith("transposed")] == [
        "transposed",
        "transposed_1",
    ]
    compare(func, schedule_cpu(func, target))


def test_vector_length() -> None:
    assert vector_length(64, 16) == 64
    assert vector_length(48, 16) == 16
    assert vector_length(7, 16) == 7
    assert vector_length(100, 16) == 16


@pytest.mark.parametrize(("cores", "pieces"), [(7, 28), (4, 28), (16, 42)])
def test_rows_too_few_for_the_cores_are_divided(cores: int, pieces: int) -> None:
    """Seven lines of twelve panels: whole lines would leave one core in eight, or nine in sixteen, without work.

    There are a few pieces for each core where they stay large, so that a slow core leaves some to the others.
    """
    data, weight = var("x", 1, 7, 7, 64), var("w", 1, 1, 64, 12 * 3 * 16)
    func = kernel([data, weight], conv(data, weight, padding=(0, 0, 0, 0)))
    scheduled = schedule_cpu(func, TARGETS["avx512"].replace(cores=cores), Choices({"weights_stay": True}))
    # The weights, which are computed, are copied in panels before.
    *_, shared = [loop for loop in find_all(scheduled.body, For) if loop.kind is LoopKind.PARALLEL]
    assert ir.const_value(shared.extent) == pieces


@pytest.mark.parametrize(("cores", "pieces"), [(2, 12), (8, 24), (16, 41)])
def test_a_row_times_a_matrix_is_shared_evenly(cores: int, pieces: int) -> None:
    """163 vectors of columns: the widest panels that leave no core idle for long."""
    x, w = var("x", 1, 64), var("w", 64, 2600)
    func = kernel([x, w], call("matmul", x, w))
    loops = find_all(schedule_cpu(func, TARGETS["avx512"].replace(cores=cores)).body, For)
    (shared,) = [loop for loop in loops if loop.kind is LoopKind.PARALLEL]
    assert ir.const_value(shared.extent) == pieces


@pytest.mark.grid
@pytest.mark.parametrize("cores", [2, 16])
@pytest.mark.parametrize(("rows", "columns"), [(33, 656), (5, 592), (1, 1296), (3, 1000)])
def test_partial_panels_are_shared_by_cores(rows: int, columns: int, cores: int) -> None:
    """The last panel is narrower by whole vectors; its start, its sums and its results stay in one iteration."""
    x, w = var("x", rows, 64), var("w", 64, columns)
    func = kernel([x, w], call("matmul", x, w)).replace(attributes={CONSTANTS: (1,)})
    target = Target("native").replace(cores=cores, l1_bytes=1 << 12, l2_bytes=1 << 14)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((rows, 64), (64, columns)))
    options: list[dict[str, Answer]] = [{}, {"tile_vectors": 3}, {"tile_vectors": 4, "tile_rows": 1}]
    for answers in options:
        scheduled = schedule_cpu(func, target, Choices(answers))
        assert LoopKind.PARALLEL in kinds(scheduled)
        packing = packing_of(scheduled)
        out = np.full((rows, columns), np.nan, np.float32)
        tw.build(scheduled, target=target)(a, np.ascontiguousarray(packing[1].rearrange(b)) if packing else b, out)
        np.testing.assert_allclose(out, a @ b, rtol=0, atol=1e-5)
