"""A model as a folder of C sources for a microcontroller.

out/<name>.h, <name>.c       the function `<name>_run`, with the kernels that this model uses and no others
out/<name>_weights.h         its weights, which only <name>.c includes
out/model.json               what is in the folder, and how large, for tools
out/example/                 a program that runs the model, with start-up code, linker script and Makefile
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tilewright.backends.micro.board import board_of
from tilewright.backends.micro.build import build_library
from tilewright.backends.micro.example import write_example
from tilewright.backends.micro.sources import arena_bytes, header_text, parameters_of, source_text
from tilewright.backends.micro.weights import weight_arrays, weight_bytes
from tilewright.runtime.core.artifact import Artifact, ModelInfo
from tilewright.runtime.core.header import library_name
from tilewright.runtime.core.module import ExportOptions
from tilewright.support import trace
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.support.files import replacing_folder
from tilewright.support.version import VERSION

DESCRIPTION: Final = "model.json"
LIBRARY_SUFFIX: Final = ".a"
FORMAT: Final = 1
"""The version of model.json."""


def write_sources(artifacts: Sequence[Artifact], folder: Path, options: ExportOptions) -> None:
    """Write the sources of a model into a folder, which is made or replaced as a whole; or compile them to an archive.

    An archive, `libkeywords.a`, has its header beside it, `keywords.h`.
    """
    [artifact] = artifacts
    if options.sign is not None:
        raise UserError("C sources are not signed", hint="leave the key out; sign the firmware")
    model = _static_model(artifact)
    if folder.suffix == LIBRARY_SUFFIX:
        name = library_name(Path(folder.stem.removeprefix("lib")), options.name)
        with trace.span("export"), tempfile.TemporaryDirectory(prefix="tilewright-") as work:
            _fill(Path(work), artifact, model, name)
            build_library(Path(work), name, board_of(artifact.triple, artifact.cpu, artifact.features), folder)
        return
    with trace.span("export"), replacing_folder(folder, DESCRIPTION, "sources of a model") as written:
        _fill(written, artifact, model, library_name(folder, options.name))


def _static_model(artifact: Artifact) -> ModelInfo:
    """The model of an artifact, whose sizes are all known: memory is."""
    model = artifact.model
    if model is None:
        raise CompilerBug("sources for a microcontroller hold a model")
    if model.program:
        raise UnsupportedError(
            f"the model '{model.name}' is a program (loops, branches on data, or sizes that a run decides), and "
            "microcontrollers run models of fixed steps",
            hint="fix the sizes of its inputs (--shape, shapes=), or export the parts without control flow",
        )
    if model.symbols:
        raise UserError(
            f"the model '{model.name}' has inputs of any {', '.join(model.symbols)}, and the arena of a "
            "microcontroller has a fixed size",
            hint=f"give the sizes: --shape {model.inputs[0].name}=1,..., or shapes= in Python",
        )
    return model


def _fill(folder: Path, artifact: Artifact, model: ModelInfo, name: str) -> None:
    board = board_of(artifact.triple, artifact.cpu, artifact.features)
    (folder / f"{name}.h").write_text(header_text(artifact, name), encoding="utf-8")
    (folder / f"{name}.c").write_text(source_text(artifact, name), encoding="utf-8")
    weights = f"#include <math.h>\n#include <stdint.h>\n\n{weight_arrays(artifact)}"
    (folder / f"{name}_weights.h").write_text(weights, encoding="utf-8")
    description = json.dumps(_description(artifact, model, name), indent=1)
    (folder / DESCRIPTION).write_text(f"{description}\n", encoding="utf-8")
    write_example(folder / "example", model, name, board)


def _description(artifact: Artifact, model: ModelInfo, name: str) -> dict[str, Any]:
    parameters = parameters_of(model)
    return {
        "format": FORMAT,
        "tilewright": VERSION,
        "name": name,
        "triple": artifact.triple,
        "cpu": artifact.cpu,
        "arena_bytes": arena_bytes(model),
        "weight_bytes": weight_bytes(model),
        "parameters": [
            {
                "name": item.info.name,
                "parameter": item.name,
                "dtype": item.info.dtype,
                "shape": list(item.info.static_shape),
                "is_output": item.is_output,
            }
            for item in parameters
        ],
        "steps": [
            {"kernel": kernel.symbol, "nodes": list(kernel.nodes), "flops": kernel.flops}
            for kernel in (model.kernels[step.kernel] for step in model.steps)
        ],
    }
