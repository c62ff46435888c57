"""SPIR-V programs: what its own validator says, what is refused, and memory of a Vulkan device."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.codegen import portable, portable_kernels
from tests.codegen.c.test_c_expressions import TYPES
from tests.codegen.on_device import VULKAN, on_vulkan, program_of, require_vulkan
from tests.requirements import need_tool
from tests.tir.passes.test_bind_threads import tiled_product
from tests.topi.samples import SAMPLES
from tilewright import te
from tilewright.backends.device import load_program
from tilewright.backends.vulkan.assembler import assemble
from tilewright.runtime.device.program import DeviceModule
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.tir.function import PrimFunc


def _validate(funcs: Sequence[PrimFunc], folder: Path) -> None:
    validator = need_tool("spirv-val")
    path = folder / "kernels.spv"
    path.write_bytes(assemble(program_of(funcs, VULKAN).source))
    done = subprocess.run([validator, "--target-env", "vulkan1.1", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_more_scalars_than_every_device_takes() -> None:
    a = te.placeholder((3,), name="A")
    scalars = [te.var(f"x{n}", "float32") for n in range(17)]
    b = te.compute((3,), lambda i: sum(scalars, start=a[i]), name="B")
    with pytest.raises(UnsupportedError, match="takes up to 16 scalars, not 17"):
        program_of([te.create_prim_func([a, *scalars, b], "many")], VULKAN)


def test_the_validator_accepts_programs(tmp_path: Path) -> None:
    """Everything that the other tests run, less what they compute."""
    funcs: list[PrimFunc] = []

    def collect(given: Sequence[PrimFunc]) -> DeviceModule:
        funcs.extend(given)
        raise _CollectedError

    for check in (portable.check_integers, portable.check_halves):
        with pytest.raises(_CollectedError):
            check(collect)
    with pytest.raises(_CollectedError):
        portable.check_floats(collect, (*TYPES, "float16", "bfloat16", "float64"))
    funcs.append(tiled_product(9, 17, 8, (2, 8), (3, 2), 4))
    funcs += [portable_kernels.scheduled_operator(case, f"case{n}", VULKAN) for n, case in enumerate(SAMPLES[1::4])]
    _validate(funcs, tmp_path)


class _CollectedError(Exception):
    pass


def test_double_precision() -> None:
    """Arithmetic of doubles is there, functions are not."""
    require_vulkan()
    a = te.placeholder((4,), "float64", name="A")
    b = te.compute((4,), lambda i: te.sqrt(a[i]) * 3.0 - a[i] * 1e-30, name="B")
    values, out = np.array([0.1, 2.0, 1e300, 7.0]), np.zeros(4)
    tw.build(te.create_schedule(b.op), [a, b], target="vulkan")(values, out)
    np.testing.assert_allclose(out, np.sqrt(values) * 3.0 - values * 1e-30, rtol=1e-15)
    c = te.compute((4,), lambda i: te.exp(a[i]), name="C")
    with pytest.raises(UnsupportedError, match="Vulkan kernels do not know exp of float64"):
        program_of([te.create_prim_func([a, c], "double")], VULKAN)


def test_the_assembler_knows_what_it_knows() -> None:
    words = np.frombuffer(assemble('OpName %1 "abcd" ; a comment\n%2 = OpIAdd %1 %3 %3\n'), np.uint32)
    assert list(words[:2]) == [0x07230203, 0x00010300] and words[3] == 4
    assert list(words[5:9]) == [4 << 16 | 5, 1, 0x64636261, 0]
    assert list(words[9:]) == [5 << 16 | 128, 1, 2, 3, 3]
    with pytest.raises(CompilerBug, match="does not know OpNothing"):
        assemble("OpNothing %1")
    with pytest.raises(CompilerBug, match="does not understand 'Nothing'"):
        assemble("OpCapability Nothing")


def test_parts_of_memory() -> None:
    """Views and copies, in order with launches."""
    device = on_vulkan([tiled_product(12, 10, 6, (4, 4), (2, 1), 3)]).device
    whole = device.upload(np.arange(256, dtype=np.float32))
    part = np.zeros(4, np.float32)
    device.read(whole, 256, part)
    np.testing.assert_array_equal(part, [64, 65, 66, 67])
    device.copy(whole, 0, whole, 512, 16)
    device.read(whole, 512, part)
    np.testing.assert_array_equal(part, [0, 1, 2, 3])
    device.write(whole, np.full(4, 9, np.float32))
    device.read(whole, 8, part)
    np.testing.assert_array_equal(part, [9, 9, 4, 5])
    assert device.view(whole, 4, 4) is None
    numbers = device.numbers()
    assert set(str(numbers.pop("features")).split(",")) <= {"", "+dot4", "+few-steps"}
    assert numbers == {"max_threads": 256, "shared_bytes": 16384}
    with pytest.raises(UserError, match="takes arrays of up to"):
        device.allocate(1 << 40)


def test_missing_capabilities_are_named() -> None:
    device = on_vulkan([tiled_product(12, 10, 6, (4, 4), (2, 1), 3)]).device
    a = te.placeholder((4,), "float64", name="A")
    b = te.compute((4,), lambda i: a[i] * 2.0, name="B")
    program = program_of([te.create_prim_func([a, b], "double")], VULKAN)
    device._missing.add(10)
    try:
        with pytest.raises(UserError, match="has no float64, which the program uses"):
            load_program(program, VULKAN, device)
    finally:
        device._missing.discard(10)
