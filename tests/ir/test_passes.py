"""The pass manager: order, contracts, timing, dumps, overrides, instruments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tilewright.ir import passes
from tilewright.ir.function import BaseFunction, ExternFunc, IRModule, TypeDefinition
from tilewright.ir.passes import Pipeline, Recorder, function_pass, instrumented, module_pass, register_stage
from tilewright.ir.structural import assert_same_ir
from tilewright.support import settings, trace
from tilewright.support.errors import CompilerBug, UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.script import parse_script, script

TEXT = """
@script.function
def f(A: Buffer[(8,), "float32"]):
    A[0] = 1.0
"""


@pytest.fixture(autouse=True)
def _stages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages of the passes below, which every program keeps."""
    stages = {stage: lambda program: None for stage in ("start", "end")}
    monkeypatch.setattr(passes, "_verifiers", {**passes._verifiers, **stages})


@dataclass(frozen=True)
class RenameOptions:
    """How a function is to be called."""

    name: str = "g"


USUAL = RenameOptions()


@function_pass("rename", requires="start", leaves="start")
def rename(func: PrimFunc, options: RenameOptions = USUAL) -> PrimFunc:
    """Give the function another name."""
    return func.replace(name=options.name)


@function_pass("note", requires="start", leaves="end")
def note(func: PrimFunc) -> PrimFunc:
    """Leave a mark."""
    return func.replace(attributes={**func.attributes, "seen": True})


@module_pass("drop_externs")
def drop_externs(module: IRModule) -> IRModule:
    """Keep loop functions only."""
    return module.with_functions({k: v for k, v in module.functions.items() if isinstance(v, PrimFunc)})


@function_pass("broken")
def broken(func: BaseFunction) -> BaseFunction:
    """Fail."""
    raise CompilerBug("oops")


def function() -> PrimFunc:
    func = parse_script(TEXT)
    assert isinstance(func, PrimFunc)
    return func


def test_passes_are_functions() -> None:
    func = function()
    assert rename(func).name == "g"
    assert rename(func, RenameOptions("h")).name == "h"
    assert rename.with_options(RenameOptions("k"))(func).name == "k"
    with pytest.raises(UserError, match="the pass rename takes no int") as caught:
        rename.with_options(1)
    assert "it takes RenameOptions" in str(caught.value)
    with pytest.raises(UserError, match="the pass note takes no RenameOptions") as caught:
        note.with_options(RenameOptions())
    assert "it has no options" in str(caught.value)


def test_lists_of_passes_show_their_options() -> None:
    pipeline = Pipeline("test", [rename.with_options(RenameOptions()), rename.with_options(RenameOptions("h")), note])
    assert str(pipeline) == "01 rename\n02 rename(name='h')\n03 note"


def test_pipelines_run_in_order() -> None:
    pipeline = Pipeline("test", [rename.with_options(RenameOptions("a")), note], starts_at="start")
    result = pipeline.run(function())
    assert result.name == "a"
    assert result.attributes == {"seen": True}
    assert pipeline.ends_at == "end"


def test_contracts_are_checked_when_a_pipeline_is_made() -> None:
    with pytest.raises(CompilerBug, match="the pass rename needs stage 'start', it comes at stage 'end'"):
        Pipeline("test", [note, rename])
    with pytest.raises(CompilerBug, match="it comes at stage 'elsewhere'"):
        Pipeline("test", [note], starts_at="elsewhere")


def test_modules() -> None:
    module = IRModule({"f": function(), "x": ExternFunc("x")})
    result = Pipeline("test", [rename, note]).run(module)
    assert result["f"].name == "g"
    assert result["x"].name == "x"
    assert list(Pipeline("test", [drop_externs]).run(module)) == ["f"]
    with pytest.raises(CompilerBug, match="the module pass drop_externs is run on a single function"):
        Pipeline("test", [drop_externs]).run(function())
    with pytest.raises(CompilerBug, match="a pipeline does not run on a int"):
        Pipeline("test", [drop_externs]).run(3)


def test_failures_name_the_pass() -> None:
    with pytest.raises(CompilerBug) as caught:
        Pipeline("test", [broken]).run(function())
    assert caught.value.__notes__ == ["(in the pass broken of the pipeline test)"]


def test_timing() -> None:
    with trace.collect() as times:
        Pipeline("test", [rename, note]).run(function())
    assert times.count("pipeline:test", "pass:rename") == 1


def test_dumps(tmp_path: Path) -> None:
    with settings.TRACE.override(frozenset(["dump"])), settings.DUMP_DIR.override(tmp_path):
        Pipeline("test", [rename, note]).run(function())
        Pipeline("graph/x", [drop_externs]).run(IRModule({"x": ExternFunc("x")}))
        Pipeline("none", [drop_externs]).run(IRModule())
    names = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*") if path.is_file())
    assert names == [
        "graph_x.module/00_input.py",
        "graph_x.module/01_drop_externs.txt",
        "none.module/00_input.txt",
        "none.module/01_drop_externs.txt",
        "test.f/00_input.py",
        "test.f/01_rename.py",
        "test.f/02_note.py",
    ]
    text = (tmp_path / "test.f/02_note.py").read_text()
    assert_same_ir(script.parse(text), note(rename(function())))


def test_overrides(tmp_path: Path) -> None:
    path = tmp_path / "test.f" / "01_rename.py"
    path.parent.mkdir()
    path.write_text(TEXT.replace("def f", "def g").replace("1.0", "7.0"))
    with settings.OVERRIDE_DIR.override(tmp_path):
        result = Pipeline("test", [rename, note]).run(function())
        assert "7.0" in script.print(result)
        assert result.attributes == {"seen": True}
        path.write_text(TEXT)
        with pytest.raises(UserError, match="the file defines the function f, the stage's function is g") as caught:
            Pipeline("test", [rename, note]).run(function())
        assert str(path) in str(caught.value)
        path.write_text("class Module:\n    pass")
        with pytest.raises(UserError, match="the file holds a IRModule, the stage is a PrimFunc"):
            Pipeline("test", [rename, note]).run(function())
        path.write_bytes(b"\xff\xfe")
        with pytest.raises(UserError, match="cannot read the stage rename"):
            Pipeline("test", [rename, note]).run(function())
        path.unlink()
        start = path.with_name("00_input.py")
        start.write_text(TEXT.replace("1.0", "9.0"))
        assert "9.0" in script.print(Pipeline("test", [rename, note]).run(function()))
        path.write_text("def g(:")
        with pytest.raises(UserError, match="not valid Python"):
            Pipeline("test", [rename, note]).run(function())


def test_a_file_that_takes_the_place_of_no_stage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "test.f" / "02_rename.py"
    path.parent.mkdir()
    path.write_text(TEXT)
    with settings.OVERRIDE_DIR.override(tmp_path):
        with pytest.raises(UserError, match=r"02_rename.py takes the place of no stage of test.f") as caught:
            Pipeline("test", [rename, note]).run(function())
        assert "00_input, 01_rename, 02_note" in str(caught.value)
        path.rename(path.with_name("01_rename.py"))
        path.with_name("01_rename.py").write_text(TEXT.replace("def f", "def g"))
        Pipeline("test", [rename, note]).run(function())


def test_folders_that_match_no_program_are_named_when_the_process_ends(tmp_path: Path) -> None:
    program = """
import tilewright as tw
from tilewright import te
a = te.placeholder((8,), name="a")
b = te.compute((8,), lambda i: a[i] + 1, name="b")
tw.build(te.create_schedule(b.op), [a, b], name="f")
"""

    def run(**variables: str) -> str:
        words, environment = [sys.executable, "-c", program], {**os.environ, **variables}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stderr

    assert run(TILEWRIGHT_TRACE="dump", TILEWRIGHT_DUMP_DIR=str(tmp_path)) == ""
    shutil.copytree(tmp_path / "cpu.f", tmp_path / "cpu.ff")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read me").write_text("no stage of any program")
    assert "no program is called cpu.ff; compiled were code.f, cpu.f\n" in run(TILEWRIGHT_OVERRIDE_DIR=str(tmp_path))
    shutil.rmtree(tmp_path / "cpu.ff")
    assert run(TILEWRIGHT_OVERRIDE_DIR=str(tmp_path)) == ""


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with (
        settings.OVERRIDE_DIR.override(tmp_path / "absent"),
        pytest.raises(UserError, match=r"there is no folder .*absent"),
    ):
        Pipeline("test", [rename]).run(function())
    (tmp_path / "file").write_text("in the way")
    with (
        settings.TRACE.override(frozenset(["dump"])),
        settings.DUMP_DIR.override(tmp_path / "file"),
        pytest.raises(UserError, match=r"cannot write 00_input\.py"),
    ):
        Pipeline("test", [rename]).run(function())


def test_overrides_of_modules(tmp_path: Path) -> None:
    module = IRModule({"f": function()})
    path = tmp_path / "test.module" / "01_drop_externs.py"
    path.parent.mkdir()
    path.write_text(script.print(IRModule({"other": function()})))
    with settings.OVERRIDE_DIR.override(tmp_path):
        with pytest.raises(UserError, match="the functions in the file are not those of the stage"):
            Pipeline("test", [drop_externs]).run(module)
        unreadable = tmp_path / "empty.module" / "01_drop_externs.txt"
        unreadable.parent.mkdir()
        unreadable.write_text("x")
        with pytest.raises(UserError, match="has no text that can be read back"):
            Pipeline("empty", [drop_externs]).run(IRModule())


def test_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_verifiers", {})
    seen: list[str] = []

    def check_start(program: object) -> None:
        seen.append("start")

    def check_end(program: object) -> None:
        seen.append("end")
        raise UserError("not quite")

    register_stage("start", check_start)
    register_stage("end", check_end)
    pipeline = Pipeline("test", [rename, note], starts_at="start")
    with settings.VERIFY.override(False):
        pipeline.run(function())
    assert seen == []
    with settings.VERIFY.override(True):
        message = "after the pass note of pipeline test the stage 'end' does not hold: not quite"
        with pytest.raises(CompilerBug, match=message):
            pipeline.run(function())
        # A contract that nobody checks is a mistake: the module with its verifier was not loaded.
        with pytest.raises(CompilerBug, match="the stage 'nowhere' has no verifier"):
            Pipeline("test", [function_pass("x", leaves="nowhere")(lambda f: f)]).run(function())
    assert seen == ["start", "start", "end"]


def test_only_what_a_pass_changes_is_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_verifiers", {})
    seen: list[str] = []
    for stage in ("start", "end"):
        register_stage(stage, lambda program, stage=stage: seen.append(f"{stage} {program.name}"))
    nothing = function_pass("nothing")(lambda f: f)
    new_object = function_pass("new_object")(lambda f: f.replace())
    renamed = function_pass("renamed")(lambda f: f.replace(name=f.name + "x"))
    reaches = function_pass("reaches", leaves="end")(lambda f: f)
    pipeline = Pipeline("test", [nothing, new_object, renamed, nothing, reaches, new_object], starts_at="start")
    with settings.VERIFY.override(True):
        result = pipeline.run(function())
    before = function().name
    assert result.name == before + "x"
    assert seen == [f"start {before}", f"start {before}x", f"end {before}x"]


def test_a_module_of_the_same_functions_is_not_verified_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_verifiers", {})
    seen: list[tuple[list[str], list[str]]] = []
    register_stage("start", lambda program: seen.append((list(program.functions), list(program.types))))
    new_object = module_pass("new_object")(lambda m: m.with_functions(dict(m.functions)))
    new_functions = module_pass("new_functions")(
        lambda m: m.with_functions({name: f.replace() for name, f in m.functions.items()})
    )
    one_more = module_pass("one_more")(lambda m: m.with_function(rename(function())))
    typed = module_pass("typed")(lambda m: IRModule(m.functions, [TypeDefinition("Nothing", (), ())]))
    renamed = module_pass("renamed")(lambda m: m.with_functions({"h": m["f"].replace(name="h"), "g": m["g"]}))
    order = [new_object, one_more, new_functions, typed, new_object, renamed, new_functions]
    with settings.VERIFY.override(True):
        Pipeline("test", order, starts_at="start").run(IRModule([function()]))
    assert seen == [(["f"], []), (["f", "g"], []), (["f", "g"], ["Nothing"]), (["h", "g"], ["Nothing"])]


def test_instruments() -> None:
    recorder = Recorder()
    with instrumented(recorder):
        Pipeline("test", [rename, note]).run(function())
    Pipeline("test", [rename, note]).run(function())
    assert [name for name, _ in recorder.stages] == ["input", "rename", "note"]
    assert "def g(" in recorder.stages[1][1]
