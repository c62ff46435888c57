"""Accesses of several neighbouring elements at once, and copies to shared memory that a thread does not wait for."""

from __future__ import annotations

from functools import reduce
from math import copysign, prod

from tilewright.codegen.c.convert import CConversions
from tilewright.codegen.lanes import Lanes
from tilewright.ir.build import add, const, floormod
from tilewright.ir.dtype import BFLOAT16, FLOAT16
from tilewright.ir.expr import (
    Add,
    And,
    Broadcast,
    Call,
    FloatImm,
    IntImm,
    Or,
    PrimExpr,
    Ramp,
    Select,
    Var,
    is_const_int,
)
from tilewright.ir.visit import pre_order, uses_any
from tilewright.tir.buffer import Buffer, BufferLoad
from tilewright.tir.stmt import BufferStore

_WIDEST = 16
"""Bytes of the widest access. Buffers of kernels start at multiples of it."""
_IN_REGISTERS = ("local", "warp")
_HALVES = (FLOAT16, BFLOAT16)


class VectorMemory:
    """Vector accesses of one kernel."""

    def __init__(self, c: CConversions, lanes: Lanes) -> None:
        self._c = c
        self._lanes = lanes

    def width(self, buffer: Buffer, index: PrimExpr) -> int:
        """How many elements at a vector of places are accessed at once; 1 if they are not known to be neighbours."""
        if not isinstance(index, Ramp) or not is_const_int(index.stride, 1) or buffer.scope in _IN_REGISTERS:
            return 1
        element = self._c.dialect.memory_type(buffer.dtype)
        for lanes in (16, 8, 4, 2) if buffer.scope != "shared.cluster" else (4, 2):
            if (
                index.lanes % lanes == 0
                and lanes * buffer.dtype.itemsize <= _WIDEST
                and self._c.dialect.vector_type(element, lanes) is not None
                and self._is_aligned(index.base, lanes)
            ):
                return lanes
        return 1

    def _is_aligned(self, base: PrimExpr, lanes: int) -> bool:
        return self._c.analyzer.prove_equal(floormod(base, const(lanes)), const(0))

    def read(self, value: PrimExpr) -> None:
        """Read what a vector value certainly needs, as vectors; its lanes are then known under names."""
        c = self._c
        for load in _certain_loads(value):
            width = self.width(load.buffer, load.indices[0])
            if width == 1:
                continue
            element = c.dialect.memory_type(load.buffer.dtype)
            kind = c.dialect.vector_type(element, width)
            assert kind is not None
            for start in range(0, load.dtype.lanes, width):
                first = self._lanes.of(load.indices[0], start)
                if load.buffer.scope == "shared.cluster":
                    block, first = c.part_of_cluster(load.buffer, first)
                    place = f"{c.name(load.buffer)} + {c.value(first)}"
                    text = f"{c.helpers.cluster_load(element, width)}({place}, {c.value(block)})"
                else:
                    place = f"{c.name(load.buffer)} + {c.value(first)}"
                    text = c.dialect.load_vector(element, width, place, load.buffer.scope)
                vector = c.declare(kind, text)
                for lane in range(width):
                    text = c.from_memory(c.dialect.lane(vector, element, width, lane), load.buffer.dtype)
                    c.know(self._lanes.of(load, start + lane), text)
        for choice in _certain_choices(value):
            self._read_if(choice)

    def _read_if(self, choice: Select) -> None:
        """A vector that is read only where a condition holds, which all lanes share, and is a constant elsewhere."""
        c, load = self._c, choice.a
        condition = _scalar(choice.condition)
        other = _scalar(choice.b)
        if self._read_one_of(choice):
            return
        if not isinstance(load, BufferLoad) or not isinstance(other, (FloatImm, IntImm)):
            return
        width = self.width(load.buffer, load.indices[0])
        if width == 1 or not condition.dtype.is_scalar or load.buffer.scope == "shared.cluster":
            return
        test, outside = c.value(condition), c.value(other)
        if self.is_read_anyway(choice):
            self._read_anyway(choice, load, width, test, outside)
        elif width == load.dtype.lanes:
            self._read_after_test(choice, load, width, test, outside)

    def _read_one_of(self, choice: Select) -> bool:
        """A vector of one of several buffers, by conditions that all lanes share (a concatenation): one load.

        `v = *(const float4*)(c ? a + i : b + j)`; False where the choice is of anything else.
        """
        c, loads = self._c, _chosen_loads(choice)
        if loads is None or len({load.buffer.dtype for load in loads}) != 1:
            return False
        widths = {self.width(load.buffer, load.indices[0]) for load in loads}
        if len(widths) != 1 or 1 in widths or any(load.buffer.scope != "global" for load in loads):
            return False
        (width,), dtype = widths, loads[0].buffer.dtype
        element = c.dialect.memory_type(dtype)
        kind = c.dialect.vector_type(element, width)
        assert kind is not None

        def place(value: PrimExpr, start: int) -> str:
            if isinstance(value, BufferLoad):
                return f"{c.name(value.buffer)} + {c.value(self._lanes.of(value.indices[0], start))}"
            assert isinstance(value, Select)
            return f"({c.value(_scalar(value.condition))} ? {place(value.a, start)} : {place(value.b, start)})"

        for start in range(0, choice.dtype.lanes, width):
            vector = c.declare(kind, c.dialect.load_vector(element, width, place(choice, start), "global"))
            for lane in range(width):
                part = c.from_memory(c.dialect.lane(vector, element, width, lane), dtype)
                c.know(self._lanes.of(choice, start + lane), part)
        return True

    def is_read_anyway(self, choice: Select) -> bool:
        """Whether a vector may be read whatever its condition says: some place of its buffer is, if not its own."""
        load = choice.a
        if not isinstance(load, BufferLoad) or load.buffer.scope != "global":
            return False
        width = self.width(load.buffer, load.indices[0])
        constant = _scalar(choice.b)
        return width > 1 and isinstance(constant, (FloatImm, IntImm)) and _holds(load.buffer, width)

    def _read_anyway(self, choice: Select, load: BufferLoad, width: int, test: str, outside: str) -> None:
        """Read the start of the buffer where the condition does not hold: no read waits behind a branch for another."""
        c = self._c
        element = c.dialect.memory_type(load.buffer.dtype)
        kind = c.dialect.vector_type(element, width)
        assert kind is not None
        inside = test if test.isidentifier() else c.declare(c.dialect.types["bool"], test)
        register = c.dialect.register_type(load.buffer.dtype)
        # Bits of zero are chosen as bits: what is only moved needs no conversion, and others are made once.
        as_bits = load.buffer.dtype.element in _HALVES and _is_positive_zero(_scalar(choice.b))
        for start in range(0, load.dtype.lanes, width):
            place = f"{c.name(load.buffer)} + ({inside} ? {c.value(self._lanes.of(load.indices[0], start))} : 0)"
            vector = c.declare(kind, c.dialect.load_vector(element, width, place, load.buffer.scope))
            for lane in range(width):
                place = c.dialect.lane(vector, element, width, lane)
                if as_bits:
                    text = c.from_memory(c.declare(element, f"{inside} ? {place} : 0"), load.buffer.dtype)
                else:
                    text = c.declare(register, f"{inside} ? {c.from_memory(place, load.buffer.dtype)} : {outside}")
                c.know(self._lanes.of(choice, start + lane), text)

    def _read_after_test(self, choice: Select, load: BufferLoad, width: int, test: str, outside: str) -> None:
        """Read where the condition holds: a buffer of unknown size may have nothing to read."""
        c = self._c
        element = c.dialect.memory_type(load.buffer.dtype)
        kind = c.dialect.vector_type(element, width)
        assert kind is not None
        place = f"{c.name(load.buffer)} + {c.value(self._lanes.of(load.indices[0], 0))}"
        names = [c.temporary() for _ in range(width)]
        register = c.dialect.register_type(load.buffer.dtype)
        c.line(f"{register} {', '.join(f'{name} = {outside}' for name in names)};")
        c.line(f"if ({test}) {{")
        c.depth += 1
        vector = c.declare(kind, c.dialect.load_vector(element, width, place, load.buffer.scope))
        for lane, name in enumerate(names):
            part = c.from_memory(c.dialect.lane(vector, element, width, lane), load.buffer.dtype)
            c.line(f"{name} = {part};")
            c.know(self._lanes.of(choice, lane), name)
        c.depth -= 1
        c.line("}")

    def store(self, buffer: Buffer, index: PrimExpr, texts: list[str]) -> bool:
        """Store values (as they are in memory) at a vector of places, if that can be done at once."""
        c = self._c
        width = self.width(buffer, index)
        if width == 1:
            return False
        element = c.dialect.memory_type(buffer.dtype)
        for start in range(0, len(texts), width):
            first = self._lanes.of(index, start)
            if buffer.scope == "shared.cluster":
                _, first = c.part_of_cluster(buffer, first, own=True)
            place = f"{c.name(buffer)} + {c.value(first)}"
            c.line(c.dialect.store_vector(element, place, texts[start : start + width], buffer.scope))
        return True

    def copy_own(self, stmt: BufferStore) -> bool:
        """Copy neighbours to an array of the thread's own as they are; False where that is no copy of whole words.

        Element by element, a compiler takes words apart and puts the halves together again, an instruction each.
        """
        c, value = self._c, stmt.value
        if not isinstance(value, BufferLoad) or value.buffer.dtype is not stmt.buffer.dtype:
            return False
        if stmt.buffer.scope != "local" or value.buffer.scope not in ("global", "shared"):
            return False
        target, source = stmt.indices[0], value.indices[0]
        width = self.width(value.buffer, source)
        if (
            not isinstance(target, Ramp)
            or not is_const_int(target.stride, 1)
            or not self._is_aligned(target.base, width)
        ):
            return False
        element = c.dialect.memory_type(stmt.buffer.dtype)
        pieces = range(0, stmt.value.dtype.lanes, width)
        ends = [(self._lanes.of(target, start), self._lanes.of(source, start)) for start in pieces]
        size = width * stmt.buffer.dtype.itemsize
        if c.dialect.copy_words(element, size, "", "") is None:
            return False
        c.start(*[index for pair in ends for index in pair])
        for to, origin in ends:
            places = f"{c.name(stmt.buffer)} + {c.value(to)}", f"{c.name(value.buffer)} + {c.value(origin)}"
            text = c.dialect.copy_words(element, size, *places)
            assert text is not None
            c.line(text)
        return True

    def copy_async(self, stmt: BufferStore) -> bool:
        """Start a copy from global to shared memory, zeros where its conditions do not hold; False if there is none.

        The places of all lanes must be neighbours, and 4, 8 or 16 bytes in all.
        """
        c = self._c
        assert isinstance(stmt.value, Call)
        conditions: list[PrimExpr] = []
        value = stmt.value.args[0]
        while isinstance(value, Select):
            condition = value.condition.value if isinstance(value.condition, Broadcast) else value.condition
            if not condition.dtype.is_scalar:
                return False
            conditions.append(condition)
            value = value.a
        lanes = stmt.value.dtype.lanes
        size = lanes * stmt.buffer.dtype.itemsize
        if not isinstance(value, BufferLoad) or size not in (4, 8, 16) or stmt.buffer.scope != "shared":
            return False
        if value.buffer.scope != "global" or value.buffer.dtype is not stmt.buffer.dtype:
            return False
        helper = c.helpers.copy_async(size)
        if helper is None:
            return False
        places = [(stmt.buffer, stmt.indices[0]), (value.buffer, value.indices[0])]
        if lanes > 1 and any(
            not isinstance(index, Ramp) or not is_const_int(index.stride, 1) or not self._is_aligned(index.base, lanes)
            for _, index in places
        ):
            return False
        target, source = (self._lanes.of(index, 0) for _, index in places)
        c.start(target, source, *conditions)
        tests = " && ".join(c.value(condition) for condition in conditions)
        to = f"{c.name(stmt.buffer)} + {c.value(target)}"
        if not conditions:
            start = self._moving(source) or c.value(source)
            c.line(f"{helper}({to}, {c.name(value.buffer)} + {start}, {size});")
            return True
        inside = c.declare(c.dialect.types["bool"], tests)
        # Where nothing is read, the address must still be one of the buffer.
        start = self._moving(source, *conditions, choice=inside) or f"({inside} ? {c.value(source)} : 0)"
        c.line(f"{helper}({to}, {c.name(value.buffer)} + {start}, {inside} ? {size} : 0);")
        return True

    def _moving(self, index: PrimExpr, *conditions: PrimExpr, choice: str | None = None) -> str | None:
        """An index as a sum to a pointer: what no loop changes, what unrolled ones do, what the one around them does.

        None where it is no such sum, or where no loop that stays rolled is around it. A compiler then keeps pointers
        and moves them. Of a sum of 32-bit integers it makes each address anew in every iteration, and a product of
        4096 x 4096 matrices takes a sixth longer. Where a `choice` is not made, the pointer moves from the start.
        """
        loops = self._c.loops
        terms = _terms(index)
        moving = [term for term in terms if uses_any(term, loops[:1])]
        fixed = [term for term in terms if not uses_any(term, loops)]
        unrolled = [term for term in terms if term not in moving and term not in fixed]
        if not moving or not fixed or any(uses_any(condition, loops[:1]) for condition in conditions):
            return None
        parts = [fixed, unrolled, moving] if choice is None else [fixed + unrolled, moving]
        texts = [self._c.value(reduce(add, part)) for part in parts if part]
        if choice is not None:
            texts[0] = f"({choice} ? {texts[0]} : 0)"
        return " + ".join(texts)


def _terms(index: PrimExpr) -> list[PrimExpr]:
    """What an index is the sum of."""
    return [*_terms(index.a), *_terms(index.b)] if isinstance(index, Add) else [index]


def _scalar(value: PrimExpr) -> PrimExpr:
    """What all lanes of a value are; the value itself where they are not known to be the same."""
    return value.value if isinstance(value, Broadcast) else value


def _is_positive_zero(value: PrimExpr) -> bool:
    """Whether a constant has no bit set."""
    return isinstance(value, FloatImm) and value.value == 0 and copysign(1.0, value.value) > 0


def _chosen_loads(value: PrimExpr) -> list[BufferLoad] | None:
    """The loads that a choice, by conditions of all lanes, is one of; None where it may be something else."""
    if isinstance(value, BufferLoad):
        return [value]
    if not isinstance(value, Select) or not _scalar(value.condition).dtype.is_scalar:
        return None
    sides = _chosen_loads(value.a), _chosen_loads(value.b)
    return None if sides[0] is None or sides[1] is None else [*sides[0], *sides[1]]


def _holds(buffer: Buffer, count: int) -> bool:
    """Whether a buffer is known to have so many elements."""
    shape = buffer.static_shape
    return shape is not None and prod(shape) >= count


def _certain_loads(value: PrimExpr) -> list[BufferLoad]:
    """The vector loads of a value that are evaluated whatever conditions say, or may be.

    A condition on a single value of memory (a step of training that overflowed) guards no place: places follow from
    loops, unless they are read from memory too.
    """
    found: dict[BufferLoad, None] = {}
    seen: set[PrimExpr] = set()
    stack: list[PrimExpr] = [value]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        if isinstance(item, BufferLoad):
            if item.dtype.lanes > 1:
                found.setdefault(item)
        elif isinstance(item, Select) and _guards_no_place(item):
            stack.extend((item.condition, item.a, item.b))
        elif isinstance(item, (Select, And, Or)):
            stack.append(item.condition if isinstance(item, Select) else item.a)
        else:
            stack.extend(child for child in item.children() if isinstance(child, PrimExpr))
    return list(found)


def _guards_no_place(choice: Select) -> bool:
    if any(isinstance(item, Var) for item in pre_order(choice.condition)):
        return False
    loads = [item for arm in (choice.a, choice.b) for item in pre_order(arm) if isinstance(item, BufferLoad)]
    return not any(
        isinstance(item, BufferLoad) for load in loads for index in load.indices for item in pre_order(index)
    )


def _certain_choices(value: PrimExpr) -> list[Select]:
    """The choices of a value that are made whatever other conditions say, once each."""
    found: dict[Select, None] = {}
    seen: set[PrimExpr] = set()
    stack: list[PrimExpr] = [value]
    while stack:
        item = stack.pop()
        if item in seen:
            continue
        seen.add(item)
        if isinstance(item, Select):
            found.setdefault(item)
        elif isinstance(item, (And, Or)):
            stack.append(item.a)
        else:
            stack.extend(child for child in item.children() if isinstance(child, PrimExpr))
    return list(found)


def vector_spellings(
    lanes: tuple[int, ...], names: dict[str, str], types: dict[str, str]
) -> dict[tuple[str, int], str]:
    """The vector types of a language, by the spelling of their elements and the number of lanes."""
    return {(types[name], count): f"{base}{count}" for name, base in names.items() for count in lanes}
