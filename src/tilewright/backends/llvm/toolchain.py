"""LLVM IR text to machine code: parse, verify, optimise, emit an object or assembly.

llvmlite takes 150 ms to import, so it is loaded by the first call and not with this module.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from types import ModuleType
from typing import Any

from tilewright.support import trace
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.interrupts import held_interrupts

# Level 0 of LLVM's code generator spills every value; 1 to 3 measured the same. Only the IR optimiser's level varies.
_CODE_GENERATOR_LEVEL = 2


@cache
def binding() -> ModuleType:
    """llvmlite's binding module with every target initialised."""
    with held_interrupts():
        import llvmlite.binding as llvm

        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    loaded: ModuleType = llvm
    return loaded


@cache
def llvm_version() -> str:
    """The versions that decide what machine code comes out, for cache keys: llvmlite's and LLVM's."""
    import llvmlite

    return f"llvmlite {llvmlite.__version__} LLVM {'.'.join(map(str, binding().llvm_version_info))}"


@lru_cache(maxsize=32)
def _target_machine(triple: str, cpu: str, features: str) -> Any:
    llvm = binding()
    try:
        target = llvm.Target.from_triple(_whole(triple))
    except RuntimeError as error:
        raise UserError(
            f"LLVM has no target for the triple {triple!r}: {str(error).strip()}",
            hint="use a triple such as x86_64-linux-gnu, aarch64-linux-gnu or riscv64-linux-gnu",
        ) from None
    return target.create_target_machine(
        cpu=cpu,
        features=features,
        opt=_CODE_GENERATOR_LEVEL,
        reloc="pic",
        codemodel="default",
        abiname="lp64d" if triple.startswith("riscv64") else "",
    )


def _whole(triple: str) -> str:
    """A triple with a vendor, by which LLVM counts: of `armv7-linux-gnueabihf` it would not know the system."""
    parts = triple.split("-")
    return "-".join([parts[0], "unknown", *parts[1:]]) if parts[1:2] in (["linux"], ["windows"], ["none"]) else triple


def _offending_lines(text: str, message: str) -> str:
    """The lines of IR around the place an LLVM message such as `<string>:12:5: error: ...` points at."""
    place = re.search(r":(\d+):\d+: ", message)
    if place is None:
        return ""
    wrong = int(place.group(1))
    lines = text.splitlines()
    shown = []
    for number in range(max(wrong - 2, 1), min(wrong + 2, len(lines)) + 1):
        marker = ">" if number == wrong else " "
        shown.append(f"{marker} {number:5d} | {lines[number - 1]}")
    return "\n" + "\n".join(shown)


def _parse(text: str, machine: Any, triple: str) -> Any:
    llvm = binding()
    # A context of its own for each module, or LLVM would keep the types of all of them for ever.
    context = llvm.create_context()
    try:
        module = llvm.parse_assembly(text, context)
    except RuntimeError as error:
        message = str(error).strip()
        raise CompilerBug(f"LLVM rejected the generated IR: {message}{_offending_lines(text, message)}") from None
    module.triple = _whole(triple)
    module.data_layout = str(machine.target_data)
    try:
        module.verify()
    except RuntimeError as error:
        raise CompilerBug(f"LLVM's verifier rejected the generated IR: {str(error).strip()}") from None
    return module


_SCALAR_STORE = re.compile(r"^ *store (?:half|bfloat|float|double|i1|i8|i16|i32) ", re.MULTILINE)
"""A store of data, one element. Addresses and sizes, which functions keep for each other, are of other types."""


def has_vectors_written_out(text: str) -> bool:
    """Whether a module computes by vectors wherever it stores data: there is nothing left to vectorise."""
    return "\n  store <" in text and _SCALAR_STORE.search(text) is None


def _optimize(module: Any, machine: Any, opt_level: int, *, vectorize: bool) -> None:
    """Run LLVM's optimiser: all of its pipeline, or only what simplifies functions.

    The latter takes less than half the time, and code that came with its vectors is the same size and speed after it:
    what is left out are vectorisers, inlining, second rounds of simplification after them, what level 2 has more than
    level 1, and unrolling: loops with vectors are as their schedule wants them (`emit_stmt.py`).
    """
    llvm = binding()
    options = llvm.create_pipeline_tuning_options(speed_level=opt_level if vectorize else min(opt_level, 1))
    options.loop_vectorization = opt_level >= 2
    options.slp_vectorization = opt_level >= 2
    builder = llvm.create_pass_builder(machine, options)
    if vectorize:
        builder.getModulePassManager().run(module, builder)
        return
    passes = builder.getFunctionPassManager()
    # Level 1 finds sums that the next row writes over only where one is kept at a time.
    passes.add_dead_store_elimination_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)


def _prepare(text: str, triple: str, cpu: str, features: str, opt_level: int) -> tuple[Any, Any]:
    if not 0 <= opt_level <= 3:
        raise UserError(f"the optimisation level is {opt_level}, expected 0, 1, 2 or 3")
    machine = _target_machine(triple, cpu, features)
    with trace.span("llvm:parse"):
        module = _parse(text, machine, triple)
    if opt_level > 0:
        with trace.span("llvm:optimize"):
            _optimize(module, machine, opt_level, vectorize=not has_vectors_written_out(text))
    return module, machine


def compile_ir(text: str, *, triple: str, cpu: str = "", features: str = "", opt_level: int = 2) -> bytes:
    """Compile LLVM IR text to the bytes of a relocatable, position-independent object.

    `opt_level` is the IR optimiser's (0 leaves it out, for code that comes with explicit vectors and tidy loops).
    IR that LLVM does not accept is a `CompilerBug` that shows LLVM's message and the lines it means.
    """
    # LLVM's objects refer to each other: one that an interrupt left half made would be freed in a wrong order.
    with held_interrupts():
        module, machine = _prepare(text, triple, cpu, features, opt_level)
        with trace.span("llvm:emit"):
            return bytes(machine.emit_object(module))


def emit_assembly(text: str, *, triple: str, cpu: str = "", features: str = "", opt_level: int = 2) -> str:
    """The assembly of what `compile_ir` would emit, for people and for tests."""
    with held_interrupts():
        module, machine = _prepare(text, triple, cpu, features, opt_level)
        return str(machine.emit_assembly(module))


def plain_features(triple: str) -> str:
    """The features of code that runs on every processor of a triple: what its calling convention takes for granted."""
    name = triple.split("-", 1)[0]
    if name == "riscv64":
        return "+m,+a,+f,+d,+c"
    return "+v7,+vfp3d16,+neon" if name.startswith("armv7") else ""


def host_triple() -> str:
    """The triple of this process."""
    return str(binding().get_process_triple())
