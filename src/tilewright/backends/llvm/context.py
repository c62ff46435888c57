"""The state of emitting one LLVM function: text so far, names, values known here, pointers of buffers.

Expressions are interned, so a value computed once is found again by identity. What was computed in a branch or a loop
body is forgotten when it ends, because it does not dominate what follows. Values that contain a load are kept for the
statement at hand only: a store may come between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tilewright.arith.analyzer import Analyzer
from tilewright.arith.simplify import depends_on_memory
from tilewright.backends.llvm.types import constant, memory_type, register_type, splat
from tilewright.ir.dtype import DataType
from tilewright.ir.expr import Call, FloatImm, IntImm, PrimExpr, Ramp, Var
from tilewright.ir.intrinsics import is_pure
from tilewright.ir.node import Node
from tilewright.support.errors import CompilerBug
from tilewright.target.target import Target
from tilewright.tir.buffer import Buffer, BufferLoad

Emit = Callable[["FunctionContext", PrimExpr], str]
"""Emits one kind of expression; returns the operand that holds its value."""


@dataclass
class ModuleContext:
    """What the functions of one LLVM module share."""

    target: Target
    dispatch: dict[type, Emit]
    declarations: dict[str, str] = field(default_factory=dict)
    functions: list[str] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    helpers: set[str] = field(default_factory=set)
    """Functions of the module that several functions share, defined once."""
    overlapping: set[Buffer] = field(default_factory=set)
    """Parameters that may be the same memory as another parameter."""

    def declare(self, name: str, result: str, params: str, attributes: str = "nounwind") -> str:
        """Note that a function is used; returns its name as an operand."""
        self.declarations.setdefault(name, f"declare {result} @{name}({params}) {attributes}".rstrip())
        return f"@{name}"

    def add_metadata(self, text: str) -> str:
        """A metadata node; `{self}` in the text stands for its own name."""
        name = f"!{len(self.metadata)}"
        self.metadata.append(f"{name} = {text.replace('{self}', name)}")
        return name


class FunctionContext:
    """Emits the instructions of one function, one after another, into the block that is open."""

    def __init__(self, module: ModuleContext, analyzer: Analyzer) -> None:
        self.module = module
        self.target = module.target
        self.analyzer = analyzer
        self.variables: dict[Var, str] = {}
        self.pointers: dict[Buffer, str] = {}
        self.on_stack: set[Buffer] = set()
        """Buffers of constant size that this call of the function alone sees."""
        self.tiles: dict[tuple[Buffer, int], int] = {}
        """The matrix tile register of a tile, by its buffer and first element."""
        self.tile_shapes: dict[int, tuple[int, int]] = {}
        """Rows and bytes a row of each tile register."""
        self.mask: str | None = None
        self.plainly_addressed: frozenset[str] = frozenset()
        self.row_vectors = False
        """Names of buffers whose elements are found by one register and a constant."""
        """The lanes that run (an operand of type <lanes x i1>), or None when all do."""
        self.mask_lanes = 1
        self.reduction: PrimExpr | None = None
        """The sum or product by which the statement at hand accumulates: its terms may come in any order."""
        self.block = "entry"
        self.entry: list[str] = []
        self.lines: list[str] = []
        self._counter = 0
        self._labels = 0
        self._values: dict[object, str] = {}
        self._log: list[object] = []
        self._loaded: dict[PrimExpr, str] = {}
        self._pure: dict[Node, bool] = {}

    # Text

    def op(self, text: str, hint: str = "v") -> str:
        """Append an instruction that has a result; returns the result's name."""
        self._counter += 1
        name = f"%{hint}{self._counter}"
        self.lines.append(f"  {name} = {text}")
        return name

    def do(self, text: str) -> None:
        """Append an instruction without a result."""
        self.lines.append(f"  {text}")

    def stack(self, type_text: str, alignment: int, hint: str = "stack") -> str:
        """Memory on the stack, taken when the function starts."""
        self._counter += 1
        name = f"%{hint}{self._counter}"
        self.entry.append(f"  {name} = alloca {type_text}, align {alignment}")
        return name

    def label(self, hint: str) -> str:
        """A new label's name."""
        self._labels += 1
        return f"{hint}{self._labels}"

    def open(self, label: str) -> None:
        """Start the block of a label; the one before must have ended with a branch."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """End the open block with a jump."""
        self.do(f"br label %{label}")

    def branch(self, condition: str, then_label: str, else_label: str) -> None:
        """End the open block with a branch."""
        self.do(f"br i1 {condition}, label %{then_label}, label %{else_label}")

    # Values

    def value(self, expr: PrimExpr) -> str:
        """The operand that holds an expression's value, computed here if it is not known yet."""
        if isinstance(expr, (IntImm, FloatImm)):
            return constant(expr)
        if type(expr) is Var:
            known = self.variables.get(expr)
            if known is None:
                raise CompilerBug(f"the variable {expr.name} has no value in the function being emitted")
            return known
        register = self._values.get(expr)
        if register is None:
            register = self._loaded.get(expr)
        if register is not None:
            return register
        emit = self.module.dispatch.get(type(expr))
        if emit is None:
            raise CompilerBug(f"the LLVM back end has no emission of {type(expr).__name__}")
        result = emit(self, expr)
        if type(expr) is not BufferLoad and self.is_pure(expr):
            self.remember(expr, result)
        else:
            self._loaded[expr] = result
        return result

    def typed(self, expr: PrimExpr) -> str:
        """The operand with its type in front, as arguments are written."""
        return f"{register_type(expr.dtype)} {self.value(expr)}"

    def remember(self, key: object, operand: str) -> None:
        """Keep a value that does not depend on memory until its scope ends."""
        self._values[key] = operand
        self._log.append(key)

    def recall(self, key: object) -> str | None:
        """A value kept by `remember`."""
        return self._values.get(key)

    def is_pure(self, expr: PrimExpr) -> bool:
        """Whether a value neither reads memory nor has effects: it may be computed early or in vain."""
        if not depends_on_memory(expr):
            return True
        known = self._pure.get(expr)
        if known is None:
            if isinstance(expr, BufferLoad) or (isinstance(expr, Call) and not is_pure(expr)):
                known = False
            else:
                known = True
                for child in expr.children():
                    if isinstance(child, PrimExpr) and not self.is_pure(child):
                        known = False
                        break
            self._pure[expr] = known
        return known

    def is_safe(self, expr: PrimExpr) -> bool:
        """Whether a value may be computed in vain: pure, or what it reads was read already in this statement.

        A vector read is also safe where all its lanes lie in its buffer: one without a mask costs less, much less on
        processors without masked loads.
        """
        if self.is_pure(expr):
            return True
        stack: list[PrimExpr] = [expr]
        seen: set[PrimExpr] = set()
        while stack:
            item = stack.pop()
            if item in seen or item in self._loaded or self.is_pure(item):
                continue
            if isinstance(item, BufferLoad):
                if item.dtype.is_scalar or not self.lies_within(item.buffer, item.indices):
                    return False
            elif isinstance(item, Call) and not is_pure(item):
                return False
            seen.add(item)
            stack.extend(child for child in item.children() if isinstance(child, PrimExpr))
        return True

    def lies_within(self, buffer: Buffer, indices: tuple[PrimExpr, ...]) -> bool:
        """Whether all lanes of a vector access to a flat buffer, also those that do not run, are proven to be in it."""
        if len(indices) != 1 or not isinstance(indices[0], Ramp) or not isinstance(indices[0].stride, IntImm):
            return False
        index, reach = indices[0], indices[0].stride.value * (indices[0].lanes - 1)
        first = index.base + reach if reach < 0 else index.base
        last = index.base + reach if reach > 0 else index.base
        return self.analyzer.prove_nonnegative(first) and self.analyzer.prove_less(last, buffer.shape[0])

    def forget_loads(self) -> None:
        """Between statements: memory may have changed."""
        self._loaded.clear()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Code that does not dominate what follows: values computed in it are forgotten at the end."""
        mark = len(self._log)
        loaded, self._loaded = self._loaded, dict(self._loaded)
        yield
        for key in self._log[mark:]:
            self._values.pop(key, None)
        del self._log[mark:]
        self._loaded = loaded

    @contextmanager
    def masked(self, mask: str, lanes: int) -> Iterator[None]:
        """Code that runs in some lanes only (within those that run already)."""
        outer, outer_lanes = self.mask, self.mask_lanes
        if outer is not None:
            if outer_lanes != lanes:
                raise CompilerBug(f"a mask of {lanes} lanes inside one of {outer_lanes}")
            mask = self.op(f"and <{lanes} x i1> {outer}, {mask}", "mask")
        self.mask, self.mask_lanes = mask, lanes
        # What was read for more lanes is right for fewer; what is read under this mask ends with it.
        loaded, self._loaded = self._loaded, dict(self._loaded)
        yield
        self.mask, self.mask_lanes, self._loaded = outer, outer_lanes, loaded

    @contextmanager
    def unmasked(self) -> Iterator[None]:
        """Code that runs in all lanes, though only some of them are wanted."""
        outer, self.mask = self.mask, None
        yield
        self.mask = outer

    def choose(self, condition: str, dtype: DataType, then: Callable[[], str], other: Callable[[], str]) -> str:
        """A value by control flow: only the chosen side is evaluated."""
        then_label, else_label, end = self.label("then"), self.label("else"), self.label("end")
        self.branch(condition, then_label, else_label)
        self.open(then_label)
        with self.scope():
            chosen = then()
        then_from = self.block
        self.jump(end)
        self.open(else_label)
        with self.scope():
            refused = other()
        else_from = self.block
        self.jump(end)
        self.open(end)
        kind = register_type(dtype)
        return self.op(f"phi {kind} [ {chosen}, %{then_from} ], [ {refused}, %{else_from} ]")

    def broadcast(self, operand: str, scalar: DataType, lanes: int) -> str:
        """A vector of one scalar."""
        kind = register_type(scalar)
        if not operand.startswith("%"):
            return splat(kind, operand, lanes)
        key = ("broadcast", operand, lanes)
        known = self.recall(key)
        if known is None:
            first = self.op(f"insertelement <{lanes} x {kind}> poison, {kind} {operand}, i64 0")
            known = self.op(
                f"shufflevector <{lanes} x {kind}> {first}, <{lanes} x {kind}> poison, <{lanes} x i32> zeroinitializer"
            )
            self.remember(key, known)
        return known

    def pointer(self, buffer: Buffer) -> str:
        """The pointer to a buffer's first element."""
        known = self.pointers.get(buffer)
        if known is None:
            raise CompilerBug(f"the buffer {buffer.name} has no memory in the function being emitted")
        return known

    def element(self, buffer: Buffer, index: str, constant_offset: int = 0) -> str:
        """The address of an element."""
        kind = memory_type(buffer.dtype.element)
        key = ("address", buffer, index)
        base = self.recall(key)
        if base is None:
            base = self.pointer(buffer)
            if index != "0":
                base = self.op(f"getelementptr inbounds {kind}, ptr {base}, i64 {index}", "p")
                if buffer.name in self.plainly_addressed:
                    # Nothing is known of the result but that it is in a register: no sum is put in its place.
                    base = self.op(f'call ptr asm "", "=r,0"(ptr {base})', "p")
                self.remember(key, base)
        if constant_offset == 0:
            return base
        # LLVM would find equal ones, but reading and comparing them takes it time.
        place = ("address", base, kind, constant_offset)
        known = self.recall(place)
        if known is None:
            known = self.op(f"getelementptr inbounds {kind}, ptr {base}, i64 {constant_offset}", "p")
            self.remember(place, known)
        return known
