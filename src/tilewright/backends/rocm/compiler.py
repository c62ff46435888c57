"""hipRTC, or clang: HIP C++ to code objects."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from tilewright.backends.compiler import Compiler
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.fingerprint import environment_fingerprint

_HINT: Final = "install ROCm, whose libamdhip64 drives the GPU and whose libhiprtc compiles for it"
_CLANGS: Final = ("amdclang++", *(f"clang-{version}" for version in range(22, 16, -1)), "clang")
_ENVIRONMENT: Final = ("AMD_COMGR", "HIP_", "HIPRTC", "LLVM_", "ROCM_")
"""Beginnings of the names of variables that hipRTC and the compiler inside it may read."""
_KEPT: Final = ("PATH", "HOME", "LD_LIBRARY_PATH", "TMPDIR")


def compile_hip(source: str, arch: str) -> bytes:
    """The code object (ELF) of HIP C++ for an architecture such as `gfx942`; no GPU is needed."""
    compiler = _compiler()
    if isinstance(compiler, str):
        return _compile_with_clang(compiler, source, arch)
    return _compile_with_hiprtc(compiler, source, arch)


def hip_compiler() -> str:
    """The name and version of the compiler that `compile_hip` uses."""
    compiler = _compiler()
    if isinstance(compiler, str):
        return _clang_version(compiler)
    major, minor = ctypes.c_int(), ctypes.c_int()
    compiler.hiprtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"hiprtc {major.value}.{minor.value} {environment_fingerprint(_ENVIRONMENT)}"


@functools.cache
def _clang_version(clang: str) -> str:
    """All that clang says of itself, and where it lies: two of one version may be built apart."""
    done = subprocess.run([clang, "--version"], capture_output=True, text=True, check=True, env=_clean_environment())
    return f"{clang} {done.stdout.strip()}"


def _clean_environment() -> dict[str, str]:
    """What clang sees: no variable that would add options or folders of headers to those that are given here."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ} | {"LC_ALL": "C"}


@functools.cache
def _compiler() -> Any:
    """The library hipRTC, or the path of a clang."""
    try:
        return ctypes.CDLL("libhiprtc.so")
    except OSError:
        clang = next(filter(None, map(shutil.which, _CLANGS)), None)
    if clang is None:
        raise UserError("HIP programs need ROCm's libhiprtc or clang with lld, and neither is here", hint=_HINT)
    return clang


def _compile_with_clang(clang: str, source: str, arch: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="tilewright-hip-") as folder:
        text, result = Path(folder, "kernels.hip"), Path(folder, "kernels.hsaco")
        text.write_text(source, encoding="utf-8")
        command = [clang, "-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", "-nogpuinc", "-nogpulib"]
        command += [f"--offload-arch={arch}", "-O3", "-std=c++17", "-o", str(result), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_clean_environment())
        if done.returncode == 0:
            return result.read_bytes()
    if any(words in done.stderr for words in ("invalid target ID", "offload arch", "unsupported HIP gpu")):
        raise UserError(f"{clang} does not compile for '{arch}'", hint="give the target another -arch, such as gfx942")
    if "lld" in done.stderr and "error" in done.stderr:
        raise UserError(f"{clang} finds no lld to link with: {done.stderr.strip()}", hint="install lld beside it")
    raise CompilerBug(f"{clang} refused a program: {done.stderr.strip()}")


def _compile_with_hiprtc(library: Any, source: str, arch: str) -> bytes:
    program = ctypes.c_void_p()
    options = (ctypes.c_char_p * 2)(f"--offload-arch={arch}".encode(), b"-std=c++17")
    created = library.hiprtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.hip", 0, None, None)
    if created != 0:
        raise CompilerBug(f"hipRTC could not create a program: error {created}")
    try:
        compiled = library.hiprtcCompileProgram(program, len(options), options)
        size = ctypes.c_size_t()
        if compiled != 0:
            library.hiprtcGetProgramLogSize(program, ctypes.byref(size))
            log = ctypes.create_string_buffer(size.value + 1)
            library.hiprtcGetProgramLog(program, log)
            raise CompilerBug(f"hipRTC refused a program for {arch}: {log.value.decode(errors='replace').strip()}")
        library.hiprtcGetCodeSize(program, ctypes.byref(size))
        code = ctypes.create_string_buffer(size.value)
        library.hiprtcGetCode(program, code)
        return code.raw
    finally:
        library.hiprtcDestroyProgram(ctypes.byref(program))


COMPILER: Final = Compiler(lambda source, target: compile_hip(source, target.arch), hip_compiler)
