"""The code in the pages of the documentation, as programs that run.

The `python` and `console` blocks of a page are one program, from top to bottom, in an empty folder of its own. What a
page takes for granted (a model's file, an array `x`) and what it claims are written where readers do not see them:

    <!-- python
    x = np.ones((1, 3, 32, 32), np.float32)
    -->

C code is the text `c_code` to the Python block after it, which compiles it (`bench.page_c`). A block "python file NAME"
is written to that file of the folder, for later blocks to use.

A block that cannot run anywhere (it needs a certain GPU, another machine, an hour, or is a part of something larger)
says so, "python no-run" or "console no-run" after its fence; its Python must parse, and its commands must be commands.
A page that needs an optional package, a device or a C compiler (cc) says so, and is left out where that is not:

    <!-- needs: torch, opencl -->
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from bench.page_c import c_compiler
from tilewright.backends.llvm.link import find_linker
from tilewright.cli.main import main, parser
from tilewright.runtime.device.devices import find_device
from tilewright.support.errors import UserError

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HIDDEN = re.compile(r"^<!-- python\n(.*?)^-->$", re.MULTILINE | re.DOTALL)
_NEEDS = re.compile(r"^<!-- needs: (.*?) -->$", re.MULTILINE)
_COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
_SHELL = re.compile(r"[|&;<>$`*?]")
_INDENTED = re.compile(r"(?<=\n\n) {4}\S.*")

_LABELS = ("python", "python no-run", "console", "console no-run", "text", "c", "js no-run")
_FILE = "python file "
_DEVICES = ("opencl", "webgpu", "vulkan", "cuda")
_LONGEST_SECONDS = 900


@dataclass(frozen=True)
class Block:
    """Code of a page: what it is, and where in the page its first line stands (counted from 1)."""

    label: str
    code: str
    line: int

    @property
    def file(self) -> str:
        """The file that the block is, or an empty text."""
        return self.label.removeprefix(_FILE) if self.label.startswith(_FILE) else ""


def pages(root: Path) -> list[Path]:
    """The pages of a repository."""
    return [*sorted(root.glob("*.md")), *sorted((root / "docs").rglob("*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """The fenced and the hidden blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = [(match.start(1), match[1].strip(), match[2], match.start(2)) for match in _FENCE.finditer(text)]
    found += [(match.start(), "python", match[1], match.start(1)) for match in _HIDDEN.finditer(text)]
    for _, label, code, place in sorted(found):
        yield Block(label, code, text.count("\n", 0, place) + 1)


def prose(page: Path) -> str:
    """A page without its code."""
    return _FENCE.sub("", _HIDDEN.sub("", page.read_text(encoding="utf-8")))


def program(page: Path) -> str:
    """A page's program, each line where it stands in the page: an error names the page's own line."""
    lines: list[str] = []
    for block in blocks(page):
        if block.label in ("python", "console"):
            lines += [""] * (block.line - 1 - len(lines))
            lines += [_as_python(line) if block.label == "console" else line for line in block.code.splitlines()]
        elif block.label == "c":
            lines += [""] * (block.line - 1 - len(lines))
            lines.append(f"c_code = {block.code!r}")
        elif block.file:
            lines += [""] * (block.line - 1 - len(lines))
            lines.append(f"__import__('bench.pages').pages.write({block.file!r}, {block.code!r})")
    return "\n".join(lines)


def write(name: str, code: str) -> None:
    """Write a file of a page to the folder that its program runs in."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")


def _as_python(line: str) -> str:
    """A line of a console: a command runs, what a command printed is left out."""
    match = _COMMAND.match(line)
    return f"__import__('bench.pages').pages.execute({match[1]!r})" if match else ""


def execute(command: str) -> None:
    """Run a command of a page's console: one of ours in this process, others, and what needs a shell, in bash."""
    words = shlex.split(command, comments=True)
    if words[:1] != ["tilewright"] or _SHELL.search(command):
        subprocess.run(["bash", "-c", command], check=True)
    elif status := main(words[1:]):
        raise subprocess.CalledProcessError(status, command)


def defects(page: Path) -> list[str]:
    """What is wrong with a page's code before it runs: blocks of no known kind, and what could not run anywhere."""
    problems = [f"line {block.line}: {problem}" for block in blocks(page) for problem in _defects_of(block)]
    problems += [f"line {block.line}: this C code is compiled by no Python block after it" for block in _left_out(page)]
    if indented := _INDENTED.search(prose(page)):
        problems.append(f"code stands between ```, not four columns in: '{indented[0].strip()}'")
    return problems


def _left_out(page: Path) -> Iterator[Block]:
    """C code that no block of Python looks at before the next C code."""
    waiting: Block | None = None
    for block in blocks(page):
        if block.label == "c":
            if waiting is not None:
                yield waiting
            waiting = block
        elif block.label == "python" and "c_code" in block.code:
            waiting = None
    if waiting is not None:
        yield waiting


def _defects_of(block: Block) -> Iterator[str]:
    if block.label not in _LABELS and not block.file:
        yield f"```{block.label} is none of {', '.join(_LABELS)}"
    elif block.label.startswith("python"):
        try:
            ast.parse(textwrap.dedent(block.code))
        except SyntaxError as error:
            yield f"is no Python: {error.msg}"
    elif block.label.startswith("console"):
        for command in _COMMAND.findall(block.code):
            if problem := _refused(command):
                yield f"'{command}': {problem}"


def _refused(command: str) -> str:
    """Why a command of ours (`tilewright ...`, `python -m bench...`) cannot work; empty if it may."""
    words = shlex.split(command, comments=True)
    words = words[: words.index(">")] if ">" in words else words
    if words[:1] == ["tilewright"]:
        try:
            parser().parse_args(words[1:])
        except UserError as error:
            return error.message
        except SystemExit as done:
            return "the command line does not take it" if done.code else ""
    if words[1:2] == ["-m"] and importlib.util.find_spec(words[2]) is None:
        return f"there is no module {words[2]}"
    return ""


def needs(page: Path) -> list[str]:
    """What a page needs of a machine: kinds of devices, packages, a C compiler (`cc`), a linker for other machines."""
    return [name for name in re.split(r",\s*", ", ".join(_NEEDS.findall(page.read_text(encoding="utf-8")))) if name]


def missing(page: Path) -> str:
    """Why a page cannot run on this machine; empty if it can."""
    for name in needs(page):
        if name in _DEVICES:
            try:
                find_device(name)
            except UserError as error:
                return error.message
        elif name == "cc":
            if c_compiler() is None:
                return "no C compiler (cc, gcc or clang) on this machine"
        elif name == "linker":
            try:
                for triple in ("x86_64-linux-gnu", "armv7-linux-gnueabihf", "riscv64-linux-gnu"):
                    find_linker(triple)
            except UserError as error:
                return error.message
        elif importlib.util.find_spec(name) is None:
            return f"the package {name} is not installed"
    return ""


def run(page: Path, root: Path, settings: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run a page's program in an empty folder with a cache and a database of its own, unless `settings` (variables of
    the environment) say otherwise; what went wrong, or nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / f"{page.stem}.py"
        script.write_text(program(page), encoding="utf-8")
        folder = Path(scratch) / "here"
        folder.mkdir()
        try:
            done = subprocess.run(
                [sys.executable, str(script)],
                cwd=folder,
                env=_environment(root, Path(scratch)) | settings,
                capture_output=True,
                text=True,
                check=False,
                timeout=_LONGEST_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return f"it takes more than {_LONGEST_SECONDS} seconds"
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit status {done.returncode}"


def _environment(root: Path, scratch: Path) -> dict[str, str]:
    """What a new user of the repository has: its modules, its command, nothing that was compiled or tuned before."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TILEWRIGHT_")}
    return {
        **kept,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": str(root),
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "XDG_DATA_HOME": str(scratch / "data"),
    }
