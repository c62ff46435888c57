"""Loads and stores: scalars, contiguous vectors, strided and scattered ones, all of them also under a mask.

A vector index that is a ramp of stride 1 is one vector access with the alignment of an element. Small constant strides
are contiguous loads and a shuffle (never beyond the last element that the program reads). The rest goes lane by lane,
or through gather and scatter instructions where the processor has good ones.
"""

from __future__ import annotations

from tilewright.backends.llvm.context import FunctionContext
from tilewright.backends.llvm.emit_byte_tables import LEAST_LOOKED_UP, look_up
from tilewright.backends.llvm.types import memory_suffix, memory_type, register_type
from tilewright.ir.dtype import BOOL, FLOAT32, INDEX, DataType
from tilewright.ir.expr import Add, Broadcast, IntImm, PrimExpr, Ramp
from tilewright.support.errors import CompilerBug
from tilewright.tir.analysis.byte_lookups import looked_up_byte
from tilewright.tir.buffer import Buffer, BufferLoad


def emit_load(c: FunctionContext, expr: PrimExpr) -> str:
    """The value of a load from a flat buffer."""
    assert isinstance(expr, BufferLoad)
    buffer, index = expr.buffer, _flat_index(expr.buffer, expr.indices)
    if index.dtype.is_scalar:
        return _scalar_load(c, buffer, index)
    if isinstance(index, Broadcast):
        return spread_load(c, buffer, index.value, index.lanes)
    byte = looked_up_byte(expr) if c.target.has_byte_tables else None
    if byte is not None and byte.dtype.lanes % LEAST_LOOKED_UP == 0:
        return look_up(c, c.pointer(buffer), c.value(byte), byte.dtype.lanes)
    if c.mask is not None and c.lies_within(buffer, expr.indices):
        with c.unmasked():
            return _from_memory(c, _vector_load(c, buffer, index), expr.dtype)
    return _from_memory(c, _vector_load(c, buffer, index), expr.dtype)


def spread_load(c: FunctionContext, buffer: Buffer, index: PrimExpr, lanes: int) -> str:
    """An element in all lanes of a vector: in loops that ask for it (`ROW_VECTORS`) one lane of its neighbours.

    Arm multiplies by a lane of a register as it is: two or four steps of a product then share one load of a row.
    """
    if c.row_vectors and c.mask is None and buffer.dtype is FLOAT32:
        for count in (4, 2):
            found = neighbours(c, buffer, index, count)
            if found is not None:
                address, lane = found
                loaded = c.op(f"load <{count} x float>, ptr {address}, align {_align(buffer)}")
                order = ", ".join([f"i32 {lane}"] * lanes)
                kind = f"<{count} x float>"
                return c.op(f"shufflevector {kind} {loaded}, {kind} poison, <{lanes} x i32> <{order}>")
    return c.broadcast(_scalar_load(c, buffer, index), buffer.dtype, lanes)


def neighbours(c: FunctionContext, buffer: Buffer, index: PrimExpr, count: int) -> tuple[str, int] | None:
    """The address of so many elements side by side, and which of them an element is.

    None where a step might begin between two of them, or the last ones might reach past the end of the buffer.
    """
    form = c.analyzer.form(index)
    if any(item % count for item in form.terms.values()) or not _is_whole(c, buffer, count):
        return None
    inside = form.constant % count
    return _address(c, buffer, c.analyzer.simplify(index - inside)), inside


def run_around(c: FunctionContext, buffer: Buffer, index: PrimExpr, count: int, group: int) -> tuple[str, int] | None:
    """The address of so many elements side by side, and which of them an element is: the first of a group.

    A run may begin anywhere: elements whole groups apart are in the same runs. None where one might leave the buffer.
    """
    inside = c.analyzer.form(index).constant % count // group * group
    first = c.analyzer.simplify(index - inside)
    if not c.lies_within(buffer, (Ramp(first, IntImm(1, first.dtype), count),)):
        return None
    return _address(c, buffer, first), inside


def _is_whole(c: FunctionContext, buffer: Buffer, count: int) -> bool:
    """Whether a buffer, of whatever size, has a multiple of some number of elements."""
    for extent in buffer.shape:
        form = c.analyzer.form(extent)
        if not any(item % count for item in (form.constant, *form.terms.values())):
            return True
    return False


def emit_store(c: FunctionContext, buffer: Buffer, indices: tuple[PrimExpr, ...], value: PrimExpr) -> None:
    """Store a value to a flat buffer, in the lanes that run."""
    index = _flat_index(buffer, indices)
    if index.dtype.is_scalar:
        if c.mask is not None:
            raise CompilerBug("a scalar store under a vector condition")
        stored = in_memory(c, c.value(value), value.dtype)
        c.do(f"store {memory_type(value.dtype)} {stored}, ptr {_address(c, buffer, index)}, align {_align(buffer)}")
        return
    lanes = index.dtype.lanes
    stored = in_memory(c, c.value(value), value.dtype)
    dtype = buffer.dtype.with_lanes(lanes)
    if isinstance(index, Ramp) and _is(index.stride, 1):
        address = _address(c, buffer, index.base)
        if c.mask is not None and _is_private(c, buffer, index):
            # All lanes are written, those that do not run as they were: what is written whole can stay in registers.
            kind = memory_type(dtype)
            before = c.op(f"load {kind}, ptr {address}, align {_align(buffer)}")
            stored = c.op(f"select <{lanes} x i1> {c.mask}, {kind} {stored}, {kind} {before}")
            c.do(f"store {kind} {stored}, ptr {address}, align {_align(buffer)}")
            return
        contiguous_store(c, buffer, address, stored, dtype)
        return
    _scattered_store(c, buffer, index, stored, dtype)


def _is_private(c: FunctionContext, buffer: Buffer, index: Ramp) -> bool:
    """Whether all lanes, also those that do not run, lie in memory that nothing else can see."""
    if buffer not in c.on_stack or not isinstance(index.base, IntImm):
        return False
    (size,) = buffer.static_shape or (0,)
    return index.base.value >= 0 and index.base.value + index.lanes <= size


def _flat_index(buffer: Buffer, indices: tuple[PrimExpr, ...]) -> PrimExpr:
    if len(indices) != 1 or buffer.strides:
        raise CompilerBug(f"the buffer {buffer.name} is not flat")
    return indices[0]


def _align(buffer: Buffer) -> int:
    return buffer.dtype.itemsize


def _is(expr: PrimExpr, value: int) -> bool:
    return isinstance(expr, IntImm) and expr.value == value


def index_value(c: FunctionContext, index: PrimExpr) -> str:
    """An index as a 64-bit operand, whatever its integer type."""
    return c.value(index if index.dtype.element is INDEX else index.astype(INDEX.with_lanes(index.dtype.lanes)))


def _address(c: FunctionContext, buffer: Buffer, index: PrimExpr) -> str:
    if isinstance(index, IntImm):
        return c.element(buffer, "0", index.value)
    if isinstance(index, Add) and isinstance(index.b, IntImm):
        return c.element(buffer, index_value(c, index.a), index.b.value)
    return c.element(buffer, index_value(c, index))


def element_address(c: FunctionContext, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> str:
    """The address of an element of a flat buffer."""
    return _address(c, buffer, _flat_index(buffer, indices))


def _from_memory(c: FunctionContext, loaded: str, dtype: DataType) -> str:
    kind = memory_type(dtype)
    if dtype.is_bool:
        return c.op(f"icmp ne {kind} {loaded}, zeroinitializer" if dtype.lanes > 1 else f"icmp ne {kind} {loaded}, 0")
    return c.op(f"trunc {kind} {loaded} to {register_type(dtype)}") if dtype.bits < 8 else loaded


def in_memory(c: FunctionContext, operand: str, dtype: DataType) -> str:
    """A value as it lies in memory."""
    if not dtype.is_bool and dtype.bits >= 8:
        return operand
    extend = "sext" if dtype.is_int else "zext"
    return c.op(f"{extend} {register_type(dtype)} {operand} to {memory_type(dtype)}")


def any_lane(c: FunctionContext) -> str:
    """Whether any lane runs (an i1)."""
    assert c.mask is not None
    lanes = c.mask_lanes
    function = c.module.declare(f"llvm.vector.reduce.or.v{lanes}i1", "i1", f"<{lanes} x i1>", "")
    return c.op(f"call i1 {function}(<{lanes} x i1> {c.mask})")


def _scalar_load(c: FunctionContext, buffer: Buffer, index: PrimExpr) -> str:
    def load() -> str:
        loaded = c.op(f"load {memory_type(buffer.dtype)}, ptr {_address(c, buffer, index)}, align {_align(buffer)}")
        return _from_memory(c, loaded, buffer.dtype)

    if c.mask is None:
        return load()
    zero = "false" if buffer.dtype.is_bool else "0" if register_type(buffer.dtype).startswith("i") else "0.0"
    return c.choose(any_lane(c), buffer.dtype, load, lambda: zero)


def _vector_load(c: FunctionContext, buffer: Buffer, index: PrimExpr) -> str:
    """The vector as it is in memory."""
    dtype = buffer.dtype.with_lanes(index.dtype.lanes)
    if isinstance(index, Ramp) and isinstance(index.stride, IntImm):
        stride = index.stride.value
        if stride == 1:
            address = _address(c, buffer, index.base)
            if _is_private(c, buffer, index):
                return c.op(f"load {memory_type(dtype)}, ptr {address}, align {_align(buffer)}")
            return _contiguous_load(c, buffer, address, dtype)
        if stride == -1:
            first = c.op(
                f"getelementptr inbounds {memory_type(buffer.dtype)}, ptr {_address(c, buffer, index.base)}, "
                f"i64 {1 - index.lanes}",
                "p",
            )
            return _reverse(c, _contiguous_load(c, buffer, first, dtype, reverse=True), dtype)
        if 2 <= stride <= 4 and c.mask is None and index.lanes >= 2 * stride:
            return _strided_load(c, buffer, index, stride, dtype)
    return _gathered_load(c, buffer, index, dtype)


def _contiguous_load(c: FunctionContext, buffer: Buffer, address: str, dtype: DataType, reverse: bool = False) -> str:
    kind, align = memory_type(dtype), _align(buffer)
    if c.mask is None:
        return c.op(f"load {kind}, ptr {address}, align {align}")
    mask = c.mask
    if reverse:
        mask = _reverse(c, mask, BOOL.with_lanes(dtype.lanes), is_mask=True)
    function = c.module.declare(
        f"llvm.masked.load.{memory_suffix(dtype)}.p0", kind, f"ptr, <{dtype.lanes} x i1>, {kind}", ""
    )
    return c.op(
        f"call {kind} {function}(ptr align {align} {address}, <{dtype.lanes} x i1> {mask}, {kind} zeroinitializer)"
    )


def contiguous_store(c: FunctionContext, buffer: Buffer, address: str, stored: str, dtype: DataType) -> None:
    """Store a vector of neighbours, in the lanes that run."""
    kind, align = memory_type(dtype), _align(buffer)
    if c.mask is None:
        c.do(f"store {kind} {stored}, ptr {address}, align {align}")
        return
    function = c.module.declare(
        f"llvm.masked.store.{memory_suffix(dtype)}.p0", "void", f"{kind}, ptr, <{dtype.lanes} x i1>", ""
    )
    c.do(f"call void {function}({kind} {stored}, ptr align {align} {address}, <{dtype.lanes} x i1> {c.mask})")


def _reverse(c: FunctionContext, vector: str, dtype: DataType, is_mask: bool = False) -> str:
    kind = memory_type(dtype) if not is_mask else register_type(dtype)
    order = ", ".join(f"i32 {lane}" for lane in reversed(range(dtype.lanes)))
    return c.op(f"shufflevector {kind} {vector}, {kind} poison, <{dtype.lanes} x i32> <{order}>")


def _strided_load(c: FunctionContext, buffer: Buffer, index: Ramp, stride: int, dtype: DataType) -> str:
    """`stride` contiguous loads, merged by shuffles.

    On the stack these are of whole groups of `stride` elements: places of the same groups come from the same loads, and
    each load from one store if it was stored so. Elsewhere the last load is moved back to end at the last element read.
    """
    lanes, kind = dtype.lanes, memory_type(dtype)
    first = index.base.value % stride if isinstance(index.base, IntImm) else 0
    begin = index.base - first
    starts = [part * lanes for part in range(stride)]
    if not _is_private(c, buffer, Ramp(begin, IntImm(1), lanes * stride)):
        first, begin = 0, index.base
        starts[-1] = (lanes - 1) * stride + 1 - lanes
    address = _address(c, buffer, begin)
    result = "poison"
    for start in starts:
        place = address
        if start:
            place = c.op(f"getelementptr inbounds {memory_type(buffer.dtype)}, ptr {address}, i64 {start}", "p")
        loaded = c.op(f"load {kind}, ptr {place}, align {_align(buffer)}")
        picks = []
        for lane in range(lanes):
            position = first + lane * stride
            owner = next(s for s in starts if s <= position < s + lanes)
            picks.append(lanes + position - start if owner == start else lane)
        order = ", ".join(f"i32 {pick}" for pick in picks)
        result = c.op(f"shufflevector {kind} {result}, {kind} {loaded}, <{lanes} x i32> <{order}>")
    return result


def _addresses(c: FunctionContext, buffer: Buffer, index: PrimExpr) -> str:
    lanes = index.dtype.lanes
    return c.op(
        f"getelementptr inbounds {memory_type(buffer.dtype)}, ptr {c.pointer(buffer)}, "
        f"<{lanes} x i64> {index_value(c, index)}",
        "p",
    )


def _has_good_gather(c: FunctionContext, buffer: Buffer) -> bool:
    return c.target.has_feature("avx512f") and buffer.dtype.bits in (32, 64)


def _gathered_load(c: FunctionContext, buffer: Buffer, index: PrimExpr, dtype: DataType) -> str:
    lanes, kind, align = dtype.lanes, memory_type(dtype), _align(buffer)
    if c.mask is None and not _has_good_gather(c, buffer):
        return _load_lanes(c, buffer, index, dtype)
    mask = c.mask if c.mask is not None else "splat (i1 true)"
    function = c.module.declare(
        f"llvm.masked.gather.{memory_suffix(dtype)}.v{lanes}p0",
        kind,
        f"<{lanes} x ptr>, <{lanes} x i1>, {kind}",
        "",
    )
    addresses = _addresses(c, buffer, index)
    return c.op(
        f"call {kind} {function}(<{lanes} x ptr> align {align} {addresses}, <{lanes} x i1> {mask}, "
        f"{kind} zeroinitializer)"
    )


def _lane_addresses(c: FunctionContext, buffer: Buffer, index: PrimExpr) -> list[str]:
    """The address of each lane's element: from a base and constant steps where the index is such a ramp."""
    kind = memory_type(buffer.dtype)
    if isinstance(index, Ramp) and isinstance(index.stride, IntImm):
        base = _address(c, buffer, index.base)
        steps = [lane * index.stride.value for lane in range(index.lanes)]
        return [c.op(f"getelementptr inbounds {kind}, ptr {base}, i64 {step}", "p") if step else base for step in steps]
    vector = index_value(c, index)
    addresses = []
    for lane in range(index.dtype.lanes):
        position = c.op(f"extractelement <{index.dtype.lanes} x i64> {vector}, i64 {lane}")
        addresses.append(c.op(f"getelementptr inbounds {kind}, ptr {c.pointer(buffer)}, i64 {position}", "p"))
    return addresses


def _load_lanes(c: FunctionContext, buffer: Buffer, index: PrimExpr, dtype: DataType) -> str:
    kind, scalar, result = memory_type(dtype), memory_type(dtype.element), "poison"
    for lane, address in enumerate(_lane_addresses(c, buffer, index)):
        loaded = c.op(f"load {scalar}, ptr {address}, align {_align(buffer)}")
        result = c.op(f"insertelement {kind} {result}, {scalar} {loaded}, i64 {lane}")
    return result


def _scattered_store(c: FunctionContext, buffer: Buffer, index: PrimExpr, stored: str, dtype: DataType) -> None:
    lanes, kind, scalar = dtype.lanes, memory_type(dtype), memory_type(dtype.element)
    if c.mask is None:
        for lane, address in enumerate(_lane_addresses(c, buffer, index)):
            item = c.op(f"extractelement {kind} {stored}, i64 {lane}")
            c.do(f"store {scalar} {item}, ptr {address}, align {_align(buffer)}")
        return
    function = c.module.declare(
        f"llvm.masked.scatter.{memory_suffix(dtype)}.v{lanes}p0", "void", f"{kind}, <{lanes} x ptr>, <{lanes} x i1>", ""
    )
    addresses = _addresses(c, buffer, index)
    c.do(
        f"call void {function}({kind} {stored}, <{lanes} x ptr> align {_align(buffer)} {addresses}, "
        f"<{lanes} x i1> {c.mask})"
    )
