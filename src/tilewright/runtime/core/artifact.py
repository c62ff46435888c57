"""What a compilation leaves behind: object code, constants, and the tables that say how to run them.

The tables are plain data with a JSON form. An exported library carries that JSON inside it, so a deployed
model needs the library file and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tilewright.runtime.core.dtypes import storage_dtype
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.text import human_bytes
from tilewright.support.version import FORMAT_VERSION, VERSION

Extent = int | str
"""A number, a symbol (`n`), or arithmetic over symbols (`2*n + 1`)."""

Shape = tuple[Extent, ...]

T = TypeVar("T")

PACKED_SUFFIX = "__packed"
"""What ends the symbol of a function that takes its arguments as slots."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a model, under the name the user's model gives it.

    `value` is empty for tensors; for other values (sequences, optional values, tuples, algebraic data) it is their type
    as text, and shape and data type say nothing.
    """

    name: str
    shape: Shape
    dtype: str
    value: str = ""

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape when all extents are known."""
        extents = tuple(extent for extent in self.shape if isinstance(extent, int))
        if len(extents) != len(self.shape):
            raise CompilerBug(f"'{self.name}' has the symbolic shape {self.shape} where a static one is needed")
        return extents

    @property
    def nbytes(self) -> int:
        """Size in bytes when all extents are known."""
        count = 1
        for extent in self.static_shape:
            count *= extent
        return count * storage_dtype(self.dtype).itemsize

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"{self.name}: {self.value or f'{self.dtype}[{shape}]'}"


@dataclass(frozen=True, slots=True)
class ConstantInfo:
    """A constant tensor: where in the constants blob it lies."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """A kernel: its symbol, the user's nodes it computes, and its work per call for profiles."""

    symbol: str
    nodes: tuple[str, ...] = ()
    flops: Extent = 0
    bytes: Extent = 0
    op: str = ""


Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchInfo:
    """One launch on a device: a kernel on a grid of blocks of threads.

    `args` number what it is given: slots of the function (parameters, then symbolic extents), then workspaces.
    """

    symbol: str
    grid: tuple[Extent, Extent, Extent]
    block: Triple
    args: tuple[int, ...]
    shared_bytes: int = 0
    """All shared memory of a block."""
    dynamic_bytes: int = 0
    """The part of it that the launch asks for: blocks with more than 48 KiB need it on NVIDIA's GPUs."""
    cluster: Triple = (1, 1, 1)
    """Blocks that run together and reach each other's shared memory."""
    dependent: bool = False
    """Whether the kernel waits itself for those before it, so that it may start before they end."""
    values: tuple[int, ...] = ()
    """Numbers that follow the arguments, 64-bit integers: where the host is in its own loops."""


@dataclass(frozen=True, slots=True)
class DeviceKernelInfo:
    """A kernel of a model as a device runs it: its launches, over the arguments of a step and workspaces after them.

    `sizes` are the bytes of its buffers, in the order of the arguments (planned scratch last), `written` numbers those
    that it writes. `workspaces` is memory that no plan covers, because symbols decide how much it is. `symbols` are the
    names that extents here use, in the order in which a step passes their values.
    """

    symbol: str
    launches: tuple[LaunchInfo, ...]
    sizes: tuple[Extent, ...]
    written: tuple[int, ...]
    workspaces: tuple[Extent, ...] = ()
    symbols: tuple[str, ...] = ()
    on_host: str = ""
    """Why the device does not run it; empty where it does."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The device part of an artifact: what it was compiled for, and all kernels, whose code lies in the same order.

    The code of kernels that run on the host is among the artifact's objects, and empty here.
    """

    kind: str
    target: str
    kernels: tuple[DeviceKernelInfo, ...] = ()
    code_bytes: tuple[int, ...] = ()


class ArgKind(StrEnum):
    """Where a kernel's argument lives."""

    INPUT = "input"
    OUTPUT = "output"
    WORKSPACE = "workspace"
    CONSTANT = "constant"
    SCALAR = "scalar"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class ArgRef:
    """One argument of a step: `offset` bytes into input/output number `index`, the workspace or the constants.

    In a symbolic model `index` numbers the slots of the workspace. For a scalar, `index` is the value itself, for a
    symbol or a size its number.
    """

    kind: ArgKind
    index: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call of the model's entry, as the profiler repeats it."""

    kernel: int
    args: tuple[ArgRef, ...]


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """A step that checks data (`runtime/core/checks.py`): of which node, what, along which axes, values of which shape.

    What it finds goes to its only result, the second argument of the step.
    """

    step: int
    node: str
    what: str
    axes: tuple[int, ...] = ()
    shape: Shape = ()


@dataclass(frozen=True, slots=True)
class StateInfo:
    """A value that a model keeps from call to call: the number of an input, and of the output that is its next value.

    With `in_place` the two may be one piece of memory.
    """

    input: int
    output: int
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A compiled model: its interface, memory plan and steps. `threads` is the number it was compiled for, if any.

    A model of one of three kinds: static (neither symbols nor a program), symbolic (`symbols` are bound from the
    shapes of the inputs; the workspace is a row of `slots`), or a program of the virtual machine, whose `segments` are
    models in this sense that it calls.
    """

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    workspace_bytes: int
    """The size of a static workspace; a symbolic one has the size of its slots."""
    constants: tuple[ConstantInfo, ...] = ()
    kernels: tuple[KernelInfo, ...] = ()
    steps: tuple[Step, ...] = ()
    threads: int | None = None
    symbols: tuple[str, ...] = ()
    sizes: tuple[Extent, ...] = ()
    """Sizes over the symbols that kernels take as they take symbols: numbered after these."""
    slots: tuple[Extent, ...] = ()
    """Sizes in bytes of the parts of a symbolic workspace; each is rounded up to the alignment."""
    requires: tuple[tuple[Extent, Extent], ...] = ()
    """Pairs of sizes that must be equal for the symbols of a call."""
    program: str = ""
    """The bytecode of the virtual machine, in base 64."""
    segments: tuple[ModelInfo, ...] = ()
    variants: tuple[ModelInfo, ...] = ()
    """The same model for fixed values of the symbols, quicker there."""
    fixed: tuple[int, ...] = ()
    """In a variant: the values of the symbols."""
    checks: tuple[CheckInfo, ...] = ()
    """Steps that check data. If one fails, the entry returns its code: 16, `first_check` and its number, added up."""
    first_check: int = 0
    """In a variant: how many checks those before it have, so that codes of all are different."""
    state: tuple[StateInfo, ...] = ()
    """Inputs and outputs that are values kept from call to call."""

    @property
    def entry(self) -> str:
        """The symbol of the ahead-of-time entry point."""
        return f"{self.name}_entry"

    @property
    def planner(self) -> str:
        """The symbol of the function that sizes outputs and workspace from symbols."""
        return f"{self.name}_plan"

    @property
    def binder(self) -> str:
        """The symbol of the function that binds symbols from the shapes of the inputs, and then plans."""
        return f"{self.name}_shapes"

    @property
    def parts(self) -> tuple[ModelInfo, ...]:
        """Everything with an entry of its own: segments or the model itself, and variants."""
        return (*(self.segments if self.program else (self,)), *self.variants)


@dataclass(frozen=True, slots=True)
class ParamInfo:
    """A parameter of a compiled function: a buffer with a shape, or a scalar (shape None)."""

    name: str
    dtype: str
    shape: Shape | None = None
    is_output: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}" + ("" if self.shape is None else f"[{', '.join(map(str, self.shape))}]")


@dataclass(frozen=True, slots=True)
class FunctionInfo:
    """A function of a module: its symbol and parameters in order. Symbols of shapes that are no parameter follow."""

    symbol: str
    params: tuple[ParamInfo, ...]

    @property
    def packed_symbol(self) -> str:
        """The symbol of the variant that takes its arguments as an array of 8-byte slots."""
        return f"{self.symbol}{PACKED_SUFFIX}"

    def __str__(self) -> str:
        return f"{self.symbol}({', '.join(map(str, self.params))})"


def _no_constants() -> npt.NDArray[np.uint8]:
    return np.empty(0, np.uint8)


@dataclass(slots=True)
class Artifact:
    """Compiled code with its constants and tables, for one processor.

    `requires` names the processor features without which the code must not run, in LLVM's spelling (`avx512f`). A model
    for a device has kernels of it in `device_code`, one for each of `device.kernels`; the processor is then the host.
    """

    triple: str
    cpu: str
    features: str
    objects: list[bytes] = field(default_factory=list)
    constants: npt.NDArray[np.uint8] = field(default_factory=_no_constants)
    model: ModelInfo | None = None
    functions: list[FunctionInfo] = field(default_factory=list)
    requires: tuple[str, ...] = ()
    device: DeviceInfo | None = None
    device_code: list[bytes] = field(default_factory=list)

    def __repr__(self) -> str:
        """What it holds, in short."""
        name = self.model.name if self.model is not None else ", ".join(item.symbol for item in self.functions)
        place = f"{self.device.kind}, host {self.cpu or self.triple}" if self.device else self.cpu or self.triple
        code = sum(map(len, (*self.objects, *self.device_code)))
        return (
            f"Artifact({name}: code {human_bytes(code)}, constants {human_bytes(self.constants.nbytes)}, for {place})"
        )

    def metadata(self) -> dict[str, Any]:
        """Everything but code and constants, ready for JSON."""
        return {
            "format": FORMAT_VERSION,
            "tilewright": VERSION,
            "triple": self.triple,
            "cpu": self.cpu,
            "features": self.features,
            "requires": list(self.requires),
            "constant_bytes": int(self.constants.nbytes),
            "model": _plain(self.model),
            "functions": _plain(self.functions),
            "device": _plain(self.device),
        }

    def with_threads(self, threads: int | None) -> Artifact:
        """The same artifact whose model runs on `threads` threads by default."""
        model = None if self.model is None else replace(self.model, threads=threads)
        return replace(self, model=model)


def _plain(value: Any) -> Any:
    """What `dataclasses.asdict` makes of a value, in half the time: what cannot change is not copied."""
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)([_plain(item) for item in value])
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    # What `fields` makes a list of anew at every call.
    return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}


def artifact_from_metadata(
    data: Mapping[str, Any], constants: npt.NDArray[np.uint8] | None = None, *, where: str
) -> Artifact:
    """The artifact that `Artifact.metadata` described, without its code. `where` names its source in errors."""
    version = data.get("format")
    if not isinstance(version, int):
        raise UserError("the metadata of the library is damaged: it has no format version", where=where)
    if version > FORMAT_VERSION:
        raise UserError(
            f"the library was written by a newer Tilewright ({data.get('tilewright', 'unknown')}, format {version}); "
            f"this is {VERSION}, which reads formats up to {FORMAT_VERSION}",
            where=where,
            hint="upgrade: pip install --upgrade tilewright",
        )
    try:
        return Artifact(
            triple=_text(data["triple"]),
            cpu=_text(data["cpu"]),
            features=_text(data["features"]),
            constants=_no_constants() if constants is None else constants,
            model=None if data["model"] is None else _model(data["model"]),
            functions=_each(_function, data["functions"]),
            requires=tuple(_each(_text, data["requires"])),
            device=None if data.get("device") is None else _device(data["device"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"the metadata of the library is damaged: {error!r}", where=where) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a text, found {value!r}")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"expected a whole number, found {value!r}")
    return value


def _extent(value: object) -> Extent:
    return value if isinstance(value, str) else _number(value)


def _each(read: Callable[[Any], T], values: object) -> list[T]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise TypeError(f"expected a list, found {values!r}")
    return [read(value) for value in values]


def _tensor(data: Mapping[str, Any]) -> TensorInfo:
    shape = tuple(_each(_extent, data["shape"]))
    return TensorInfo(_text(data["name"]), shape, _text(data["dtype"]), _text(data.get("value", "")))


def _constant(data: Mapping[str, Any]) -> ConstantInfo:
    shape = tuple(_each(_number, data["shape"]))
    return ConstantInfo(_text(data["name"]), shape, _text(data["dtype"]), _number(data["offset"]))


def _kernel(data: Mapping[str, Any]) -> KernelInfo:
    nodes = tuple(_each(_text, data["nodes"]))
    return KernelInfo(_text(data["symbol"]), nodes, _extent(data["flops"]), _extent(data["bytes"]), _text(data["op"]))


def _arg(data: Mapping[str, Any]) -> ArgRef:
    return ArgRef(ArgKind(data["kind"]), _number(data["index"]), _number(data["offset"]))


def _step(data: Mapping[str, Any]) -> Step:
    return Step(_number(data["kernel"]), tuple(_each(_arg, data["args"])))


def _check(data: Mapping[str, Any]) -> CheckInfo:
    axes, shape = tuple(_each(_number, data["axes"])), tuple(_each(_extent, data["shape"]))
    return CheckInfo(_number(data["step"]), _text(data["node"]), _text(data["what"]), axes, shape)


def _state(data: Mapping[str, Any]) -> StateInfo:
    return StateInfo(_number(data["input"]), _number(data["output"]), bool(data["in_place"]))


def _model(data: Mapping[str, Any]) -> ModelInfo:
    model = ModelInfo(
        name=_text(data["name"]),
        inputs=tuple(_each(_tensor, data["inputs"])),
        outputs=tuple(_each(_tensor, data["outputs"])),
        workspace_bytes=_number(data["workspace_bytes"]),
        constants=tuple(_each(_constant, data["constants"])),
        kernels=tuple(_each(_kernel, data["kernels"])),
        steps=tuple(_each(_step, data["steps"])),
        threads=None if data["threads"] is None else _number(data["threads"]),
        # Libraries of format 1 have none of these.
        symbols=tuple(_each(_text, data.get("symbols", ()))),
        sizes=tuple(_each(_extent, data.get("sizes", ()))),
        slots=tuple(_each(_extent, data.get("slots", ()))),
        requires=tuple((_extent(a), _extent(b)) for a, b in data.get("requires", ())),
        program=_text(data.get("program", "")),
        segments=tuple(_each(_model, data.get("segments", ()))),
        variants=tuple(_each(_model, data.get("variants", ()))),
        fixed=tuple(_each(_number, data.get("fixed", ()))),
        checks=tuple(_each(_check, data.get("checks", ()))),
        first_check=_number(data.get("first_check", 0)),
        state=tuple(_each(_state, data.get("state", ()))),
    )
    for item in model.state:
        if not (0 <= item.input < len(model.inputs) and 0 <= item.output < len(model.outputs)):
            raise ValueError(f"the state {item} is no input and output of the model")
    if not model.symbols and not model.program:
        symbolic = [item for item in (*model.inputs, *model.outputs) if not all(isinstance(n, int) for n in item.shape)]
        if symbolic:
            raise ValueError(f"the sizes of '{symbolic[0].name}' have no value: {symbolic[0].shape}")
    return model


def _param(data: Mapping[str, Any]) -> ParamInfo:
    shape = None if data["shape"] is None else tuple(_each(_extent, data["shape"]))
    return ParamInfo(_text(data["name"]), _text(data["dtype"]), shape, bool(data["is_output"]))


def _function(data: Mapping[str, Any]) -> FunctionInfo:
    return FunctionInfo(_text(data["symbol"]), tuple(_each(_param, data["params"])))


def _device(data: Mapping[str, Any]) -> DeviceInfo:
    kernels = tuple(_each(device_kernel_from_metadata, data["kernels"]))
    return DeviceInfo(_text(data["kind"]), _text(data["target"]), kernels, tuple(_each(_number, data["code_bytes"])))


def device_kernel_from_metadata(data: Mapping[str, Any]) -> DeviceKernelInfo:
    """The kernel of a device that `dataclasses.asdict` described; errors of Python's own where it is damaged."""
    return DeviceKernelInfo(
        _text(data["symbol"]),
        tuple(_each(_launch, data["launches"])),
        tuple(_each(_extent, data["sizes"])),
        tuple(_each(_number, data["written"])),
        tuple(_each(_extent, data["workspaces"])),
        tuple(_each(_text, data["symbols"])),
        _text(data["on_host"]),
    )


def _launch(data: Mapping[str, Any]) -> LaunchInfo:
    x, y, z = _each(_extent, data["grid"])
    return LaunchInfo(
        symbol=_text(data["symbol"]),
        grid=(x, y, z),
        block=_triple(data["block"]),
        args=tuple(_each(_number, data["args"])),
        shared_bytes=_number(data["shared_bytes"]),
        dynamic_bytes=_number(data["dynamic_bytes"]),
        cluster=_triple(data["cluster"]),
        dependent=bool(data["dependent"]),
        values=tuple(_each(_number, data["values"])),
    )


def _triple(values: object) -> Triple:
    x, y, z = _each(_number, values)
    return x, y, z
