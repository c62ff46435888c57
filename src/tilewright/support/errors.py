"""The two kinds of failure: `UserError` (what a user can mend) and `CompilerBug` (ours)."""

from __future__ import annotations


class TilewrightError(Exception):
    """Base of every error this package raises on purpose."""


class UserError(TilewrightError):
    """Something the user can mend: says what is wrong, where, and how to fix it.

    `where` names the place in the user's own terms (an ONNX node, a file and line, an input name);
    `hint` says what to do. Both are optional and are shown on lines of their own.
    """

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, where, hint)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.where:
            lines.append(f"  where: {self.where}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.where, self.hint))


def _rebuild(cls: type[UserError], message: str, where: str | None, hint: str | None) -> UserError:
    return cls(message, where=where, hint=hint)


class UnsupportedError(UserError):
    """A valid request that Tilewright cannot serve yet: names the feature and the place."""


class MissingDependencyError(UserError):
    """An optional package is needed; the hint names the extra to install."""

    @classmethod
    def for_extra(cls, package: str, extra: str, purpose: str) -> MissingDependencyError:
        """The error for an optional `package` that `extra` installs and `purpose` needs."""
        return cls(
            f"{purpose} needs the package '{package}', which is not installed",
            hint=f"pip install 'tilewright[{extra}]'",
        )


class CompilerBug(TilewrightError):
    """An internal invariant broke. Never the user's fault: please report it."""

    def __str__(self) -> str:
        return f"{super().__str__()}\n  (this is a bug in Tilewright, please report it)"
