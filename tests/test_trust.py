"""What crosses a boundary of trust is data: files, messages and caches are never programs in disguise.

Formats that can run code when they are read (pickles and their kin) and functions that run text are allowed in the
files listed here alone, each with the reason why no one else can have written what they read. The trees of all sources
are read; nothing is imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "src" / "tilewright", ROOT / "bench", ROOT / "examples")

MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle", "dbm"}
FUNCTIONS = {"eval", "exec"}
METHODS = {
    ("torch", "load"),
    ("torch.jit", "load"),
    ("pd", "read_pickle"),
    ("pandas", "read_pickle"),
    ("yaml", "load"),
    ("os", "system"),
    ("os", "popen"),
    ("pty", "spawn"),
}

ALLOWED = {
    "bench/corpus_run.py": (
        "torch.jit.load",
        "a file whose digest is in the list, in a process of its own",
    ),
    "bench/peers/wire.py": ("pickle", "pipes between a benchmark and the peers that it started itself"),
    "src/tilewright/cli/own_runtimes.py": (
        "torch.jit.load",
        "torch's loader of TorchScript archives makes TorchScript values of them, and runs no Python",
    ),
    "src/tilewright/frontend/torch/files.py": (
        "torch.jit.load",
        "torch's loader of TorchScript archives makes TorchScript values of them, and runs no Python",
    ),
    "src/tilewright/lower/worker.py": ("pickle", "pipes between a process and children that it started itself"),
    "src/tilewright/tir/interpreter.py": (
        "exec",
        "the program that is interpreted, as text made here; names are numbered",
    ),
    "src/tilewright/tir/evaluate.py": ("exec", "an expression as text made here; names are numbered"),
    "src/tilewright/ir/rewrite.py": ("exec", "matchers made of the compiler's own rules"),
    "src/tilewright/ir/node.py": ("exec", "constructors made of the compiler's own class definitions"),
}
"""The files that may, what they use, and why that is sound."""

_NAMES = MODULES | FUNCTIONS | {name for _, name in METHODS} | {"__import__", "shell"}
_WORDS = re.compile(r"\b(" + "|".join(sorted(_NAMES)) + r")\b")


def _doubtful(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The line and the name of whatever could run what it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, item.name) for item in node.names if item.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            yield node.lineno, str(node.module)
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, name) for name in _of_call(node))


def _of_call(node: ast.Call) -> Iterator[str]:
    function = node.func
    keywords = {item.arg: item.value for item in node.keywords}
    if isinstance(function, ast.Name):
        if function.id in FUNCTIONS or function.id == "__import__":
            yield function.id
    elif isinstance(function, ast.Attribute):
        owner = ast.unparse(function.value)
        if (owner, function.attr) in METHODS:
            yield f"{owner}.{function.attr}"
        if owner in ("np", "numpy") and function.attr == "load":
            allowed = keywords.get("allow_pickle")
            if not (isinstance(allowed, ast.Constant) and allowed.value is False):
                yield f"{owner}.load without allow_pickle=False"
    shell = keywords.get("shell")
    if shell is not None and not (isinstance(shell, ast.Constant) and shell.value is False):
        yield "shell=True"


def _found(text: str) -> list[str]:
    assert _WORDS.search(text) or not any(_doubtful(ast.parse(text)))
    return [name for _, name in _doubtful(ast.parse(text))]


def test_only_the_listed_files_read_what_could_run() -> None:
    wrong, seen = [], set()
    for path in sorted(path for folder in SOURCES for path in folder.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        uses = ALLOWED.get(name, ("", ""))[0].split()
        text = path.read_text(encoding="utf-8")
        # Trees take their time: only those of files that have one of the words.
        for line, what in _doubtful(ast.parse(text)) if _WORDS.search(text) else ():
            if what in uses:
                seen.add((name, what))
            else:
                wrong.append(f"{name}:{line}: {what}")
    assert not wrong, "use a plain format (JSON, raw bytes), or say in ALLOWED why this is sound: " + ", ".join(wrong)
    assert seen == {(name, use) for name, (uses, _) in ALLOWED.items() for use in uses.split()}, (
        "ALLOWED is out of date"
    )


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal as m",
        "import shelve",
        "def f():\n  import cloudpickle",
        "eval(text)",
        "exec(text, {})",
        "torch.load(path)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "yaml.load(stream)",
        "os.system(command)",
        "subprocess.run(command, shell=True)",
        "__import__(name)",
    ],
)
def test_the_search_finds(text: str) -> None:
    assert len(_found(text)) == 1


@pytest.mark.parametrize("text", ["np.load(p, allow_pickle=False)", "re.compile('x')", "model.eval()", "json.loads(t)"])
def test_the_search_leaves_alone(text: str) -> None:
    assert not _found(text)
