"""The device part of `<name>__interface`: launches with everything they take, for C programs.

The layout is `struct tilewright_device` in `bindings/c/include/tilewright.h`. Only models of fixed sizes without
kernels on the host have one; the others say why not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.backends.llvm.globals import Globals
from tilewright.runtime.core.artifact import ArgKind, ArgRef, Artifact, DeviceInfo, DeviceKernelInfo, Extent, ModelInfo
from tilewright.runtime.core.checks import FIRST_CODE, STATUS_BYTES, code_messages
from tilewright.support.errors import CompilerBug

C_DRIVERS = ("opencl", "cuda")
"""Kinds of devices that the runtime for C drives."""

_KINDS = {ArgKind.INPUT: 0, ArgKind.OUTPUT: 1, ArgKind.WORKSPACE: 2, ArgKind.CONSTANT: 3}
_NUMBER = 4

DEVICE_TYPES = """
%tilewright.place = type { i32, i32, i64, i64 }
%tilewright.launch = type { ptr, i32, i32, [3 x i32], [3 x i32], [3 x i32], i32, ptr }
%tilewright.check = type { %tilewright.place, ptr }
%tilewright.device = type { ptr, ptr, i64, i32, i32, i32, i32, ptr, ptr, ptr, ptr }
"""

Place = tuple[int, int, int, int]
"""Kind, index, offset, size; for a number its value stands in the place of the offset."""


def device_refusal(device: DeviceInfo, model: ModelInfo) -> str:
    """Why C programs cannot run a model on its device; empty if they can."""
    use = "open it with tw.load in Python"
    if device.kind not in C_DRIVERS:
        return f"the kernels of the model run on a device ({device.kind}): {use}"
    if model.symbols:
        return f"the model runs on a device ({device.kind}) with sizes that a call decides: {use}"
    host = next((info.on_host for info in device.kernels if info.on_host), "")
    return f"the model runs on a device ({device.kind}), but a part of it on the host ({host}): {use}" if host else ""


def device_plan(artifact: Artifact, model: ModelInfo, name: str, texts: Globals) -> str:
    """The address of the structure, placed among `texts`."""
    assert artifact.device is not None
    device = artifact.device
    slots = [max(1, _number(size)) for size in model.slots or (model.workspace_bytes,)]
    numbers = {info.symbol: number for number, info in enumerate(device.kernels)}
    launches: list[str] = []
    statuses: dict[int, Place] = {}
    for number, step in enumerate(model.steps):
        info = device.kernels[numbers[model.kernels[step.kernel].symbol]]
        places = list(_places(step.args, info))
        for size in info.workspaces:
            slots.append(max(1, _number(size)))
            places.append((_KINDS[ArgKind.WORKSPACE], len(slots) - 1, 0, slots[-1]))
        statuses[number] = places[1] if len(places) > 1 else places[0]
        launches += _launches(info, numbers[info.symbol], places, texts)
    messages = code_messages(model)
    checks = [
        f"%tilewright.check {{ {_place((*statuses[check.step][:3], STATUS_BYTES))}, "
        f"{texts.pointer(messages[FIRST_CODE + number])} }}"
        for number, check in enumerate(model.checks)
    ]
    fields = [
        texts.pointer(device.kind),
        f"ptr @{name}_constants",
        f"i64 {int(artifact.constants.nbytes)}",
        *(f"i32 {len(items)}" for items in (device.code_bytes, slots, launches, checks)),
        texts.row("i64", [f"i64 {size}" for size in device.code_bytes]),
        texts.row("i64", [f"i64 {size}" for size in slots]),
        texts.row("%tilewright.launch", launches),
        texts.row("%tilewright.check", checks),
    ]
    return texts.place(f"%tilewright.device {{ {', '.join(fields)} }}")


def _number(extent: Extent) -> int:
    if not isinstance(extent, int):
        raise CompilerBug(f"a model of fixed sizes has the size '{extent}'")
    return extent


def _places(args: Sequence[ArgRef], info: DeviceKernelInfo) -> Iterator[Place]:
    sizes = iter(info.sizes)
    for arg in args:
        if arg.kind is ArgKind.SCALAR:
            yield _NUMBER, 0, arg.index, 0
        else:
            yield _KINDS[arg.kind], arg.index, arg.offset, _number(next(sizes))


def _place(place: Place) -> str:
    kind, index, offset, size = place
    return f"%tilewright.place {{ i32 {kind}, i32 {index}, i64 {offset}, i64 {size} }}"


def _triple(numbers: Sequence[int]) -> str:
    return f"[3 x i32] [{', '.join(f'i32 {number}' for number in numbers)}]"


def _launches(info: DeviceKernelInfo, code: int, places: Sequence[Place], texts: Globals) -> Iterator[str]:
    for launch in info.launches:
        grid = [_number(extent) for extent in launch.grid]
        if min(grid) <= 0:
            continue
        given = [*(places[number] for number in launch.args), *((_NUMBER, 0, value, 0) for value in launch.values)]
        args = texts.row("%tilewright.place", [_place(place) for place in given])
        fields = [
            texts.pointer(launch.symbol),
            f"i32 {code}",
            f"i32 {len(given)}",
            *(_triple(numbers) for numbers in (grid, launch.block, launch.cluster)),
            f"i32 {launch.dynamic_bytes}",
            args,
        ]
        yield f"%tilewright.launch {{ {', '.join(fields)} }}"
