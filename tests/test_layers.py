"""The architecture, enforced: floors of packages, no import cycles, few local imports, a docstring in every file.

The floors are those of `docs/architecture.md`. A module may import from its own package and from lower floors;
some packages see even less (a deployed runtime must not drag the compiler along). Everything is read from the
syntax trees: nothing is imported.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
ROOT = "tilewright"
MOST_LINES = 800

# The floor of each package (or root module). Packages of one floor do not see each other.
FLOORS: dict[str, int] = {
    "support": 1,
    "ir": 2,
    "target": 2,
    "runtime": 2,
    "arith": 3,
    "rpc": 3,
    "tir": 4,
    "graph": 4,
    "te": 5,
    "codegen": 5,
    "frontend": 5,
    "topi": 6,
    "lower": 7,
    "request": 8,
    "compiler": 9,
    "front": 10,
    "tune": 11,
    "torch_backend": 11,
    "cli": 12,
    "__init__": 13,
    "__main__": 14,
}

# Packages that may see only these, whatever lies below them.
SEES_ONLY: dict[str, set[str]] = {
    "support": set(),
    "target": {"support"},
    "runtime": {"support"},
    "rpc": {"support", "runtime"},
    "frontend": {"support", "ir", "graph"},
}

# What a function may import when it is called: packages that are optional, or slow to import.
LAZY_PACKAGES = {
    "cuda",
    "jax",
    "google",
    "llvmlite",
    "openvino",
    "matplotlib",
    "ml_dtypes",
    "onnx",
    "onnxruntime",
    "pyopencl",
    "ray",
    "torch",
    "wgpu",
    "xgboost",
    "ziglang",
}

# What `import tilewright` must not load: it has to stay quick.
NOT_AT_START = ("llvmlite", "onnx", "onnxruntime", "torch", "jax", "hypothesis", "ml_dtypes")


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where the import stands."""

    module: str
    line: int
    is_local: bool
    is_for_types: bool


@dataclass(frozen=True)
class Module:
    """A source file of the package."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @property
    def package(self) -> str:
        """The package (or root module) the floors are about: `ir` for `tilewright.ir.expr`."""
        return floor_name(self.name)

    @property
    def place(self) -> str:
        return str(self.path.relative_to(SOURCE.parent))


DRIVERS = ("driver", "graph", "objc", "api", "assembler")
"""The files of a back end that belong to the runtime; the others belong to the code generators."""


def floor_name(module: str) -> str:
    """The package (or root module) of a module's floor."""
    parts = module.split(".")
    if parts[1:2] == ["backends"]:
        return "runtime" if parts[-1] in DRIVERS else "codegen"
    return parts[1] if len(parts) > 1 else "__init__"


@functools.cache
def modules() -> dict[str, Module]:
    files = sorted((SOURCE / ROOT).rglob("*.py"))
    names = {module_name(file): file for file in files}
    found = {}
    for name, file in names.items():
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text, str(file))
        found[name] = Module(name, file, text, tree, tuple(imports_of(name, file, tree, set(names))))
    return found


def module_name(file: Path) -> str:
    parts = list(file.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(name: str, file: Path, tree: ast.Module, known: set[str]) -> Iterator[Import]:
    """Every import statement of a file, resolved to modules: `from a import b` is `a.b` where that is a module."""
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]

    def visit(node: ast.AST, is_local: bool, is_for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, is_local, is_for_types)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                stem = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*stem, *([base] if base else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in known else base, node.lineno, is_local, is_for_types)
        else:
            inner_local = is_local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            inner_types = is_for_types or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inner_local, inner_types)

    yield from visit(tree, False, False)


def report(title: str, problems: list[str]) -> None:
    if problems:
        pytest.fail(title + "\n  " + "\n  ".join(problems), pytrace=False)


def test_every_package_has_a_floor() -> None:
    unknown = sorted({module.package for module in modules().values()} - set(FLOORS))
    report("these packages have no floor in tests/test_layers.py (and docs/architecture.md):", unknown)


def test_imports_go_down() -> None:
    problems = []
    for module in modules().values():
        for imported in module.imports:
            if imported.module.split(".")[0] != ROOT:
                continue
            target = floor_name(imported.module)
            if target == module.package or module.package not in FLOORS or target not in FLOORS:
                continue
            allowed = SEES_ONLY.get(module.package)
            where = f"{module.place}:{imported.line}: imports {imported.module}"
            if allowed is not None and target not in allowed:
                problems.append(f"{where}, but '{module.package}' sees only {sorted(allowed) or 'itself'}")
            elif FLOORS[target] >= FLOORS[module.package]:
                problems.append(
                    f"{where}: floor {FLOORS[module.package]} ('{module.package}') may not see "
                    f"floor {FLOORS[target]} ('{target}')"
                )
    report("imports must go to lower floors:", problems)


def test_no_import_cycles() -> None:
    graph = {
        module.name: {
            imported.module
            for imported in module.imports
            if imported.module in modules() and not imported.is_for_types and imported.module != module.name
        }
        for module in modules().values()
    }
    report("modules import each other in a circle:", [" -> ".join(cycle) for cycle in find_cycles(graph)])


def find_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """One cycle for each knot: walk depth first, and report the path whenever it bites its own tail."""
    done: set[str] = set()
    cycles: list[list[str]] = []

    def walk(name: str, trail: list[str]) -> None:
        if name in trail:
            cycles.append([*trail[trail.index(name) :], name])
            return
        if name in done:
            return
        for other in sorted(graph.get(name, ())):
            walk(other, [*trail, name])
        done.add(name)

    for name in sorted(graph):
        walk(name, [])
    return cycles


def test_local_imports_are_for_optional_packages_only() -> None:
    problems = [
        f"{module.place}:{imported.line}: imports {imported.module} inside a function"
        for module in modules().values()
        for imported in module.imports
        if imported.is_local and imported.module.split(".")[0] not in LAZY_PACKAGES
    ]
    report("move these imports to the top of their file (local imports are for optional packages):", problems)


def test_optional_packages_are_not_imported_at_the_top() -> None:
    problems = [
        f"{module.place}:{imported.line}: imports {imported.module}"
        for module in modules().values()
        for imported in module.imports
        if imported.module.split(".")[0] in LAZY_PACKAGES and not imported.is_local and not imported.is_for_types
    ]
    report("import these where they are used: they are optional, or slow to import:", problems)


def test_the_map_names_every_package_on_its_floor() -> None:
    page = (SOURCE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `([\w.]+)` \|", page, flags=re.MULTILINE)
    assert {name.removesuffix(".py"): int(floor) for floor, name in rows} | {"__init__": 13, "__main__": 14} == FLOORS
    packages = [path.parent.relative_to(SOURCE / ROOT) for path in (SOURCE / ROOT).rglob("__init__.py")]
    problems = [str(package) for package in packages if str(package) != "." and f"`{package}`" not in page]
    report("packages that docs/architecture.md does not name:", problems)


def test_every_file_has_a_docstring() -> None:
    problems = [
        f"{module.place}: no docstring with a first line that says what the file is for"
        for module in modules().values()
        if not (ast.get_docstring(module.tree) or "").strip()
    ]
    report("files without a docstring:", problems)


def test_no_file_is_too_long() -> None:
    sizes = {module.place: module.text.count("\n") for module in modules().values()}
    problems = [f"{place}: {lines} lines" for place, lines in sizes.items() if lines > MOST_LINES]
    report(f"split these files, which have more than {MOST_LINES} lines:", problems)


def test_no_unfinished_or_silent_code() -> None:
    problems = []
    for module in modules().values():
        for number, line in enumerate(module.text.splitlines(), start=1):
            if any(mark in line for mark in ("TODO", "FIXME", "XXX")):
                problems.append(f"{module.place}:{number}: {line.strip()}")
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception"):
                reraises = any(isinstance(inner, ast.Raise) for inner in ast.walk(node))
                if not reraises:
                    problems.append(f"{module.place}:{node.lineno}: catches every exception and goes on")
            if isinstance(node, ast.Raise) and node.exc and "NotImplementedError" in ast.unparse(node.exc):
                problems.append(f"{module.place}:{node.lineno}: raises NotImplementedError")
    report("unfinished or silent code:", problems)


def test_import_tilewright_is_light() -> None:
    code = f"import sys, tilewright; print([name for name in {NOT_AT_START!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]", f"`import tilewright` must not import {result.stdout.strip()}"


def test_the_cycle_finder_finds_cycles() -> None:
    assert find_cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert find_cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]
