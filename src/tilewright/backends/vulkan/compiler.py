"""The assembler of SPIR-V, as the compiler of a back end."""

from __future__ import annotations

from typing import Final

from tilewright.backends.compiler import Compiler
from tilewright.backends.vulkan.assembler import assemble

COMPILER: Final = Compiler(lambda source, target: assemble(source))
