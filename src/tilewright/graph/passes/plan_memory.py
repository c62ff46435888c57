"""Static memory planning: where each value of a fused model lives.

Before:  the fused `main`: calls to primitive functions
After:   a `MemoryPlan`: the calls in order, and for each argument and result a place:
         input i / output i / constant i / workspace at an offset

Values that live only between kernels share one workspace: two of them may overlap in space if they never live at the
same time. Each is placed in the smallest gap that fits (best fit), aligned to 64 bytes, in several orders of which the
best is kept. Results of the model are written straight to the output buffers; a view (a reshape, a slice of contiguous
memory) is a place inside its input's.

What kernels allow and need is known when they are compiled: results that may be written over an argument that dies
there, and scratch memory, which lives in the workspace for one step. A plan made before that has neither.

Where shapes are symbolic, or kernels take whole pieces of memory, the workspace is a row of slots instead
(`plan_slots.py`), and a place in it is the number of a slot.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.graph.begin_order import begin_order, has_layers
from tilewright.graph.ir.expr import Call, Constant, Function, GraphExpr, Tuple, TupleGet, Var
from tilewright.graph.ir.op import Operator
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.memory_order import memory_order
from tilewright.graph.ops.checks import check_of
from tilewright.graph.passes.fuse import is_primitive
from tilewright.graph.passes.place_values import ALIGNMENT, aligned, lower_bound, place_values
from tilewright.graph.passes.plan_slots import SlotRequest, assign_slots, symbolic_bytes
from tilewright.graph.state import StatePair, updates_last
from tilewright.graph.views import is_view, is_whole_view, view_offset
from tilewright.ir.build import as_expr
from tilewright.ir.expr import PrimExpr
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, TupleType, Type
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.support.text import human_bytes, table


@dataclass(frozen=True)
class Place:
    """Where a tensor lives: `kind` is input, output, constant or workspace.

    `index` numbers inputs, outputs, constants and slots; `offset` is in bytes from the start of the workspace (or of
    the slot), of the block of constants, or of the input or output (not 0 for views); `size` is in bytes.
    """

    kind: str
    index: int
    offset: int
    size: PrimExpr | int

    def __str__(self) -> str:
        if self.kind == "workspace":
            return f"workspace+{self.offset}"
        if self.kind == "constant" or self.offset == 0:
            return f"{self.kind}[{self.index}]"
        return f"{self.kind}[{self.index}]+{self.offset}"


@dataclass(frozen=True)
class KernelMemory:
    """What the kernel of a step allows and needs.

    `in_place` has pairs of an argument and a result (by number) that may be the same memory; `scratch` has the bytes of
    each piece of memory that the kernel uses while it runs.
    """

    in_place: tuple[tuple[int, int], ...] = ()
    scratch: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlannedStep:
    """One kernel call: the primitive function, the places of its arguments and results and of its scratch memory."""

    call: Call
    arguments: tuple[Place, ...]
    results: tuple[Place, ...]
    scratch: tuple[Place, ...] = ()
    ending: tuple[tuple[int, int], ...] = ()
    """Pairs of an argument whose live range ends at this step and a result of its size: they could share memory."""

    @property
    def function(self) -> Function:
        """The primitive function."""
        assert isinstance(self.call.callee, Function)
        return self.call.callee


@dataclass(frozen=True)
class MemoryPlan:
    """The order of kernel calls and the place of every value."""

    steps: tuple[PlannedStep, ...]
    constants: tuple[Constant, ...]
    constant_offsets: tuple[int, ...]
    constant_bytes: int
    workspace_bytes: int
    lower_bound: int
    """The most bytes that live at one time between kernels: no plan of this order needs less."""
    unshared_bytes: int
    """What the workspace would take without sharing."""
    lifetimes: tuple[tuple[Place, int, int], ...] = field(repr=False)
    """Place, first and last step of each piece of memory in the workspace."""
    slots: tuple[PrimExpr, ...] = ()
    """Sizes of the slots of a symbolic plan; the figures of the workspace above are 0 then."""
    over: tuple[bool, ...] = ()
    """For each piece of state, whether its new value may be written over the old one."""

    def __str__(self) -> str:
        rows = []
        for number, step in enumerate(self.steps):
            name = str(step.function.notes.get("name", ""))
            arguments = ", ".join(map(str, step.arguments))
            results = ", ".join(f"{place} ({_size_text(place.size)})" for place in step.results)
            rows.append((str(number), name, results, arguments))
        ratio = self.workspace_bytes / self.lower_bound if self.lower_bound else 1.0
        workspace = (
            f"workspace: {human_bytes(self.workspace_bytes)}, lower bound {human_bytes(self.lower_bound)} "
            f"(x{ratio:.3f}), without sharing {human_bytes(self.unshared_bytes)}"
        )
        if self.slots:
            workspace = f"workspace: {len(self.slots)} slots for {len(self.lifetimes)} values"
        scratch = sum(_static(place.size) for step in self.steps for place in step.scratch)
        if scratch:
            workspace += f"; scratch of kernels in it: {human_bytes(scratch)}"
        shared = sum(place in step.arguments for step in self.steps for place in step.results)
        if shared:
            workspace += f"; results over an argument: {shared}"
        constants = f"constants: {len(self.constants)}, {human_bytes(self.constant_bytes)}"
        return "\n".join([table(("step", "kernel", "results", "arguments"), rows), workspace, constants])


def plan_memory(
    module: IRModule,
    *,
    entry: str = "main",
    kernels: Sequence[KernelMemory] = (),
    in_slots: bool = False,
    state: Sequence[StatePair] = (),
    line: int = ALIGNMENT,
) -> MemoryPlan:
    """Plan the memory of a fused, first-order function of static or symbolic shapes.

    `kernels` says what the kernel of each step allows and needs; without it, no memory is shared within a step and
    none is scratch. With `in_slots`, the workspace is a row of slots whatever the shapes are: for devices whose kernels
    take whole pieces of memory. `state` are results that may lie where a parameter is once all have read it. Values
    begin at a multiple of `line` bytes.
    """
    function = module[entry]
    if not isinstance(function, Function):
        raise UnsupportedError(f"{entry} is not a graph function")
    return _Planner(function, kernels, in_slots, state, line).run()


def tensor_bytes(kind: Type | None) -> int:
    """The bytes of a tensor of a static shape."""
    if not isinstance(kind, TensorType):
        raise CompilerBug(f"a tensor was expected, not {kind!r}")
    shape = kind.static_shape
    if shape is None:
        raise UnsupportedError("a memory plan needs static shapes", hint="give the shapes of the inputs")
    return math.prod(shape) * kind.dtype.itemsize


def is_symbolic(function: Function) -> bool:
    """Whether a value of a fused function has a shape that is not all numbers."""
    for item in post_order(function, closures=False):
        kinds = item.type.items if isinstance(item.type, TupleType) else (item.type,)
        if any(isinstance(kind, TensorType) and kind.static_shape is None for kind in kinds):
            return True
    return False


def _static(size: PrimExpr | int) -> int:
    return size if isinstance(size, int) else 0


def _size_text(size: PrimExpr | int) -> str:
    return human_bytes(size) if isinstance(size, int) else "symbolic"


Key = tuple[int, int]
"""A result of a call: identity of the call, number of the result."""


@dataclass(eq=False)
class _Value:
    """A tensor that a kernel writes."""

    size: int
    first: int
    last: int
    output: int = -1
    offset: int = 0
    owner: _Value | None = None
    """The value whose storage this one takes over in place."""
    request: SlotRequest | None = None
    """What a symbolic plan knows of it; `size` is not used then."""

    @property
    def storage(self) -> _Value:
        value = self
        while value.owner is not None:
            value = value.owner
        return value


@dataclass(slots=True)
class _Piece:
    """Memory in whole lines."""

    size: int
    first: int
    last: int
    offset: int = 0


class _Planner:
    """One run over a function."""

    def __init__(
        self, function: Function, kernels: Sequence[KernelMemory], in_slots: bool, state: Sequence[StatePair], line: int
    ) -> None:
        self.function = function
        self.state = state
        self.line = line
        self.kernels = kernels
        self.symbolic = in_slots or is_symbolic(function)
        order = [item for item in post_order(function, closures=False) if item is not function]
        self.order = begin_order(order)
        if state:
            self.order = updates_last(self.order, function, state)
        if not self.symbolic and not has_layers(order):
            self.order = memory_order(self.order, function, state)
        self.inputs = {id(param): index for index, param in enumerate(function.params)}
        self.constants: dict[int, int] = {}
        self.constant_list: list[Constant] = []
        self.values: dict[Key, _Value] = {}
        self.calls: list[Call] = []
        self.scratch: list[list[_Value]] = []

    def run(self) -> MemoryPlan:
        self._find_values()
        self._find_uses()
        ending = [self._ending(step, call) for step, call in enumerate(self.calls)]
        if self.kernels:
            self._apply_kernels(ending)
        pieces = [value for value in self.values.values() if value.output < 0]
        pieces += [value for items in self.scratch for value in items]
        owners = [value for value in pieces if value.owner is None]
        requests = [value.request for value in owners if value.request is not None]
        slots = assign_slots(self._timed(requests, owners)) if self.symbolic else ()
        total = 0 if self.symbolic else self._place_owners(owners)
        offsets, constant_bytes = self._constant_offsets()
        steps = tuple(
            PlannedStep(
                call,
                tuple(self._place(arg, offsets) for arg in call.args),
                tuple(self._value_place(self.values[key]) for key in self._results(call)),
                tuple(self._value_place(value) for value in self.scratch[step]) if self.scratch else (),
                ending[step],
            )
            for step, call in enumerate(self.calls)
        )
        return MemoryPlan(
            steps,
            tuple(self.constant_list),
            tuple(offsets),
            constant_bytes,
            total,
            lower_bound(owners),
            sum(aligned(value.size) for value in pieces),
            tuple((self._value_place(value), value.first, value.last) for value in owners),
            slots,
            tuple(self._is_over(pair) for pair in self.state),
        )

    def _place_owners(self, owners: Sequence[_Value]) -> int:
        """Give values their places, whole lines each; returns the bytes of all."""
        pieces = [_Piece(-(-value.size // self.line) * self.line, value.first, value.last) for value in owners]
        total = place_values(pieces)
        for value, piece in zip(owners, pieces, strict=True):
            value.offset = piece.offset
        return total

    def _find_values(self) -> None:
        for item in self.order:
            if isinstance(item, Call) and is_primitive(item.callee):
                step = len(self.calls)
                self.calls.append(item)
                types = item.type.items if isinstance(item.type, TupleType) else (item.type,)
                for index, found in enumerate(types):
                    self.values[(id(item), index)] = self._value(found, step)
            elif isinstance(item, Constant):
                self.constants[id(item)] = len(self.constant_list)
                self.constant_list.append(item)
            elif not (is_view(item) or isinstance(item, (Tuple, TupleGet, Var, Function))):
                name = item.callee.name if isinstance(item, Call) and isinstance(item.callee, Operator) else ""
                raise UnsupportedError(
                    f"a static memory plan covers calls to fused functions only, not {name or type(item).__name__}",
                    where=str(item.span) if item.span else None,
                )

    def _value(self, found: Type | None, step: int) -> _Value:
        if not self.symbolic:
            return _Value(tensor_bytes(found), step, step)
        if not isinstance(found, TensorType):
            raise CompilerBug(f"a tensor was expected, not {found!r}")
        return _Value(0, step, step, request=SlotRequest(symbolic_bytes(found), step, step))

    @staticmethod
    def _timed(requests: Sequence[SlotRequest], owners: Sequence[_Value]) -> Sequence[SlotRequest]:
        """Requests with the lifetimes that uses gave their values."""
        for request, value in zip(requests, owners, strict=True):
            request.first, request.last = value.first, value.last
        return requests

    def _size(self, found: Type | None) -> PrimExpr | int:
        if self.symbolic and isinstance(found, TensorType):
            return symbolic_bytes(found)
        return tensor_bytes(found)

    def _results(self, call: Call) -> list[Key]:
        count = len(call.type.items) if isinstance(call.type, TupleType) else 1
        return [(id(call), index) for index in range(count)]

    @staticmethod
    def _trace(item: GraphExpr) -> tuple[GraphExpr, int]:
        """The expression that owns the memory of a tensor, and the bytes from its start: views are looked through."""
        shift = 0
        while True:
            if isinstance(item, Call) and is_view(item):
                shift += view_offset(item) or 0
                item = item.args[0]
            elif isinstance(item, TupleGet) and isinstance(item.value, Tuple):
                item = item.value.items[item.index]
            else:
                return item, shift

    def _base(self, item: GraphExpr) -> GraphExpr:
        return self._trace(item)[0]

    def _key(self, item: GraphExpr) -> Key | None:
        """The kernel result that a tensor is, or None for inputs and constants."""
        base = self._base(item)
        if isinstance(base, (Var, Constant)):
            return None
        if isinstance(base, TupleGet):
            return (id(self._base(base.value)), base.index)
        return (id(base), 0)

    def _find_uses(self) -> None:
        for step, call in enumerate(self.calls):
            for arg in call.args:
                key = self._key(arg)
                if key is not None:
                    self.values[key].last = max(self.values[key].last, step)
            if check_of(call.callee) is not None:
                # What a check found is read when all is done.
                self.values[(id(call), 0)].last = len(self.calls)
        body = self.function.body
        if isinstance(body, Tuple):
            results: Sequence[GraphExpr] = body.items
        elif isinstance(body.type, TupleType):
            for index, key in enumerate(self._results_of(body)):
                self.values[key].output = index
            return
        else:
            results = [body]
        for index, item in enumerate(results):
            key = self._key(item)
            if key is None or self.values[key].output >= 0 or not self._is_whole(item):
                raise CompilerBug("a result of the model has no storage of its own; run `fuse` first")
            self.values[key].output = index

    @staticmethod
    def _is_whole(item: GraphExpr) -> bool:
        """Whether a tensor is all of the memory that it is a view of: reshapes keep all elements, slices do not."""
        while isinstance(item, Call) and is_view(item):
            if not is_whole_view(item):
                return False
            item = item.args[0]
        return True

    def _results_of(self, body: GraphExpr) -> list[Key]:
        base = self._base(body)
        assert isinstance(base, Call)
        return self._results(base)

    def _ending(self, step: int, call: Call) -> tuple[tuple[int, int], ...]:
        """Pairs of an argument and a result of a call whose memory could be one, as far as lifetimes and sizes go.

        Sizes that are symbolic are left out: kernels could not be checked for them.
        """
        pairs = self._state_ending(step, call) if self.state else []
        if self.symbolic:
            return tuple(pairs)
        keys = [self._key(arg) for arg in call.args]
        for number, (arg, key) in enumerate(zip(call.args, keys, strict=True)):
            # A second argument in the same memory would see what is written.
            if key is None or keys.count(key) > 1 or tensor_bytes(arg.type) != self.values[key].size:
                continue
            source = self.values[key]
            for index, result in enumerate(self._results(call)):
                target = self.values[result]
                lasting = source.output >= 0 or source.last > step or target.output >= 0
                if not lasting and source.size == target.size > 0:
                    pairs.append((number, index))
        return tuple(pairs)

    def _state_ending(self, step: int, call: Call) -> list[tuple[int, int]]:
        """Pairs of an argument that is state and the result of a call that is its new value."""
        pairs: list[tuple[int, int]] = []
        bases = [id(self._base(arg)) for arg in call.args]
        for pair in self.state:
            parameter = self.function.params[pair.parameter]
            for index, result in enumerate(self._results(call)):
                # A second argument in the same memory would see what is written.
                if self.values[result].output == pair.result and bases.count(id(parameter)) == 1:
                    number = bases.index(id(parameter))
                    if tensor_bytes(call.args[number].type) == tensor_bytes(parameter.type):
                        pairs.append((number, index))
        return pairs

    def _is_over(self, pair: StatePair) -> bool:
        """Whether the new value of state may be written over the old one: nothing reads or checks after that."""
        if not self.kernels:
            return False
        parameter = self.function.params[pair.parameter]
        key = next(key for key, value in self.values.items() if value.output == pair.result)
        written = self.values[key].first
        for step, call in enumerate(self.calls):
            places = [number for number, arg in enumerate(call.args) if self._base(arg) is parameter]
            if (places and step > written) or (check_of(call.callee) is not None and step > written):
                return False
            if places and step == written:
                allowed = (places[0], key[1]) in self._state_ending(step, call)
                if not allowed or (places[0], key[1]) not in self.kernels[step].in_place:
                    return False
        return True

    def _apply_kernels(self, ending: Sequence[tuple[tuple[int, int], ...]]) -> None:
        """Results take over the memory of arguments where kernels allow it; kernels get their scratch memory."""
        for step, (call, kernel) in enumerate(zip(self.calls, self.kernels, strict=True)):
            taken: set[int] = set()
            for number, index in ending[step]:
                target = self.values[(id(call), index)]
                if (number, index) not in kernel.in_place or number in taken or target.owner is not None:
                    continue
                key = self._key(call.args[number])
                if key is None:
                    # State: it is no part of the workspace.
                    continue
                target.owner = self.values[key]
                target.storage.last = max(target.storage.last, target.last)
                taken.add(number)
            self.scratch.append([self._scratch(size, step) for size in kernel.scratch])

    def _scratch(self, size: int, step: int) -> _Value:
        if self.symbolic:
            return _Value(0, step, step, request=SlotRequest(as_expr(size), step, step))
        return _Value(size, step, step)

    def _constant_offsets(self) -> tuple[list[int], int]:
        offsets: list[int] = []
        total = 0
        for item in self.constant_list:
            offsets.append(total)
            total += aligned(item.data.nbytes)
        return offsets, total

    def _value_place(self, value: _Value) -> Place:
        size = value.size if value.request is None else value.request.size
        if value.output >= 0:
            return Place("output", value.output, 0, size)
        slot = 0 if value.request is None else value.request.slot
        return Place("workspace", slot, value.storage.offset, size)

    def _place(self, item: GraphExpr, offsets: Sequence[int]) -> Place:
        base, shift = self._trace(item)
        size = self._size(item.type)
        if isinstance(base, Var):
            return Place("input", self.inputs[id(base)], shift, size)
        if isinstance(base, Constant):
            index = self.constants[id(base)]
            return Place("constant", index, offsets[index] + shift, size)
        key = self._key(base)
        assert key is not None
        place = self._value_place(self.values[key])
        return Place(place.kind, place.index, place.offset + shift, size)
