"""The package as syntax trees: every module with its text and its imports. Nothing is imported."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

SOURCE = Path(__file__).resolve().parents[1] / "src"
ROOT = "tilewright"

LOADERS = frozenset(["tilewright.backends.slices"])
"""Modules that load the parts of back ends, each on the floor of its own."""
TABLES = frozenset(["tilewright.frontend.builtin_formats"])
"""Modules with tables of modules that another one imports by name: their texts count as imports."""


@dataclass(frozen=True)
class Import:
    """One imported module, by its full name, and where the import stands."""

    module: str
    line: int
    is_local: bool = False
    is_for_types: bool = False
    is_by_name: bool = False


@dataclass(frozen=True)
class Module:
    """A source file of the package."""

    name: str
    path: Path
    text: str
    tree: ast.Module
    imports: tuple[Import, ...]

    @functools.cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the syntax tree."""
        return list(ast.walk(self.tree))

    @property
    def place(self) -> str:
        """The file's path in the repository."""
        return str(self.path.relative_to(SOURCE.parent))


@functools.cache
def modules() -> dict[str, Module]:
    """Every module of the package by its name."""
    files = sorted((SOURCE / ROOT).rglob("*.py"))
    names = {module_name(file): file for file in files}
    result = {}
    for name, file in names.items():
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text, str(file))
        result[name] = Module(name, file, text, tree, tuple(imports_of(name, file, tree, set(names))))
    return result


def module_name(file: Path) -> str:
    """The name by which a file is imported."""
    parts = list(file.relative_to(SOURCE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(name: str, file: Path, tree: ast.Module, known: set[str]) -> Iterator[Import]:
    """Every import of a file, resolved to modules: `from a import b` is `a.b` where that is a module.

    Calls of `import_module` count with the modules that their text may mean; where it is no text, with those that any
    text of the file names.
    """
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    if name in TABLES:
        texts = [text for text in ast.walk(tree) if is_text(text)]
        for module in sorted({found for text in texts for found in named_modules(text, known)}):
            yield Import(module, 1, is_local=True, is_by_name=True)
    # Most files import by statements alone: their expressions, most of the nodes, need not be looked at.
    by_name = any(alias.name == "import_module" for node in tree.body for alias in getattr(node, "names", ()))
    looked_at = ast.AST if by_name else (ast.mod, ast.stmt, ast.excepthandler, ast.match_case)

    def visit(node: ast.AST, is_local: bool, is_for_types: bool) -> Iterator[Import]:
        if not isinstance(node, looked_at):
            return
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
    """Whether this is a text, with or without holes."""
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def named_modules(text: ast.AST, known: set[str]) -> list[str]:
    """The modules that a text may name: `f"tilewright.cli.{name}"` any that is right inside `tilewright.cli`."""
    if isinstance(text, ast.Constant):
        return [text.value] if text.value in known and text.value != ROOT else []
    assert isinstance(text, ast.JoinedStr)
    parts = [re.escape(str(part.value)) if isinstance(part, ast.Constant) else r"[a-z]\w*" for part in text.values]
    return [name for name in known if re.fullmatch("".join(parts), name)] if parts[0].startswith(ROOT) else []


def import_graph() -> dict[str, set[str]]:
    """What each module imports of the package: at the top, for types, in functions, by name.

    Whoever imports a module from outside its package imports the package's `__init__` as well, but for the root's.
    What `LOADERS` load by computed names is left out: it is theirs to load what lies above them.
    """
    sources = modules()
    graph: dict[str, set[str]] = {}
    for module in sources.values():
        imported = {
            item.module
            for item in module.imports
            if item.module in sources and not (item.is_by_name and module.name in LOADERS)
        }
        around = {".".join(name.split(".")[:count]) for name in imported for count in range(2, name.count(".") + 1)}
        outside = {name for name in around if not module.name.startswith(f"{name}.")}
        graph[module.name] = (imported | outside) - {module.name}
    return graph


def find_cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """A shortest cycle for each knot of modules that reach each other, through the first of them by name."""
    cycles: list[list[str]] = []
    knotted: set[str] = set()
    for name in sorted(graph):
        if name not in knotted and (cycle := _shortest_cycle(graph, name)):
            cycles.append(cycle)
            knotted |= {other for other in _reached(graph, name) if name in _reached(graph, other)}
    return cycles


def _shortest_cycle(graph: dict[str, set[str]], start: str) -> list[str] | None:
    """The shortest way from a module back to it: breadth first."""
    trails = [[start]]
    seen: set[str] = set()
    for trail in trails:
        for other in sorted(graph.get(trail[-1], ())):
            if other == start:
                return [*trail, start]
            if other not in seen:
                seen.add(other)
                trails.append([*trail, other])
    return None


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    """All modules that a module imports, directly or not."""
    reached: set[str] = set()
    pending = [start]
    while pending:
        for other in graph.get(pending.pop(), ()):
            if other not in reached:
                reached.add(other)
                pending.append(other)
    return reached
