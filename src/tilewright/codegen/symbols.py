"""Names of functions as symbols: what a linker and a C program accept."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.support.errors import UserError

_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def check_symbol(name: str) -> None:
    """Raise a `UserError` unless a name can be a C identifier."""
    if _SYMBOL.match(name) is None:
        raise UserError(
            f"the function name {name!r} cannot be a symbol of the compiled code",
            hint="use ASCII letters, digits and underscores, not starting with a digit",
        )


def check_symbols(names: Iterable[str]) -> None:
    """Raise a `UserError` unless the functions of one module can be symbols, each of its own."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise UserError(f"two functions named {name} in one module", hint="rename one of them")
        seen.add(name)
        check_symbol(name)
