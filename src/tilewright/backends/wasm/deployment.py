"""Models for WebAssembly: a package of ES modules, with code for engines of several levels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tilewright.backends.deployment import Deployment
from tilewright.backends.wasm.link import find_wasm_linker
from tilewright.backends.wasm.package import DESCRIPTION, GPU, write_package
from tilewright.runtime.core.module import ExportOptions
from tilewright.support.text import human_bytes
from tilewright.target.target import Target


def _levels(target: Target) -> tuple[Target, ...]:
    """Code with relaxed SIMD, and code without vectors, beside that of a plain target `wasm`.

    A target that names its features itself has code for these alone.
    """
    if target.features != "+simd128":
        return ()
    return target.replace(features="+relaxed-simd,+simd128"), target.replace(features="-simd128")


def _check_tools(target: Target) -> None:
    find_wasm_linker()


def _details(path: Path, options: ExportOptions) -> list[str]:
    code = [*path.glob("*.wgsl"), *path.glob("*.wasm")]
    files = {file.name: human_bytes(file.stat().st_size) for file in sorted(code)}
    refused = (json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))[GPU] or {}).get("refused")
    return [
        *([f"WebAssembly alone runs it, and not WebGPU: {refused}"] if refused else []),
        f"code {', '.join(f'{name} {size}' for name, size in files.items())}",
        f"in JavaScript: import {{ load }} from './{path.name}/index.js'; const model = await load()",
    ]


DEPLOYMENT: Final = Deployment(
    "", write_package, check_tools=_check_tools, levels=_levels, details=_details, runs_without_device=True
)
