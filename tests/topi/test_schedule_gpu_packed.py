"""Rows of floats times packed codes on GPUs: few and several rows in registers, many through shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

import tilewright as tw
from tests.codegen.cuda_on_fibers import on_cuda
from tests.codegen.on_device import cuda_text, on_device, require_device, require_nvrtc
from tests.topi.differential import Array, operator_program, results_of, run_reference
from tilewright.backends.cuda.compiler import compile_cuda
from tilewright.graph.ir.expr import Function, Var, constant
from tilewright.graph.ir.infer import infer_types
from tilewright.graph.ir.op import call
from tilewright.graph.ops.packed import BYTES, HALVES, pack_codes
from tilewright.graph.passes.packed_weights import run_length
from tilewright.ir.dtype import FLOAT32
from tilewright.ir.function import IRModule
from tilewright.ir.types import tensor_type
from tilewright.support.errors import UserError
from tilewright.target import Target
from tilewright.tir.function import PrimFunc
from tilewright.tir.interpreter import interpret
from tilewright.tir.script.printer import to_script
from tilewright.topi.schedule.choices import Choices
from tilewright.topi.schedule.gpu.strategy import schedule_gpu
from tilewright.topi.schedule.packing import CONSTANTS, packing_of

HOPPER = Target("cuda -arch=sm_90a -num-cores=132 -shared-bytes=232448")


@dataclass(frozen=True)
class Case:
    """A product, and the template that it gets on a GPU with tensor cores and on one without."""

    rows: int
    depth: int
    columns: int
    bits: int
    group: int
    dtype: str = "float32"
    affine: bool = False
    on_hopper: str = "packed_product"
    elsewhere: str = "packed_product"
    run: int = 0
    """Steps that are scaled together: on tensor cores only."""
    is_staged: bool = False
    """Whether words come through shared memory where there are few cores."""

    @property
    def attributes(self) -> dict[str, int]:
        return {"bits": self.bits, "group": self.group, "run": self.run}


CASES = (
    Case(1, 96, 24, 4, 32),
    Case(3, 64, 20, 8, 32, affine=True),
    Case(1, 64, 12, 2, 64),
    Case(17, 64, 24, 4, 32, affine=True, on_hopper="register_tile_product", elsewhere="register_tile_product"),
    Case(2, 256, 16, 4, 64, "float16"),
    Case(24, 64, 32, 8, 64, "float16", on_hopper="tensor_core_product", elsewhere="register_tile_product"),
)

ON_TENSOR_CORES = (
    Case(1, 512, 32, 4, 128, "float16", run=128, on_hopper="packed_fragments"),
    Case(3, 256, 16, 8, 256, "float16", run=64, on_hopper="packed_fragments"),
    Case(2, 512, 48, 4, 512, "float16", run=256, on_hopper="packed_fragments"),
    Case(22, 256, 32, 4, 128, "float16", run=128, on_hopper="packed_fragments"),
    Case(1, 2048, 32, 4, 128, "float16", run=128, on_hopper="packed_fragments", is_staged=True),
    Case(4, 1024, 64, 4, 512, "float16", run=128, on_hopper="packed_fragments", is_staged=True),
    Case(3, 1024, 64, 8, 128, "float16", run=128, on_hopper="packed_fragments", is_staged=True),
)


@cache
def arrays_of(case: Case) -> tuple[Array, ...]:
    random = np.random.default_rng(case.bits + case.rows)
    codes = random.integers(0, 1 << case.bits, (case.depth, case.columns)).astype(np.uint8)
    groups = (case.depth // case.group, case.columns)
    middle = np.full((1, 1), 1 << (case.bits - 1), np.uint8)
    return (
        random.normal(size=(case.rows, case.depth)).astype(case.dtype),
        pack_codes(codes, case.bits, 0, HALVES if case.run else BYTES),
        random.uniform(0.01, 0.02, groups).astype(case.dtype),
        random.integers(0, 1 << case.bits, groups).astype(np.uint8) if case.affine else middle,
    )


def scheduled(case: Case, target: Target, template: str) -> PrimFunc:
    number = (*CASES, *ON_TENSOR_CORES).index(case)
    func = operator_program("packed.matmul", arrays_of(case), f"f{number}", **case.attributes)
    if case.run:
        func = func.replace(attributes={**func.attributes, CONSTANTS: (1, 2, 3)})
    result = schedule_gpu(func, target)
    assert [item.name for item in result.templates] == [template]
    return result.func


@pytest.mark.parametrize("language", ["opencl", "vulkan", "webgpu"])
def test_products_on_devices(language: str) -> None:
    target = Target(language)
    require_device(target)
    # Halves are compared by their text on CUDA, and on the device whose driver takes them everywhere.
    cases = [case for case in CASES if case.dtype == "float32" or language == "opencl"]
    funcs = [scheduled(case, target, case.elsewhere) for case in cases]
    module = on_device(funcs, target)
    for case, func in zip(cases, funcs, strict=True):
        arrays = arrays_of(case)
        (result,) = results_of(func, arrays)
        module[func.name](*arrays, result)
        (expected,) = run_reference("packed.matmul", arrays, **case.attributes)
        tolerance = 2e-5 if case.dtype == "float32" else 3e-3
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max())


def test_text_for_cuda() -> None:
    require_nvrtc()
    texts = [cuda_text([scheduled(case, HOPPER, case.on_hopper)], HOPPER) for case in CASES]
    few, many = texts[4], texts[5]
    assert "uint4" in few and "__shfl_sync" in few and "__shared__" not in few
    assert "mma" in many and "unpacked" in many
    assert compile_cuda(few, "sm_90a") and compile_cuda(many, "sm_90a")


@pytest.mark.grid
@pytest.mark.parametrize("cores", [132, 1])
@pytest.mark.parametrize("case", ON_TENSOR_CORES, ids=str)
def test_tensor_cores_unpack_codes(case: Case, cores: int) -> None:
    """With few cores a row is enough for all of them: what they read is staged in shared memory then."""
    target = Target(f"cuda -arch=sm_90a -num-cores={cores} -shared-bytes=232448")
    func, arrays = scheduled(case, target, case.on_hopper), arrays_of(case)
    assert ("in1_shared" in to_script(func)) == (cores == 1 and case.is_staged)
    packing = packing_of(func)
    placed = [packing[n].rearrange(item) if n in packing else item for n, item in enumerate(arrays)]
    (result,) = results_of(func, arrays)
    interpret(func, *placed, result)
    (expected,) = run_reference("packed.matmul", arrays, **case.attributes)
    np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    require_nvrtc()
    text = cuda_text([func], target)
    assert f"tw_mma_f16_codes{case.bits}(" in text
    assert compile_cuda(text, "sm_90a")


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("bits", [4, 8])
def test_what_is_staged_fits_shared_memory(rows: int, bits: int) -> None:
    """On every architecture with its least shared memory, and at every depth that a tuner may ask for."""
    case = Case(rows, 2048, 256, bits, 128, "float16", run=128)
    func = operator_program("packed.matmul", arrays_of(case), "f", **case.attributes)
    func = func.replace(attributes={**func.attributes, CONSTANTS: (1, 2, 3)})
    for arch in ("sm_80", "sm_90a"):
        target = Target(f"cuda -arch={arch} -num-cores=1 -shared-bytes={48 << 10}")
        first = Choices()
        schedule_gpu(func, target, first)
        depths = first.asked["stages"].options
        assert max(depths) > 1
        for depth in (min(depths), max(depths)):
            result = schedule_gpu(func, target, Choices({"stages": depth}))
            assert [item.name for item in result.templates] == ["packed_fragments"]
            assert cuda_text([result.func], target)


def test_tensor_cores_unpack_codes_on_fibers() -> None:
    """The text as a GPU runs it: what is copied ahead, and the order of codes in words, are seen here."""
    target = Target("cuda -arch=sm_90a -num-cores=1 -shared-bytes=232448")
    funcs = [scheduled(case, target, case.on_hopper) for case in ON_TENSOR_CORES]
    module = on_cuda(funcs, target)
    for case, func in zip(ON_TENSOR_CORES, funcs, strict=True):
        arrays, packing = arrays_of(case), packing_of(func)
        placed = [packing[n].rearrange(item) if n in packing else item for n, item in enumerate(arrays)]
        (result,) = results_of(func, arrays)
        module[func.name](*placed, result)
        (expected,) = run_reference("packed.matmul", arrays, **case.attributes)
        np.testing.assert_allclose(result, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())


def test_runs_are_of_tensor_cores_and_parts_of_groups() -> None:
    assert [run_length(HOPPER, bits, group) for bits, group in ((4, 128), (8, 64), (4, 256), (4, 64), (2, 128))] == [
        *(128, 64, 128, 0, 0)
    ]
    assert run_length(Target("opencl"), 4, 128) == 0
    arrays = arrays_of(ON_TENSOR_CORES[0])
    with pytest.raises(UserError, match="a run is whole words and a part of a group of 128, not 96 codes"):
        operator_program("packed.matmul", arrays, "f", bits=4, group=128, run=96)


def test_constant_words_lie_by_vectors_of_columns() -> None:
    """Threads next to each other read words that are: those of four columns for each word in turn."""
    require_device(Target("opencl"))
    random = np.random.default_rng(5)
    weight = random.integers(-8, 8, (256, 80)).astype(np.int8)
    scale = random.uniform(0.1, 0.2, (4, 1, 80)).astype(np.float32)
    x = Var("x", tensor_type((1, 256), "float32"))
    whole = call("cast", call("reshape", constant(weight), shape=(4, 64, 80)), dtype=FLOAT32)
    numbers = call("reshape", call("multiply", whole, constant(scale)), shape=(256, 80))
    module = infer_types(IRModule([Function("main", (x,), call("nn.relu", call("matmul", x, numbers)))]))
    data = random.normal(size=(1, 256)).astype(np.float32)
    exe = tw.compile(module, target="opencl")
    expected = np.maximum(data @ (weight.reshape(4, 64, 80) * scale).reshape(256, 80), 0)
    np.testing.assert_allclose(np.asarray(exe(data)), expected, rtol=1e-4, atol=1e-4)
    assert exe.artifact.device is not None and len(exe.artifact.device.kernels) == 1
    # Four bits a weight, and the scales.
    assert sum(len(part) for part in [exe.artifact.constants]) < 256 * 80
