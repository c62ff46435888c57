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
from typing import TypeGuard

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
    "compilers": 3,
    "tir": 4,
    "graph": 4,
    "te": 5,
    "codegen": 5,
    "frontend": 5,
    "topi": 6,
    "backends": 7,
    "lower": 8,
    "options": 9,
    "request": 10,
    "compiler": 11,
    "front": 12,
    "tune": 13,
    "torch_backend": 13,
    "cli": 14,
    "__init__": 15,
    "__main__": 16,
}

# Packages that may see only these, whatever lies below them.
SEES_ONLY: dict[str, set[str]] = {
    "support": set(),
    "target": {"support"},
    "runtime": {"support"},
    "rpc": {"support", "runtime"},
    "compilers": {"support", "target", "runtime"},
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

# Modules of ours that a function imports when it is called: a model that the cache has is ready without them.
LOADED_LATE = {
    "front.py": {"tilewright.compiler"},
    "request.py": {"tilewright.lower.database", "tilewright.lower.shipped"},
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
    is_by_name: bool = False


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


PARTS_OF_BACK_ENDS: dict[str, str] = {
    "backends": "support",
    "slices": "support",
    "target": "target",
    **dict.fromkeys(("driver", "graph", "objc", "api"), "runtime"),
    **dict.fromkeys(("compiler", "assembler", "toolchain", "cache"), "compilers"),
}
"""The floor that a file in `backends` is on, by its name; the others are on the floor `backends`."""

LOADED_BY_NAME: dict[str, str] = {
    "tilewright.backends.slices": "the parts of back ends, each on the floor of the class that it must be",
    "tilewright.frontend": "importers, at their first use",
    "tilewright.tune": "the names of the package, at their first use",
    "tilewright.tune.child": "what the parent process asks a child to answer with",
    "tilewright": "the names of the package, at their first use",
}
"""Modules that import what is no constant, and why; the names of modules in their texts count as imported."""

CYCLES: dict[str, str] = {}
"""Packages whose modules still import each other in a circle, and why; the list may only shrink."""


def floor_name(module: str) -> str:
    """The package (or root module) of a module's floor."""
    parts = module.split(".")
    if parts[1:2] == ["backends"]:
        return PARTS_OF_BACK_ENDS.get(parts[-1], "backends")
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
    """Every import of a file, resolved to modules: `from a import b` is `a.b` where that is a module.

    Calls of `import_module` count with the modules that their text may mean; where it is no text, with those that any
    text of the file names.
    """
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
        elif imports_by_name(node):
            texts = [node.args[0]] if is_text(node.args[0]) else ast.walk(tree)
            for module in sorted({found for text in texts if is_text(text) for found in named_modules(text, known)}):
                yield Import(module, node.lineno, is_local, is_for_types, is_by_name=True)
        else:
            inner_local = is_local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            inner_types = is_for_types or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inner_local, inner_types)

    yield from visit(tree, False, False)


def imports_by_name(node: ast.AST) -> TypeGuard[ast.Call]:
    """Whether this is a call of `import_module`."""
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "id", getattr(node.func, "attr", "")) == "import_module"


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def named_modules(text: ast.AST, known: set[str]) -> list[str]:
    """The modules that a text may name: `f"tilewright.cli.{name}"` any that is right inside `tilewright.cli`."""
    if isinstance(text, ast.Constant):
        return [text.value] if text.value in known and text.value != ROOT else []
    assert isinstance(text, ast.JoinedStr)
    parts = [re.escape(part.value) if isinstance(part, ast.Constant) else r"[a-z]\w*" for part in text.values]
    return [name for name in known if re.fullmatch("".join(parts), name)] if parts[0].startswith(ROOT) else []


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
            if module.name == "tilewright.backends.slices" and imported.is_by_name:
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
            if imported.module in modules() and imported.module != module.name
        }
        for module in modules().values()
        if module.name != "tilewright.backends.slices"
    }
    cycles = find_cycles(graph)
    places = {
        tuple(cycle): next((place for place in CYCLES if all(name.startswith(f"{place}.") for name in cycle)), None)
        for cycle in cycles
    }
    report("modules import each other in a circle:", [" -> ".join(cycle) for cycle in places if places[cycle] is None])
    report("these have no cycles any more: take them out of CYCLES", sorted(set(CYCLES) - set(places.values())))


def test_what_is_imported_by_a_computed_name_says_why() -> None:
    computed = {
        module.name
        for module in modules().values()
        for node in ast.walk(module.tree)
        if imports_by_name(node) and not is_text(node.args[0])
    }
    assert computed == set(LOADED_BY_NAME)


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
        if imported.is_local
        and not imported.is_by_name
        and imported.module.split(".")[0] not in LAZY_PACKAGES
        and imported.module not in LOADED_LATE.get(module.path.relative_to(SOURCE / ROOT).as_posix(), ())
    ]
    report("move these imports to the top of their file (local imports are for optional packages):", problems)
    late = {
        (module.path.relative_to(SOURCE / ROOT).as_posix(), item.module)
        for module in modules().values()
        for item in module.imports
        if item.is_local
    }
    gone = [f"{file}: {name}" for file, names in LOADED_LATE.items() for name in names if (file, name) not in late]
    report("these are not loaded late any more: take them from LOADED_LATE", gone)


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
    assert {name.removesuffix(".py"): int(floor) for floor, name in rows} | {"__init__": 15, "__main__": 16} == FLOORS
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
