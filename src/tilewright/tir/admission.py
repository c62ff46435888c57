"""What a program must be to be built: well formed, inside its buffers, and free to run as its loops are marked.

Everything that comes from outside goes through here, whoever wrote it and for whatever target: schedules, tensor
expressions, scripts. What the compiler makes itself for models comes from the same primitives, each of which proves its
step; `require_legal` looks at the result once more there too (`lower/kernel.py`).
"""

from __future__ import annotations

from tilewright.tir.enclose import enclose, is_bare
from tilewright.tir.function import PrimFunc
from tilewright.tir.schedule.legality import require_legal, require_legal_schedule
from tilewright.tir.schedule.schedule import Schedule
from tilewright.tir.verify import verify_written
from tilewright.tir.verify_bounds import require_in_bounds


def right_program(func: PrimFunc) -> PrimFunc:
    """A function that may be built: itself, or with blocks around its statements where it was written without."""
    if is_bare(func):
        func = enclose(func)
    verify_written(func)
    require_in_bounds(func)
    require_legal(func)
    return func


def require_right_schedule(schedule: Schedule) -> None:
    """The same for a schedule: errors speak of the program it started from, or of the call that broke it."""
    require_in_bounds(schedule.origin)
    require_legal_schedule(schedule)
