"""The ahead-of-time entry of a model: one function that calls its kernels in order.

`i32 @<model>_entry(ptr inputs, ptr outputs, ptr workspace, ptr constants)` (docs/abi.md) returns the first nonzero
code of a kernel, or 0.
"""

from __future__ import annotations

from tilewright.codegen.llvm.names import check_symbol
from tilewright.runtime.artifact import ArgKind, ArgRef, ModelInfo, Step
from tilewright.support.errors import CompilerBug


def emit_entry(model: ModelInfo) -> str:
    """The LLVM IR of a model's entry, with declarations of the kernels it calls.

    Give it to `compile_functions(kernels, target, entry_ir=...)`; kernels compiled elsewhere may be linked in instead.
    """
    check_symbol(model.name)
    declared: dict[str, str] = {}
    lines: list[str] = []
    for number, step in enumerate(model.steps):
        if not 0 <= step.kernel < len(model.kernels):
            raise CompilerBug(f"step {number} of model {model.name} calls kernel {step.kernel}, which does not exist")
        symbol = model.kernels[step.kernel].symbol
        check_symbol(symbol)
        types = ", ".join("i64" if arg.kind is ArgKind.SCALAR else "ptr" for arg in step.args)
        declared.setdefault(symbol, f"declare i32 @{symbol}({types})")
        lines += _call(number, step, symbol)
    header = f"define i32 @{model.entry}(ptr %inputs, ptr %outputs, ptr %workspace, ptr %constants) nounwind {{"
    arms = [f"[ %code{number}, %step{number} ]" for number in range(len(model.steps))]
    arms.append(f"[ 0, %step{len(model.steps)} ]")
    tail = [f"step{len(model.steps)}:", "  br label %exit", "exit:", f"  %code = phi i32 {', '.join(arms)}"]
    body = [header, "entry:", "  br label %step0", *lines, *tail, "  ret i32 %code", "}"]
    return "\n".join([*declared.values(), *body]) + "\n"


def _call(number: int, step: Step, symbol: str) -> list[str]:
    lines = [f"step{number}:"]
    arguments: list[str] = []
    for position, arg in enumerate(step.args):
        operand, setup = _argument(arg, f"{number}_{position}")
        lines += setup
        arguments.append(operand)
    lines.append(f"  %code{number} = call i32 @{symbol}({', '.join(arguments)})")
    lines.append(f"  %failed{number} = icmp ne i32 %code{number}, 0")
    lines.append(f"  br i1 %failed{number}, label %exit, label %step{number + 1}")
    return lines


def _argument(arg: ArgRef, name: str) -> tuple[str, list[str]]:
    if arg.kind is ArgKind.SCALAR:
        return f"i64 {arg.index}", []
    lines: list[str] = []
    if arg.kind in (ArgKind.INPUT, ArgKind.OUTPUT):
        lines.append(f"  %slot{name} = getelementptr inbounds ptr, ptr %{arg.kind}s, i64 {arg.index}")
        lines.append(f"  %base{name} = load ptr, ptr %slot{name}, align 8")
        base = f"%base{name}"
    else:
        base = "%workspace" if arg.kind is ArgKind.WORKSPACE else "%constants"
    if arg.offset == 0:
        return f"ptr {base}", lines
    lines.append(f"  %p{name} = getelementptr inbounds i8, ptr {base}, i64 {arg.offset}")
    return f"ptr %p{name}", lines
