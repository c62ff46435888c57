"""Back ends as folders: each has its parts, they agree, and a folder with a name is all that another one takes."""

from __future__ import annotations

import textwrap
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.graph.helpers import function, op, var
from tilewright import backends, te
from tilewright.backends import slices
from tilewright.backends.backend import Backend, backend_of
from tilewright.backends.compiler import compiler_of
from tilewright.backends.device import DeviceBackend
from tilewright.backends.host import HostBackend
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.runtime.device.devices import Driver, device_kinds, find_device
from tilewright.runtime.device.program import Device
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.target import Target
from tilewright.target.kinds import kind_named, target_kinds

UNFINISHED = ("c",)
"""Kinds of target that have no back end yet."""


@pytest.mark.parametrize("name", [name for name in backends.SLICES if name not in UNFINISHED])
def test_parts_agree(name: str) -> None:
    kind = kind_named(name)
    assert kind.name == name and Target(name).kind == name
    backend = backend_of(Target(name), Backend)
    assert backend.kind is kind
    assert isinstance(backend, HostBackend if kind.is_cpu else DeviceBackend)
    assert (name in device_kinds()) is not kind.is_cpu
    assert [step for step, _ in backend.lowering(Target(name))]
    if name in device_kinds():
        module = import_module(f"tilewright.backends.{name}.driver")
        assert isinstance(module.DRIVER, Driver)
        devices = [item for item in vars(module).values() if isinstance(item, type) and issubclass(item, Device)]
        (device,) = set(devices) - {Device}
        assert device.flat_memory == kind.capabilities.flat_memory, "plan and driver must agree on what memory is"


def test_every_folder_is_named_and_every_name_has_a_folder() -> None:
    root = Path(backends.__file__).parent
    assert {path.parent.name for path in root.glob("*/target.py")} == set(backends.SLICES)
    assert [kind.name for kind in target_kinds()] == list(backends.SLICES)
    assert set(slices.names("backend")) == set(backends.SLICES) - set(UNFINISHED)


def test_kinds_that_there_are_not() -> None:
    known = "the kinds are llvm, c, cuda, rocm, opencl, metal, vulkan, webgpu and native"
    with pytest.raises(UserError, match=rf"unknown kind of target 'cudo' \(did you mean 'cuda'\?\): {known}"):
        Target("cudo")
    with pytest.raises(UnsupportedError, match="this runtime has no devices of the kind 'llvm'"):
        find_device("llvm")


def test_a_part_of_another_class_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.backends.opencl.driver.DRIVER", "none")
    with pytest.raises(CompilerBug, match=r"DRIVER of tilewright\.backends\.opencl\.driver is no Driver"):
        find_device("opencl")
    with pytest.raises(CompilerBug, match=r"BACKEND of tilewright\.backends\.cuda\.backend is no HostBackend"):
        backend_of(Target("cuda"), HostBackend)


def test_capabilities_answer_for_architectures() -> None:
    def has(text: str) -> list[bool]:
        target = Target(text)
        return [
            target.has_tensor_cores,
            target.has_clusters,
            target.has_dependent_launch,
            target.has_warp_group_products,
        ]

    assert has("cuda -arch=sm_75") == [False, False, False, False]
    assert has("cuda -arch=sm_86") == [True, False, False, False]
    assert has("cuda -arch=sm_90") == [True, True, True, False]
    assert has("cuda -arch=sm_90a") == [True, True, True, True]
    # The name of a feature alone makes no tensor cores.
    assert has("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake -mattr=+sm_80,+sm_90a") == [False] * 4
    assert (Target("cuda").shuffle_width, Target("rocm").shuffle_width) == (32, 1)
    assert [Target(kind).shared_item(2) for kind in ("cuda", "vulkan", "webgpu")] == [2, 4, 4]


def test_drivers_that_compile_are_given_text() -> None:
    assert compiler_of("opencl").compile("text", Target("opencl")) == b"text"
    assert "LLVM" in compiler_of("llvm").version()
    assert {compiler_of(name).version() for name in ("opencl", "webgpu", "metal", "vulkan")} == {"text"}


TOY = {
    "__init__": '"""A toy."""',
    "target": """
        from tilewright.target.kinds import GPU_OPTIONS, TargetKind, gpu_numbers

        NUMBERS = gpu_numbers(cores=1, registers=16, l2_bytes=0, max_threads=1, warp_size=1, shared_bytes=1024)
        KIND = TargetKind("toy", "a toy", GPU_OPTIONS, is_cpu=False, arch="toy", defaults=NUMBERS)
    """,
    "compiler": """
        from tilewright.backends.compiler import Compiler

        COMPILER = Compiler(lambda source, target: b"toy " + source.encode(), lambda: "toy 1.0")
    """,
    "backend": """
        from tilewright.backends.device import DeviceBackend
        from tilewright.backends.toy.target import KIND
        from tilewright.codegen.language import KernelLanguage
        from tilewright.tir.script import to_script

        class Scripts(KernelLanguage):
            name = "script"

            def emit(self, kernels):
                return "\\f".join(to_script(kernel.func) for kernel in kernels)

        def as_it_is(func, target, choices=None, sch=None):
            return func

        BACKEND = DeviceBackend(kind=KIND, language=Scripts, schedule=as_it_is, plain_schedule=as_it_is)
    """,
    "driver": """
        import numpy as np

        from tilewright.runtime.device.devices import Driver
        from tilewright.runtime.device.program import Device
        from tilewright.tir.interpreter import interpret
        from tilewright.tir.script import parse_script

        class Interpreter(Device):
            name = "an interpreter"

            def load(self, code, launches):
                assert code.startswith(b"toy ")
                functions = [parse_script(text) for text in code[4:].decode().split("\\f")]
                return {function.name: function for function in functions}

            def allocate(self, size):
                return np.zeros(size, np.uint8)

            def write(self, memory, array):
                memory[:] = array.reshape(-1).view(np.uint8)

            def copy(self, source, source_offset, target, target_offset, size):
                target[target_offset : target_offset + size] = source[source_offset : source_offset + size]

            def download(self, memory, array):
                array.reshape(-1).view(np.uint8)[:] = memory[: array.nbytes]

            def launch(self, kernel, grid, block, args):
                assert grid == block == (1, 1, 1)
                shapes = zip(args, kernel.buffers, strict=True)
                interpret(kernel, *(memory.view(buffer.dtype.name) for memory, buffer in shapes))

            def wait(self):
                pass

        DRIVER = Driver(lambda index: Interpreter())
    """,
}
"""A device that interprets the text of kernels: everything that a back end needs."""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in TOY.items():
        path = tmp_path / "toy" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.setattr(backends, "SLICES", (*backends.SLICES, "toy"))


@pytest.mark.usefixtures("toy")
def test_a_folder_and_a_name_are_a_back_end() -> None:
    assert Target("toy").describe() == "toy toy (1 multiprocessors, 1 KiB shared)"
    assert device_kinds()[-1] == "toy" and compiler_of("toy").version() == "toy 1.0"
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    a = te.placeholder((2, 3), name="A")
    module = tw.build(te.create_prim_func([a, te.compute((2, 3), lambda i, j: a[i, j] * 2.0 + 1.0)]), target="toy")
    doubled = np.zeros_like(x)
    module(x, doubled)
    np.testing.assert_array_equal(doubled, x * 2 + 1)
    data = var("x", 2, 3)
    model = infer_types(IRModule([function([data], op("nn.softmax", op("nn.relu", data), axis=1))]))
    compilation = tw.Compilation(model, target="toy", threads=1)
    assert "@script.function" in compilation.source(compilation.kernels[0])
    expected = np.exp(np.maximum(x, 0))
    expected /= expected.sum(-1, keepdims=True)
    executable = compilation.executable()
    np.testing.assert_allclose(executable(x), expected, rtol=1e-6)
    assert executable.device is not None and not any(info.on_host for info in executable.artifact.device.kernels)
