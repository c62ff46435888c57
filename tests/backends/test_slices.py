"""Back ends as folders: each has its parts, they agree, and a folder with a name is all that another one takes."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from bench import pages
from tests.graph.helpers import function, op, var
from tilewright import backends, te
from tilewright.backends import slices
from tilewright.backends.backend import Backend, backend_of
from tilewright.backends.compiler import compiler_of
from tilewright.backends.deployment import deployment_of
from tilewright.backends.device import DeviceBackend
from tilewright.backends.host import HostBackend
from tilewright.graph.ir.infer import infer_types
from tilewright.ir.function import IRModule
from tilewright.runtime.device.devices import Driver, device_kinds, find_device
from tilewright.runtime.device.program import Device
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.target import Target
from tilewright.target.kinds import gpu_kind, kind_named, target_kinds

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorials" / "05_add_a_device.md"


@pytest.mark.parametrize("name", backends.SLICES)
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
    assert set(slices.names("backend")) == set(backends.SLICES)


@pytest.mark.parametrize("name", [name for name in backends.SLICES if kind_named(name).is_cpu])
def test_functions_for_kinds_that_have_only_models_are_refused(name: str) -> None:
    a = te.placeholder((4,), name="a")
    schedule, arguments = te.create_schedule((b := te.compute((4,), lambda i: a[i] + 1.0, name="b")).op), [a, b]
    if not deployment_of(Target(name)).is_folder:
        assert tw.build(schedule, arguments, target=name) is not None
        return
    with pytest.raises(UserError, match=f"the target kind '{name}' has neither"):
        tw.build(schedule, arguments, target=name)


def test_kinds_that_there_are_not() -> None:
    known = "the kinds are llvm, c, wasm, micro, cuda, rocm, opencl, metal, vulkan, webgpu, accel and native"
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


def test_a_kind_has_all_numbers() -> None:
    with pytest.raises(CompilerBug, match="the target kind half needs the numbers cores, l1_bytes"):
        gpu_kind("half", "half a device", cores=1)


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


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The back end of the tutorial: its folder, and its name."""
    monkeypatch.chdir(tmp_path)
    for block in pages.blocks(TUTORIAL):
        if block.file:
            pages.write(block.file, block.code)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(tmp_path)])
    monkeypatch.setattr(backends, "SLICES", (*backends.SLICES, "toy"))


@pytest.mark.usefixtures("toy")
def test_a_folder_and_a_name_are_a_back_end() -> None:
    assert Target("toy").describe() == "toy toy1 (1 multiprocessors, 1 KiB shared)"
    assert device_kinds()[-1] == "toy" and compiler_of("toy").version() == "toy compiler 1.0"
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


def test_the_compiler_loads_no_schedules_of_back_ends_that_are_not_used() -> None:
    """Every process that compiles kernels for a CPU would pay for them."""
    program = "import sys, tilewright.compiler, tilewright.lower.worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in loaded if "schedule.gpu" in name or "backends.cuda." in name]
