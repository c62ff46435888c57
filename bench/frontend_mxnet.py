"""The suite of MXNet in `bench.frontends`: operators, control flow and a network, made by a Python that has MXNet.

The last MXNet wants an older numpy than Tilewright, and runs on x86-64 alone: MXNET_PYTHON names the interpreter of an
environment of its own. Without one the cases are those that MXNet made when the files of the tests were written.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.case_archive import read_archive
from bench.frontend_case import Case
from tilewright.frontend.mxnet import from_mxnet
from tilewright.ir.function import IRModule

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "tests" / "fixtures" / "mxnet" / "cases.npz"


def loaded(parts: Mapping[str, Any]) -> tuple[IRModule, dict[str, Any], list[Any]]:
    """The model of a case, its inputs by name, and what MXNet gives for them."""
    inputs = {key[3:]: value for key, value in parts.items() if key.startswith("in|")}
    results = [parts[key] for key in sorted((key for key in parts if key.startswith("out|")), key=lambda k: int(k[4:]))]
    shapes = {name: value.shape for name, value in inputs.items()}
    module = from_mxnet(parts["symbol"].tobytes(), shapes=shapes, params=parts["params"].tobytes())
    return module, inputs, results


def note() -> str:
    """Where the cases are from."""
    return "MXNet of MXNET_PYTHON" if _interpreter() else "what MXNet 1.9.1 gave, as the tests keep it"


def _interpreter() -> str | None:
    return os.environ.get("MXNET_PYTHON")


def _archive() -> dict[str, dict[str, Any]]:
    interpreter = _interpreter()
    if interpreter is None:
        return read_archive(KEPT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cases.npz"
        subprocess.run([interpreter, "-m", "bench.mxnet_cases", str(path)], check=True, cwd=ROOT)
        return read_archive(path)


def cases() -> Iterator[Case]:
    """All cases that the script makes."""
    for name, parts in _archive().items():
        yield Case(name, lambda parts=parts: loaded(parts), tolerance=1e-4)  # type: ignore[misc]
