"""The ahead-of-time code of a model around its kernels: its entry, and for symbolic shapes what sizes it.

    i32 @<model>_entry(ptr inputs, ptr outputs, ptr workspace, ptr constants[, ptr symbols])
    i32 @<model>_plan(ptr symbols, ptr output_shapes, ptr workspace_bytes)
    i32 @<model>_shapes(ptr input_shapes, ptr symbols, ptr output_shapes, ptr workspace_bytes)
    void @<model>_loop(ptr table)

The entry calls the kernels in order and returns the first nonzero code, or 0; kernels that check data have codes of
their own (docs/abi.md). The other two are there
when shapes are symbolic: `_plan` computes output shapes and the size of the workspace, `_shapes` first binds the
symbols from the shapes of the inputs and checks these. A program has what takes the turns of its loops
(`loop_driver.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.backends.llvm.extents import DECLARATIONS, ExtentEmitter
from tilewright.backends.llvm.loop_driver import emit_loop_driver
from tilewright.codegen.symbols import check_symbol
from tilewright.runtime.core.artifact import ArgKind, ArgRef, Extent, ModelInfo, Step
from tilewright.runtime.core.checks import FIRST_CODE
from tilewright.runtime.core.library import ERROR_ASSERT
from tilewright.runtime.core.shapes import symbols_in
from tilewright.support.errors import CompilerBug

ALIGNMENT = 64
_ATTRIBUTES = "nounwind noinline optnone"
"""Of functions that call kernels or size memory: long, run once a call, and no quicker for being optimised."""


def emit_profiled_entry(model: ModelInfo, name: str, hook: str) -> str:
    """The LLVM IR of an entry called `name` that calls `hook(i32 step)` before each step."""
    declared = {hook: f"declare void @{hook}(i32)"}
    body = _entry(model, declared, name, hook)
    return _with_intrinsics("\n".join([*declared.values(), body]) + "\n")


def emit_entry(model: ModelInfo) -> str:
    """The LLVM IR of all entries of a model (its own or its segments', and its variants'), with declarations of the
    kernels they call.

    Give it to `compile_functions(kernels, target, entry_ir=...)`; kernels compiled elsewhere may be linked in instead.
    """
    declared: dict[str, str] = {}
    bodies: list[str] = []
    for part in model.parts:
        bodies.append(_entry(part, declared, part.entry))
        if part.symbols:
            bodies.append(_planner(part))
    if model.program:
        bodies.append(emit_loop_driver(model.name))
    elif model.symbols:
        bodies.append(_binder(model))
    return _with_intrinsics("\n".join([*declared.values(), *bodies]) + "\n")


def _with_intrinsics(text: str) -> str:
    """A text with declarations of the intrinsics that it calls."""
    return "\n".join([*(line for name, line in DECLARATIONS.items() if name in text), text])


def _entry(model: ModelInfo, declared: dict[str, str], name: str, hook: str = "") -> str:
    """The entry called `name`; it calls `hook`, if any, before each step."""
    check_symbol(model.name)
    places = _Places(model)
    lines: list[str] = []
    first = FIRST_CODE + model.first_check
    checks = {check.step: first + number for number, check in enumerate(model.checks)}
    for number, step in enumerate(model.steps):
        if not 0 <= step.kernel < len(model.kernels):
            raise CompilerBug(f"step {number} of model {model.name} calls kernel {step.kernel}, which does not exist")
        symbol = model.kernels[step.kernel].symbol
        check_symbol(symbol)
        types = ", ".join("i64" if arg.kind in (ArgKind.SCALAR, ArgKind.SYMBOL) else "ptr" for arg in step.args)
        declared.setdefault(symbol, f"declare i32 @{symbol}({types})")
        called = _call(number, step, symbol, places, checks.get(number))
        lines += [called[0], *([f"  call void @{hook}(i32 {number})"] if hook else []), *called[1:]]
    extra = ", ptr %symbols" if model.symbols else ""
    header = f"define i32 @{name}(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants{extra}) {_ATTRIBUTES} {{"
    arms = [f"[ %code{number}, %step{number} ]" for number in range(len(model.steps))]
    arms.append(f"[ 0, %step{len(model.steps)} ]")
    tail = [f"step{len(model.steps)}:", "  br label %exit", "exit:", f"  %code = phi i32 {', '.join(arms)}"]
    return "\n".join([header, "entry:", *places.lines, "  br label %step0", *lines, *tail, "  ret i32 %code", "}"])


class _Places:
    """What the start of an entry computes: symbols, sizes over them, and the slots of a symbolic workspace."""

    def __init__(self, model: ModelInfo) -> None:
        self.lines: list[str] = []
        self.symbols = _load_symbols(model, self.lines)
        extents = ExtentEmitter(self.lines, self.symbols)
        self.names = [*self.symbols.values(), *map(extents.value, model.sizes)]
        self.slots: list[str] = []
        if model.slots:
            offsets, _ = _slot_offsets(extents, model.slots)
            for number, offset in enumerate(offsets):
                self.lines.append(f"  %slot{number} = getelementptr i8, ptr %workspace, i64 {offset}")
                self.slots.append(f"%slot{number}")

    def workspace(self, index: int) -> str:
        return self.slots[index] if self.slots else "%workspace"


def _load_symbols(model: ModelInfo, lines: list[str]) -> dict[str, str]:
    registers: dict[str, str] = {}
    for number, name in enumerate(model.symbols):
        lines.append(f"  %at{number} = getelementptr i64, ptr %symbols, i64 {number}")
        lines.append(f"  %symbol{number} = load i64, ptr %at{number}, align 8")
        registers[name] = f"%symbol{number}"
    return registers


def _slot_offsets(extents: ExtentEmitter, slots: Sequence[Extent]) -> tuple[list[str], str]:
    """Where each slot starts, and the size of them all."""
    offsets: list[str] = []
    total = "0"
    for size in slots:
        offsets.append(total)
        total = extents.instruction(f"add i64 {total}, {extents.aligned(extents.value(size), ALIGNMENT)}")
    return offsets, total


def _call(number: int, step: Step, symbol: str, places: _Places, check: int | None) -> list[str]:
    """A step; one that checks data fails with a code of its own."""
    lines = [f"step{number}:"]
    arguments: list[str] = []
    for position, arg in enumerate(step.args):
        operand, setup = _argument(arg, f"{number}_{position}", places)
        lines += setup
        arguments.append(operand)
    returned = f"%code{number}" if check is None else f"%returned{number}"
    lines.append(f"  {returned} = call i32 @{symbol}({', '.join(arguments)})")
    if check is not None:
        lines.append(f"  %wrong{number} = icmp eq i32 {returned}, {ERROR_ASSERT}")
        lines.append(f"  %code{number} = select i1 %wrong{number}, i32 {check}, i32 {returned}")
    lines.append(f"  %failed{number} = icmp ne i32 %code{number}, 0")
    lines.append(f"  br i1 %failed{number}, label %exit, label %step{number + 1}")
    return lines


def _argument(arg: ArgRef, name: str, places: _Places) -> tuple[str, list[str]]:
    if arg.kind is ArgKind.SCALAR:
        return f"i64 {arg.index}", []
    if arg.kind is ArgKind.SYMBOL:
        return f"i64 {places.names[arg.index]}", []
    lines: list[str] = []
    if arg.kind in (ArgKind.INPUT, ArgKind.OUTPUT):
        lines.append(f"  %slot{name} = getelementptr inbounds ptr, ptr %{arg.kind}s, i64 {arg.index}")
        lines.append(f"  %base{name} = load ptr, ptr %slot{name}, align 8")
        base = f"%base{name}"
    else:
        base = places.workspace(arg.index) if arg.kind is ArgKind.WORKSPACE else "%constants"
    if arg.offset == 0:
        return f"ptr {base}", lines
    lines.append(f"  %p{name} = getelementptr inbounds i8, ptr {base}, i64 {arg.offset}")
    return f"ptr %p{name}", lines


def _planner(model: ModelInfo) -> str:
    """Output shapes and workspace size.

    Returns -1 - k when dimension k of the outputs would be negative, or, counted on, when requirement k does not hold.
    """
    lines: list[str] = []
    extents = ExtentEmitter(lines, _load_symbols(model, lines))
    dims = [extents.value(extent) for info in model.outputs for extent in info.shape]
    size = _slot_offsets(extents, model.slots)[1] if model.slots else str(model.workspace_bytes)
    for variant in model.variants:
        same = "true"
        for value, symbol in zip(variant.fixed, extents.symbols.values(), strict=True):
            same = extents.instruction(f"and i1 {same}, {extents.instruction(f'icmp eq i64 {symbol}, {value}')}")
        needed = extents.instruction(f"select i1 {same}, i64 {variant.workspace_bytes}, i64 0")
        size = extents.instruction(f"call i64 @llvm.smax.i64(i64 {size}, i64 {needed})")
    for number, dim in enumerate(dims):
        lines.append(f"  %to{number} = getelementptr i64, ptr %output_shapes, i64 {number}")
        lines.append(f"  store i64 {dim}, ptr %to{number}, align 8")
    lines.append(f"  store i64 {size}, ptr %workspace_bytes, align 8")
    code = "0"
    for number, (a, b) in reversed(list(enumerate(model.requires))):
        differs = extents.instruction(f"icmp ne i64 {extents.value(a)}, {extents.value(b)}")
        code = extents.instruction(f"select i1 {differs}, i32 {-1 - len(dims) - number}, i32 {code}")
    for number, dim in reversed(list(enumerate(dims))):
        lines.append(f"  %negative{number} = icmp slt i64 {dim}, 0")
        lines.append(f"  %code{number} = select i1 %negative{number}, i32 {-1 - number}, i32 {code}")
        code = f"%code{number}"
    header = f"define i32 @{model.planner}(ptr %symbols, ptr %output_shapes, ptr %workspace_bytes) {_ATTRIBUTES} {{"
    return "\n".join([header, *lines, f"  ret i32 {code}", "}"])


def _binder(model: ModelInfo) -> str:
    """Symbols from input shapes; returns 1 + k when dimension k of the inputs does not fit."""
    lines: list[str] = []
    declared = [extent for info in model.inputs for extent in info.shape]
    for number in range(len(declared)):
        lines.append(f"  %from{number} = getelementptr i64, ptr %input_shapes, i64 {number}")
        lines.append(f"  %dim{number} = load i64, ptr %from{number}, align 8")
    symbols: dict[str, str] = {}
    binding: set[int] = set()
    for number, extent in enumerate(declared):
        if isinstance(extent, str) and extent in model.symbols and extent not in symbols:
            symbols[extent] = f"%dim{number}"
            binding.add(number)
    for number, name in enumerate(model.symbols):
        if name not in symbols:
            raise CompilerBug(f"the symbol {name} of model {model.name} is no dimension of an input")
        lines.append(f"  %to{number} = getelementptr i64, ptr %symbols, i64 {number}")
        lines.append(f"  store i64 {symbols[name]}, ptr %to{number}, align 8")
    extents = ExtentEmitter(lines, symbols)
    # A dimension of symbols that nothing else has (nor uses) may be anything.
    expected_extents = {
        number: extents.value(extent)
        for number, extent in enumerate(declared)
        if all(name in symbols for name in symbols_in(extent))
    }
    code = "%planned"
    checks: list[str] = []
    for number, expected in reversed(expected_extents.items()):
        condition = f"slt i64 %dim{number}, 0" if number in binding else f"ne i64 %dim{number}, {expected}"
        checks.append(f"  %wrong{number} = icmp {condition}")
        checks.append(f"  %code{number} = select i1 %wrong{number}, i32 {number + 1}, i32 {code}")
        code = f"%code{number}"
    arguments = "ptr %symbols, ptr %output_shapes, ptr %workspace_bytes"
    lines.append(f"  %planned = call i32 @{model.planner}({arguments})")
    return "\n".join(
        [
            f"define i32 @{model.binder}(ptr %input_shapes, {arguments}) {_ATTRIBUTES} {{",
            *lines,
            *checks,
            f"  ret i32 {code}",
            "}",
        ]
    )
