"""Packages of models for JavaScript, run in Node by a process that is asked line by line (`bench/web/host.mjs`)."""

from __future__ import annotations

import atexit
import functools
import json
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.backends.wasm import package
from tilewright.compiler import Compilation
from tilewright.ir.function import IRModule
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.support.errors import UserError

Array = npt.NDArray[Any]
_RUNTIME = Path(package.__file__).with_name("javascript") / "tilewright.js"
_HOST = Path(__file__).parent / "web" / "host.mjs"
FLAGS = ("--experimental-wasm-relaxed-simd",)
"""Node 20 has relaxed SIMD behind this; later ones have it, and know the flag."""


@dataclass(frozen=True)
class WebRun:
    """What a package gave in Node."""

    outputs: dict[str, Array]
    milliseconds: list[float]
    loaded: float
    """Milliseconds that loading took."""
    level: str
    threads: int


class NodeHost:
    """A process of Node that runs packages."""

    def __init__(self, node: str = "node") -> None:
        self._process = subprocess.Popen(
            [node, *FLAGS, str(_HOST)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        atexit.register(self.close)

    def run(self, folder: Path, inputs: Mapping[str, Array], repeat: int = 1, **options: object) -> WebRun:
        """Run the package in a folder; what it refuses is a UserError."""
        question = {
            "folder": str(folder),
            "options": options,
            "repeat": repeat,
            "inputs": {name: _sent(value) for name, value in inputs.items()},
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"Node ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            if answer["kind"] == "TilewrightError":
                raise UserError(answer["error"])
            raise AssertionError(f"{answer['kind']}: {answer['error']}")
        outputs = {item["name"]: _received(item["value"]) for item in answer.pop("outputs")}
        return WebRun(outputs, **answer)

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def _sent(value: Any) -> Any:
    """A value as it is written: sequences as lists, numbers as their bytes."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_sent(item) for item in value]
    if np.asarray(value).dtype.kind in "OUS":
        return {"shape": list(np.shape(value)), "texts": [_text(item) for item in np.ravel(value)]}
    array = np.ascontiguousarray(value)
    return {"shape": list(np.shape(value)), "bytes": b64encode(array.tobytes()).decode()}


def _text(item: object) -> str:
    return item.decode() if isinstance(item, bytes) else str(item)


def _received(item: Any) -> Any:
    if item is None:
        return None
    if isinstance(item, list):
        return [_received(part) for part in item]
    if "texts" in item:
        return np.array(item["texts"], object).reshape(item["shape"])
    array = np.frombuffer(b64decode(item["bytes"]), storage_dtype(item["dtype"]))
    return array.reshape(item["shape"]).copy()


@functools.cache
def engine_levels(node: str = "node") -> tuple[str, ...]:
    """The levels of code that Node runs here, the best first: older ones have no relaxed SIMD."""
    script = (
        f"import {{ engineLevels }} from {json.dumps(_RUNTIME.as_uri())}; console.log(JSON.stringify(engineLevels()))"
    )
    command = [node, *FLAGS, "--input-type=module", "-e", script]
    return tuple(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


_host: list[NodeHost] = []


def run_packaged(module: IRModule, inputs: Mapping[str, Array]) -> list[Array]:
    """Export a model as a package, and run it in Node."""
    if not _host:
        _host.append(NodeHost())
    with tempfile.TemporaryDirectory(prefix="tilewright-web-") as folder:
        written = Path(folder) / "model"
        features = "+relaxed-simd" if "relaxed" in engine_levels() else "+simd128,-relaxed-simd"
        Compilation(module, target=f"wasm -mattr={features}", threads=1).export_library(written)
        return list(_host[0].run(written, inputs, threads=1).outputs.values())
