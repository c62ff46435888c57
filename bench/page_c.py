"""C code in the pages of the documentation, compiled and run beside what a page has exported."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Werror")


def c_compiler() -> str | None:
    """The path of a C compiler, if there is one."""
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def run_c(declarations: str, statements: str, *linked: str) -> str:
    """Compile declarations and a `main` of some statements, link files of this folder, run it; what it printed.

    Directives among the statements (`#include "model.h"`) stand before `main`. A warning is an error.
    """
    compiler = c_compiler()
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc, gcc or clang) on this machine")
    lines = statements.splitlines()
    directives = [line for line in lines if line.startswith("#")]
    body = [line for line in lines if not line.startswith("#")]
    usual = [f"#include <{name}.h>" for name in ("stdint", "stdio", "stdlib")]
    parts = [*usual, *directives, declarations, "int main(void) {", *body, "return 0;", "}", ""]
    Path("main.c").write_text("\n".join(parts), encoding="utf-8")
    command = [compiler, *_WARNINGS, "-o", "main", "main.c", *linked, "-lpthread", "-Wl,-rpath,."]
    for words in (command, ["./main"]):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{words[0]} ended with status {done.returncode}: {done.stderr.strip()}")
    return done.stdout
