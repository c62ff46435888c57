"""A straight run of kernels -> its memory plan and steps: a whole model, or a part that the virtual machine calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.arith.analyzer import Analyzer
from tilewright.graph.ir.dimensions import as_dims
from tilewright.graph.ir.expr import Call, Function
from tilewright.graph.ir.traverse import post_order
from tilewright.graph.layer_products import layer_products, most_of_little, products_of
from tilewright.graph.ops.checks import CheckAttributes, check_of
from tilewright.graph.ops.symbolic import requirements
from tilewright.graph.passes.fuse_horizontally import HORIZONTAL, parts_of, result_count
from tilewright.graph.passes.place_values import ALIGNMENT
from tilewright.graph.passes.plan_memory import KernelMemory, MemoryPlan, Place, PlannedStep, plan_memory
from tilewright.graph.state import StatePair
from tilewright.graph.structure import structure_of
from tilewright.ir.build import const
from tilewright.ir.expr import IntImm, PrimExpr
from tilewright.ir.expr import Var as Symbol
from tilewright.ir.function import IRModule
from tilewright.ir.types import TensorType, Type
from tilewright.ir.visit import rewrite_nodes, variables
from tilewright.lower.any_keys import any_keys
from tilewright.lower.cost import Work
from tilewright.lower.general_sizes import dims_of, general_sizes
from tilewright.lower.horizontal import KernelPart
from tilewright.lower.joined_elements import join_elements
from tilewright.lower.joined_pixels import join_pixels
from tilewright.lower.joined_rows import join_rows
from tilewright.lower.kernel import CompiledKernel, Kernel, make_horizontal, make_kernel, plain_label
from tilewright.lower.peak_sharing import sharing_at_the_peak
from tilewright.lower.primitive import kernel_symbols, lower_primitive
from tilewright.lower.shared_sizes import form_of, in_any_size
from tilewright.lower.symbols import SymbolTable
from tilewright.runtime.core.artifact import (
    ArgKind,
    ArgRef,
    CheckInfo,
    Extent,
    KernelInfo,
    ModelInfo,
    StateInfo,
    Step,
    TensorInfo,
)
from tilewright.support import trace
from tilewright.support.errors import CompilerBug, UnsupportedError
from tilewright.tir.analysis.in_place import Pair, could_share, in_place_pairs, with_in_place

_WORTH_SHARING = 3
"""Sizes of one computation in a model from which on it is a kernel of any size: fewer get code for their own."""
_LITTLE = 0.2
"""The part of a model's products that layers with kernels of any size may be: they take up to 1.1 times as long."""
_SIZES = (ArgKind.SYMBOL, ArgKind.SCALAR)
"""What is passed to kernels for their symbols."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A primitive function as a kernel: equal ones share the kernel, each has sizes and work of its own.

    `sizes` are what it passes for the kernel's symbols: expressions of the model's.
    """

    kernel: Kernel
    sizes: tuple[PrimExpr, ...]
    work: Work


class KernelSet:
    """The distinct kernels of a model, over all its segments, and how their memory is planned.

    `on_cpu`: whether they are for a CPU, where results may be written over arguments; `in_slots`: whether kernels take
    whole pieces of memory; `cpu_forms`: whether operators are computed in the forms that they have for CPUs;
    `in_place`: whether state may be written over itself on a device; `shares_sizes`: whether kernels may be for any
    size though all sizes are known; `line`: bytes that values begin at a multiple of.
    """

    def __init__(
        self,
        on_cpu: bool = True,
        in_slots: bool = False,
        cpu_forms: bool = True,
        in_place: bool = False,
        shares_sizes: bool = False,
        line: int = ALIGNMENT,
    ) -> None:
        self.line = line
        self.in_place = in_place
        self.shares_sizes = shares_sizes
        self.on_cpu = on_cpu
        self.cpu_forms = cpu_forms
        self.in_slots = in_slots
        self._kernels: dict[str, Kernel] = {}
        self._uses: dict[tuple[object, ...], _Use] = {}
        self._made: dict[tuple[object, int], Kernel] = {}
        self._elements = Symbol("elements")
        self._shared: dict[int, tuple[Function, Mapping[Symbol, PrimExpr]]] = {}
        # Types and sizes of functions are told apart by identity, so they must live as long as the set.
        self._kept: list[Function] = []

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, in the order in which they were first used."""
        return tuple(self._kernels.values())

    def allowed(self, plan: MemoryPlan) -> list[tuple[Pair, ...]]:
        """For each step, pairs of an argument and a result that may be the same memory, as far as its kernel allows it.

        On devices those of state, and of steps at the peak: what is said of distinct memory makes all others quicker.
        """
        if self.on_cpu or not self.in_place:
            return [step.ending if self.on_cpu else () for step in plan.steps]
        shared = {} if plan.slots else sharing_at_the_peak(plan, self._can_share)
        state = [[pair for pair in step.ending if step.arguments[pair[0]].kind == "input"] for step in plan.steps]
        return [(*pairs, *shared.get(number, ())) for number, pairs in enumerate(state)]

    def _can_share(self, step: PlannedStep, pair: Pair) -> bool:
        """Whether a step's kernel computes a result element by element from an argument."""
        func = self._use(step.function, _constants(step), (pair,)).kernel.func
        return (pair[0], len(step.arguments) + pair[1]) in in_place_pairs(func)

    def expect(self, steps: Iterable[PlannedStep]) -> None:
        """Look for computations of which there will be many sizes: those steps share a kernel."""
        many: dict[tuple[object, ...], list[tuple[Function, Function, int]]] = {}
        forms: dict[tuple[object, ...], list[Function]] = {}
        asked = [(step, products_of(step.function)) for step in (steps if self.shares_sizes else ())]
        numbers = [products for _, products in asked]
        little = most_of_little(numbers, _LITTLE * sum(numbers))
        for step, products in asked:
            # Constants have a shape.
            constants = _constants(step)
            joined = None if constants else join_elements(step.function, self._elements)
            if joined is not None:
                many.setdefault((step.ending, *structure_of(joined[0])), []).append((step.function, *joined))
                self._kept.append(joined[0])
            elif (form := form_of(step.function, constants if 0 < products <= little else ())) is not None:
                forms.setdefault((_ending(step), constants, *form), []).append(step.function)
            self._kept.append(step.function)
        for uses in many.values():
            if len({count for _, _, count in uses}) >= _WORTH_SHARING:
                self._shared |= {id(item): (uses[0][1], {self._elements: const(count)}) for item, _, count in uses}
        for functions in forms.values():
            if len({tuple(param.type for param in item.params) for item in functions}) >= _WORTH_SHARING:
                shared = in_any_size(functions)
                self._shared |= {} if shared is None else dict(zip(map(id, functions), shared, strict=True))

    def use(self, function: Function, constants: tuple[int, ...], ending: tuple[Pair, ...] = ()) -> _Use:
        """The kernel of a primitive function; `constants` are the parameters that are known at compile time.

        `ending` has arguments that results of the same size may be written over, if the computation allows it: pairs of
        an argument's and a result's number. Code that allows it is a kernel of its own.
        """
        found = self._use(function, constants, ending)
        shared = self._kernels.setdefault(found.kernel.symbol, found.kernel)
        return replace(found, kernel=shared)

    def _use(self, function: Function, constants: tuple[int, ...], ending: tuple[Pair, ...]) -> _Use:
        make = self._horizontal if function.notes.get(HORIZONTAL) else self._alone
        return make(function, constants, ending)

    def _horizontal(self, function: Function, constants: tuple[int, ...], ending: tuple[Pair, ...]) -> _Use:
        """Several kernels that share launches: each is what it would be by itself."""
        params = {id(param): number for number, param in enumerate(function.params)}
        calls = parts_of(function)
        readers = Counter(id(arg) for call in calls for arg in call.args)
        parts: list[KernelPart] = []
        first = len(params)
        for call in calls:
            assert isinstance(call.callee, Function)
            numbers = [params[id(arg)] for arg in call.args]
            results = range(first, first + result_count(call.type))
            first = results.stop
            over = [
                (number, result - results.start)
                for number, arg in enumerate(call.args)
                for result in results
                if readers[id(arg)] == 1 and (numbers[number], result - len(params)) in ending
            ]
            fixed = tuple(number for number, place in enumerate(numbers) if place in constants)
            own = self._alone(call.callee, fixed, tuple(over)).kernel
            parts.append(KernelPart(own.symbol, own.func, own.work, (*numbers, *results)))
        label = str(function.notes["name"])
        with trace.span("tensor expressions"):
            func = lower_primitive(function, "kernel", constants, on_cpu=self.cpu_forms)
            kernel = make_horizontal(func, label, parts)
        return _Use(kernel, (), kernel.work)

    def _alone(self, function: Function, constants: tuple[int, ...], ending: tuple[Pair, ...]) -> _Use:
        label = str(function.notes.get("name", "kernel")).removeprefix("fused_")
        key = (plain_label(label), constants, ending, *structure_of(function))
        found = self._uses.get(key)
        if found is None:
            general, sizes = self._general(function)
            kernel = self._made.get((key[0], id(general)))
            if kernel is None:
                with trace.span("tensor expressions"):
                    func = lower_primitive(general, "kernel", constants, on_cpu=self.cpu_forms)
                    wanted = [(argument, len(function.params) + result) for argument, result in ending]
                    func = with_in_place(func, tuple(pair for pair in wanted if could_share(func, pair)))
                    kernel = self._made[key[0], id(general)] = make_kernel(func, label)
            known = Analyzer().simplify
            work = Work(*(known(rewrite_nodes(part, sizes)) for part in (kernel.work.flops, kernel.work.bytes)))
            passed = tuple(sizes.get(item, item) for item in kernel_symbols(kernel.func))
            found = self._uses[key] = _Use(kernel, passed, work)
            self._kept += [function, general]
        return found

    def _general(self, function: Function) -> tuple[Function, Mapping[Symbol, PrimExpr]]:
        """What a kernel is made of, for any sizes, and what the symbols of its sizes stand for."""
        if not self.on_cpu:
            return function, {}
        if id(function) in self._shared:
            return self._shared[id(function)]
        joined, sizes = join_pixels(function)
        if not sizes:
            joined, sizes = join_rows(function)
        if sizes:
            return joined, sizes
        attending, keys = any_keys(joined)
        general, sizes = general_sizes(attending)
        return general, {**keys, **sizes}


@dataclass(slots=True)
class Segment:
    """A planned run of kernels. Constants in `info.steps` have no place yet: those of `plan.constants` by number.

    A plan knows nothing of the insides of kernels until these are compiled; `with_kernels` then gives the final one.
    """

    function: Function
    table: SymbolTable
    plan: MemoryPlan
    info: ModelInfo
    symbols: tuple[Symbol, ...]
    in_slots: bool = False
    line: int = ALIGNMENT
    state: tuple[StatePair, ...] = ()

    def with_kernels(self, compiled: Mapping[str, CompiledKernel]) -> Segment:
        """The segment planned around compiled kernels: with their scratch memory, and with results over arguments."""
        needs: list[KernelMemory] = []
        for step, planned in zip(self.info.steps, self.plan.steps, strict=True):
            kernel = compiled[self.info.kernels[step.kernel].symbol]
            first = len(planned.arguments)
            pairs = tuple((source, result - first) for source, result in kernel.in_place)
            needs.append(KernelMemory(pairs, kernel.scratch))
        plan = _plan(self.function, needs, self.in_slots, self.line, self.state)
        steps = tuple(
            Step(step.kernel, _arguments(planned, [arg for arg in step.args if arg.kind in _SIZES]))
            for step, planned in zip(self.info.steps, plan.steps, strict=True)
        )
        slots = tuple(self.table.extent(size) for size in plan.slots)
        state = tuple(replace(item, in_place=over) for item, over in zip(self.info.state, plan.over, strict=True))
        info = replace(self.info, workspace_bytes=plan.workspace_bytes, steps=steps, slots=slots, state=state)
        return replace(self, plan=plan, info=info)


def lower_segment(
    function: Function,
    name: str,
    outputs: Sequence[str],
    kernels: KernelSet,
    table: SymbolTable,
    symbols: Sequence[Symbol] | None = None,
    state: Sequence[StatePair] = (),
) -> Segment:
    """Plan the memory and the steps of a fused first-order function.

    `symbols` are those that the caller binds, in order; None takes every symbol that the function uses. `state` are
    values that the runner keeps from call to call.
    """
    plan = _plan(function, (), kernels.in_slots, kernels.line, state)
    infos: list[KernelInfo] = []
    uses: list[_Use] = []
    kernels.expect(plan.steps)
    for step, over in zip(plan.steps, kernels.allowed(plan), strict=True):
        uses.append(kernels.use(step.function, _constants(step), over))
        infos.append(_kernel_info(uses[-1], step, table))
    types = _result_types(function)
    required = requirements(function)
    if symbols is None:
        shapes = [dim for kind in types for dim in tensor_dims(kind)]
        symbols = _all_symbols([*shapes, *plan.slots, *(size for pair in required for size in pair)], uses)
    sizes = dict.fromkeys(size for use in uses for size in use.sizes if type(size) not in (Symbol, IntImm))
    numbers = {size: number for number, size in enumerate((*symbols, *sizes))}
    steps = tuple(
        Step(number, _arguments(step, _size_args(use, numbers)))
        for number, (step, use) in enumerate(zip(plan.steps, uses, strict=True))
    )
    info = ModelInfo(
        name=name,
        inputs=tuple(tensor_info(param.name, param.type, table) for param in function.params),
        outputs=tuple(tensor_info(label, kind, table) for label, kind in zip(outputs, types, strict=True)),
        workspace_bytes=plan.workspace_bytes,
        kernels=tuple(infos),
        steps=steps,
        symbols=tuple(table.name(symbol) for symbol in symbols),
        sizes=tuple(table.extent(size) for size in sizes),
        slots=tuple(table.extent(size) for size in plan.slots),
        requires=tuple((table.extent(a), table.extent(b)) for a, b in required),
        checks=_checks(plan, table),
        state=tuple(StateInfo(pair.parameter, pair.result) for pair in state),
    )
    return Segment(function, table, plan, info, tuple(symbols), kernels.in_slots, kernels.line, tuple(state))


def _ending(step: PlannedStep) -> tuple[Pair, ...]:
    """The pairs of an argument and a result that may be the same memory: no layer's operand, which all results read."""
    layers = [item for item in post_order(step.function) if isinstance(item, Call) and layer_products(item)]
    read = {id(operand) for layer in layers for operand in layer.args}
    return tuple(pair for pair in step.ending if id(step.function.params[pair[0]]) not in read)


def _constants(step: PlannedStep) -> tuple[int, ...]:
    """The arguments of a step that are known at compile time."""
    return tuple(number for number, place in enumerate(step.arguments) if place.kind == "constant")


def _checks(plan: MemoryPlan, table: SymbolTable) -> tuple[CheckInfo, ...]:
    """The steps of a plan that check data."""
    checks: list[CheckInfo] = []
    for number, step in enumerate(plan.steps):
        call = check_of(step.function)
        if call is not None:
            attributes = call.attributes
            assert isinstance(attributes, CheckAttributes)
            node = "" if call.span is None else call.span.described()
            shape = tuple(table.extent(dim) for dim in as_dims(attributes.shape))
            checks.append(CheckInfo(number, node, attributes.what, attributes.axes, shape))
    return tuple(checks)


def _plan(
    function: Function, kernels: Sequence[KernelMemory], in_slots: bool, line: int, state: Sequence[StatePair]
) -> MemoryPlan:
    module = IRModule({function.name: function})
    return plan_memory(module, entry=function.name, kernels=kernels, in_slots=in_slots, line=line, state=state)


def _arguments(step: PlannedStep, symbols: Sequence[ArgRef]) -> tuple[ArgRef, ...]:
    """What a step passes to its kernel, in the order of the kernel's parameters (docs/abi.md)."""
    places = [_reference(place) for place in (*step.arguments, *step.results)]
    return (*places, *symbols, *(_reference(place) for place in step.scratch))


def _result_types(function: Function) -> tuple[Type | None, ...]:
    result = function.body.type
    items = getattr(result, "items", None)
    return items if isinstance(items, tuple) else (result,)


def tensor_dims(kind: Type | None) -> tuple[PrimExpr, ...]:
    """The dimensions of a tensor, which are numbers or symbolic."""
    return tuple(dim for dim in dims_of(kind) if dim is not None)


def _all_symbols(exprs: Iterable[PrimExpr], uses: Iterable[_Use]) -> tuple[Symbol, ...]:
    symbols: dict[Symbol, None] = {}
    for expr in exprs:
        symbols.update(dict.fromkeys(variables(expr)))
    for use in uses:
        symbols.update(dict.fromkeys(symbol for size in use.sizes for symbol in variables(size)))
    return tuple(symbols)


def _size_args(use: _Use, numbers: dict[PrimExpr, int]) -> tuple[ArgRef, ...]:
    missing = [symbol.name for size in use.sizes for symbol in variables(size) if symbol not in numbers]
    if missing:
        raise CompilerBug(f"the kernel {use.kernel.symbol} needs the symbols {', '.join(missing)}, which nothing binds")
    return tuple(
        ArgRef(ArgKind.SCALAR, size.value) if isinstance(size, IntImm) else ArgRef(ArgKind.SYMBOL, numbers[size])
        for size in use.sizes
    )


def _kernel_info(use: _Use, step: PlannedStep, table: SymbolTable) -> KernelInfo:
    nodes = step.function.notes.get("nodes", ())
    assert isinstance(nodes, Iterable)
    label = str(step.function.notes.get("name", use.kernel.symbol))
    flops, moved = (_work_text(part, use, table) for part in (use.work.flops, use.work.bytes))
    return KernelInfo(use.kernel.symbol, tuple(str(n) for n in nodes), flops, moved, label)


def _work_text(work: PrimExpr, use: _Use, table: SymbolTable) -> Extent:
    """Work as text; 0 where it varies inside the kernel (a triangular loop)."""
    symbols = {symbol for size in use.sizes for symbol in variables(size)}
    return table.extent(work) if symbols.issuperset(variables(work)) else 0


def _reference(place: Place) -> ArgRef:
    kind = ArgKind(place.kind)
    return ArgRef(kind, 0 if kind is ArgKind.CONSTANT else place.index, place.offset)


def tensor_info(name: str, kind: Type | None, table: SymbolTable) -> TensorInfo:
    """The description of an input or output."""
    if not isinstance(kind, TensorType):
        raise UnsupportedError(f"{name}: inputs and outputs of compiled code are tensors")
    if kind.shape is None or any(dim is None for dim in kind.shape):
        raise UnsupportedError(
            f"the shape of {name} is not known at compile time", hint='give shapes={"input": (1, 3, 224, 224)}'
        )
    return TensorInfo(name, tuple(table.extent(dim) for dim in tensor_dims(kind)), str(kind.dtype))
