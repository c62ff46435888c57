"""NVRTC: CUDA C++ to machine code."""

from __future__ import annotations

from typing import Any, Final

from tilewright.backends.compiler import Compiler
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.fingerprint import environment_fingerprint, packages_fingerprint

_ENVIRONMENT: Final = ("NVRTC_", "NVVM_")
"""Beginnings of the names of variables that NVRTC may read."""
_HINT: Final = "pip install 'tilewright[cuda]', and NVIDIA's driver"

_ROUNDS: Final = ("rintf(", "tw_round_")
"""What kernels call that round to whole numbers. A product and a sum before it are rounded each, as everywhere else:
together they would give other integers now and then."""


def compile_cuda(source: str, arch: str) -> bytes:
    """The machine code (cubin) of CUDA C for an architecture such as `sm_90`; no GPU is needed."""
    nvrtc = _nvrtc()
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), b"kernels.cu", 0, [], [])
    _check(nvrtc, error, "create a program")
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    if any(name in source for name in _ROUNDS):
        options.append(b"--fmad=false")
    (error,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        if error == nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION:
            raise UserError(f"NVRTC does not compile for '{arch}'", hint="give the target another -arch, such as sm_90")
        raise CompilerBug(f"NVRTC refused a program: {log.decode(errors='replace').strip()}")
    error, size = nvrtc.nvrtcGetCUBINSize(program)
    _check(nvrtc, error, "compile for the machine")
    code = bytes(int(size))
    (error,) = nvrtc.nvrtcGetCUBIN(program, code)
    _check(nvrtc, error, "read the machine code")
    nvrtc.nvrtcDestroyProgram(program)
    return code


def nvrtc_version() -> str:
    """The version of NVRTC, which decides the machine code."""
    nvrtc = _nvrtc()
    _, major, minor = nvrtc.nvrtcVersion()
    # The library itself says no more; the package that it came in knows the patch.
    package = packages_fingerprint("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc-cu13")
    return f"nvrtc {major}.{minor} ({package}) {environment_fingerprint(_ENVIRONMENT)}"


def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise UserError("CUDA programs need cuda-bindings and NVRTC", hint=_HINT) from error
    return nvrtc


def _check(module: Any, error: Any, what: str) -> None:
    if int(error) != 0:
        raise CompilerBug(f"{module.__name__} could not {what}: {error.name}")


COMPILER: Final = Compiler(lambda source, target: compile_cuda(source, target.arch), nvrtc_version)
