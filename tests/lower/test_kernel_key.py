"""The names of kernels in the cache: everything that decides a kernel's bytes changes the name, and no setting does."""

from __future__ import annotations

import ast
import copy
import json
import shutil
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from tilewright.backends.compiler import Compiler, compiler_of
from tilewright.backends.cuda import compiler as cuda
from tilewright.backends.llvm import cache, toolchain
from tilewright.backends.llvm import compiler as llvm
from tilewright.backends.rocm import compiler as hip
from tilewright.lower import cache_key, model_cache
from tilewright.lower import kernel as kernel_module
from tilewright.lower.kernel import Kernel, compile_kernel, make_kernel
from tilewright.support import extensions, fingerprint, settings
from tilewright.support.fingerprint import NOT_IN_KERNELS, packages_fingerprint, source_fingerprint
from tilewright.target import Target
from tilewright.target.machine import cpu_parameters
from tilewright.target.machine.parameters import user_table_path
from tilewright.target.machine.tables import Fit, Processors, Table, write_table
from tilewright.te import compute, placeholder
from tilewright.te.program import create_prim_func

TARGET = Target("llvm -mtriple=x86_64-linux-gnu -mcpu=skylake")


def _kernel(factor: float = 2.0) -> Kernel:
    a = placeholder((64, 64), "float32", "a")
    return make_kernel(create_prim_func([a, compute((64, 64), lambda i, j: a[i, j] * factor, "b")]), "scale")


def _compiler(version: str) -> Compiler:
    return Compiler(lambda source, target: b"", lambda: version)


def _key(kernel: Kernel, target: Target = TARGET, planned: bool = False) -> str:
    return kernel_module._cache_key(kernel, target, planned)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the package's files that fingerprints are taken of, to be changed."""
    root = tmp_path / "tilewright"
    original = fingerprint._ROOT
    shutil.copytree(original, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprint, "_ROOT", root)
    source_fingerprint.cache_clear()
    monkeypatch.setattr(fingerprint, "_ROOT", root)
    yield root  # type: ignore[misc]
    source_fingerprint.cache_clear()


def test_the_kernel_and_its_choices() -> None:
    kernel = _kernel()
    assert _key(kernel) == _key(_kernel())
    keys = {_key(kernel), _key(_kernel(3.0)), _key(kernel, planned=True), _key(replace(kernel, answers={"tile": 4}))}
    assert len(keys) == 4


OTHER_WORDS = {
    "kind": "opencl",
    "triple": "aarch64-linux-gnu",
    "arch": "sm_80",
    "cpu": "cascadelake",
    "features": "+avx512vnni",
}
"""Other values of the fields of a target that are no numbers."""


def test_every_field_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the target that has it in its text: a CPU has no warps, and a GPU no vector registers."""
    monkeypatch.setattr(cache_key, "compiler_of", lambda kind: _compiler("the same"))
    kernel, gpu = _kernel(), Target("cuda -arch=sm_90")
    plain = {_key(kernel, TARGET), _key(kernel, gpu)}
    for field in fields(TARGET):
        changed = set()
        for target in (TARGET, gpu):
            other = copy.copy(target)
            value = getattr(target, field.name)
            object.__setattr__(other, field.name, OTHER_WORDS[field.name] if isinstance(value, str) else value + 1)
            changed.add(_key(kernel, other))
        assert not changed <= plain, f"no key says which {field.name} a target has"


def _files(root: Path) -> list[Path]:
    return [
        path.relative_to(root) for path in sorted(root.rglob("*")) if path.is_file() and "__pycache__" not in path.parts
    ]


def _is_left_out(file: Path) -> bool:
    return any(file.is_relative_to(place) for place in NOT_IN_KERNELS)


def test_every_source_decides_but_those_that_say_why_not(sources: Path) -> None:
    """A file of each folder, data among them: changed, it changes the key, unless it says why it does not."""
    before, places = _key(_kernel()), {}
    for file in _files(sources):
        places[file.parent, file.suffix, _is_left_out(file)] = file
    for file in places.values():
        path = sources / file
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        source_fingerprint.cache_clear()
        assert (_key(_kernel()) == before) == _is_left_out(file), file
        path.write_bytes(content)
    source_fingerprint.cache_clear()
    assert _key(_kernel()) == before
    # A table that is added, whatever it holds, may decide something.
    (sources / "topi" / "new_table.json").write_text("{}")
    source_fingerprint.cache_clear()
    assert _key(_kernel()) != before


def test_what_is_left_out_is_there_and_says_why() -> None:
    root = Path(fingerprint.__file__).parents[1]
    assert all((root / place).exists() and reason for place, reason in NOT_IN_KERNELS.items())
    # What compilers of devices are told, tables of machines and the pipelines are never left out.
    for file in ("backends/llvm/toolchain.py", "backends/cuda/compiler.py", "tir/pipeline.py", "support/settings.py"):
        assert (root / file).exists() and not _is_left_out(Path(file))


def test_objects_depend_on_the_options_of_llvm(sources: Path) -> None:
    def key() -> str:
        return cache.object_key("text", triple="t", cpu="c", features="", opt_level=2)

    before = key()
    path = sources / "backends/llvm/toolchain.py"
    path.write_text(path.read_text().replace("_CODE_GENERATOR_LEVEL = 2", "_CODE_GENERATOR_LEVEL = 3"))
    source_fingerprint.cache_clear()
    assert key() != before


def test_a_file_that_changes_its_name_or_its_end_is_another(sources: Path) -> None:
    before = source_fingerprint("tir")
    (sources / "tir" / "pipeline.py").rename(sources / "tir" / "pipelinf.py")
    source_fingerprint.cache_clear()
    assert source_fingerprint("tir") != before


def test_all_that_compiling_a_kernel_loads_is_in_the_name() -> None:
    """By construction: what kernels come to depend on is missed here before it is missed in the field."""
    loaded = _loaded("import tilewright.lower.worker, tilewright.tune.builder")
    root = Path(fingerprint.__file__).parents[1]
    ours = [name.split(".")[1:] for name in loaded if name.startswith("tilewright.")]
    files = [
        Path(*parts, "__init__.py") if (root / Path(*parts)).is_dir() else Path(*parts).with_suffix(".py")
        for parts in ours
    ]
    # The request of a tuner's candidate, which says what to build and not how.
    assert [file for file in files if _is_left_out(file) and file.parts[0] != "tune"] == []
    # Packages of others whose versions are in the key; llvmlite comes when it is needed.
    installed = {name.split(".")[0] for name in loaded if "site-packages" in loaded[name]}
    assert installed - {name.split(".")[0] for name in _loaded("pass")} == {"numpy"}


def _loaded(code: str) -> dict[str, str]:
    """The modules that code loads, with their files."""
    show = "import json, sys; print(json.dumps({k: str(getattr(m, '__file__', '')) for k, m in sys.modules.items()}))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_versions_of_what_takes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = _kernel()
    keys = {_key(kernel)}
    for change in (
        lambda m: m.setattr(llvm, "COMPILER", _compiler("llvmlite 9.9 LLVM 99")),
        lambda m: m.setattr(cache_key, "packages_fingerprint", lambda *names: "numpy 99"),
        lambda m: m.setattr(kernel_module, "kernel_sources", lambda: "other sources"),
    ):
        with monkeypatch.context() as patched:
            change(patched)
            keys.add(_key(kernel))
    assert len(keys) == 4
    assert "numpy" in packages_fingerprint("numpy", "no-such-package") and "cpython" in packages_fingerprint()
    assert "llvmlite" in toolchain.llvm_version() and "LLVM" in toolchain.llvm_version()


class _Nvrtc:
    version = (0, 13, 0)

    def nvrtcVersion(self) -> tuple[int, int, int]:
        return self.version


def test_nvrtc_by_version_package_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    library, target = _Nvrtc(), Target("cuda -arch=sm_90")
    monkeypatch.setattr(cuda, "_nvrtc", lambda: library)
    keys = {_key(_kernel(), target)}
    library.version = (0, 13, 1)
    keys.add(_key(_kernel(), target))
    monkeypatch.setenv("NVRTC_DISABLE_CONCURRENT_NVVM", "1")
    keys.add(_key(_kernel(), target))
    monkeypatch.setattr(cuda, "packages_fingerprint", lambda *names: "another patch")
    keys.add(_key(_kernel(), target))
    keys.add(_key(_kernel(), Target("cuda -arch=sm_80")))
    assert len(keys) == 5


def test_clang_by_its_whole_version_and_without_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clang = tmp_path / "clang"

    def name(version: str) -> str:
        # It says what it sees of a variable that adds options: nothing.
        clang.write_text(f'#!/bin/sh\necho "clang {version}"\necho "options: $CCC_OVERRIDE_OPTIONS $CPATH"\n')
        clang.chmod(0o755)
        hip._clang_version.cache_clear()
        return _key(_kernel(), Target("rocm -arch=gfx942"))

    monkeypatch.setattr(hip, "_compiler", lambda: str(clang))
    first = name("19.1")
    assert name("19.2") != first
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "# O3-O0")
    monkeypatch.setenv("CPATH", "/elsewhere")
    assert name("19.1") == first
    assert hip.hip_compiler().endswith("options:")


def test_hiprtc_by_version_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def hiprtcVersion(self, major: object, minor: object) -> None:
            major._obj.value, minor._obj.value = 6, 2  # type: ignore[attr-defined]

    monkeypatch.setattr(hip, "_compiler", Library)
    first = compiler_of("rocm").version()
    assert first.startswith("hiprtc 6.2")
    monkeypatch.setenv("AMD_COMGR_SAVE_TEMPS", "1")
    assert compiler_of("rocm").version() != first


def test_whole_models_know_the_compiler_of_their_device(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    # Whatever tests before this one have registered.
    monkeypatch.setattr(extensions, "_foreign", [])
    target = Target("cuda -arch=sm_90")
    keys = set()
    # A file with an empty graph.
    with settings.CACHE_DIR.override(tmp_path):
        for version in ("nvrtc 13.0", "nvrtc 13.1"):
            monkeypatch.setattr(cuda, "COMPILER", _compiler(version))
            keys.add(model_cache.model_key(b"\x3a\x00", [target, TARGET], {}))
    assert len(keys) == 2 and None not in keys


_OTHER_VALUES: dict[str, str] = {
    "TILEWRIGHT_VERIFY": "0",
    "TILEWRIGHT_NUM_THREADS": "3",
    "TILEWRIGHT_COMPILE_PROCESSES": "2",
    "TILEWRIGHT_PROGRESS": "always",
    "TILEWRIGHT_LINKER": "ld",
    "TILEWRIGHT_CPU": "x86-64-v2",
    "TILEWRIGHT_DATABASE": "none",
    "TILEWRIGHT_MACHINES": "elsewhere",
    "TILEWRIGHT_STRICT_TEMPLATES": "1",
    "TILEWRIGHT_TRACE": "time",
    "TILEWRIGHT_CACHE": "0",
    "TILEWRIGHT_CACHE_LIMIT": "1M",
    "TILEWRIGHT_CACHE_DIR": "elsewhere",
    "TILEWRIGHT_DUMP_DIR": "elsewhere",
}
"""Settings that decide nothing of a kernel, with a value that is not the tests' own."""


def test_no_setting_decides_a_kernel_unseen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A setting changes the bytes of no kernel, or turns the cache off: a new one must say here which."""
    # Tokens belong to a package that kernels do not see.
    known = {item.name for item in settings.all_settings() if not item.name.startswith("TILEWRIGHT_RPC_")}
    assert known == set(_OTHER_VALUES) | {settings.OVERRIDE_DIR.name}
    monkeypatch.chdir(tmp_path)
    kernel = _kernel()
    with settings.CACHE.override(False):
        expected = compile_kernel(kernel, TARGET)
    for name, value in _OTHER_VALUES.items():
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert _key(kernel) == _key(_kernel())
            assert compile_kernel(kernel, TARGET) == expected, name
    for name, value in ((settings.OVERRIDE_DIR.name, str(tmp_path)), (settings.TRACE.name, "dump")):
        with monkeypatch.context() as changed:
            changed.setenv(name, value)
            assert kernel_module._store() is None


def test_a_changed_table_of_machine_parameters_changes_the_key(tmp_path: Path) -> None:
    """Tables are not sources: their values are in the key by themselves."""
    before = _key(_kernel())
    values = {"parallel": {"least_work": cpu_parameters(TARGET).parallel.least_work + 1}}
    fits = {"parallel": Fit("tilewright calibrate", "a test", "2026-11-16")}
    table = Table("mine", "measured", Processors("cpu", TARGET.arch, (TARGET.cpu,)), values, fits)
    write_table(table, user_table_path(TARGET, tmp_path))
    with settings.MACHINES.override(tmp_path):
        assert _key(_kernel()) != before
    assert _key(_kernel()) == before


def test_settings_are_the_only_variables_that_are_read() -> None:
    """What a kernel depends on cannot come from the environment by another way than those that this page knows."""
    known = {
        "support/settings.py": "the registry of settings",
        "support/fingerprint.py": "variables of compilers inside this process, for the key",
        "backends/rocm/compiler.py": "clang is given a clean environment",
        "support/children.py": "PYTHONPATH of child processes",
        "train/parallel.py": "whether somebody started several processes to train together",
    }
    readers: set[str] = set()
    for file in _files(fingerprint._ROOT):
        text = "" if file.suffix != ".py" or _is_left_out(file) else (fingerprint._ROOT / file).read_text()
        for node in ast.walk(ast.parse(text)) if "environ" in text or "getenv" in text else ():
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "environb"):
                readers.add(file.as_posix())
    assert readers == set(known)
