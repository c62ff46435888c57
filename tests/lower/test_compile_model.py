"""`compile_model`: its stages in order, only as far as somebody asks, and from the beginning after a failure."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.integration.small_models import classifier
from tilewright import compiler
from tilewright.backends.llvm import deploy
from tilewright.compiler import Compiled, Imported, Optimized, compile_model
from tilewright.lower.model import LoweredModel
from tilewright.options import CompileOptions
from tilewright.request import make_request
from tilewright.runtime.core.artifact import Artifact
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import UserError

MODEL = bytes(classifier().SerializeToString())
IMAGE = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)


def test_the_stages_in_order() -> None:
    stages = list(compile_model(make_request(MODEL, "native", CompileOptions(threads=1))))
    assert [type(stage) for stage in stages] == [Imported, Optimized, LoweredModel, Compiled, Artifact]
    artifact, compilation = stages[-1], tw.Compilation(MODEL, threads=1)
    assert isinstance(artifact, Artifact) and artifact.objects == compilation.artifact().objects
    np.testing.assert_array_equal(deploy.executable(artifact)(IMAGE), tw.compile(MODEL, threads=1)(IMAGE))
    planned, compiled = stages[2], stages[3]
    assert isinstance(planned, LoweredModel) and isinstance(compiled, Compiled)
    assert list(compiled.kernels) == [kernel.symbol for kernel in planned.kernels]
    assert artifact.objects == planned.assemble(planned.compiled(), 1).objects


def test_a_compilation_goes_as_far_as_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for name in ("import_model", "optimize_model", "plan_model", "compile_kernels"):
        real = getattr(compiler, name)
        monkeypatch.setattr(compiler, name, lambda *args, name=name, real=real: (done.append(name), real(*args))[1])
    compilation = tw.Compilation(MODEL, threads=1)
    assert done == []
    assert compilation.imported is compilation.imported and done == ["import_model"]
    assert compilation.questions and compilation.optimized and done == ["import_model", "optimize_model"]
    assert compilation.kernels and compilation.lowered is compilation.lowered and len(done) == 3
    assert compilation.failed_templates == {} and len(done) == 4
    compilation.artifact()
    assert done == ["import_model", "optimize_model", "plan_model", "compile_kernels"]


def _plans() -> int:
    # By their types: others' weak proxies of what is gone would raise when asked for their class.
    return sum(issubclass(type(item), LoweredModel) for item in gc.get_objects())


def test_graphs_are_let_go_unless_somebody_may_look_at_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has weights of its own: with all of them kept, a model would be in memory several times."""
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    graphs: list[weakref.ref[object]] = []
    living: list[int] = []

    def watched(stage: str) -> None:
        real = getattr(compiler, stage)

        def run(*args: object) -> Imported | Optimized:
            made: Imported | Optimized = real(*args)
            graphs.append(weakref.ref(made.module["main"]))
            return made

        monkeypatch.setattr(compiler, stage, run)

    watched("import_model")
    watched("optimize_model")
    compile_kernels = compiler.compile_kernels

    def count(planned: LoweredModel) -> Compiled:
        gc.collect()
        living.append(sum(graph() is not None for graph in graphs))
        graphs.clear()
        return compile_kernels(planned)

    monkeypatch.setattr(compiler, "compile_kernels", count)
    executable = deploy.executable

    def load(*args: Any, **options: Any) -> Executable:
        gc.collect()
        living.append(_plans() - before)
        return executable(*args, **options)

    before = _plans()
    with monkeypatch.context() as patched:
        patched.setattr(compiler.deploy, "executable", load)
        tw.compile(MODEL, threads=1)
    compilation = tw.Compilation(MODEL, threads=1)
    compilation.artifact()
    # The plan is a plan of the optimised graph; when the model is loaded, it is gone too.
    assert living == [1, 0, 2] and compilation.imported["main"] is not compilation.optimized["main"]


def test_constants_lie_where_kernels_read_them() -> None:
    """A block that is not aligned would be copied once more when the model is loaded."""
    artifact = next(
        stage
        for stage in compile_model(make_request(MODEL, "native", CompileOptions(threads=1)))
        if isinstance(stage, Artifact)
    )
    block = artifact.constants
    assert artifact.model is not None and block.nbytes and block.ctypes.data % 64 == 0
    deploy.executable(artifact)
    assert artifact.constants is block
    gaps = np.ones(block.nbytes, bool)
    for item in artifact.model.constants:
        size = int(np.prod(item.shape)) * np.dtype(item.dtype).itemsize
        gaps[item.offset : item.offset + size] = False
    assert not block[gaps].any()


def test_what_failed_or_was_interrupted_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    compilation = tw.Compilation(MODEL, threads=1)
    imported = compilation.imported
    for error in (UserError("not today"), KeyboardInterrupt()):
        with monkeypatch.context() as patched:

            def fail(*args: object, error: BaseException = error) -> None:
                raise error

            patched.setattr(compiler, "plan_model", fail)
            for _ in range(2):
                with pytest.raises(type(error)):
                    compilation.artifact()
    assert compilation.artifact().objects and compilation.imported is not imported
