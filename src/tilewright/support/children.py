"""Children that run this package: they find the modules that this process finds, and see the settings it sees."""

from __future__ import annotations

import os
import sys

from tilewright.support import settings


def python_command(*words: str) -> list[str]:
    """The command of a child.

    By itself Python looks first in the folder where it is started: a `json.py` among somebody's models would be run.
    """
    return [sys.executable, "-P", *words]


def python_environment() -> dict[str, str]:
    """The environment of a child: where this process looks for modules, and its settings without their secrets."""
    # Nothing stands for the folder at hand, where this process was told to look there.
    paths = [path or os.getcwd() for path in sys.path]
    paths += filter(None, [os.environ.get("PYTHONPATH")])
    return {**settings.child_environment(), "PYTHONPATH": os.pathsep.join(paths)}
