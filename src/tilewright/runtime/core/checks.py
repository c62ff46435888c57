"""Checks of data while a model runs: the codes that native entries return for them, and what they say to a user.

A check is a kernel that looks at indices or divisors and leaves a status of three 64-bit numbers: the place of the
first value that is wrong (or `FINE`), that value, and the size it does not fit. On a CPU the kernel fails, and the
entry returns `FIRST_CODE` plus the number of the check; on a device the statuses are read with the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Final

from tilewright.runtime.core.artifact import CheckInfo, ModelInfo
from tilewright.runtime.core.library import ERROR_LEVEL
from tilewright.runtime.core.shapes import evaluate
from tilewright.support.errors import UserError

FINE: Final = -1
"""The place in a status when nothing is wrong."""
STATUS_SIZE: Final = 3
"""Numbers of a status."""
STATUS_BYTES: Final = 8 * STATUS_SIZE
FIRST_CODE: Final = 16
"""The code of an entry whose check number 0 failed; those of others follow."""
CHECKS: Final = {
    "index": ("index", "indices", "is out of range for"),
    "position": ("index", "indices", "is out of range for"),
    "length": ("length", "lengths", "does not fit"),
    "divisor": ("divisor", "divisors", "of an integer division is zero"),
}
"""What is checked: how messages call a value and several, and what they say of one that is wrong."""
_HINT = "unchecked=True leaves out such checks"


def failed_check(check: CheckInfo, status: Sequence[int], symbols: Mapping[str, int]) -> UserError:
    """The error for what a check of a model found, under the values of the model's symbols."""
    shape = [evaluate(extent, dict(symbols)) for extent in check.shape]
    return check_error(check.what, check.axes, [size or 0 for size in shape], status, check.node or None)


def check_error(
    what: str, axes: Sequence[int], shape: Sequence[int], status: Sequence[int], where: str | None = None
) -> UserError:
    """The error for a status that is not fine; `shape` is that of the values, `axes` those that they index."""
    place, value, size = status
    noun, several, said = CHECKS[what]
    at = f"element {_position(place, shape)} of the {several}"
    if what == "divisor":
        return UserError(f"a {noun} {said}: {at}", where=where, hint=f"divide by other numbers; {_HINT}")
    axis = axes[place % len(axes)]
    message = f"the {noun} {value} ({at}) {said} axis {axis} of size {size}"
    return UserError(message, where=where, hint=f"{_allowed(what, size)}; {_HINT}")


def _allowed(what: str, size: int) -> str:
    if what == "length":
        return f"lengths are 0 to {size}"
    if not size:
        return "the axis is empty"
    return f"indices are {-size if what == 'index' else 0} to {size - 1}"


def _position(place: int, shape: Sequence[int]) -> str:
    """A flat place as indices."""
    if len(shape) <= 1 or prod(shape) <= place:
        return str(place)
    position: list[int] = []
    for size in reversed(shape):
        position.append(place % size)
        place //= size
    return str(tuple(reversed(position)))


def _without_value(check: CheckInfo) -> str:
    noun, _, said = CHECKS[check.what]
    article = "an" if noun == "index" else "a"
    axes = " or ".join(str(axis) for axis in dict.fromkeys(check.axes))
    return f"{check.node or 'the model'}: {article} {noun} {said}{f' axis {axes}' if axes else ''}"


def code_messages(model: ModelInfo) -> dict[int, str]:
    """What the codes of a model's entries mean, without the values that checks found: for programs in C."""
    messages = {0: "no error", 1: "a check of the program failed", 2: "out of memory"}
    messages[3] = "the operating system does not let the process use the matrix tiles that the code needs"
    messages[ERROR_LEVEL] = (
        "the library has no code that this processor can run, or TILEWRIGHT_CPU names a processor that it has none for"
    )
    for part in (model, *model.variants):
        first = FIRST_CODE + part.first_check
        messages.update({first + number: _without_value(check) for number, check in enumerate(part.checks)})
    return messages
