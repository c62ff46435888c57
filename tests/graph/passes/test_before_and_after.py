"""Every graph pass on a small program: before, and expected after. (`canonicalize` has a pair for each rule.)"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from tests.graph.helpers import random
from tests.graph.passes.checking import assert_becomes
from tilewright.graph.ir.expr import Function
from tilewright.graph.ops.bitserial import bit_planes
from tilewright.graph.ops.packed import pack_codes
from tilewright.graph.ops.special import round_to_tf32
from tilewright.graph.ops.winograd import transformed_weight
from tilewright.graph.options import GraphOptions
from tilewright.graph.passes import recompute_late as recomputation
from tilewright.graph.passes.attention import attention
from tilewright.graph.passes.bind_symbols import bind_symbols
from tilewright.graph.passes.bitserial_products import bitserial_products
from tilewright.graph.passes.byte_tables import byte_tables
from tilewright.graph.passes.canonicalize import canonicalize
from tilewright.graph.passes.choose_algorithm import choose_algorithm
from tilewright.graph.passes.column_parts import column_parts
from tilewright.graph.passes.computed_kernels import computed_kernels
from tilewright.graph.passes.computed_products import computed_products
from tilewright.graph.passes.convert_layout import convert_layout
from tilewright.graph.passes.drop_checks import drop_checks
from tilewright.graph.passes.eliminate_common_subexpressions import eliminate_common_subexpressions
from tilewright.graph.passes.eliminate_dead_code import eliminate_dead_code
from tilewright.graph.passes.expand_quantization import expand_quantization
from tilewright.graph.passes.fold_batch_norm import fold_batch_norm
from tilewright.graph.passes.fold_constants import fold_constants
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.fuse_horizontally import fuse_horizontally
from tilewright.graph.passes.half_products import half_products
from tilewright.graph.passes.image_lines import image_lines
from tilewright.graph.passes.integer_epilogues import integer_epilogues
from tilewright.graph.passes.integer_products import integer_products
from tilewright.graph.passes.integer_recurrence import integer_recurrence
from tilewright.graph.passes.join_groups import join_groups
from tilewright.graph.passes.joint_products import joint_products
from tilewright.graph.passes.joint_results import joint_results
from tilewright.graph.passes.kept_exponentials import kept_exponentials
from tilewright.graph.passes.narrow_results import narrow_results
from tilewright.graph.passes.open_batch_norm import open_batch_norm
from tilewright.graph.passes.operand_order import operand_order
from tilewright.graph.passes.packed_weights import packed_weights
from tilewright.graph.passes.pad_channels import pad_channels
from tilewright.graph.passes.paired_columns import paired_columns
from tilewright.graph.passes.plan_memory import plan_memory
from tilewright.graph.passes.quantized_products import quantized_products
from tilewright.graph.passes.recognize import recognize
from tilewright.graph.passes.recompute_late import recompute_late
from tilewright.graph.passes.reduce_precision import reduce_precision
from tilewright.graph.passes.requantize import requantize
from tilewright.graph.passes.round_operands import round_operands
from tilewright.graph.passes.shared_numbers import shared_numbers
from tilewright.graph.passes.single_steps import single_steps
from tilewright.graph.passes.sink_reshapes import sink_reshapes
from tilewright.graph.passes.sums_as_floats import sums_as_floats
from tilewright.graph.passes.sums_of_parts import sums_of_parts
from tilewright.graph.passes.transposed_convolution import transposed_convolution
from tilewright.graph.passes.widen_halves import widen_halves
from tilewright.graph.passes.widen_where_read import widen_where_read
from tilewright.graph.passes.window_borders import window_borders
from tilewright.graph.passes.word_products import word_products
from tilewright.graph.state import with_state
from tilewright.ir.dtype import FLOAT16
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.target import Target

AVX512 = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake-avx512").replace(cores=1)
VNNI = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=icelake-server")
MICRO = Target("micro -mcpu=cortex-m3")
NEON = Target("llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1")
HALVES = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=sapphirerapids")
MANY_CORES = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=haswell").replace(cores=8)
HOPPER = Target("cuda -arch=sm_90a")
TF32 = Target("cuda -arch=sm_90a -mattr=+tf32")


def test_attention() -> None:
    """The transposes that the pass puts around the operator cancel with those of the model."""
    assert_becomes(
        lambda module: canonicalize(attention(module, GraphOptions(target=AVX512))),
        """
        products = matmul(transpose(q, axes=(0, 2, 1, 3)), transpose(k, axes=(0, 2, 3, 1)))
        scores = add(multiply(products, constant(0.5, "float32")), mask)
        heads = matmul(nn.softmax(scores, axis=3), transpose(v, axes=(0, 2, 1, 3)))
        return transpose(heads, axes=(0, 2, 1, 3))
        """,
        "return nn.attention(q, k, v, mask, scale=0.5)",
        q="f32[2, 5, 3, 4]",
        k="f32[2, 7, 3, 4]",
        v="f32[2, 7, 3, 4]",
        mask="f32[5, 7]",
    )


def test_expand_quantization() -> None:
    assert_becomes(
        expand_quantization,
        """
        q = qnn.quantize(x, constant(0.5, "float32"), constant(3, "uint8"), dtype=uint8)
        return qnn.dequantize(q, constant(0.5, "float32"), constant(3, "uint8"))
        """,
        """
        steps = add(round(divide(x, constant(0.5, "float32"))), cast(constant(3, "uint8"), dtype=float32))
        q = cast(clip(steps, minimum=0.0, maximum=255.0), dtype=uint8)
        shifted = subtract(cast(q, dtype=int32), constant(3, "int32"))
        return multiply(cast(shifted, dtype=float32), constant(0.5, "float32"))
        """,
        x="f32[2, 5]",
    )


def test_bitserial_products() -> None:
    """Weights of -1 and 1 are one plane; how many of its bits are ones is known."""
    weight = np.random.default_rng(0).choice([-1, 1], (128, 64)).astype(np.int32)
    planes = bit_planes((weight.T > 0).astype(np.uint8), 1).transpose(1, 2, 0)
    assert_becomes(
        partial(bitserial_products, options=GraphOptions(target=VNNI)),
        "return matmul(cast(cast(clip(x, minimum=0.0, maximum=1.0), dtype=uint8), dtype=int32), const[0])",
        """
        planes = nn.bitpack(cast(clip(x, minimum=0.0, maximum=1.0), dtype=uint8), bits=1)
        return subtract(const[1], nn.bitserial_dense(planes, const[2], mode="xor"))
        """,
        constants=[weight, (weight > 0).sum(axis=0, dtype=np.int32), np.ascontiguousarray(planes)],
        rtol=0,
        x="f32[3, 128]",
    )


def test_bind_symbols() -> None:
    def three_rows(module: IRModule) -> IRModule:
        main = module["main"]
        assert isinstance(main, Function)
        (rows, _) = main.params[0].tensor_type.shape or ()
        assert isinstance(rows, Symbol)
        return bind_symbols(module, {rows: 3})

    assert_becomes(
        three_rows,
        """
        @graph.function
        def main(x: Tensor[(rows, 4), "float32"]):
            return reshape(nn.relu(x), shape=(rows * 4,))
        """,
        """
        @graph.function
        def main(x: Tensor[(3, 4), "float32"]):
            return reshape(nn.relu(x), shape=(12,))
        """,
    )


def test_choose_algorithm() -> None:
    weight = random(0, 3, 3, 32, 32)
    assert_becomes(
        partial(choose_algorithm, options=GraphOptions(target=AVX512)),
        'return nn.conv2d(x, const[0], padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO")',
        "return nn.conv2d_winograd(x, const[1], tile=4, padding=(1, 1, 1, 1))",
        constants=[weight, transformed_weight(weight, 4)],
        rtol=1e-3,
        x="f32[1, 28, 28, 32]",
    )


def test_choose_algorithm_leaves_what_hardly_counts() -> None:
    large, small = random(0, 3, 3, 64, 64), random(1, 3, 3, 16, 16)
    attributes = 'padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO"'
    assert_becomes(
        partial(choose_algorithm, options=GraphOptions(target=AVX512)),
        f"return nn.conv2d(x, const[0], {attributes}), nn.conv2d(y, const[1], {attributes})",
        f"return nn.conv2d_winograd(x, const[2], tile=4, padding=(1, 1, 1, 1)), nn.conv2d(y, const[1], {attributes})",
        constants=[large, small, transformed_weight(large, 4)],
        rtol=1e-3,
        x="f32[1, 56, 56, 64]",
        y="f32[1, 14, 14, 16]",
    )


def test_choose_algorithm_leaves_weights_to_the_kernel() -> None:
    """What a file has as halves is kept as halves."""
    weight = random(0, 3, 3, 32, 64).astype(np.float16)
    assert_becomes(
        partial(choose_algorithm, options=GraphOptions(target=AVX512.replace(cores=1, l2_bytes=64 << 10))),
        'return nn.conv2d(x, const[0], padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO")',
        "return nn.conv2d_winograd(x, const[1], tile=4, padding=(1, 1, 1, 1))",
        constants=[weight.astype(np.float32), weight],
        rtol=1e-3,
        x="f32[1, 28, 28, 32]",
    )


def test_convert_layout() -> None:
    weight, bias = random(0, 8, 4, 3, 3), random(1, 8, 1, 1)
    assert_becomes(
        partial(convert_layout, options=GraphOptions(layout="NHWC")),
        """
        y = nn.relu(add(nn.conv2d(x, const[0], padding=(1, 1, 1, 1)), const[1]))
        return nn.max_pool2d(y, kernel=(2, 2), strides=(2, 2))
        """,
        """
        pixels = transpose(x, axes=(0, 2, 3, 1))
        sums = nn.conv2d(pixels, const[2], padding=(1, 1, 1, 1), data_layout="NHWC", kernel_layout="HWIO")
        y = nn.relu(add(sums, const[3]))
        pooled = nn.max_pool2d(y, kernel=(2, 2), strides=(2, 2), layout="NHWC")
        return transpose(pooled, axes=(0, 3, 1, 2))
        """,
        constants=[weight, bias, weight.transpose(2, 3, 1, 0), bias.reshape(8)],
        rtol=1e-4,
        x="f32[1, 4, 6, 6]",
    )


def test_drop_checks() -> None:
    assert_becomes(
        drop_checks,
        """
        status = check_values(ids, what="index", sizes=(5,), axes=(0,))
        return take(table, checked(ids, status, what="index", axes=(0,)))
        """,
        "return take(table, ids)",
        table="f32[5, 2]",
        ids="i64[3]",
    )


def test_eliminate_common_subexpressions() -> None:
    assert_becomes(
        eliminate_common_subexpressions,
        "return add(nn.relu(add(x, y)), nn.relu(add(y, x)))",
        """
        r = nn.relu(add(x, y))
        return add(r, r)
        """,
        x="f32[2]",
        y="f32[2]",
    )


def test_eliminate_dead_code() -> None:
    assert_becomes(
        eliminate_dead_code,
        """
        @graph.function
        def nobody_calls(x: Tensor[(2,), "float32"]):
            return x

        @graph.function
        def main(x: Tensor[(2,), "float32"]):
            y: let = exp(x)
            z: let = nn.relu(x)
            return z
        """,
        """
        z: let = nn.relu(x)
        return z
        """,
        x="f32[2]",
    )


def test_fold_batch_norm() -> None:
    weight = random(0, 2, 3, 1, 1)
    assert_becomes(
        fold_batch_norm,
        """
        scale = constant([2.0, 3.0], "float32")
        bias = constant([1.0, 1.0], "float32")
        mean = constant([0.5, 0.0], "float32")
        variance = constant([4.0, 1.0], "float32")
        return nn.batch_norm(nn.conv2d(x, const[0]), scale, bias, mean, variance, epsilon=0.0)
        """,
        'return add(nn.conv2d(x, const[1]), constant([[[0.5]], [[1.0]]], "float32"))',
        constants=[weight, weight * np.array([1.0, 3.0], np.float32).reshape(2, 1, 1, 1)],
        x="f32[1, 3, 4, 4]",
    )


def test_fold_constants() -> None:
    assert_becomes(
        fold_constants,
        'return add(x, transpose(constant([[1.0, 2.0], [3.0, 4.0]], "float32"), axes=(1, 0)))',
        'return add(x, constant([[1.0, 3.0], [2.0, 4.0]], "float32"))',
        x="f32[2, 2]",
    )


def test_fuse() -> None:
    assert_becomes(
        partial(fuse, options=GraphOptions()),
        """
        y = nn.relu(add(nn.conv2d(x, w), b))
        return nn.softmax(reshape(y, shape=(1, 32)), axis=1)
        """,
        """
        @graph.closure(notes={"primitive": True, "name": "fused_nn_conv2d_add_nn_relu", "nodes": ()})
        def layer(
            x: Tensor[(1, 3, 4, 4), "float32"], w: Tensor[(2, 3, 1, 1), "float32"], b: Tensor[(2, 1, 1), "float32"]
        ) -> Tensor[(1, 2, 4, 4), "float32"]:
            return nn.relu(add(nn.conv2d(x, w), b))

        @graph.closure(notes={"primitive": True, "name": "nn_softmax", "nodes": ()})
        def softmax(x: Tensor[(1, 32), "float32"]) -> Tensor[(1, 32), "float32"]:
            return nn.softmax(x, axis=1)

        return softmax(reshape(layer(x, w, b), shape=(1, 32)))
        """,
        x="f32[1, 3, 4, 4]",
        w="f32[2, 3, 1, 1]",
        b="f32[2, 1, 1]",
    )


def test_joint_results() -> None:
    """What is remembered of a parameter, and the parameter: what both are made of is never stored."""
    assert_becomes(
        lambda module: joint_results(fuse(module, GraphOptions()), GraphOptions()),
        """
        speed = add(multiply(v, constant(0.5, "float32")), g)
        return (where(moves, speed, v), where(moves, subtract(p, multiply(speed, rate)), p), nn.softmax(g, axis=1))
        """,
        """
        @graph.closure(
            notes={"primitive": True, "name": "joint_fused_multiply_subtract_where", "nodes": (), "joint": True}
        )
        def update(
            v: Tensor[(4, 6), "float32"], g: Tensor[(4, 6), "float32"], moves: Tensor[(), "bool"],
            rate: Tensor[(), "float32"], p: Tensor[(4, 6), "float32"],
        ) -> Tuple[Tensor[(4, 6), "float32"], Tensor[(4, 6), "float32"]]:
            speed = add(multiply(v, constant(0.5, "float32")), g)
            return (where(moves, speed, v), where(moves, subtract(p, multiply(speed, rate)), p))

        @graph.closure(notes={"primitive": True, "name": "nn_softmax", "nodes": ()})
        def softmax(x: Tensor[(4, 6), "float32"]) -> Tensor[(4, 6), "float32"]:
            return nn.softmax(x, axis=1)

        both = update(v, g, moves, rate, p)
        return (both[0], both[1], softmax(g))
        """,
        v="f32[4, 6]",
        g="f32[4, 6]",
        p="f32[4, 6]",
        rate="f32[]",
        moves="bool[]",
    )


def test_shared_numbers() -> None:
    """Layers with factors of their own: what is the same in both stays a number."""
    layer = """
        @graph.closure(notes={"primitive": True, "name": "fused_matmul_multiply_add_nn_relu%s", "nodes": ()})
        def layer%s(
            x: Tensor[(4, 4), "float32"], w: Tensor[(4, 4), "float32"], factor: Tensor[(), "float32"]
        ) -> Tensor[(4, 4), "float32"]:
            return nn.relu(add(multiply(matmul(x, w), factor), constant(0.25, "float32")))
    """
    assert_becomes(
        lambda module: shared_numbers(fuse(module, GraphOptions())),
        """
        y = nn.relu(add(multiply(matmul(x, v), constant(0.5, "float32")), constant(0.25, "float32")))
        return nn.relu(add(multiply(matmul(y, w), constant(0.75, "float32")), constant(0.25, "float32")))
        """,
        layer % ("", "0")
        + layer % ("_1", "1")
        + """
        return layer1(layer0(x, v, constant(0.5, "float32")), w, constant(0.75, "float32"))
        """,
        x="f32[4, 4]",
        v="f32[4, 4]",
        w="f32[4, 4]",
    )


def test_recompute_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read on both sides of the peak, and cheap, is computed again of what is alive there anyway."""
    for name, value in {"_LEAST_BYTES": 1, "_LAUNCH_BYTES": 0, "_MOST_MOVED": 1}.items():
        monkeypatch.setattr(recomputation, name, value)
    options = GraphOptions(target=HOPPER)
    square = 'Tensor[(8, 8), "float32"]'
    assert_becomes(
        lambda module: IRModule(recompute_late(with_state(fuse(module, options), {"w": 1}), options).functions),
        """
        u = matmul(x, w)
        g = tanh(u)
        y = matmul(g, v)
        dy = multiply(y, sum(exp(matmul(y, wide)), axes=(1,), keepdims=True))
        return (multiply(u, matmul(dy, v)), subtract(w, matmul(g, dy, transpose_a=True)))
        """,
        f"""
        @graph.closure(notes={{"primitive": True, "name": "matmul", "nodes": ()}})
        def inner(x: {square}, w: {square}) -> {square}:
            return matmul(x, w)

        @graph.closure(notes={{"primitive": True, "name": "tanh", "nodes": ()}})
        def activation(u: {square}) -> {square}:
            return tanh(u)

        @graph.closure(notes={{"primitive": True, "name": "matmul_1", "nodes": ()}})
        def outer(g: {square}, v: {square}) -> {square}:
            return matmul(g, v)

        @graph.closure(notes={{"primitive": True, "name": "fused_matmul_exp", "nodes": ()}})
        def powers(y: {square}, wide: Tensor[(8, 64), "float32"]) -> Tensor[(8, 64), "float32"]:
            return exp(matmul(y, wide))

        @graph.closure(notes={{"primitive": True, "name": "sum", "nodes": ()}})
        def total(powers: Tensor[(8, 64), "float32"]) -> Tensor[(8, 1), "float32"]:
            return sum(powers, axes=(1,), keepdims=True)

        @graph.closure(notes={{"primitive": True, "name": "multiply", "nodes": ()}})
        def scaled(y: {square}, total: Tensor[(8, 1), "float32"]) -> {square}:
            return multiply(y, total)

        @graph.closure(notes={{"primitive": True, "name": "fused_matmul_multiply", "nodes": ()}})
        def back(dy: {square}, v: {square}, u: {square}) -> {square}:
            return multiply(u, matmul(dy, v))

        @graph.closure(notes={{"primitive": True, "name": "fused_matmul_subtract", "nodes": ()}})
        def update(g: {square}, dy: {square}, w: {square}) -> {square}:
            return subtract(w, matmul(g, dy, transpose_a=True))

        u = inner(x, w)
        y = outer(activation(u), v)
        dy = scaled(y, total(powers(y, wide)))
        when = reshape(slice(dy, begin=(0, 0), end=(1, 1), strides=(1, 1)), shape=())
        return (back(dy, v, u), update(activation(after(u, when)), dy, w))
        """,
        x="f32[8, 8]",
        w="f32[8, 8]",
        v="f32[8, 8]",
        wide="f32[8, 64]",
    )


def test_fuse_horizontally() -> None:
    """What no kernel of the others reads shares launches; what reads it comes later."""
    options = GraphOptions(target=HOPPER)
    assert_becomes(
        lambda module: fuse_horizontally(fuse(module, options), options),
        """
        total = sum(multiply(g, g), axes=(0,), keepdims=False)
        return (exp(x), total, exp(y), nn.softmax(total, axis=0))
        """,
        """
        @graph.closure(notes={"primitive": True, "name": "exp", "nodes": ()})
        def first(x: Tensor[(4,), "float32"]) -> Tensor[(4,), "float32"]:
            return exp(x)

        @graph.closure(notes={"primitive": True, "name": "exp_1", "nodes": ()})
        def second(y: Tensor[(2, 3), "float32"]) -> Tensor[(2, 3), "float32"]:
            return exp(y)

        @graph.closure(notes={"primitive": True, "name": "fused_multiply_sum", "nodes": ()})
        def norm(g: Tensor[(5, 6), "float32"]) -> Tensor[(6,), "float32"]:
            return sum(multiply(g, g), axes=(0,), keepdims=False)

        @graph.closure(
            notes={"primitive": True, "name": "horizontal_exp_multiply_sum", "nodes": (), "horizontal": True}
        )
        def together(
            x: Tensor[(4,), "float32"], g: Tensor[(5, 6), "float32"], y: Tensor[(2, 3), "float32"],
        ) -> Tuple[Tensor[(4,), "float32"], Tensor[(6,), "float32"], Tensor[(2, 3), "float32"]]:
            return (first(x), norm(g), second(y))

        @graph.closure(notes={"primitive": True, "name": "nn_softmax", "nodes": ()})
        def softmax(total: Tensor[(6,), "float32"]) -> Tensor[(6,), "float32"]:
            return nn.softmax(total, axis=0)

        all = together(x, g, y)
        return (all[0], all[1], all[2], softmax(all[1]))
        """,
        x="f32[4]",
        y="f32[2, 3]",
        g="f32[5, 6]",
    )


def test_fuse_where_memory_is_short() -> None:
    """A layer ends with its bytes; the sum that reads them makes them wider."""
    assert_becomes(
        partial(fuse, options=GraphOptions(target=MICRO)),
        """
        y = cast(qnn.matmul(x, const[0]), dtype=int8)
        return sum(cast(y, dtype=int32), axes=(1,), keepdims=False)
        """,
        """
        @graph.closure(notes={"primitive": True, "name": "fused_qnn_matmul_cast", "nodes": ()})
        def layer(x: Tensor[(3, 8), "int8"], w: Tensor[(8, 6), "int8"]) -> Tensor[(3, 6), "int8"]:
            return cast(qnn.matmul(x, w), dtype=int8)

        @graph.closure(notes={"primitive": True, "name": "fused_cast_sum", "nodes": ()})
        def total(y: Tensor[(3, 6), "int8"]) -> Tensor[(3,), "int32"]:
            return sum(cast(y, dtype=int32), axes=(1,), keepdims=False)

        return total(layer(x, const[0]))
        """,
        constants=[np.random.default_rng(0).integers(-3, 3, (8, 6), np.int8)],
        x="int8[3, 8]",
    )


def test_half_products() -> None:
    assert_becomes(
        partial(half_products, options=GraphOptions(target=HALVES, winograd=False)),
        "return matmul(x, const[0])",
        "return half.matmul(x, const[0], block=256)",
        constants=[random(0, 256, 64).astype("float16")],
        rtol=3e-2,
        x="f16[8, 256]",
    )


def test_integer_products() -> None:
    """A known zero point becomes a row of constants."""
    weight = np.random.default_rng(0).integers(-128, 128, (8, 16)).astype(np.int32)
    assert_becomes(
        partial(integer_products, options=GraphOptions(target=VNNI)),
        'return matmul(subtract(cast(x, dtype=int32), constant(9, "int32")), const[0])',
        "return subtract(qnn.matmul(x, const[1]), const[2])",
        constants=[weight, weight.astype(np.int8), 9 * weight.sum(axis=0, dtype=np.int32)],
        rtol=0,
        x="uint8[3, 8]",
    )


def test_integer_products_where_memory_is_short() -> None:
    """Bytes stay bytes, without padding, on a processor that multiplies no bytes."""
    weight = np.random.default_rng(0).integers(-128, 128, (7, 5)).astype(np.int32)
    assert_becomes(
        partial(integer_products, options=GraphOptions(target=MICRO)),
        'return matmul(subtract(cast(x, dtype=int32), constant(9, "int32")), const[0])',
        "return subtract(qnn.matmul(x, const[1]), const[2])",
        constants=[weight, weight.astype(np.int8), 9 * weight.sum(axis=0, dtype=np.int32)],
        rtol=0,
        x="int8[3, 7]",
    )


def test_word_products() -> None:
    """Constant bytes and bit planes become words, steps of a reduction four to each."""
    weight = np.random.default_rng(0).integers(-128, 128, (8, 6)).astype(np.int8)
    words = np.ascontiguousarray(weight.T).view("<i4")
    options = GraphOptions(target=Target("opencl"))
    before, after = "return qnn.matmul(x, const[0])", "return qnn.word_matmul(x, const[1])"
    assert_becomes(partial(word_products, options=options), before, after, constants=[weight, words], x="int8[3, 8]")
    kernel = weight.reshape(2, 1, 4, 6)
    assert_becomes(
        partial(word_products, options=options),
        'return qnn.conv2d(x, const[0], constant(3, "int8"), strides=(1, 2), padding=(1, 0, 0, 1))',
        'return qnn.word_conv2d(x, const[1], constant(3, "int8"), strides=(1, 2), padding=(1, 0, 0, 1))',
        constants=[kernel, kernel.transpose(0, 1, 3, 2).copy().view("<i4").transpose(0, 1, 3, 2).copy()],
        x="int8[1, 4, 5, 4]",
    )
    planes = weight.view(np.uint8).reshape(2, 4, 6)
    assert_becomes(
        partial(word_products, options=options),
        'return nn.bitserial_dense(x, const[0], mode="xor")',
        'return nn.bitserial_dense(x, const[1], mode="xor")',
        constants=[planes, planes.transpose(0, 2, 1).copy().view("<i4").transpose(0, 2, 1).copy()],
        x="uint8[3, 1, 4]",
    )


def test_integer_products_of_groups() -> None:
    """Each group of channels has weights of its own; a reshape puts their results side by side."""
    weight = np.random.default_rng(0).integers(-128, 128, (3, 3, 4, 8)).astype(np.int32)
    grouped = weight.reshape(3, 3, 4, 2, 4).transpose(3, 0, 1, 2, 4)
    assert_becomes(
        partial(integer_products, options=GraphOptions(target=NEON)),
        """
        shifted = subtract(cast(x, dtype=int32), constant(9, "int32"))
        return nn.conv2d(shifted, const[0], groups=2, data_layout="NHWC", kernel_layout="HWIO")
        """,
        """
        sums = qnn.grouped_conv2d(reshape(x, shape=(1, 5, 5, 2, 4)), const[1], constant(9, "int8"))
        return subtract(reshape(sums, shape=(1, 3, 3, 8)), const[2])
        """,
        constants=[weight, grouped.astype(np.int8), 9 * weight.sum(axis=(0, 1, 2), dtype=np.int32)],
        rtol=0,
        x="int8[1, 5, 5, 8]",
    )


def test_quantized_means() -> None:
    """Integers are added up; the scale of a mean is that of one element, over their number."""
    values = """
        shifted = subtract(cast(x, dtype=int32), constant(3, "int32"))
        values = multiply(cast(shifted, dtype=float32), constant(0.5, "float32"))
        """
    assert_becomes(
        partial(quantized_products, options=GraphOptions(target=NEON)),
        f"{values}return mean(values, axes=(2, 3), keepdims=True)",
        """
        sums = sum(subtract(cast(x, dtype=int32), constant(3, "int32")), axes=(2, 3), keepdims=True)
        return multiply(cast(sums, dtype=float32), constant(0.03125, "float32"))
        """,
        x="uint8[1, 2, 4, 4]",
    )
    assert_becomes(
        partial(quantized_products, options=GraphOptions(target=NEON)),
        f"{values}return nn.avg_pool2d(values, kernel=(2, 2), strides=(2, 2))",
        """
        shifted = subtract(cast(x, dtype=int32), constant(3, "int32"))
        sums = nn.conv2d(shifted, const[0], strides=(2, 2), groups=2)
        return multiply(cast(sums, dtype=float32), constant(0.125, "float32"))
        """,
        constants=[np.ones((2, 1, 2, 2), np.int32)],
        x="uint8[1, 2, 4, 4]",
    )


def test_integer_recurrence() -> None:
    """Weights stay bytes, padded to whole loads of a row; a scale for each of their rows."""
    weight = np.random.default_rng(0).integers(-128, 128, (4, 6, 6)).astype(np.int32)
    gates = '(("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))'
    assert_becomes(
        partial(integer_recurrence, options=GraphOptions(target=NEON)),
        f"""
        weights = multiply(cast(const[0], dtype=float32), constant(0.001, "float32"))
        return nn.lstm(x, weights, hidden, cell, activations={gates})
        """,
        f"return qnn.lstm(x, const[1], const[2], hidden, cell, activations={gates})",
        constants=[
            weight,
            np.pad(weight, ((0, 0), (0, 0), (0, 10))).astype(np.int8),
            np.full((4, 6), 0.001, np.float32),
        ],
        rtol=1e-3,
        x="f32[3, 2, 4, 6]",
        hidden="f32[2, 6]",
        cell="f32[2, 6]",
    )


def test_integer_recurrence_of_gated_units() -> None:
    """The other layers, too; numbers beyond a byte of the sign that is wanted are stored less an offset."""
    weight = np.random.default_rng(0).integers(0, 256, (3, 6, 6)).astype(np.int32)
    gates = '(("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0))'
    assert_becomes(
        partial(integer_recurrence, options=GraphOptions(target=NEON)),
        f"""
        weights = multiply(cast(const[0], dtype=float32), constant(0.001, "float32"))
        return nn.gru(x, weights, hidden, bias, activations={gates}, clip=3.0, reset_after=True)
        """,
        f"return qnn.gru(x, const[1], const[2], hidden, bias, activations={gates}, clip=3.0, reset_after=True, "
        f"offset={weight.min() + 128})",
        constants=[
            weight,
            np.pad(weight - weight.min() - 128, ((0, 0), (0, 0), (0, 10))).astype(np.int8),
            np.full((3, 6), 0.001, np.float32),
        ],
        rtol=1e-3,
        x="f32[3, 2, 3, 6]",
        hidden="f32[2, 6]",
        bias="f32[6]",
    )


def test_byte_tables() -> None:
    """The hyperbolic tangent of a byte is one of 256 bytes."""
    numbers = np.arange(256, dtype=np.float32) * np.float32(0.01)
    assert_becomes(
        partial(byte_tables, options=GraphOptions(target=NEON)),
        """
        value = multiply(cast(x, dtype=float32), constant(0.01, "float32"))
        return cast(round(multiply(tanh(value), constant(255.0, "float32"))), dtype=uint8)
        """,
        'return take(const[0], x, mode="inside")',
        constants=[np.rint(np.tanh(numbers) * np.float32(255)).astype(np.uint8)],
        x="uint8[5, 6]",
    )


def test_kept_exponentials() -> None:
    """Short vectors compute an exponential for longer than they store and load it; long ones do not."""
    before = """
        largest = max(x, axes=(1,), keepdims=True)
        total = add(largest, log(sum(exp(subtract(x, largest)), axes=(1,), keepdims=True)))
        return (total, exp(subtract(x, total)))
        """
    after = """
        largest = max(x, axes=(1,), keepdims=True)
        terms = exp(subtract(x, largest))
        sums = sum(terms, axes=(1,), keepdims=True)
        return (add(largest, log(sums)), multiply(terms, reciprocal(sums)))
        """
    assert_becomes(partial(kept_exponentials, options=GraphOptions(target=NEON)), before, after, x="f32[4, 6]")
    assert_becomes(partial(kept_exponentials, options=GraphOptions(target=HOPPER)), before, before, x="f32[4, 6]")


def test_functions_of_the_same_elements() -> None:
    """An activation and its derivative share the error function, where nothing else reads what they are of."""
    cpu = GraphOptions(target=NEON)
    assert_becomes(
        lambda module: joint_results(fuse(module, cpu), cpu),
        """
        sums = sum(x, axes=(0,))
        return (exp(sums), multiply(tanh(sums), sin(sums)))
        """,
        """
        @graph.closure(notes={"primitive": True, "name": "sum", "nodes": ()})
        def total(x: Tensor[(4, 6), "float32"]) -> Tensor[(6,), "float32"]:
            return sum(x, axes=(0,))

        @graph.closure(notes={"primitive": True, "name": "joint_fused_tanh_sin_multiply", "nodes": (), "joint": True})
        def functions(s: Tensor[(6,), "float32"]) -> Tuple[Tensor[(6,), "float32"], Tensor[(6,), "float32"]]:
            return (exp(s), multiply(tanh(s), sin(s)))

        both = functions(total(x))
        return (both[0], both[1])
        """,
        x="f32[4, 6]",
    )


def test_window_borders() -> None:
    """Five windows of three pixels are loaded by groups of four, for two windows each: eight pixels in all."""
    table = np.arange(256).astype(np.int8)
    weight = np.random.default_rng(0).integers(-9, 9, (2, 3, 1, 16, 4)).astype(np.int8)
    assert_becomes(
        window_borders,
        """
        image = take(const[0], x, mode="inside")
        return qnn.window_dots(image, const[1], constant(-3, "int8"), padding=(1, 1, 1, 1), width=3)
        """,
        """
        image = take(const[0], x, mode="inside")
        padded = pad(image, before=(0, 1, 1, 0), after=(0, 1, 2, 0), value=-3.0)
        return qnn.window_dots(padded, const[1], constant(-3, "int8"), padding=(0, 0, 0, -1), width=3)
        """,
        constants=[table, weight],
        x="uint8[1, 4, 5, 16]",
    )


def test_packed_weights() -> None:
    """Integers from -8 to 7 are codes of four bits less 8; one scale a column is one group."""
    weight = np.random.default_rng(0).integers(-8, 8, (256, 80)).astype(np.int8)
    weight[0, 0], weight[1, 0] = -8, 7
    scale = np.random.default_rng(1).uniform(0.1, 0.2, (1, 80)).astype(np.float32)
    words = pack_codes((weight + 8).astype(np.uint8), 4, 0)
    assert_becomes(
        partial(packed_weights, options=GraphOptions(target=VNNI)),
        "return matmul(x, multiply(cast(const[0], dtype=float32), const[1]))",
        "return packed.matmul(x, const[2], const[1], const[3], bits=4, group=256)",
        constants=[weight, scale, words, np.full((1, 1), 8, np.uint8)],
        x="f32[9, 256]",
    )


def test_join_groups() -> None:
    """Four groups of four channels fill a vector of 16; zeros keep them apart."""
    weight = random(0, 1, 1, 4, 128)
    joined = np.zeros((1, 1, 16, 128), np.float32)
    for group in range(32):
        channels = slice(group % 4 * 4, group % 4 * 4 + 4)
        joined[:, :, channels, group * 4 : group * 4 + 4] = weight[:, :, :, group * 4 : group * 4 + 4]
    assert_becomes(
        partial(join_groups, options=GraphOptions(target=HALVES)),
        'return nn.conv2d(x, const[0], groups=32, data_layout="NHWC", kernel_layout="HWIO")',
        'return nn.conv2d(x, const[1], groups=8, data_layout="NHWC", kernel_layout="HWIO")',
        constants=[weight, joined],
        x="f32[1, 2, 2, 128]",
    )


def test_joint_products() -> None:
    """Matrices of one width lie one after the other: the results are views of one product."""
    queries, keys = random(0, 8, 6), random(1, 8, 6)
    assert_becomes(
        partial(joint_products, options=GraphOptions(target=HOPPER)),
        "return (matmul(x, const[0]), matmul(x, const[1]))",
        """
        both = matmul(reshape(x, shape=(5, 8)), const[2])
        first = slice(both, begin=(0, 0, 0), end=(1, 5, 6), strides=(1, 1, 1))
        second = slice(both, begin=(1, 0, 0), end=(2, 5, 6), strides=(1, 1, 1))
        return (reshape(first, shape=(5, 6)), reshape(second, shape=(5, 6)))
        """,
        constants=[queries, keys, np.stack([queries, keys])],
        x="f32[5, 8]",
    )


def test_column_parts() -> None:
    """Queries, keys and values of one product: each becomes a result of its own, and nothing is turned before it."""
    weights, row = random(0, 8, 96), random(1, 96)
    assert_becomes(
        partial(column_parts, options=GraphOptions(target=HOPPER)),
        """
        both = reshape(add(matmul(x, const[0]), const[1]), shape=(2, 5, 2, 3, 16))
        turned = transpose(both, axes=(2, 0, 3, 1, 4))
        return (take(turned, const[2]), take(turned, const[3]))
        """,
        """
        both = add(matmul(reshape(x, shape=(10, 8)), const[4]), const[5])
        first = slice(both, begin=(0, 0, 0), end=(1, 10, 48), strides=(1, 1, 1))
        second = slice(both, begin=(1, 0, 0), end=(2, 10, 48), strides=(1, 1, 1))
        return (
            transpose(reshape(first, shape=(2, 5, 3, 16)), axes=(0, 2, 1, 3)),
            transpose(reshape(second, shape=(2, 5, 3, 16)), axes=(0, 2, 1, 3)),
        )
        """,
        constants=[
            weights,
            row,
            np.array(0),
            np.array(1),
            np.stack(np.split(weights, 2, axis=1)),
            row.reshape(2, 1, 48),
        ],
        x="f32[2, 5, 8]",
    )


def test_paired_columns() -> None:
    """Both parts of a result are neighbours, so that the product's kernel multiplies them."""
    weights = random(0, 8, 6)
    assert_becomes(
        partial(paired_columns, options=GraphOptions(target=HOPPER)),
        """
        both = matmul(x, const[0])
        gate = slice(both, begin=(0, 0), end=(5, 3), strides=(1, 1))
        up = slice(both, begin=(0, 3), end=(5, 6), strides=(1, 1))
        return multiply(sigmoid(gate), up)
        """,
        """
        both = matmul(x, const[1])
        gate = slice(both, begin=(0, 0), end=(5, 6), strides=(1, 2))
        up = slice(both, begin=(0, 1), end=(5, 6), strides=(1, 2))
        return multiply(sigmoid(gate), up)
        """,
        constants=[weights, weights[:, [0, 3, 1, 4, 2, 5]]],
        x="f32[5, 8]",
    )


def test_pad_channels() -> None:
    weight = random(0, 3, 3, 3, 8).astype("float16")
    assert_becomes(
        partial(pad_channels, options=GraphOptions(target=HOPPER)),
        'return nn.conv2d(transpose(x, axes=(0, 2, 3, 1)), const[0], data_layout="NHWC", kernel_layout="HWIO")',
        """
        pixels = pad(transpose(x, axes=(0, 2, 3, 1)), before=(0, 0, 0, 0), after=(0, 0, 0, 1))
        return nn.conv2d(pixels, const[1], data_layout="NHWC", kernel_layout="HWIO")
        """,
        constants=[weight, np.pad(weight, ((0, 0), (0, 0), (0, 1), (0, 0)))],
        x="f16[1, 3, 9, 9]",
    )


def test_plan_memory() -> None:
    """The first value is dead when the third is made, and gives it its memory."""
    assert_becomes(
        lambda module: plan_memory(fuse(module, GraphOptions())),
        "return cumsum(cumsum(cumsum(cumsum(x, axis=0), axis=0), axis=0), axis=0)",
        """
        step  kernel    results              arguments
        ----  --------  -------------------  ------------
           0  cumsum    workspace+0 (64 B)   input[0]
           1  cumsum_1  workspace+64 (64 B)  workspace+0
           2  cumsum_2  workspace+0 (64 B)   workspace+64
           3  cumsum_3  output[0] (64 B)     workspace+0
        workspace: 128 B, lower bound 128 B (x1.000), without sharing 192 B
        constants: 0, 0 B
        """,
        x="f32[16]",
    )


def test_quantized_products() -> None:
    assert_becomes(
        partial(quantized_products, options=GraphOptions(target=VNNI)),
        """
        shifted = subtract(cast(x, dtype=int32), constant(3, "int32"))
        values = multiply(cast(shifted, dtype=float32), constant(0.25, "float32"))
        weights = multiply(cast(const[0], dtype=float32), constant(0.5, "float32"))
        return matmul(values, weights)
        """,
        """
        sums = matmul(subtract(cast(x, dtype=int32), constant(3, "int32")), const[0])
        return multiply(cast(sums, dtype=float32), constant([0.125, 0.125, 0.125, 0.125], "float32"))
        """,
        constants=[np.arange(-8, 8, dtype=np.int32).reshape(4, 4)],
        x="uint8[3, 4]",
    )


def test_quantized_products_of_one_dimension() -> None:
    """A convolution of one dimension is one of images between reshapes, with weights scaled by channel."""
    assert_becomes(
        partial(quantized_products, options=GraphOptions(target=VNNI)),
        """
        values = multiply(cast(cast(x, dtype=int32), dtype=float32), constant(0.25, "float32"))
        weights = multiply(cast(const[0], dtype=float32), const[1])
        return nn.conv2d(reshape(values, shape=(2, 2, 1, 9)), reshape(weights, shape=(2, 2, 1, 3)))
        """,
        """
        sums = nn.conv2d(reshape(cast(x, dtype=int32), shape=(2, 2, 1, 9)), const[2])
        return multiply(cast(sums, dtype=float32), const[3])
        """,
        constants=[
            np.arange(-6, 6, dtype=np.int32).reshape(2, 2, 3),
            np.array([0.5, 2], np.float32).reshape(2, 1, 1),
            np.arange(-6, 6, dtype=np.int32).reshape(2, 2, 1, 3),
            np.array([0.125, 0.5], np.float32).reshape(2, 1, 1),
        ],
        x="uint8[2, 2, 9]",
    )


def test_computed_products() -> None:
    """A zero point of one operand meets the sums of the other."""
    assert_becomes(
        partial(computed_products, options=GraphOptions(target=NEON)),
        """
        shifted = subtract(cast(a, dtype=int32), constant(3, "int32"))
        left = multiply(cast(shifted, dtype=float32), constant(0.5, "float32"))
        right = multiply(cast(cast(b, dtype=int32), dtype=float32), constant(0.25, "float32"))
        return round(divide(matmul(left, right), constant(4.0, "float32")))
        """,
        """
        columns = multiply(sum(cast(b, dtype=int32), axes=(1,), keepdims=True), constant(3, "int32"))
        sums = subtract(qnn.matmul(a, b), columns)
        product = multiply(cast(sums, dtype=float32), constant(0.125, "float32"))
        return round(divide(product, constant(4.0, "float32")))
        """,
        a="uint8[2, 9, 16]",
        b="uint8[2, 16, 8]",
    )


def test_integer_epilogues() -> None:
    """A bias of whole steps is added to the integers, and a cast saturates by itself."""
    assert_becomes(
        partial(integer_epilogues, options=GraphOptions(target=VNNI)),
        """
        sums = matmul(cast(x, dtype=int32), const[0])
        scaled = multiply(cast(sums, dtype=float32), constant(0.5, "float32"))
        level = round(add(scaled, constant([1.0, -2.0, 3.5, 0.0], "float32")))
        return cast(clip(level, minimum=0.0, maximum=255.0), dtype=uint8)
        """,
        """
        sums = add(matmul(cast(x, dtype=int32), const[0]), constant([2, -4, 7, 0], "int32"))
        return cast(round(multiply(cast(sums, dtype=float32), constant(0.5, "float32"))), dtype=uint8)
        """,
        constants=[np.arange(-8, 8, dtype=np.int32).reshape(4, 4)],
        rtol=0,
        x="uint8[3, 4]",
    )


def test_integer_epilogues_of_words() -> None:
    """Clamped words that are bytes, moved to the other sign, are cast to it at once."""
    assert_becomes(
        partial(integer_epilogues, options=GraphOptions(target=VNNI)),
        """
        level = cast(add(clip(x, minimum=-8.0, maximum=119.0), constant(8, "int32")), dtype=int8)
        return cast(add(cast(level, dtype=int32), constant(128, "int32")), dtype=uint8)
        """,
        'return cast(add(clip(x, minimum=-8.0, maximum=119.0), constant(136, "int32")), dtype=uint8)',
        rtol=0,
        x="int32[3, 4]",
    )


def test_sums_as_floats() -> None:
    """Sums that are bounded begin at the bits of a float; one that may be larger is converted."""
    weights = np.array([[1, -128], [3, 127], [-128, 5]], np.int8)
    assert_becomes(
        partial(sums_as_floats, options=GraphOptions(target=NEON)),
        """
        near = multiply(cast(add(qnn.matmul(x, const[0]), constant([7, -9], "int32")), dtype=float32), const[1])
        far = cast(add(qnn.matmul(x, const[0]), constant([4190000, 0], "int32")), dtype=float32)
        return multiply(near, far)
        """,
        """
        sums = add(qnn.matmul(x, const[0]), constant([1262485511, 1262485495], "int32"))
        near = multiply(subtract(reinterpret(sums, dtype=float32), constant(12582912.0, "float32")), const[1])
        far = cast(add(qnn.matmul(x, const[0]), constant([4190000, 0], "int32")), dtype=float32)
        return multiply(near, far)
        """,
        constants=[weights, np.array(0.37, np.float32)],
        rtol=0,
        x="int8[5, 3]",
    )


def test_narrow_results() -> None:
    """Rescaled sums that 16 bits hold go there at once, whether halves go up or away from zero."""
    weights = np.array([[1, -128], [3, 127], [-128, 5]], np.int8)
    sums = 'add(qnn.matmul(x, const[0]), constant([7, -9], "int32"))'
    product = f'product = qnn.high_product({sums}, constant([1500000000, 1100000000], "int32"))'
    signs = 'right_shift(product, constant(31, "int32"))'
    for value in ("product", f"add(product, {signs})"):
        rescaled = f'qnn.rounded_shift({value}, constant([0, -1], "int32"))'
        wide = f'cast(add(clip({rescaled}, minimum=0.0, maximum=255.0), constant(-128, "int32")), dtype=int8)'
        half = f"clip(cast({rescaled}, dtype=int16), minimum=0.0, maximum=255.0)"
        assert_becomes(
            partial(narrow_results, options=GraphOptions(target=NEON)),
            f"{product}\nreturn {wide}",
            f'{product}\nreturn cast(add({half}, constant(-128, "int16")), dtype=int8)',
            constants=[weights],
            rtol=0,
            x="int8[5, 3]",
        )


def test_narrow_results_of_floats() -> None:
    """Scaled sums that 16 bits hold are rounded by an addition; an odd zero point is added to what it gives."""
    weights = np.array([[1, -128], [3, 127], [-128, 5]], np.int8)
    sums = 'cast(add(qnn.matmul(x, const[0]), constant([7, -9], "int32")), dtype=float32)'
    for zero, base, low, high, after in [
        (128, 12583040.0, 0.0, 255.0, "{}"),
        (77, 12582912.0, -77.0, 178.0, 'add({}, constant(77, "int16"))'),
    ]:
        bits = f'reinterpret(add(multiply({sums}, const[1]), constant({base}, "float32")), dtype=int32)'
        half = f'cast(subtract({bits}, constant(1262485504, "int32")), dtype=int16)'
        clipped = after.format(f"clip({half}, minimum={low}, maximum={high})")
        assert_becomes(
            partial(narrow_results, options=GraphOptions(target=NEON)),
            f'return cast(add(round(multiply({sums}, const[1])), constant({zero}.0, "float32")), dtype=uint8)',
            f"return cast({clipped}, dtype=uint8)",
            constants=[weights, np.array([0.5, 0.25], np.float32)],
            rtol=0,
            x="int8[5, 3]",
        )


def test_open_batch_norm() -> None:
    factor = "multiply(scale, rsqrt(add({}, constant(0.5, 'float32'))))".replace("'", '"')
    assert_becomes(
        open_batch_norm,
        "return nn.batch_norm(x, scale, bias, mean, multiply(variance, variance), axis=2, epsilon=0.5)",
        f"""
        factor = {factor.format("multiply(variance, variance)")}
        return add(multiply(x, factor), subtract(bias, multiply(mean, factor)))
        """,
        x="f32[2, 5, 3]",
        scale="f32[3]",
        bias="f32[3]",
        mean="f32[3]",
        variance="f32[3]",
    )
    # Data in half precision are rounded once; a gradient has neither a shift nor a mean.
    assert_becomes(
        open_batch_norm,
        'return nn.batch_norm(x, scale, constant([0.0, 0.0, 0.0], "float32"), constant([0.0, 0.0, 0.0], "float32"), '
        "multiply(variance, variance), axis=1, epsilon=0.5)",
        f"""
        factor = reshape({factor.format("multiply(variance, variance)")}, shape=(3, 1))
        return cast(multiply(cast(x, dtype=float32), factor), dtype=float16)
        """,
        x="f16[2, 3, 5]",
        scale="f32[3]",
        variance="f32[3]",
        rtol=1e-3,
    )


def test_widen_where_read() -> None:
    # Halves are widened by what a cast becomes part of; products share one.
    assert_becomes(
        widen_where_read,
        """
        wide = cast(x, dtype=float32)
        return add(matmul(wide, wide), add(subtract(wide, y), multiply(wide, y)))
        """,
        """
        wide = cast(x, dtype=float32)
        first = subtract(cast(x, dtype=float32), y)
        return add(matmul(wide, wide), add(first, multiply(cast(x, dtype=float32), y)))
        """,
        x="f16[4, 4]",
        y="f32[4, 4]",
    )
    assert_becomes(
        widen_where_read,
        """
        wide = cast(x, dtype=int32)
        return add(matmul(wide, y), subtract(wide, y))
        """,
        "return add(matmul(cast(x, dtype=int32), y), subtract(cast(x, dtype=int32), y))",
        x="uint8[4, 4]",
        y="int32[4, 4]",
    )
    # A factor goes along, with halves and with what a kernel without an epilogue gives; to a product it is one.
    assert_becomes(
        widen_where_read,
        """
        wide = divide(cast(x, dtype=float32), scale)
        total = divide(sum(y, axes=(0,), keepdims=False), scale)
        product = divide(matmul(y, y), scale)
        ends = (sum(multiply(total, total), axes=(0,), keepdims=False), exp(total))
        return (sum(multiply(wide, wide), axes=(0,), keepdims=False), exp(wide), ends, exp(product), abs(product))
        """,
        """
        first = divide(cast(x, dtype=float32), scale)
        second = divide(cast(x, dtype=float32), scale)
        summed = sum(y, axes=(0,), keepdims=False)
        third = divide(summed, scale)
        fourth = divide(summed, scale)
        product = divide(matmul(y, y), scale)
        ends = (sum(multiply(third, third), axes=(0,), keepdims=False), exp(fourth))
        return (sum(multiply(first, first), axes=(0,), keepdims=False), exp(second), ends, exp(product), abs(product))
        """,
        x="f16[4, 4]",
        y="f32[4, 4]",
        scale="f32[]",
    )
    # Nor does a reader scale what it reads once for a whole row anew for each element.
    rows = """
    factor = divide(sum(y, axes=(0,), keepdims=False), scale)
    return (multiply(factor, y), add(factor, y))
    """
    assert_becomes(widen_where_read, rows, rows, y="f32[4, 4]", scale="f32[]")
    # A zero point goes along, but for products, which share one.
    assert_becomes(
        widen_where_read,
        """
        steps = subtract(cast(x, dtype=int32), constant(3, "int32"))
        return add(add(matmul(steps, y), matmul(y, steps)), multiply(sum(steps, axes=(0,)), multiply(steps, y)))
        """,
        """
        shared = subtract(cast(x, dtype=int32), constant(3, "int32"))
        first = subtract(cast(x, dtype=int32), constant(3, "int32"))
        second = subtract(cast(x, dtype=int32), constant(3, "int32"))
        total = multiply(sum(first, axes=(0,)), multiply(second, y))
        return add(add(matmul(shared, y), matmul(y, shared)), total)
        """,
        x="int8[4, 4]",
        y="int32[4, 4]",
    )


def test_recognize() -> None:
    assert_becomes(
        recognize,
        """
        d = subtract(x, mean(x, axes=(1,), keepdims=True))
        variance = mean(multiply(d, d), axes=(1,), keepdims=True)
        normal = divide(d, sqrt(add(variance, constant(0.5, "float32"))))
        return add(multiply(normal, scale), bias)
        """,
        "return nn.layer_norm(x, scale, bias, axis=1, epsilon=0.5)",
        x="f32[4, 8]",
        scale="f32[8]",
        bias="f32[8]",
    )


def test_reduce_precision() -> None:
    """The product and what follows it are in float16; the exponential, which may grow, is not."""
    weight, bias = random(0, 8, 4), random(1, 4)
    assert_becomes(
        partial(reduce_precision, options=GraphOptions(half=FLOAT16)),
        "return exp(nn.relu(add(matmul(x, const[0]), const[1])))",
        """
        y = nn.relu(add(matmul(cast(x, dtype=float16), const[2]), const[3]))
        return exp(cast(y, dtype=float32))
        """,
        constants=[weight, bias, weight.astype(np.float16), bias.astype(np.float16)],
        rtol=1e-2,
        x="f32[2, 8]",
    )


def test_requantize() -> None:
    """Values that are quantised as they were stay bytes while they move."""
    assert_becomes(
        requantize,
        """
        wide = cast(subtract(cast(x, dtype=int32), constant(3, "int32")), dtype=float32)
        moved = transpose(multiply(wide, constant(0.25, "float32")), axes=(1, 0))
        level = add(round(divide(moved, constant(0.25, "float32"))), constant(3.0, "float32"))
        return cast(clip(level, minimum=0.0, maximum=255.0), dtype=uint8)
        """,
        "return transpose(x, axes=(1, 0))",
        rtol=0,
        x="uint8[3, 4]",
    )


def test_round_operands() -> None:
    """Both readers of y see it rounded: it is written once."""
    weight = random(0, 256, 256)
    assert_becomes(
        partial(round_operands, options=GraphOptions(target=TF32)),
        """
        y = nn.relu(x)
        return add(matmul(y, const[0]), y)
        """,
        """
        y = round_to_tf32(nn.relu(x))
        return add(matmul(y, const[1]), y)
        """,
        constants=[weight, round_to_tf32(weight)],
        rtol=3e-2,
        x="f32[512, 256]",
    )


def test_operand_order() -> None:
    """Tensor cores read tf32 along rows of steps: operands that lie otherwise are turned round once."""
    assert_becomes(
        partial(operand_order, options=GraphOptions(target=TF32)),
        """
        return matmul(x, dy, transpose_a=True)
        """,
        """
        return matmul(transpose(x, axes=(1, 0)), transpose(dy, axes=(1, 0)), transpose_b=True)
        """,
        rtol=1e-4,
        x="f32[512, 128]",
        dy="f32[512, 256]",
    )


def test_operand_order_on_processors() -> None:
    """A matrix that many products of few rows read along its rows is turned round once; by one product it is not."""
    assert_becomes(
        partial(operand_order, options=GraphOptions(target=Target("llvm"))),
        """
        h1 = matmul(h, w, transpose_b=True)
        h2 = matmul(h1, w, transpose_b=True)
        h3 = matmul(h2, w, transpose_b=True)
        h4 = matmul(h3, w, transpose_b=True)
        return matmul(h4, v, transpose_b=True)
        """,
        """
        turned = transpose(w, axes=(1, 0))
        h1 = matmul(h, turned)
        h2 = matmul(h1, turned)
        h3 = matmul(h2, turned)
        h4 = matmul(h3, turned)
        return matmul(h4, v, transpose_b=True)
        """,
        rtol=1e-3,
        h="f32[8, 64]",
        w="f32[64, 64]",
        v="f32[64, 64]",
    )


def test_single_steps() -> None:
    """One product of input and state; the states of all steps are what nobody asks for, and dead."""
    entering, recurrent, bias = random(0, 3, 20), random(1, 4, 5, 5), random(2, 20)
    both = np.concatenate([entering, recurrent.transpose(2, 0, 1).reshape(5, 20)])
    assert_becomes(
        lambda module: canonicalize(single_steps(module, GraphOptions(target=MANY_CORES))),
        """
        data = reshape(add(matmul(x, const[0]), const[1]), shape=(1, 2, 4, 5))
        states = nn.lstm(
            data, const[2], h, c, activations=(("sigmoid", 0.0, 0.0), ("tanh", 0.0, 0.0), ("tanh", 0.0, 0.0))
        )
        return slice(states[0], begin=(1, 0, 0), end=(2, 2, 5), strides=(1, 1, 1))
        """,
        """
        gates = add(matmul(concatenate(x, h, axis=1), const[3]), const[1])
        enter = sigmoid(slice(gates, begin=(0, 0), end=(2, 5), strides=(1, 1)))
        leave = sigmoid(slice(gates, begin=(0, 5), end=(2, 10), strides=(1, 1)))
        forget = sigmoid(slice(gates, begin=(0, 10), end=(2, 15), strides=(1, 1)))
        fresh = tanh(slice(gates, begin=(0, 15), end=(2, 20), strides=(1, 1)))
        cell = add(multiply(forget, c), multiply(enter, fresh))
        return reshape(multiply(leave, tanh(cell)), shape=(1, 2, 5))
        """,
        constants=[entering, bias, recurrent, both],
        x="f32[2, 3]",
        h="f32[2, 5]",
        c="f32[2, 5]",
    )


def test_image_lines() -> None:
    """From one convolution of one dimension to the next, everything is computed on an image of one line."""
    assert_becomes(
        lambda module: canonicalize(image_lines(module)),
        """
        y = reshape(nn.conv2d(reshape(x, shape=(2, 3, 1, 20)), w), shape=(2, 4, 18))
        z = nn.relu(add(pad(y, before=(0, 0, 1), after=(0, 0, 1)), b))
        return nn.conv2d(reshape(z, shape=(2, 4, 1, 20)), v)
        """,
        """
        y = nn.conv2d(reshape(x, shape=(2, 3, 1, 20)), w)
        padded = pad(y, before=(0, 0, 0, 1), after=(0, 0, 0, 1))
        return nn.conv2d(nn.relu(add(padded, reshape(b, shape=(4, 1, 1)))), v)
        """,
        x="f32[2, 3, 20]",
        w="f32[4, 3, 1, 3]",
        b="f32[4, 1]",
        v="f32[5, 4, 1, 3]",
    )


def test_sink_reshapes() -> None:
    assert_becomes(
        sink_reshapes,
        """
        y = reshape(matmul(reshape(x, shape=(10, 4)), w), shape=(2, 5, 6))
        return nn.relu(add(y, b))
        """,
        "return reshape(nn.relu(add(matmul(reshape(x, shape=(10, 4)), w), b)), shape=(2, 5, 6))",
        x="f32[2, 5, 4]",
        w="f32[4, 6]",
        b="f32[6]",
    )


def test_sums_of_parts() -> None:
    assert_becomes(
        sums_of_parts,
        """
        whole = add(pad(a, before=(0, 0), after=(9, 0)), pad(b, before=(1, 0), after=(0, 0)))
        return add(add(whole, matmul(c, d)), matmul(e, d))
        """,
        """
        product = matmul(concatenate(c, e, axis=1), concatenate(d, d, axis=0))
        return add(concatenate(a, b, axis=0), product)
        """,
        a="f32[1, 10]",
        b="f32[9, 10]",
        c="f32[10, 1]",
        d="f32[1, 10]",
        e="f32[10, 1]",
    )


def test_transposed_convolution() -> None:
    """One pixel makes one print: with strides of the kernel's size each result has one tap."""
    assert_becomes(
        partial(transposed_convolution, options=GraphOptions(target=AVX512, winograd=False)),
        'return nn.conv2d_transpose(x, const[0], strides=(1, 1), data_layout="NHWC", kernel_layout="HWIO")',
        'return nn.conv2d_transpose(x, const[0], strides=(4, 4), data_layout="NHWC", kernel_layout="HWIO")',
        constants=[random(0, 4, 4, 6, 7)],
        x="f32[2, 1, 1, 6]",
    )


def test_computed_kernels() -> None:
    """A kernel that is spread from each element is gathered by each result, last tap first."""
    assert_becomes(
        computed_kernels,
        'return nn.conv2d_transpose(x, w, padding=(1, 0, 1, 2), data_layout="NHWC", kernel_layout="HWIO")',
        """
        turned = slice(w, begin=(2, 2, 0, 0), end=(-1, -1, 6, 7), strides=(-1, -1, 1, 1))
        return nn.conv2d(x, turned, padding=(1, 2, 1, 0), data_layout="NHWC", kernel_layout="HWIO")
        """,
        x="f32[2, 5, 4, 6]",
        w="f32[3, 3, 6, 7]",
    )


def test_widen_halves() -> None:
    """All is computed in float32 between the first and the last conversion."""
    weight = random(0, 64, 8).astype("float16")
    assert_becomes(
        partial(widen_halves, options=GraphOptions(target=AVX512)),
        "return nn.relu(matmul(x, const[0]))",
        "return cast(nn.relu(matmul(cast(x, dtype=float32), const[1])), dtype=float16)",
        constants=[weight, weight.astype(np.float32)],
        rtol=1e-2,
        x="f16[32, 64]",
    )
