"""The process of one session: loads libraries, holds arrays, runs and times functions. A crash ends this session only.

A server starts it as `python -m tilewright.rpc.session FD FOLDER MEMORY`; it speaks frames over the given socket.
It needs the runtime and numpy, nothing of the compiler.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.rpc import isolation
from tilewright.rpc.wire import Channel, Disconnected, Frame, WireError, bytes_of, error_header
from tilewright.runtime.core.artifact import FunctionInfo
from tilewright.runtime.core.convert import to_storage
from tilewright.runtime.core.executor import Executable
from tilewright.runtime.core.load import load
from tilewright.runtime.core.module import Module
from tilewright.runtime.core.ndarray import NDArray, empty
from tilewright.runtime.device.device import cpu
from tilewright.support.errors import TilewrightError, UserError
from tilewright.support.interrupts import ignore_interrupts
from tilewright.support.text import human_bytes

_MOST_AXES, _MOST_EXTENT, _MOST_INTEGER = 32, 1 << 40, 1 << 63
_MOST_CALLS = 1 << 31

Answer = tuple[dict[str, Any], bytes | memoryview]


class Session:
    """What a client has built up: files in a folder of its own, modules and arrays by number."""

    def __init__(self, folder: Path, most_bytes: int = 0) -> None:
        self.folder = folder
        self.most_bytes = most_bytes
        """How much all files may hold (0: no limit): the folder may lie in memory."""
        self.files: dict[str, Path] = {}
        self.modules: list[Module | Executable] = []
        self.arrays: dict[int, NDArray] = {}
        self._next = 0
        self._uploads = 0
        self._requests: dict[str, Callable[[Frame], Answer]] = {
            "ping": lambda frame: ({}, b""),
            "upload": self._upload,
            "load": self._load,
            "array": self._array,
            "write": self._write,
            "read": self._read,
            "free": self._free,
            "call": self._call,
            "time": self._time,
            "run": self._run,
            "time_run": self._time_run,
        }

    def answer(self, frame: Frame) -> Answer:
        """Do what a request asks."""
        request = self._requests.get(frame.text("request"))
        if request is None:
            raise WireError(f"unknown request {frame.text('request')!r}", hint="is the client newer than the server?")
        return request(frame)

    def _upload(self, frame: Frame) -> Answer:
        name = file_name(frame.text("name"))
        kept = sum(path.stat().st_size for known, path in self.files.items() if known != name)
        if self.most_bytes and kept + len(frame.payload) > self.most_bytes:
            raise UserError(f"the files of a session may hold {human_bytes(self.most_bytes)}")
        self._uploads += 1
        # In a folder of its own: the system takes a library of a path that it knows for the one it has loaded, and a
        # loaded one must not change.
        path = self.folder / str(self._uploads) / name
        path.parent.mkdir()
        path.write_bytes(frame.payload)
        if name in self.files:
            self.files[name].unlink(missing_ok=True)
        self.files[name] = path
        return {"bytes": len(frame.payload)}, b""

    def _load(self, frame: Frame) -> Answer:
        name = file_name(frame.text("name"))
        path = self.files.get(name)
        if path is None:
            raise UserError(f"there is no file '{name}' in this session", hint="upload it first")
        module = load(path)
        self.modules.append(module)
        header: dict[str, Any] = {"module": len(self.modules) - 1}
        if isinstance(module, Executable):
            header["inputs"] = [asdict(info) for info in module.input_info]
            header["outputs"] = [asdict(info) for info in module.output_info]
        else:
            header["functions"] = [asdict(info) for info in module.artifact.functions]
        return header, b""

    def _array(self, frame: Frame) -> Answer:
        items = frame.items("shape")
        if len(items) > _MOST_AXES:
            raise WireError("a damaged shape")
        shape = tuple(_extent(item) for item in items)
        dtype = frame.text("dtype")
        try:
            array = empty(shape, dtype)
        except (MemoryError, ValueError, OverflowError):
            raise UserError(f"no memory for an array of {dtype}{list(shape)}") from None
        if len(frame.payload):
            self._fill(array.storage, frame.payload)
        else:
            # What another program left in this memory is nobody's to read.
            array.storage.fill(0)
        return {"array": self._keep(array)}, b""

    def _keep(self, array: NDArray) -> int:
        self._next += 1
        self.arrays[self._next] = array
        return self._next

    def _fill(self, storage: np.ndarray[Any, Any], payload: bytes | bytearray | memoryview) -> None:
        if len(payload) != storage.nbytes:
            raise UserError(f"the array has {storage.nbytes} bytes, {len(payload)} were sent")
        storage.reshape(-1).view(np.uint8)[:] = np.frombuffer(payload, np.uint8)

    def _get(self, number: object) -> NDArray:
        array = self.arrays.get(number) if isinstance(number, int) else None
        if array is None:
            raise UserError(f"there is no array number {number!r} in this session")
        return array

    def _write(self, frame: Frame) -> Answer:
        self._fill(self._get(frame.number("array")).storage, frame.payload)
        return {}, b""

    def _read(self, frame: Frame) -> Answer:
        return {}, bytes_of(self._get(frame.number("array")).storage)

    def _free(self, frame: Frame) -> Answer:
        for number in frame.items("arrays"):
            if isinstance(number, int):
                self.arrays.pop(number, None)
        return {}, b""

    def _function(self, frame: Frame) -> tuple[Module, FunctionInfo, list[object]]:
        module = self._module(frame)
        if not isinstance(module, Module):
            raise UserError("the library is a model: run it, it has no functions to call")
        name = frame.text("function")
        info = next((item for item in module.artifact.functions if item.symbol == name), None)
        if info is None:
            known = ", ".join(item.symbol for item in module.artifact.functions)
            raise UserError(f"the library has no function '{name}'", hint=f"it has {known}")
        return module, info, [self._argument(item) for item in frame.items("arguments")]

    def _module(self, frame: Frame) -> Module | Executable:
        number = frame.number("module")
        if number >= len(self.modules):
            raise UserError(f"there is no library number {number} in this session")
        return self.modules[number]

    def _argument(self, item: object) -> object:
        if isinstance(item, dict) and "array" in item:
            return self._get(item["array"])
        if isinstance(item, float) or (isinstance(item, int) and -_MOST_INTEGER <= item < 2 * _MOST_INTEGER):
            return item
        raise WireError("a damaged argument")

    def _call(self, frame: Frame) -> Answer:
        module, info, arguments = self._function(frame)
        module[info.symbol](*arguments)
        return {}, b""

    def _time(self, frame: Frame) -> Answer:
        module, info, arguments = self._function(frame)
        evaluate = module.time_evaluator(info.symbol, **_timing(frame))
        return {"seconds": list(evaluate(*arguments).results)}, b""

    def _executable(self, frame: Frame) -> tuple[Executable, dict[str, object]]:
        module = self._module(frame)
        if not isinstance(module, Executable):
            raise UserError("the library is not a model: call one of its functions")
        return module, {name: self._get(number) for name, number in frame.table("inputs").items()}

    def _run(self, frame: Frame) -> Answer:
        executable, inputs = self._executable(frame)
        infos = executable.output_info
        outputs = executable.run(inputs)
        stored = [to_storage(array, info.dtype, info.name)[0] for array, info in zip(outputs, infos, strict=True)]
        made = [NDArray(array, info.dtype, cpu()) for array, info in zip(stored, infos, strict=True)]
        return {
            "outputs": [
                {"array": self._keep(array), "shape": list(array.shape), "dtype": array.dtype} for array in made
            ]
        }, b""

    def _time_run(self, frame: Frame) -> Answer:
        executable, inputs = self._executable(frame)
        timing = _timing(frame)
        executable.run(inputs)
        seconds: list[float] = []
        for _ in range(timing["repeat"]):
            start = time.perf_counter()
            for _ in range(timing["number"]):
                executable.run(inputs)
            seconds.append((time.perf_counter() - start) / timing["number"])
        return {"seconds": seconds}, b""


def _timing(frame: Frame) -> dict[str, int]:
    return {"number": frame.number("number", 1, _MOST_CALLS), "repeat": frame.number("repeat", 1, _MOST_CALLS)}


def _extent(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST_EXTENT:
        raise WireError("a damaged shape")
    return value


def file_name(name: str) -> str:
    """A name a client gives to a file: a plain name, so that it stays in the session's folder."""
    if not name or name in (".", "..") or any(c in name for c in "/\\\0") or len(name.encode()) > 200:
        raise UserError(f"{name!r} cannot be a file's name", hint="use a plain name without folders")
    return name


def serve(channel: Channel, session: Session) -> None:
    """Say that the process is ready, then answer requests until the client hangs up."""
    channel.send({"status": "ok"})
    while True:
        try:
            header, payload = session.answer(channel.receive())
        except Disconnected:
            return
        except TilewrightError as error:
            hint = error.hint if isinstance(error, UserError) else None
            message = error.message if isinstance(error, UserError) else str(error)
            channel.send(error_header(message, hint=hint))
        except MemoryError:
            channel.send(error_header("the session ran out of memory"))
        except OSError as error:
            channel.send(error_header(f"the system refused: {error.strerror or error}"))
        else:
            channel.send({"status": "ok", **header}, payload)


def main(arguments: list[str]) -> int:
    """The entry point of the process."""
    descriptor, folder, memory = int(arguments[0]), Path(arguments[1]), int(arguments[2])
    ignore_interrupts()
    if memory:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_FSIZE, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    isolation.end_with_parent()
    connection = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    serve(Channel(connection, "the server"), Session(folder, memory))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
