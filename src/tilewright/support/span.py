"""Source spans: where in the user's script or model a node came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A place in a source: a file with a line and column, or a node of a model by name."""

    source: str
    line: int = 0
    column: int = 0
    operation: str = ""
    """What the node does, in the words of the user's model."""

    def __str__(self) -> str:
        if self.line:
            return f"{self.source}:{self.line}:{self.column}"
        return self.source

    def described(self) -> str:
        """A node of a model with what it does, for messages."""
        return f"node '{self}' ({self.operation})" if self.operation else f"node '{self}'"
