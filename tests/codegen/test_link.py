"""Finding a linker, and what linking says when something is missing or full."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tilewright.backends.llvm import link, link_elf, linker, toolchain
from tilewright.support import settings
from tilewright.support.errors import CompilerBug, MissingDependencyError, UnsupportedError, UserError

HOST = toolchain.host_triple()


def _object(folder: Path, text: str, triple: str = HOST) -> Path:
    path = folder / "code.o"
    path.write_bytes(toolchain.compile_ir(text, triple=triple, features=toolchain.plain_features(triple)))
    return path


def _link(folder: Path, text: str, output: Path, triple: str = HOST) -> None:
    link.link_shared([_object(folder, text, triple)], output, triple=triple, data_objects={}, work_folder=folder)


def test_no_linker_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link.shutil, "which", lambda name: None)
    monkeypatch.setattr(link_elf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"no linker for .* is installed") as caught:
        link.find_linker(HOST)
    assert "tilewright[link]" in str(caught.value)


def test_ziglang_serves_when_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link.shutil, "which", lambda name: None)
    monkeypatch.setattr(link_elf.importlib.util, "find_spec", lambda name: object())
    assert link.find_linker("aarch64-linux-gnu").command[1:] == ("-m", "ziglang", "ld.lld")


def test_an_lld_that_is_called_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        link.shutil, "which", lambda name: f"/bin/{name}" if name in ("ld.lld-16", "ld.lld-19") else None
    )
    assert link.find_linker("aarch64-linux-gnu").command == ("/bin/ld.lld-19",)


def test_a_linker_for_another_architecture_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link.shutil, "which", lambda name: f"/bin/{name}" if name == "ld" else None)
    monkeypatch.setattr(link_elf.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(link_elf, "_gnu_emulations", lambda command: frozenset({"elf_x86_64"}))
    assert link.find_linker("x86_64-linux-gnu").command == ("/bin/ld",)
    with pytest.raises(MissingDependencyError, match="aarch64-linux-gnu"):
        link.find_linker("aarch64-linux-gnu")


def test_chosen_linker(monkeypatch: pytest.MonkeyPatch) -> None:
    with settings.LINKER.override("no-such-linker"), pytest.raises(UserError, match="'no-such-linker' is not there"):
        link.find_linker(HOST)
    monkeypatch.setattr(link.shutil, "which", lambda name: f"/opt/{name}")
    with settings.LINKER.override("gcc"):
        assert link.find_linker(HOST) == linker.Linker(("/opt/gcc",), is_driver=True)


def test_a_linker_of_the_users_that_fails_is_no_bug_of_ours(tmp_path: Path) -> None:
    chosen = tmp_path / "my-ld"
    chosen.write_text("#!/bin/sh\necho 'my-ld: cannot find -lmystery' >&2\nexit 3\n")
    chosen.chmod(0o755)
    (tmp_path / "silent").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "silent").chmod(0o755)
    text = "define i32 @f() { ret i32 1 }"
    for name, message in (("my-ld", "failed with code 3: my-ld: cannot find -lmystery"), ("silent", "it said nothing")):
        with settings.LINKER.override(str(tmp_path / name)), pytest.raises(UserError, match=message) as caught:
            _link(tmp_path, text, tmp_path / "out.so")
        assert settings.LINKER.name in str(caught.value.hint)
        assert not (tmp_path / "out.so").exists()


def test_driver_options_are_wrapped() -> None:
    driver = linker.Linker(("cc",), is_driver=True)
    options = link_elf._flat(driver, ["-m", "elf_x86_64", "-Bsymbolic", "-z", "defs"])
    assert driver.arguments(options, ["a.o"]) == [
        *("cc", "-shared", "-nostdlib", "-Wl,-m,elf_x86_64", "-Wl,-Bsymbolic", "-Wl,-z,defs", "a.o")
    ]


@pytest.mark.parametrize(
    "triple", ["riscv64-apple-darwin", "riscv64-pc-windows-msvc", "wasm32-unknown-unknown", "thumbv7em-none-eabi"]
)
def test_unsupported_formats(triple: str) -> None:
    with pytest.raises(UnsupportedError, match="not supported"):
        link.find_linker(triple)


def test_dependencies_are_libc_and_libm_only(tmp_path: Path, c_compiler: str) -> None:
    text = """
    declare float @expf(float)
    declare i32 @puts(ptr)
    define float @f(float %x, ptr %text) {
      %code = call i32 @puts(ptr %text)
      %y = call float @expf(float %x)
      ret float %y
    }
    """
    _link(tmp_path, text, tmp_path / "out.so")
    listing = subprocess.run(["readelf", "-d", str(tmp_path / "out.so")], capture_output=True, text=True, check=True)
    needed = sorted(line.split("[")[1].rstrip("]") for line in listing.stdout.splitlines() if "(NEEDED)" in line)
    assert needed == ["libc.so.6", "libm.so.6"]


def test_every_linker_on_this_machine_works(tmp_path: Path) -> None:
    linkers = list(link_elf._candidates(HOST))
    assert linkers, "this machine has no linker at all"
    for number, candidate in enumerate(linkers):
        path = _object(tmp_path, "declare void @free(ptr)\ndefine i32 @f() { call void @free(ptr null)\n ret i32 1 }")
        output = tmp_path / f"{number}.so"
        job = linker.LinkJob(HOST, [path], {}, ["f"], output, output, tmp_path)
        link_elf.ELF_LINKING.link(candidate, job)
        assert output.read_bytes()[:4] == b"\x7fELF"


def test_unknown_symbol_is_our_bug(tmp_path: Path) -> None:
    with pytest.raises(CompilerBug, match="uses the symbol 'mystery'"):
        _link(
            tmp_path, "declare void @mystery()\ndefine void @f() { call void @mystery()\n ret void }", tmp_path / "o.so"
        )
    assert not (tmp_path / "o.so").exists()


def test_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder does not exist"):
        link.work_folder_beside(tmp_path / "nowhere" / "out.so")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="the folder does not exist"):
        link.work_folder_beside(tmp_path / "file" / "out.so")


def test_linker_failures_are_told_apart(tmp_path: Path) -> None:
    def scripted(script: str) -> linker.Linker:
        return linker.Linker(("/bin/sh", "-c", script, "fake"))

    target = tmp_path / "out.so"
    with pytest.raises(UserError, match=r"cannot write out\.so: No space left on device"):
        linker.run_linker(
            scripted("echo 'final link failed: No space left on device' >&2; exit 1"), [], [], target, target
        )
    with pytest.raises(UserError, match="killed by signal 9"):
        linker.run_linker(scripted("kill -9 $$"), [], [], target, target)
    with pytest.raises(CompilerBug, match=r"(?s)failed with code 3: odd.*command:"):
        linker.run_linker(scripted("echo odd; exit 3"), [], [], target, target)
    with pytest.raises(UserError, match="cannot be started"):
        linker.run_linker(linker.Linker((str(tmp_path / "gone"),)), [], [], target, target)


def test_a_command_that_is_no_linker(tmp_path: Path) -> None:
    """It ends well and writes nothing."""
    with settings.LINKER.override("true"), pytest.raises(UserError, match="wrote nothing: is it one"):
        _link(tmp_path, "define i32 @f() { ret i32 0 }", tmp_path / "made.so")
    assert not (tmp_path / "made.so").exists()
