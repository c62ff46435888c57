"""The client's side: sessions on devices, their arrays, libraries and timings.

remote = tw.rpc.connect("board", 9090, token=...)
remote.upload("mylib.so")
module = remote.load_module("mylib.so")
a = remote.array(numpy_array)
module["matmul"](a, b, c)
print(module.time_evaluator("matmul", number=10)(a, b, c).mean)
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.rpc.connect import open_channel
from tilewright.rpc.security import Credentials
from tilewright.rpc.wire import Channel, Disconnected, Frame, WireError, bytes_of, raise_reported
from tilewright.runtime.core.convert import Array, to_storage
from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.runtime.core.module import TimingResult
from tilewright.support.errors import UserError
from tilewright.support.text import kind_of, plural

DEFAULT_PORT = 9090
_SLACK_SECONDS = 30.0
"""How much longer than a request's own limit the client waits for the answer."""
_START_SECONDS = 120.0


class Exportable(Protocol):
    """A compiled program: a module or an executable."""

    def export_library(self, path: str | os.PathLike[str]) -> None:
        """Write it as a shared library."""


def connect(
    host: str,
    port: int = DEFAULT_PORT,
    *,
    token: str | None = None,
    tls: bool | None = None,
    timeout: float | None = None,
) -> RemoteSession:
    """A session on a server. Off loopback TLS is on and a token is needed (or the setting TILEWRIGHT_RPC_TOKEN).

    `timeout` limits each request, in seconds; a request that takes longer ends the session.
    """
    credentials = Credentials.resolve(host, token, tls)
    return open_session(host, port, credentials, timeout)


def open_session(host: str, port: int, credentials: Credentials, timeout: float | None) -> RemoteSession:
    """A session with given credentials."""
    if timeout is not None and not timeout > 0:
        raise UserError(f"a time limit must be above 0 s, not {timeout}")
    channel = open_channel(host, port, credentials, {"role": "session"})
    channel.settimeout(_START_SECONDS)
    try:
        answer = raise_reported(channel.receive(), channel.peer)
    except UserError:
        channel.close()
        raise
    return RemoteSession(channel, answer.table("info"), timeout)


class RemoteSession:
    """A process on the device that works for this client alone. Use it in a `with`, or `close()` it."""

    def __init__(self, channel: Channel, info: Mapping[str, Any], timeout: float | None) -> None:
        self.info = dict(info)
        self.timeout = timeout
        self._channel = channel
        self._garbage: list[int] = []
        self._closing: list[Callable[[], None]] = []
        self._numbers = iter(range(1 << 62))
        channel.settimeout(None if timeout is None else timeout + _SLACK_SECONDS)

    @property
    def target(self) -> str:
        """The device's target, for compiling what it shall run: `tw.compile(model, target=remote.target)`."""
        target = self.info.get("target")
        if not isinstance(target, str):
            raise UserError(
                "the device does not know its target: its server runs without the compiler",
                where=self._channel.peer,
                hint="start it with --target 'llvm -mtriple=... -mcpu=...'",
            )
        return target

    def request(self, request: str, payload: bytes | bytearray | memoryview = b"", /, **fields: Any) -> Frame:
        """One request to the session's process."""
        header = {"request": request, **fields}
        if self.timeout is not None:
            header["seconds"] = self.timeout
        if self._garbage and request not in ("ping", "free"):
            numbers = [self._garbage.pop() for _ in range(len(self._garbage))]
            self._channel.request({"request": "free", "arrays": numbers})
        return self._channel.request(header, payload)

    def ping(self) -> None:
        """Check that the session lives."""
        self.request("ping")

    def upload(self, path: str | os.PathLike[str], name: str | None = None) -> None:
        """Send a file to the session's folder, under its own name or another."""
        file = Path(path)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read the file: {error.strerror}", where=str(path)) from None
        self.request("upload", data, name=name or file.name)

    def load_module(self, name: str) -> RemoteModule | RemoteExecutable:
        """Load an uploaded library: a `RemoteModule` of functions, or a `RemoteExecutable` for a model."""
        answer = self.request("load", name=name)
        if "functions" in answer.header:
            return RemoteModule(self, answer.number("module"), answer)
        return RemoteExecutable(self, answer.number("module"), answer)

    def send(self, program: Exportable) -> RemoteModule | RemoteExecutable:
        """Export a program compiled for the device, upload and load it."""
        with tempfile.TemporaryDirectory(prefix="tilewright-rpc-") as folder:
            path = Path(folder) / f"program{next(self._numbers)}.so"
            program.export_library(path)
            self.upload(path)
            return self.load_module(path.name)

    def array(self, value: object, dtype: str | None = None) -> RemoteArray:
        """A copy of an array in the device's memory."""
        storage, name = to_storage(value, dtype, "the value")
        answer = self.request("array", bytes_of(storage), shape=list(storage.shape), dtype=name)
        return RemoteArray(self, answer.number("array"), storage.shape, name)

    def empty(self, shape: tuple[int, ...], dtype: str = "float32") -> RemoteArray:
        """An array of zeros in the device's memory."""
        answer = self.request("array", shape=list(shape), dtype=dtype)
        return RemoteArray(self, answer.number("array"), tuple(shape), dtype)

    def discard(self, number: int) -> None:
        """Forget an array; the device is told with the next request."""
        self._garbage.append(number)

    def on_close(self, action: Callable[[], None]) -> None:
        """Do this as well when the session is closed."""
        self._closing.append(action)

    def close(self) -> None:
        """End the session and free the device."""
        self._channel.close()
        while self._closing:
            self._closing.pop()()

    def __enter__(self) -> RemoteSession:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class RemoteArray:
    """An array in the memory of a device."""

    def __init__(self, session: RemoteSession, number: int, shape: tuple[int, ...], dtype: str) -> None:
        self.session = session
        self.number = number
        self.shape = tuple(shape)
        self.dtype = dtype
        weakref.finalize(self, session.discard, number)

    def numpy(self) -> Array:
        """A copy of the elements, here."""
        answer = self.session.request("read", array=self.number)
        return np.frombuffer(bytearray(answer.payload), storage_dtype(self.dtype)).reshape(self.shape)

    def copy_from(self, value: object) -> RemoteArray:
        """Overwrite the elements; returns self."""
        storage, name = to_storage(value, self.dtype, "the source")
        if storage.shape != self.shape or name != self.dtype:
            raise UserError(
                f"cannot copy {name}{list(storage.shape)} into a remote array of {self.dtype}{list(self.shape)}"
            )
        self.session.request("write", bytes_of(storage), array=self.number)
        return self

    def __repr__(self) -> str:
        return f"RemoteArray({self.dtype}{list(self.shape)})"


class RemoteModule:
    """Functions of a library that is loaded on a device."""

    def __init__(self, session: RemoteSession, number: int, answer: Frame) -> None:
        self.session = session
        self.functions = {str(info["symbol"]): info for info in answer.items("functions")}
        self._number = number

    def __getitem__(self, name: str) -> Callable[..., None]:
        """A function: call it with remote arrays and numbers."""
        self._check(name)

        def call(*arguments: object) -> None:
            self.session.request("call", **self._fields(name, arguments))

        return call

    def __call__(self, *arguments: object) -> None:
        """Call the only function."""
        if len(self.functions) != 1:
            raise UserError(f"the module has {plural(len(self.functions), 'function')}: choose one by name")
        self[next(iter(self.functions))](*arguments)

    def time_evaluator(self, name: str, number: int = 10, repeat: int = 3) -> Callable[..., TimingResult]:
        """A function that times `name` on the device: `repeat` figures, each the average of `number` calls."""
        self._check(name)

        def evaluate(*arguments: object) -> TimingResult:
            answer = self.session.request("time", **self._fields(name, arguments), number=number, repeat=repeat)
            return _timing(answer)

        return evaluate

    def _check(self, name: str) -> None:
        if name not in self.functions:
            raise UserError(f"the library has no function '{name}'", hint=f"it has {', '.join(self.functions)}")

    def _fields(self, name: str, arguments: tuple[object, ...]) -> dict[str, Any]:
        packed = [_argument(self.session, value) for value in arguments]
        return {"module": self._number, "function": name, "arguments": packed}


class RemoteExecutable:
    """A model that is loaded on a device: call it with arrays of this machine or of the device."""

    def __init__(self, session: RemoteSession, number: int, answer: Frame) -> None:
        self.session = session
        self.input_names = [str(info["name"]) for info in answer.items("inputs")]
        self.output_names = [str(info["name"]) for info in answer.items("outputs")]
        self._number = number

    def __call__(self, *arrays: object) -> Any:
        """Run the model; one output comes back as it is, several as a tuple."""
        if len(arrays) != len(self.input_names):
            raise UserError(f"the model has the inputs {', '.join(self.input_names)}, {len(arrays)} were given")
        outputs = [array.numpy() for array in self.run(dict(zip(self.input_names, arrays, strict=True)))]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def run(self, inputs: Mapping[str, object]) -> list[RemoteArray]:
        """Run the model on inputs by name; the outputs stay on the device."""
        places, _kept = self._places(inputs)
        answer = self.session.request("run", module=self._number, inputs=places)
        return [
            RemoteArray(self.session, item["array"], tuple(item["shape"]), item["dtype"])
            for item in answer.items("outputs")
        ]

    def time_evaluator(self, number: int = 10, repeat: int = 3) -> Callable[..., TimingResult]:
        """A function that times whole runs on the device, given the inputs by name."""

        def evaluate(inputs: Mapping[str, object]) -> TimingResult:
            places, _kept = self._places(inputs)
            return _timing(
                self.session.request("time_run", module=self._number, inputs=places, number=number, repeat=repeat)
            )

        return evaluate

    def _places(self, inputs: Mapping[str, object]) -> tuple[dict[str, int], list[RemoteArray]]:
        """The numbers of the inputs on the device, and the arrays, which must live through the request."""
        kept = {
            name: value if isinstance(value, RemoteArray) else self.session.array(value)
            for name, value in inputs.items()
        }
        for name, value in kept.items():
            _owned(self.session, value, name)
        return {name: value.number for name, value in kept.items()}, list(kept.values())


def _owned(session: RemoteSession, value: RemoteArray, what: str) -> None:
    if value.session is not session:
        raise UserError(f"{what} is an array of another session", hint="copy it: remote.array(other.numpy())")


def _argument(session: RemoteSession, value: object) -> object:
    if isinstance(value, RemoteArray):
        _owned(session, value, "an argument")
        return {"array": value.number}
    if isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, np.generic):
        return value.item()
    raise UserError(
        f"a remote function takes remote arrays and numbers, not {kind_of(value)}",
        hint="put the array on the device: remote.array(value)",
    )


def _timing(answer: Frame) -> TimingResult:
    seconds = answer.items("seconds")
    if not seconds or not all(isinstance(item, float) for item in seconds):
        raise WireError("the device sent a damaged timing")
    return TimingResult(tuple(seconds))


class Heartbeat:
    """Tells the tracker, from a thread of its own, that a lease is still wanted."""

    def __init__(self, channel: Channel, period: float) -> None:
        self._channel = channel
        self._period = period
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="tilewright-lease", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._over.wait(self._period):
            try:
                self._channel.send({"event": "heartbeat"})
            except Disconnected:
                return

    def stop(self) -> None:
        """Give the lease back."""
        self._over.set()
        self._channel.close()
