"""Products of bytes by words of four bytes on GPUs: the same integers in every language, by an instruction or not."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import tilewright.topi.library  # noqa: F401  (registers the computations)
from tests.codegen.on_device import cuda_text, on_device, require_device, require_nvrtc
from tests.topi.differential import Array, operator_program, results_of, run_reference
from tests.topi.scheduling import schedule_gpu
from tilewright.backends.backend import lower
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.ir.expr import Call
from tilewright.ir.visit import pre_order
from tilewright.request import model_targets
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.machine import DOT4
from tilewright.topi.schedule.gpu import strategy as gpu

Case = tuple[str, Sequence[Array], dict[str, Any]]
RNG = np.random.default_rng(3)
LANGUAGES = ("opencl", "vulkan", "webgpu")
DOT_PRODUCTS = ("qnn.word_matmul", "qnn.word_conv2d")
TILED = (1, 2, 3, 7, 8, 9, 10)
"""Cases of several rows and steps."""
TURING = Target("cuda -arch=sm_75 -shared-bytes=49152")


def _bytes(*shape: int) -> Array:
    """Bytes of all values, the least ones among them."""
    data = RNG.integers(-128, 128, shape).astype(np.int8)
    data.reshape(-1)[::3] = -128
    return data


def _words(*shape: int) -> Array:
    return _bytes(*shape[:-1], 4 * shape[-1]).view("<i4")


def _planes(*shape: int) -> Array:
    return _bytes(*shape).view(np.uint8)


def _words_of(*shape: int) -> Array:
    return RNG.integers(-(2**31), 2**31, shape).astype(np.int32)


CASES: tuple[Case, ...] = (
    ("qnn.word_matmul", [_bytes(1, 64), _words(12, 16)], {}),
    ("qnn.word_matmul", [_bytes(33, 40), _words(21, 10)], {}),
    ("qnn.word_matmul", [_bytes(3, 17, 32), _words(3, 13, 8)], {}),
    ("qnn.word_conv2d", [_bytes(1, 9, 7, 8), _words(3, 3, 2, 12), np.int8(0)], {"padding": (1, 1, 1, 1)}),
    (
        "qnn.word_conv2d",
        [_bytes(2, 6, 6, 4), _words(2, 2, 1, 9), np.int8(-128)],
        {"strides": (2, 1), "padding": (0, 1, 1, 0), "dilation": (1, 2)},
    ),
    ("qnn.words", [_bytes(5, 12)], {}),
    ("nn.bitserial_dense", [_planes(9, 1, 8), _words_of(1, 2, 17)], {"mode": "xor"}),
    ("nn.bitserial_dense", [_planes(20, 2, 12), _words_of(2, 3, 21)], {"signed": True}),
    ("nn.bitserial_dense", [_planes(12, 2, 16), _words_of(1, 4, 8)], {}),
    (
        "nn.bitserial_conv2d",
        [_planes(1, 5, 4, 2, 4), _words_of(3, 3, 2, 1, 9)],
        {"padding": (1, 1, 0, 1), "strides": (2, 1), "border": 2, "channels": 27, "signed": True},
    ),
    (
        "nn.bitserial_conv2d",
        [_planes(2, 8, 8, 1, 8), _words_of(3, 3, 1, 2, 16)],
        {"mode": "xor", "padding": (1, 1, 1, 1), "border": 1, "channels": 64},
    ),
)


def has_call(func: PrimFunc, name: str) -> bool:
    return any(isinstance(item, Call) and item.name == name for item in pre_order(func.body))


@cache
def expected(number: int) -> Array:
    name, arrays, attributes = CASES[number]
    return run_reference(name, [np.asarray(item) for item in arrays], **attributes)[0]


def scheduled(number: int, target: Target) -> PrimFunc:
    name, arrays, attributes = CASES[number]
    return schedule_gpu(
        operator_program(name, [np.asarray(item) for item in arrays], f"f{number}", **attributes), target
    )


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_same_integers(language: str) -> None:
    """By the instruction of the device that is here, if it has one, and by arithmetic."""
    require_device(Target(language))
    target, _ = model_targets(language)
    check_on_device(target)
    if target.has_dot4:
        check_on_device(target.replace(features=""))


def check_on_device(target: Target) -> None:
    funcs = [scheduled(number, target) for number in range(len(CASES))]
    module = on_device(funcs, target)
    names = {"vulkan": "OpSDot", "webgpu": "dot4I8Packed", "opencl": "dot_4x8packed_ss_int"}
    assert (names[target.kind] in module.source) == target.has_dot4
    for number, func in enumerate(funcs):
        arrays = [np.asarray(item) for item in CASES[number][1]]
        (result,) = results_of(func, arrays)
        module[func.name](*arrays, result)
        np.testing.assert_array_equal(result, expected(number), str(CASES[number][0]))


@pytest.mark.grid
@pytest.mark.parametrize("features", ["", "+dot4"])
@pytest.mark.parametrize("number", range(len(CASES)))
def test_lowered_programs_are_interpreted(number: int, features: str) -> None:
    target = Target(f"opencl -max-threads=64{f' -mattr={features}' if features else ''}")
    func = scheduled(number, target)
    arrays = [np.asarray(item) for item in CASES[number][1]]
    (result,) = results_of(func, arrays)
    lowered = lower(func, target)
    assert has_call(lowered, DOT4) == (bool(features) and CASES[number][0] in DOT_PRODUCTS)
    interpret(lowered, *[array.reshape(-1) for array in arrays], result.reshape(-1))
    np.testing.assert_array_equal(result, expected(number))


def test_cuda_without_tensor_cores_uses_dp4a() -> None:
    require_nvrtc()
    source = cuda_text([scheduled(number, TURING) for number in range(len(CASES))], TURING)
    assert "dp4a.s32.s32" in source
    assert compile_cuda(source, "sm_75")


@pytest.mark.parametrize("number", range(len(CASES)))
def test_planes_and_words_are_tiled(number: int) -> None:
    """Products of several rows are tiles of registers, whatever they count."""
    name, arrays, attributes = CASES[number]
    operands = [np.asarray(item) for item in arrays]
    result = gpu.schedule_gpu(operator_program(name, operands, **attributes), TURING)
    is_tiled = [item.name for item in result.templates] == ["register_tile_product"]
    assert is_tiled == (number in TILED)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89"])
def test_tensor_cores_of_every_generation_multiply_bytes(arch: str) -> None:
    """Turing's instruction has half the rows and steps of those after it."""
    require_nvrtc()
    target = Target(f"cuda -arch={arch} -shared-bytes=49152")
    arrays = [_bytes(64, 64), _bytes(64, 64)]
    result = gpu.schedule_gpu(operator_program("qnn.matmul", arrays, "product"), target)
    assert [item.name for item in result.templates] == ["tensor_core_product"]
    source = cuda_text([result.func], target)
    assert "m8n8k16.row.col.s32.s8.s8.s32" in source and "m16n8k32.row.col.s32.s8.s8.s32" in source
    assert compile_cuda(source, arch)
