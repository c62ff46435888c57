"""A lowered function splits in kernels for the device and a description of their launches for the host.

    for bx in thread_binding("blockIdx.x", n // 4):            kernel f_0(A, B, n), launched on
        S = alloc((32,), "shared")                        ->       n // 4 blocks of 32 threads,
        for tx in thread_binding("threadIdx.x", 32): ...           with 128 bytes of shared memory

Buffers around the kernels are workspaces that the host provides. What the device cannot give (too much shared memory,
private memory that is no constant) is refused here, with the names of the buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Final

from tilewright.ir.build import mul
from tilewright.ir.expr import ONE, Call, IntImm, PrimExpr, Var, const_value
from tilewright.ir.visit import pre_order
from tilewright.support.errors import CompilerBug, UnsupportedError, UserError
from tilewright.target.target import Target
from tilewright.tir import machine
from tilewright.tir.analysis.in_place import in_place_pairs, with_in_place
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.function import PrimFunc, constant_buffers
from tilewright.tir.passes.bind_threads import BLOCK_AXES, CLUSTER_AXIS, THREAD_AXES
from tilewright.tir.passes.limit_steps import steps_of
from tilewright.tir.passes.reuse_shared_memory import shared_offsets
from tilewright.tir.rewrite.statements import all_statements
from tilewright.tir.script.printer import to_script
from tilewright.tir.stmt import Allocate, Assert, BufferStore, For, LoopKind, SeqStmt, Stmt

MOST_PRIVATE_BYTES: Final = 1 << 18
"""Private memory of one thread beyond which devices fail in ways of their own."""
MOST_BLOCKS: Final = (1 << 31) - 1
"""Blocks of a grid: all devices count as far, along the first axis."""
MOST_BLOCKS_ACROSS: Final = 65_535
"""Blocks along the second and the third axis of a grid that all devices take."""


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """One kernel: its program (from the thread loops inward), and what the host launches."""

    func: PrimFunc
    grid: tuple[PrimExpr, PrimExpr, PrimExpr]
    block: tuple[int, int, int]
    axes: dict[Var, tuple[str, PrimExpr]]
    """The variables that stand for the place of a block and a thread: their axes and extents."""
    shared: tuple[Buffer, ...]
    written: frozenset[Buffer]
    warp: tuple[Buffer, ...] = ()
    """Buffers of which each thread holds one element, for the others of its warp to read."""
    shared_offsets: tuple[int, ...] = ()
    """Where shared buffers lie, in bytes: some take the place of others that are no longer used."""
    shared_bytes: int = 0
    """Shared memory of a block, laid out so."""
    is_dynamic: bool = False
    """Whether the launch asks for the shared memory: declarations of fixed size may not take so much."""
    cluster: int = 1
    """Blocks of a cluster: they follow each other along the first axis of the grid."""
    steps: tuple[For, ...] = ()
    """Loops of the host around the kernel, whose variables are its last parameters."""
    overlapping: frozenset[Buffer] = frozenset()
    """Parameters that may be the same memory as another one: what is read of one is written to the other."""
    constants: frozenset[Buffer] = frozenset()
    """Parameters that no kernel writes: they may be read before the kernels in front of this one are done."""

    @property
    def is_folded(self) -> bool:
        """Whether the blocks are launched in a row, because there are too many (or may be) for the axes they stand on.

        Each then finds its places by division, the first axis running fastest, as it does where blocks are not folded.
        """
        across = [const_value(extent) for extent in self.grid[1:]]
        return any(extent is None or extent > MOST_BLOCKS_ACROSS for extent in across)

    @property
    def launched(self) -> tuple[PrimExpr, PrimExpr, PrimExpr]:
        """The grid that the host launches."""
        return (reduce(mul, self.grid), ONE, ONE) if self.is_folded else self.grid


@dataclass(frozen=True, slots=True)
class SplitFunction:
    """A function as the host runs it: kernels in order, on its parameters and on workspaces."""

    func: PrimFunc
    kernels: tuple[DeviceKernel, ...]
    workspaces: tuple[Buffer, ...]
    order: tuple[tuple[int, tuple[int, ...]], ...]
    """Launches: the number of a kernel, and the values of the host's loops that it is given."""


def split_host_device(func: PrimFunc, target: Target) -> SplitFunction:
    """The kernels of a function lowered by the GPU list, checked against the limits of the target."""
    workspaces: list[Buffer] = []
    body = func.body
    while isinstance(body, Allocate) and body.buffer.scope == "global":
        workspaces.append(body.buffer)
        body = body.body
    made: list[DeviceKernel] = []

    def visit(stmt: Stmt, loops: tuple[For, ...]) -> list[_Planned]:
        if isinstance(stmt, SeqStmt):
            return [item for inner in stmt.stmts for item in visit(inner, loops)]
        if isinstance(stmt, For) and stmt.kind is not LoopKind.THREAD and _has_blocks(stmt):
            return [(stmt, visit(stmt.body, (*loops, stmt)))]
        name = f"{_identifier(func.name)}_kernel{len(made)}"
        made.append(_kernel(stmt, name, func, workspaces, target, loops))
        return [len(made) - 1]

    order = _expanded(visit(body, ()), made, {})
    return SplitFunction(func, tuple(made), tuple(workspaces), tuple(order))


def split_text(split: SplitFunction) -> str:
    """The kernels with what the host launches, for people."""
    lines = []
    for buffer in split.workspaces:
        shape = " x ".join(to_script(dim) for dim in buffer.shape)
        lines.append(f"# workspace {buffer.name}: {shape} of {buffer.dtype}")
    for kernel in split.kernels:
        x, y, z = (to_script(extent) for extent in kernel.launched)
        lines += [f"# {x} x {y} x {z} blocks of {prod(kernel.block)} threads, {kernel.shared_bytes} shared bytes"]
        lines += [f"# {var.name} is {axis}" for var, (axis, _) in kernel.axes.items()] + [to_script(kernel.func), ""]
    return "\n".join(lines)


_Planned = int | tuple[For, list["_Planned"]]
"""The number of a kernel, or a loop of the host around some."""


def _expanded(
    planned: Sequence[_Planned], kernels: Sequence[DeviceKernel], values: dict[Var, int]
) -> list[tuple[int, tuple[int, ...]]]:
    """The launches, with the loops of the host run."""
    found: list[tuple[int, tuple[int, ...]]] = []
    for item in planned:
        if isinstance(item, int):
            found.append((item, tuple(values[loop.var] for loop in kernels[item].steps)))
            continue
        loop, inner = item
        for step in range(_constant(loop.min), _constant(loop.min) + _constant(loop.extent)):
            found += _expanded(inner, kernels, {**values, loop.var: step})
    return found


def _has_blocks(stmt: Stmt) -> bool:
    return any(isinstance(item, For) and item.thread in BLOCK_AXES for item in all_statements(stmt))


def _identifier(name: str) -> str:
    clean = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    return clean if clean and not clean[0].isdigit() else f"tw_{clean}"


def _kernel(
    stmt: Stmt, name: str, func: PrimFunc, workspaces: Sequence[Buffer], target: Target, loops: tuple[For, ...]
) -> DeviceKernel:
    extents: dict[str, PrimExpr] = {}
    axes: dict[Var, tuple[str, PrimExpr]] = {}
    shared: list[Buffer] = []
    warp: list[Buffer] = []
    while True:
        if isinstance(stmt, For) and stmt.kind is LoopKind.THREAD and stmt.thread is not None:
            extents[stmt.thread] = stmt.extent
            axes[stmt.var] = (stmt.thread, stmt.extent)
            stmt = stmt.body
        elif isinstance(stmt, Allocate) and stmt.buffer.scope in ("shared", "shared.cluster", "warp"):
            (warp if stmt.buffer.scope == "warp" else shared).append(stmt.buffer)
            stmt = stmt.body
        else:
            break
    _check_sizes(shared, func)
    offsets, total = shared_offsets(shared, stmt, _constant(extents.get(CLUSTER_AXIS, ONE)))
    if not target.capabilities.shared_reuse:
        # Each buffer is declared by itself.
        total = sum(buffer_bytes(buffer) or 0 for buffer in shared)
    _check(stmt, shared, total, func, target)
    grid = [extents.get(axis, ONE) for axis in BLOCK_AXES]
    cluster = _constant(extents.get(CLUSTER_AXIS, ONE))
    if cluster > 1:
        if not target.has_clusters:
            raise UnsupportedError(
                f"blocks of {target.kind} {target.arch} targets do not work together", where=f"function {func.name}"
            )
        grid[0] = mul(grid[0], cluster)
    _check_grid(grid, func)
    block = [_constant(extents.get(axis, ONE)) for axis in THREAD_AXES]
    static = target.capabilities.static_shared_bytes
    used, written = _used(stmt, grid)
    params = tuple(item for item in (*func.params, *workspaces) if item in used)
    steps = tuple(loop for loop in loops if loop.var in used)
    shared_params = [func.params[number] for pair in in_place_pairs(func) for number in pair]
    overlapping = frozenset(param for param in shared_params if isinstance(param, Buffer))
    attributes = with_in_place(func, ()).attributes
    kernel = PrimFunc(name, (*params, *(loop.var for loop in steps)), stmt, attributes)
    return DeviceKernel(
        kernel,
        (grid[0], grid[1], grid[2]),
        (block[0], block[1], block[2]),
        axes,
        tuple(shared),
        frozenset(written),
        tuple(warp),
        tuple(offsets),
        total,
        static is not None and total > static,
        cluster,
        steps,
        overlapping,
        constant_buffers(func),
    )


def _constant(extent: PrimExpr) -> int:
    if not isinstance(extent, IntImm):
        raise CompilerBug("a thread axis without a constant extent came through bind_threads")
    return extent.value


def _used(stmt: Stmt, grid: Sequence[PrimExpr]) -> tuple[set[Buffer | Var], set[Buffer]]:
    used: set[Buffer | Var] = set()
    written: set[Buffer] = set()
    for root in (stmt, *grid):
        for item in pre_order(root):
            if type(item) is Var:
                used.add(item)
            elif isinstance(item, BufferLoad):
                used.add(item.buffer)
            elif isinstance(item, BufferStore):
                used.add(item.buffer)
                written.add(item.buffer)
    return used, written


def buffer_bytes(buffer: Buffer) -> int | None:
    """The size of a buffer in bytes, or None where it is not constant."""
    total = buffer.dtype.itemsize
    for dim in buffer.shape:
        if not isinstance(dim, IntImm):
            return None
        total *= dim.value
    return total


def _check_grid(grid: Sequence[PrimExpr], func: PrimFunc) -> None:
    blocks = prod(const_value(extent) or 1 for extent in grid)
    if blocks > MOST_BLOCKS:
        raise UserError(
            f"a kernel has {blocks} blocks, devices take up to {MOST_BLOCKS}",
            where=f"function {func.name}",
            hint="give each block more of the work: use larger tiles",
        )


def _check_sizes(shared: Sequence[Buffer], func: PrimFunc) -> None:
    for buffer in shared:
        if buffer_bytes(buffer) is None:
            raise UnsupportedError(
                f"the shared buffer {buffer.name} has no constant size", where=f"function {func.name}"
            )


def _check(stmt: Stmt, shared: Sequence[Buffer], total: int, func: PrimFunc, target: Target) -> None:
    where = f"function {func.name}"
    if total > target.shared_bytes:
        names = ", ".join(f"{buffer.name} {buffer_bytes(buffer)}" for buffer in shared)
        raise UserError(
            f"a block uses {total} bytes of shared memory, the target allows {target.shared_bytes} ({names})",
            where=where,
            hint="use smaller tiles, or give the device's real limit: -shared-bytes=...",
        )
    private = 0
    for item in all_statements(stmt):
        if isinstance(item, Allocate):
            size = buffer_bytes(item.buffer)
            if size is None:
                raise UnsupportedError(
                    f"the buffer {item.buffer.name}, private to a thread, has no constant size", where=where
                )
            private += size
        elif isinstance(item, Assert):
            raise UnsupportedError(f"a kernel cannot stop at an assertion: {item.message}", where=where)
    if private > MOST_PRIVATE_BYTES:
        raise UserError(
            f"a thread uses {private} bytes of private memory, more than the {MOST_PRIVATE_BYTES} that are sensible",
            where=where,
            hint="bind more of its loops to threads, or compute its intermediate results in kernels of their own",
        )
    steps = steps_of(stmt)
    if target.most_steps is not None and steps > target.most_steps:
        raise UnsupportedError(
            f"a thread takes {steps} steps in loops, the driver of this device ends them after {target.most_steps}",
            where=where,
            hint="bind more of its loops to threads",
        )
    for node in pre_order(stmt):
        if isinstance(node, Call) and node.name == "call_extern":
            raise UnsupportedError("kernels for this target do not call extern functions", where=where)
        if isinstance(node, Call) and node.name in machine.table:
            machine.find_instruction(node.name).require(target)
