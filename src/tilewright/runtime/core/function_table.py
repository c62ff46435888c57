"""Functions by name: what a module of this machine and a module of another device have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Generic, TypeVar

from tilewright.support.errors import UserError
from tilewright.support.text import plural

F = TypeVar("F", bound=Callable[..., None])


class FunctionTable(ABC, Generic[F]):
    """A module's functions: `mod[name]`, iteration over names, and a call of the module itself for its only function.

    `known` has an entry for each name.
    """

    def __init__(self, known: Mapping[str, object]) -> None:
        self._known = known
        self._bound: dict[str, F] = {}

    @abstractmethod
    def _bind_function(self, name: str) -> F:
        """The callable of a known name, made when it is first asked for."""

    def __getitem__(self, name: str) -> F:
        if name not in self._known:
            known = ", ".join(self._known) or "none"
            raise UserError(f"the module has no function '{name}'", hint=f"its functions: {known}")
        if name not in self._bound:
            self._bound[name] = self._bind_function(name)
        return self._bound[name]

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        """The functions with their parameters."""
        return f"{type(self).__name__}({'; '.join(map(str, self._known.values()))})"

    @property
    def entry(self) -> F:
        """The only function of the module."""
        if len(self._known) != 1:
            raise UserError(
                f"the module has {plural(len(self._known), 'function')}, so it cannot be called itself",
                hint=f"name one: mod[name] with a name of {', '.join(self._known) or 'none'}",
            )
        return self[next(iter(self._known))]

    def __call__(self, *args: object) -> None:
        """Call the only function of the module."""
        self.entry(*args)


def check_repeats(number: int, repeat: int) -> None:
    """What a `time_evaluator` is given must make sense."""
    if number < 1 or repeat < 1:
        raise UserError(f"time_evaluator needs number and repeat of at least 1, not {number} and {repeat}")
