"""`ScheduleError`: why a primitive does not apply, shown on the current program."""

from __future__ import annotations

from tilewright.ir.node import Node
from tilewright.support.errors import UserError
from tilewright.tir.function import PrimFunc
from tilewright.tir.script.printer import to_script
from tilewright.tir.stmt import Block, For


class ScheduleError(UserError):
    """A primitive that would change what the program computes, or that does not apply where it was asked for.

    The text shows the program as it is with the offending loop or block marked. The program is printed only when
    somebody looks: a search that tries many schedules throws most of these away.
    """

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        func: PrimFunc | None = None,
        mark: For | Block | None = None,
    ) -> None:
        self._func = func
        self._mark = mark
        self._where: str | None = where
        super().__init__(message, where=where, hint=hint)

    def since(self, call: str) -> ScheduleError:
        """The same error, with the call of the schedule that broke the premise."""
        message = f"{self.message} (since {call})"
        return ScheduleError(message, hint=self.hint, func=self._func, mark=self._mark)

    @property
    def where(self) -> str | None:
        """The program, with the place marked."""
        if self._where is None and self._func is not None:
            mark: dict[Node | str, str] = {}
            if isinstance(self._mark, For):
                mark[self._mark.var] = f"here: {self.message}"
            elif isinstance(self._mark, Block):
                mark[self._mark.name] = f"here: {self.message}"
            text = to_script(self._func, mark=mark)
            self._where = "the program as it is:\n" + "\n".join(f"    {line}" for line in text.splitlines())
        return self._where

    @where.setter
    def where(self, value: str | None) -> None:
        self._where = value
