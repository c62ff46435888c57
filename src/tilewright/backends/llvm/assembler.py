"""Assembly text to an object, for assembly that a user has changed (`TILEWRIGHT_OVERRIDE_DIR`).

LLVM's assembler ends the process over a text that it does not understand, so it runs in one of its own:
`python -m tilewright.backends.llvm.assembler TRIPLE CPU FEATURES` reads the text and writes the object.
"""

from __future__ import annotations

import subprocess
import sys

from tilewright.backends.llvm.toolchain import binding, compile_ir
from tilewright.support.children import python_command, python_environment
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target.host import detect_host
from tilewright.target.target import Target


def assemble(text: str, target: Target) -> bytes:
    """The object of assembly for this machine's architecture; LLVM's assemblers for others are not in the wheel."""
    if target.arch != detect_host().arch:
        raise UnsupportedError(
            f"there is no assembler for {target.triple} here",
            hint="change the LLVM IR instead (00_source.ll), or work on such a machine",
        )
    done = subprocess.run(
        python_command("-m", "tilewright.backends.llvm.assembler", target.triple, target.cpu, target.features),
        input=text.encode(),
        capture_output=True,
        env=python_environment(),
        check=False,
    )
    if done.returncode != 0:
        raise UserError(f"the assembler does not take it: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def module_of(assembly: str) -> str:
    """The LLVM module that consists of assembly alone."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\' else f"\\{byte:02X}" for byte in assembly.encode()
    )
    return f'module asm "{escaped}"\n'


def main(triple: str, cpu: str, features: str) -> None:
    """Assemble what stdin has; errors are LLVM's own, on stderr."""
    binding().initialize_native_asmparser()
    text = sys.stdin.buffer.read().decode()
    sys.stdout.buffer.write(compile_ir(module_of(text), triple=triple, cpu=cpu, features=features, opt_level=0))


if __name__ == "__main__":
    main(*sys.argv[1:])
