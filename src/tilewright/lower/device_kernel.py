"""A kernel of a model for a device: its launches and code, and the memory that the model's plan must give it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.backends.device import device_code, device_kernels, device_source
from tilewright.codegen.c.program import nbytes
from tilewright.ir.expr import IntImm, const_value
from tilewright.ir.stage_files import StageFileError
from tilewright.ir.visit import find_all
from tilewright.lower.primitive import kernel_symbols
from tilewright.lower.symbols import SymbolTable
from tilewright.runtime.core.artifact import DeviceKernelInfo, Extent
from tilewright.runtime.core.packing import packed_size
from tilewright.support.errors import UnsupportedError, UserError
from tilewright.target import Target
from tilewright.tir.analysis.in_place import Pair, in_place_pairs
from tilewright.tir.buffer import Buffer
from tilewright.tir.function import PrimFunc, constant_buffers
from tilewright.tir.index_map import IndexMap
from tilewright.tir.stmt import BufferStore
from tilewright.topi.schedule.packing import packing_of


@dataclass(frozen=True, slots=True)
class DeviceKernelCode:
    """A compiled kernel; `scratch` are the bytes of the workspaces of known size, which follow its arguments.

    `refused` says why the device cannot run it, in which case there is nothing else.
    """

    code: bytes = b""
    info: DeviceKernelInfo | None = None
    scratch: tuple[int, ...] = ()
    in_place: tuple[Pair, ...] = ()
    refused: str = ""
    packing: Mapping[int, IndexMap] = field(default_factory=dict)
    """How constant parameters are to be arranged."""
    failed_template: str = ""


def compile_for_device(func: PrimFunc, scheduled: PrimFunc, target: Target) -> DeviceKernelCode:
    """Compile a scheduled kernel. `func` is the program before scheduling: its parameters are what steps pass."""
    try:
        split = device_kernels(scheduled, target)
        source = device_source(split.kernels, target)
    except StageFileError:
        raise
    except (UnsupportedError, UserError) as error:
        # What the device cannot do, or has no room for; the host computes it instead.
        return DeviceKernelCode(refused=str(error))
    table = SymbolTable()
    symbols = tuple(table.name(symbol) for symbol in kernel_symbols(func))
    made = device_code(split, source, target, table.extent)
    known = [const_value(size) for size in made.workspaces]
    # Steps pass planned scratch right after the symbols: workspaces of symbolic size come last.
    order = sorted(range(len(known)), key=lambda number: known[number] is None)
    first = len(split.func.params)
    moved = {first + old: first + new for new, old in enumerate(order)}
    launches = tuple(
        replace(launch, args=tuple(moved.get(number, number) for number in launch.args)) for launch in made.launches
    )
    scratch = tuple(size for size in known if size is not None)
    unplanned = tuple(table.extent(size) for size in made.workspaces if const_value(size) is None)
    packing = packing_of(scheduled)
    sizes = kernel_sizes(func, packing, scratch, table)
    info = DeviceKernelInfo(func.name, launches, sizes, written_buffers(func), unplanned, symbols)
    return DeviceKernelCode(made.code, info, scratch, in_place_pairs(split.func), packing=packing)


def kernel_on_host(
    func: PrimFunc, packing: Mapping[int, IndexMap], scratch: tuple[int, ...], reason: str
) -> DeviceKernelInfo:
    """The description of a kernel that the host computes in a model for a device."""
    table = SymbolTable()
    symbols = tuple(table.name(symbol) for symbol in kernel_symbols(func))
    sizes = kernel_sizes(func, packing, scratch, table)
    return DeviceKernelInfo(func.name, (), sizes, written_buffers(func), symbols=symbols, on_host=reason)


def kernel_sizes(
    func: PrimFunc, packing: Mapping[int, IndexMap], scratch: tuple[int, ...], table: SymbolTable
) -> tuple[Extent, ...]:
    """The bytes of each buffer that a step passes; constants that a schedule rearranged may have become larger."""
    found: list[Extent] = []
    constants = constant_buffers(func)
    for number, param in enumerate(func.params):
        if isinstance(param, Buffer):
            arranged = packing.get(number)
            if arranged is None and param not in constants:
                found.append(table.extent(nbytes(param)))
            else:
                shape = tuple(dim.value for dim in param.shape if isinstance(dim, IntImm))
                stored = shape if arranged is None else arranged.new_shape(shape)
                found.append(packed_size(tuple(stored), param.dtype.name))
    return (*found, *scratch)


def written_buffers(func: PrimFunc) -> tuple[int, ...]:
    """The numbers of the buffers that a program writes."""
    stored = {id(item.buffer) for item in find_all(func.body, BufferStore)}
    return tuple(number for number, buffer in enumerate(func.buffers) if id(buffer) in stored)
