"""What the house rules count, read from the syntax trees of the package: `python -m tests.house` prints the table.

    back-end tests    a branch on which back end a target is, outside `backends/`: `target.kind == "cuda"`,
                      `dialect.name in ("OpenCL", ...)`, `match target.kind:`, a table by kind; ask a capability
    annotations       annotations read or written by a string: `annotations.get("pragma")`; use the typed fields
    import cycles     modules that import each other: imports for types and imports by a constant string count
    unused modules    modules that no other one imports: dead code, or what they register is forgotten
    long functions    more than MOST_FUNCTION_LINES lines
    long files        more than MOST_FILE_LINES lines
    untested passes   passes that no `assert_becomes(pass, before, expected)` shows
    lines             of the whole package

`tests/test_house.py` holds the counts to zero, but for what `tests/house.json` still excepts; `--accept` takes over
what has shrunk there.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.source_tree import ROOT, SOURCE, Module, find_cycles, import_graph, modules

MOST_FUNCTION_LINES: Final = 60
MOST_FILE_LINES: Final = 600

EXCEPTIONS: Final = Path(__file__).with_suffix(".json")
TESTS: Final = Path(__file__).resolve().parent
PASS_FOLDERS: Final = {"graph": "tests/graph/passes", "tir": "tests/tir/passes"}

PROGRAMS: Final = ("PrimFunc", "IRModule")

BACK_ENDS: Final = frozenset(
    "llvm cpu c cuda opencl webgpu vulkan rocm metal CUDA OpenCL HIP Metal WebGPU WGSL SPIR-V Vulkan".split()
)
"""Names of kinds of targets and of device languages."""

KIND_ATTRIBUTES: Final = frozenset(["kind", "name", "backend", "language", "dialect"])
"""What holds such a name."""

TEXT_OF_THE_SCRIPT: Final = ("tir/annotations.py", "tir/script/")
"""Where annotations are read and written by name because they are text there."""


@dataclass(frozen=True, order=True)
class Finding:
    """One thing that a rule counts. `key` stays the same while lines move: it is what exceptions name."""

    key: str
    line: int = 0
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.key}{f':{self.line}' if self.line else ''}{f'  {self.detail}' if self.detail else ''}"


def _file(module: Module) -> str:
    return module.path.relative_to(SOURCE / ROOT).as_posix()


# -------------------------------------------------------------------- tests of a back end's kind


def back_end_tests() -> Iterator[Finding]:
    """Branches of shared code on which back end something is."""
    for module in modules().values():
        if not _file(module).startswith("backends/"):
            for node in module.nodes:
                if _is_back_end_test(node):
                    yield Finding(_file(module), _line(node), ast.unparse(node).split("\n")[0][:100])


def _is_back_end_test(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(_is_kind(side) for side in sides) and any(_names_a_back_end(side) for side in sides)
    if isinstance(node, ast.Match):
        patterns = [case.pattern for case in node.cases]
        return _is_kind(node.subject) and any(
            _names_a_back_end(inner) for pattern in patterns for inner in ast.walk(pattern)
        )
    if isinstance(node, ast.Dict):
        # A table by kind is the same test in another dress: {"cuda": ..., "opencl": ...}[target.kind].
        return sum(key is not None and _names_a_back_end(key) for key in node.keys) > 1
    return False


def _is_kind(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr in KIND_ATTRIBUTES) or (
        isinstance(node, ast.Name) and node.id == "kind"
    )


def _names_a_back_end(node: ast.AST) -> bool:
    """Whether an expression is the name of a back end, or a collection that has one."""
    if isinstance(node, ast.MatchValue):
        node = node.value
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return any(_names_a_back_end(item) for item in node.elts)
    if isinstance(node, ast.Call) and node.args:
        return _names_a_back_end(node.args[0])
    return isinstance(node, ast.Constant) and node.value in BACK_ENDS


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


# -------------------------------------------------------------------- annotations by strings


def string_annotations() -> Iterator[Finding]:
    """Annotations of loops and blocks that code reads or writes by a string, or by a constant that holds one."""
    for module in modules().values():
        if not _file(module).startswith(TEXT_OF_THE_SCRIPT):
            for node in module.nodes:
                if _is_annotation_by_name(node):
                    yield Finding(_file(module), _line(node), ast.unparse(node)[:100])


def _is_annotation_by_name(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return _is_annotations(node.value) and _is_name_of_one(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        by_name = node.func.attr in ("get", "pop", "setdefault")
        return by_name and _is_annotations(node.func.value) and _is_name_of_one(node.args[0])
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        return _is_name_of_one(node.left) and _is_annotations(node.comparators[0])
    return False


def _is_annotations(node: ast.expr) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "annotations") or (
        isinstance(node, ast.Name) and node.id == "annotations"
    )


def _is_name_of_one(node: ast.expr) -> bool:
    """A string, or a name in capitals: a constant that holds one."""
    if isinstance(node, ast.Attribute):
        return node.attr.isupper()
    return (isinstance(node, ast.Constant) and isinstance(node.value, str)) or (
        isinstance(node, ast.Name) and node.id.isupper()
    )


# -------------------------------------------------------------------- import cycles


def import_cycles() -> Iterator[Finding]:
    """Modules in a circle, by imports of any kind; a shortest circle for each knot."""
    for cycle in find_cycles(import_graph()):
        names = [name.removeprefix(f"{ROOT}.") for name in cycle]
        yield Finding(names[0], 0, " -> ".join(names))


# -------------------------------------------------------------------- modules that nothing imports

DOORS: Final = frozenset(
    f"{ROOT}{name}"
    for name in ("", ".__main__", ".graph.ir.prelude", ".rpc.background", ".rpc.session", ".tir.script.dialect")
)
"""What users, tests and processes of their own begin with; parts of back ends are loaded by `backends/slices.py`."""


def unused_modules() -> Iterator[Finding]:
    """Modules that no other module imports, in any way."""
    graph = import_graph()
    imported = {name for importer, names in graph.items() for name in names if name != importer}
    for name, module in modules().items():
        if name not in imported and name not in DOORS and not name.startswith(f"{ROOT}.backends."):
            yield Finding(_file(module))


# -------------------------------------------------------------------- lengths


def long_functions() -> Iterator[Finding]:
    """Functions that do not fit a screen. Lines of decorators and the docstring count."""
    for module in modules().values():
        for name, node in _functions(module.tree, ""):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_FUNCTION_LINES:
                yield Finding(f"{_file(module)}:{name}", node.lineno, f"{lines} lines")


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its qualified name, inner ones too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, node
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.stmt, ast.excepthandler, ast.match_case)):
            # Expressions, most of the nodes, have none.
            yield from _functions(node, f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix)


def long_files() -> Iterator[Finding]:
    """Files with more lines than a subject needs."""
    for module in modules().values():
        lines = module.text.count("\n")
        if lines > MOST_FILE_LINES:
            yield Finding(_file(module), 0, f"{lines} lines")


def package_lines() -> int:
    """The lines of the whole package."""
    return sum(module.text.count("\n") for module in modules().values())


# -------------------------------------------------------------------- passes and their tests


def untested_passes() -> Iterator[Finding]:
    """Passes without a test that shows a program before and the program expected after."""
    for level, folder in PASS_FOLDERS.items():
        shown = set(_shown_passes(TESTS.parent / folder))
        for name in passes_of(level):
            if name not in shown:
                yield Finding(f"{level}/passes/{name}", 0, f"no assert_becomes({name}, ...) in {folder}")


def passes_of(level: str) -> list[str]:
    """The passes in a folder: files with a function of their own name that takes a program."""
    prefix = f"{ROOT}.{level}.passes."
    return [
        name.removeprefix(prefix)
        for name, module in modules().items()
        if any(
            isinstance(node, ast.FunctionDef) and prefix + node.name == name and _is_pass(node)
            for node in module.tree.body
        )
    ]


def _is_pass(node: ast.FunctionDef) -> bool:
    """Whether a function needs a program and, at most, one thing more; others are steps of passes."""
    parameters = [parameter.annotation for parameter in node.args.args]
    needed = len(parameters) - len(node.args.defaults)
    return needed in (1, 2) and parameters[0] is not None and ast.unparse(parameters[0]) in PROGRAMS


def _shown_passes(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("test_*.py")):
        for test in ast.parse(path.read_text(encoding="utf-8")).body:
            helpers = {node.name: node for node in ast.walk(test) if isinstance(node, ast.FunctionDef)}
            for node in ast.walk(test):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "assert_becomes":
                    for name in _names(node.args[0]):
                        yield name
                        yield from _names(helpers[name]) if name in helpers else ()


def _names(node: ast.AST) -> list[str]:
    return [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]


# -------------------------------------------------------------------- the table

RULES: Final[dict[str, Callable[[], Iterator[Finding]]]] = {
    "back-end tests": back_end_tests,
    "annotations": string_annotations,
    "import cycles": import_cycles,
    "unused modules": unused_modules,
    "long functions": long_functions,
    "long files": long_files,
    "untested passes": untested_passes,
}


@functools.cache
def findings(rule: str) -> tuple[Finding, ...]:
    """What a rule finds, in order."""
    return tuple(sorted(RULES[rule]()))


def counts(rule: str) -> dict[str, int]:
    """How often a rule finds something, by key."""
    return dict(Counter(item.key for item in findings(rule)))


def exceptions() -> dict[str, dict[str, int]]:
    """What is left to mend, by rule and key: counts that may shrink and never grow."""
    return json.loads(EXCEPTIONS.read_text(encoding="utf-8")) if EXCEPTIONS.exists() else {}


def accept() -> None:
    """Take over counts that have shrunk. A count that has grown is not accepted: mend it."""
    shrunk = {
        rule: {key: min(count, counts(rule).get(key, 0)) for key, count in known.items() if counts(rule).get(key)}
        for rule, known in exceptions().items()
    }
    shrunk = {rule: known for rule, known in shrunk.items() if known}
    if shrunk:
        EXCEPTIONS.write_text(json.dumps(shrunk, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    else:
        EXCEPTIONS.unlink(missing_ok=True)


def main() -> None:
    """Print every finding, then the table; with --accept, take over what has shrunk."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=main.__doc__)
    parser.add_argument("--accept", action="store_true", help="take over counts that have shrunk")
    if parser.parse_args().accept:
        accept()
    for rule in RULES:
        if findings(rule):
            print(f"{rule}:", *(f"  {item}" for item in findings(rule)), "", sep="\n")
    for rule in RULES:
        print(f"{rule:16}{len(findings(rule)):8}")
    print(f"{'lines':16}{package_lines():8}")


if __name__ == "__main__":
    main()
