"""Stages below the loops: LLVM IR, assembly and the memory plan as files to look at, to change, and to complain of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

import tilewright as tw
from tests.integration.small_models import FLOAT, model
from tilewright import te
from tilewright.backends.llvm.assembler import assemble, module_of
from tilewright.support import settings
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target import Target

X = np.linspace(-1, 1, 8, dtype=np.float32)
HOST = Target("native").arch


def build() -> tw.runtime.Module:
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] * 5.0, name="b")
    made = tw.build(te.create_schedule(b.op), [a, b], name="f")
    assert isinstance(made, tw.runtime.Module)
    return made


def run(made: tw.runtime.Module) -> np.ndarray:
    out = np.zeros_like(X)
    made(X, out)
    return out


@contextmanager
def dumping(folder: Path) -> Iterator[None]:
    with settings.TRACE.override(frozenset(["dump"])), settings.DUMP_DIR.override(folder):
        yield


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of the texts of `f`."""
    with dumping(tmp_path):
        np.testing.assert_allclose(run(build()), X * 5)
    return tmp_path / "code.f"


def test_the_texts_of_a_function_are_dumped(files: Path) -> None:
    assert sorted(path.name for path in files.iterdir()) == ["00_source.ll", "01_assembly.s"]
    assert "define i32 @f(" in (files / "00_source.ll").read_text()
    assert "\nf:\n" in (files / "01_assembly.s").read_text()
    with settings.OVERRIDE_DIR.override(files.parent):
        np.testing.assert_allclose(run(build()), X * 5)


def test_changed_ir_is_compiled(files: Path) -> None:
    (files / "01_assembly.s").unlink()
    path = files / "00_source.ll"
    text = path.read_text()
    five = np.array(5.0).view(np.uint64).item()
    assert f"0x{five:016X}" in text
    path.write_text(text.replace(f"0x{five:016X}", f"0x{np.array(7.0).view(np.uint64).item():016X}"))
    with settings.OVERRIDE_DIR.override(files.parent):
        np.testing.assert_allclose(run(build()), X * 7)
    np.testing.assert_allclose(run(build()), X * 5)


def test_changed_assembly_is_assembled(files: Path) -> None:
    """A function that returns at once computes nothing."""
    (files / "00_source.ll").unlink()
    path = files / "01_assembly.s"
    leave = {"x86_64": "xorl %eax, %eax\n\tretq", "aarch64": "mov w0, wzr\n\tret"}[HOST]
    # LLVM has put the function into its wrapper.
    path.write_text(re.sub(r"\n(f|f__packed):\n", rf"\n\1:\n\t{leave}\n", path.read_text()))
    with settings.OVERRIDE_DIR.override(files.parent):
        assert (run(build()) == 0).all()


def test_files_that_are_wrong_are_named(files: Path) -> None:
    ir, assembly = files / "00_source.ll", files / "01_assembly.s"
    with settings.OVERRIDE_DIR.override(files.parent):
        text = assembly.read_text()
        assembly.write_text(text.replace("\nf:\n", "\nf:\n\tnonsense 1, 2\n", 1))
        line = 1 + assembly.read_text().split("nonsense")[0].count("\n")
        with pytest.raises(UserError, match="the assembler does not take it") as caught:
            build()
        assert "01_assembly.s" in str(caught.value) and f":{line}:" in str(caught.value)
        assembly.unlink()
        ir.write_text(ir.read_text() + "nonsense\n")
        with pytest.raises(UserError, match="LLVM rejected") as caught:
            build()
        assert f"where: {ir}" in str(caught.value)
        ir.write_bytes(b"\xff\xfe")
        with pytest.raises(UserError, match="cannot read the stage source"):
            build()
        ir.rename(ir.with_name("00_source.txt"))
        build()  # a text of another kind is no stage's
        ir.with_name("00_source.txt").rename(ir.with_name("02_object.o"))
        with pytest.raises(UserError, match=r"02_object\.o takes the place of no stage of code\.f"):
            build()


def test_assembly_of_other_architectures_is_refused() -> None:
    other = "aarch64" if HOST != "aarch64" else "x86_64"
    with pytest.raises(UnsupportedError, match=f"there is no assembler for {other}-linux-gnu here"):
        assemble("ret\n", Target(f"llvm -mtriple={other}-linux-gnu"))
    assert module_of('a "b"\\\n') == 'module asm "a \\22b\\22\\5C\\0A"\n'


def small() -> bytes:
    """y = relu(x * 2), in two threads or one."""
    nodes = [onnx.helper.make_node("Mul", ["x", "w"], ["t"]), onnx.helper.make_node("Relu", ["t"], ["y"])]
    weights = {"w": np.full((8,), 2, np.float32)}
    return bytes(model(nodes, {"x": (FLOAT, (8,))}, {"y": (FLOAT, (8,))}, weights).SerializeToString())


def test_a_model_shows_its_plan_its_entry_and_its_kernels(tmp_path: Path) -> None:
    compilation = tw.Compilation(small(), threads=1)
    with dumping(tmp_path):
        compilation.artifact()
    (kernel,) = compilation.kernels
    folders = {path.name for path in tmp_path.iterdir()}
    assert folders == {
        "graph.module",
        f"cpu.{kernel.symbol}",
        f"code.{kernel.symbol}",
        "code.small_entry",
        "plan.small",
    }
    assert kernel.symbol in (tmp_path / "code.small_entry" / "00_source.ll").read_text()
    assert (tmp_path / "plan.small" / "00_memory.txt").read_text() == f"{compilation.lowered.plans[0]}\n"
    # What is looked at is what is compiled.
    path = tmp_path / f"code.{kernel.symbol}" / "00_source.ll"
    path.write_text(path.read_text() + "; changed\n")
    with settings.OVERRIDE_DIR.override(tmp_path):
        again = tw.Compilation(small(), threads=1)
        (kernel,) = again.kernels
        assert again.llvm_ir(kernel).endswith("; changed\n")
        (tmp_path / f"code.{kernel.symbol}" / "01_assembly.s").write_text("# mine\n")
        assert again.assembly(kernel) == "# mine\n"


def test_a_plan_cannot_be_changed(tmp_path: Path) -> None:
    (tmp_path / "plan.small").mkdir()
    (tmp_path / "plan.small" / "00_memory.txt").write_text("everything at 0\n")
    with (
        settings.OVERRIDE_DIR.override(tmp_path),
        pytest.raises(UserError, match="the stage memory has no text that can be read back") as caught,
    ):
        tw.compile(small(), threads=1)
    assert "00_memory.txt" in str(caught.value)


def test_changed_text_of_a_device_is_what_it_gets(tmp_path: Path) -> None:
    """Without a device: what goes into the artifact is text, or made of it by an assembler of ours."""
    compilation = tw.Compilation(small(), Target("webgpu"))
    with dumping(tmp_path):
        compilation.artifact()
    (kernel,) = compilation.kernels
    files = tmp_path / f"code.{kernel.symbol}"
    assert [path.name for path in files.iterdir()] == ["00_source.wgsl"]
    path = files / "00_source.wgsl"
    assert path.read_text() == compilation.source(kernel)
    path.write_text(path.read_text() + "// changed\n")
    with settings.OVERRIDE_DIR.override(tmp_path):
        again = tw.Compilation(small(), Target("webgpu"))
        assert again.artifact().device_code[0].endswith(b"// changed\n")
        assert again.source(again.kernels[0]).endswith("// changed\n")


def test_wrong_files_of_a_device_are_named(tmp_path: Path) -> None:
    """They must not count as what the device refuses, which the host would compute instead."""
    target = Target("vulkan")
    compilation = tw.Compilation(small(), target)
    with dumping(tmp_path):
        compilation.artifact()
    symbol = compilation.kernels[0].symbol
    path = tmp_path / f"code.{symbol}" / "00_source.spvasm"
    right = path.read_text()
    path.write_text("OpNonsense\n")
    with settings.OVERRIDE_DIR.override(tmp_path):
        with pytest.raises(UserError) as caught:
            tw.Compilation(small(), target).artifact()
        assert "OpNonsense" in str(caught.value) and f"where: {path}" in str(caught.value)
        path.write_text(right)
        program = tmp_path / f"gpu.{symbol}" / "00_input.py"
        program.write_text("def f(:")
        with pytest.raises(UserError, match="not valid Python") as caught:
            tw.Compilation(small(), target).artifact()
        assert str(program) in str(caught.value)
