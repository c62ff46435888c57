"""The architecture, enforced: floors of packages, few local imports, a docstring in every file.

The floors are those of `docs/architecture.md`. A module may import from its own package and from lower floors;
some packages see even less (a deployed runtime must not drag the compiler along). Everything is read from the
syntax trees: nothing is imported.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.source_tree import ROOT, SOURCE, imports_by_name, is_text, modules

# The floor of each package (or root module). Packages of one floor do not see each other.
FLOORS: dict[str, int] = {
    "support": 1,
    "accel": 2,
    "ir": 3,
    "target": 3,
    "runtime": 3,
    "arith": 4,
    "rpc": 4,
    "compilers": 4,
    "tir": 5,
    "graph": 5,
    "te": 6,
    "codegen": 6,
    "frontend": 6,
    "onnx_writer": 6,
    "topi": 7,
    "backends": 8,
    "lower": 9,
    "options": 10,
    "request": 11,
    "quantization": 12,
    "compiler": 13,
    "front": 14,
    "train": 15,
    "tune": 15,
    "torch_backend": 15,
    "placement": 15,
    "cli": 16,
    "__init__": 17,
    "__main__": 18,
}

# Packages that may see only these, whatever lies below them.
SEES_ONLY: dict[str, set[str]] = {
    "support": set(),
    "accel": {"support"},
    "target": {"support", "accel"},
    "runtime": {"support", "accel"},
    "rpc": {"support", "accel", "runtime"},
    "compilers": {"support", "accel", "target", "runtime"},
    "frontend": {"support", "ir", "graph"},
    "onnx_writer": {"support", "ir", "graph"},
}

# What a function may import when it is called: packages that are optional, or slow to import.
LAZY_PACKAGES = {
    "ai_edge_litert",
    "amaranth",
    "cuda",
    "h5py",
    "jax",
    "keras",
    "google",
    "lightgbm",
    "tensorflow",
    "llvmlite",
    "openvino",
    "paddle",
    "matplotlib",
    "ml_dtypes",
    "ncnn",
    "onnx",
    "onnxruntime",
    "PIL",
    "pyopencl",
    "ray",
    "torch",
    "wgpu",
    "xgboost",
    "ziglang",
}

# Modules of ours that a function imports when it is called: a model that the cache has is ready without them.
LOADED_LATE = {
    "front.py": {"tilewright.compiler", "tilewright.quantization.quantizer"},
    "request.py": {"tilewright.lower.database", "tilewright.lower.shipped"},
}

# What `import tilewright` must not load: it has to stay quick.
NOT_AT_START = ("llvmlite", "onnx", "onnxruntime", "torch", "jax", "hypothesis", "ml_dtypes")


PARTS_OF_BACK_ENDS: dict[str, str] = {
    "backends": "support",
    "slices": "support",
    "target": "target",
    **dict.fromkeys(("driver", "graph", "tensors", "objc", "api"), "runtime"),
    **dict.fromkeys(("compiler", "assemble", "assembler", "toolchain", "cache"), "compilers"),
    **dict.fromkeys(("object_format", "objects", "elf", "coff", "macho"), "compilers"),
}
"""The floor that a file in `backends` is on, by its name; the others are on the floor `backends`."""

LOADED_BY_NAME: dict[str, str] = {
    "tilewright.cli.own_runtimes": "runtimes of other formats, which are optional packages",
    "tilewright.backends.slices": "the parts of back ends, each on the floor of the class that it must be",
    "tilewright.frontend": "importers, at their first use",
    "tilewright.frontend.format": "importers of formats, when a file has one",
    "tilewright.tune": "the names of the package, at their first use",
    "tilewright.tune.child": "what the parent process asks a child to answer with",
    "tilewright": "the names of the package, at their first use",
}
"""Modules that import what is no constant, and why; the names of modules in their texts count as imported."""


def floor_name(module: str) -> str:
    """The package (or root module) of a module's floor."""
    parts = module.split(".")
    if parts[1:2] == ["backends"]:
        return PARTS_OF_BACK_ENDS.get(parts[-1], "backends")
    return parts[1] if len(parts) > 1 else "__init__"


def report(title: str, problems: list[str]) -> None:
    if problems:
        pytest.fail(title + "\n  " + "\n  ".join(problems), pytrace=False)


def test_every_package_has_a_floor() -> None:
    unknown = sorted({floor_name(module.name) for module in modules().values()} - set(FLOORS))
    report("these packages have no floor in tests/test_layers.py (and docs/architecture.md):", unknown)


def test_imports_go_down() -> None:
    problems = []
    for module in modules().values():
        for imported in module.imports:
            if imported.module.split(".")[0] != ROOT:
                continue
            target = floor_name(imported.module)
            if target == floor_name(module.name) or floor_name(module.name) not in FLOORS or target not in FLOORS:
                continue
            if module.name == "tilewright.backends.slices" and imported.is_by_name:
                continue
            allowed = SEES_ONLY.get(floor_name(module.name))
            where = f"{module.place}:{imported.line}: imports {imported.module}"
            if allowed is not None and target not in allowed:
                problems.append(f"{where}, but '{floor_name(module.name)}' sees only {sorted(allowed) or 'itself'}")
            elif FLOORS[target] >= FLOORS[floor_name(module.name)]:
                problems.append(
                    f"{where}: floor {FLOORS[floor_name(module.name)]} ('{floor_name(module.name)}') may not see "
                    f"floor {FLOORS[target]} ('{target}')"
                )
    report("imports must go to lower floors:", problems)


def test_what_is_imported_by_a_computed_name_says_why() -> None:
    computed = {
        module.name
        for module in modules().values()
        for node in module.nodes
        if imports_by_name(node) and not is_text(node.args[0])
    }
    assert computed == set(LOADED_BY_NAME)


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
    assert {name.removesuffix(".py"): int(floor) for floor, name in rows} | {"__init__": 17, "__main__": 18} == FLOORS
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


def test_no_unfinished_or_silent_code() -> None:
    problems = []
    for module in modules().values():
        for number, line in enumerate(module.text.splitlines(), start=1):
            if any(mark in line for mark in ("TODO", "FIXME", "XXX")):
                problems.append(f"{module.place}:{number}: {line.strip()}")
        for node in module.nodes:
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
