"""Models for microcontrollers: a folder of C sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tilewright.backends.deployment import Deployment
from tilewright.backends.micro.compiler import check_architecture
from tilewright.backends.micro.package import DESCRIPTION, LIBRARY_SUFFIX, write_sources
from tilewright.runtime.core.header import library_name
from tilewright.runtime.core.module import ExportOptions
from tilewright.support.text import human_bytes


def _details(path: Path, options: ExportOptions) -> list[str]:
    if path.suffix == LIBRARY_SUFFIX:
        name = library_name(Path(path.stem.removeprefix("lib")), options.name)
        return [f'in C: #include "{name}.h", which says what memory it takes; link {path.name}']
    model = json.loads((path / DESCRIPTION).read_text(encoding="utf-8"))
    sizes = f"weights {human_bytes(model['weight_bytes'])} (flash), arena {human_bytes(model['arena_bytes'])} (RAM)"
    return [sizes, f'in C: #include "{model["name"]}.h"; {model["name"]}_run(...); try `make -C {path}/example run`']


DEPLOYMENT: Final = Deployment("", write_sources, check_tools=check_architecture, details=_details)
