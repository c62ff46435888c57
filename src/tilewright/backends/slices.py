"""The parts of back ends, loaded by name when they are first asked for: nobody pays for a back end that is not used.

| file in `backends/<kind>/` | constant | what it is | sees |
|---|---|---|---|
| `target.py` | `KIND` | options, numbers and capabilities (`target/kinds.py`) | `target` |
| `driver.py` | `DRIVER` | finds devices (`runtime/device/devices.py`); CPUs have none | `runtime` |
| `compiler.py` | `COMPILER` | text to code (`backends/compiler.py`); none where drivers do it | `target`, `runtime` |
| `deployment.py` | `DEPLOYMENT` | what models are written as (`backends/deployment.py`), if no library | `runtime` |
| `backend.py` | `BACKEND` | lowering list, schedules, language (`backends/backend.py`) | `topi` and below |

The class of each part is defined on the floor that asks for it, which gives it here: this file knows none of them.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import Final, TypeVar

import tilewright.backends
from tilewright.support.errors import CompilerBug

T = TypeVar("T")

_CONSTANTS: Final = {
    "target": "KIND",
    "driver": "DRIVER",
    "compiler": "COMPILER",
    "deployment": "DEPLOYMENT",
    "backend": "BACKEND",
}


def names(part: str) -> tuple[str, ...]:
    """The back ends that have a part."""
    return _having(tilewright.backends.SLICES, part)


@lru_cache(maxsize=64)
def _having(slices: tuple[str, ...], part: str) -> tuple[str, ...]:
    return tuple(name for name in slices if find_spec(_module(name, part)) is not None)


def load(name: str, part: str, kind: type[T]) -> T:
    """A part of a back end, which must be a `kind`."""
    constant = _CONSTANTS[part]
    value = getattr(import_module(_module(name, part)), constant, None)
    if not isinstance(value, kind):
        raise CompilerBug(f"the constant {constant} of {_module(name, part)} is no {kind.__name__}")
    return value


def _module(name: str, part: str) -> str:
    return f"tilewright.backends.{name}.{part}"
