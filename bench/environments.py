"""Environments of their own for commands that need more packages than the project: made the first time, then kept.

An environment sees what this one has (torch, this package), and more.
"""

from __future__ import annotations

import importlib.util
import os
import site
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import harness
from tilewright.support.errors import UserError

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Environment:
    """A folder with an interpreter, and what pip installs there: one list of arguments for each call of pip.

    `{packages}` in an argument is the folder that the interpreter imports packages from.
    """

    folder: Path
    modules: tuple[str, ...]
    """What must be importable; where this interpreter has all of it, no environment is made."""
    requirements: tuple[tuple[str, ...], ...]

    def python(self) -> str:
        """The interpreter that has the packages."""
        if all(importlib.util.find_spec(name) for name in self.modules):
            return sys.executable
        python, ready = self.folder / "bin" / "python", self.folder / "ready"
        if not ready.exists():
            self._install(python)
            ready.touch()
        return str(python)

    def _install(self, python: Path) -> None:
        harness.say(f"installing {', '.join(self.modules)} into {self.folder.name}")
        venv.create(self.folder, with_pip=True, clear=True)
        packages = subprocess.run(
            [python, "-c", "import site; print(site.getsitepackages()[0])"], capture_output=True, text=True, check=True
        ).stdout.strip()
        (Path(packages) / "parent.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for arguments in self.requirements:
            expanded = [argument.format(packages=packages) for argument in arguments]
            reply = subprocess.run([*pip, *expanded], capture_output=True, text=True, check=False)
            if reply.returncode:
                raise UserError(f"the packages cannot be installed: {reply.stderr.strip().splitlines()[-1:]}")


def variables(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a process of another interpreter that imports what this one imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(more or {})}
