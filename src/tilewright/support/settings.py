"""The one registry of settings: every `TILEWRIGHT_*` environment variable, typed and documented.

    from tilewright.support import settings
    folder = settings.CACHE_DIR.get()          # environment, else the default
    with settings.NUM_THREADS.override(2): ... # for tests and tools

A value is read from the environment each time it is asked for, so a change made by a test or a notebook is seen.
"""

from __future__ import annotations

import difflib
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from tilewright.support.errors import CompilerBug, UserError

PREFIX = "TILEWRIGHT_"

T = TypeVar("T")


class Setting(Generic[T]):
    """One setting: its environment name, how its text is read, its default and what it is for."""

    def __init__(
        self, name: str, read: Callable[[str], T], default: Callable[[], T], default_text: str, doc: str, secret: bool
    ) -> None:
        self.name = name
        self.secret = secret
        self.doc = doc
        self.default_text = default_text
        self._read = read
        self._default = default
        self._overrides: list[T] = []

    def get(self) -> T:
        """The value in force: an `override`, else the environment, else the default."""
        if self._overrides:
            return self._overrides[-1]
        text = os.environ.get(self.name)
        if text is None or text.strip() == "":
            return self._default()
        try:
            return self._read(text.strip())
        except ValueError as error:
            raise UserError(
                f"bad value {'(a secret)' if self.secret else repr(text)} for the setting {self.name}: {error}",
                where=f"environment variable {self.name}",
                hint=f"{self.doc} (default: {self.default_text})",
            ) from None

    def override_text(self) -> str | None:
        """The text that gives the override in force to another process; None when there is no override."""
        if not self._overrides:
            return None
        value = self._overrides[-1]
        if isinstance(value, bool):
            return str(int(value))
        if isinstance(value, frozenset):
            return ",".join(sorted(map(str, value)))
        return "" if value is None else str(value)

    @contextmanager
    def override(self, value: T) -> Iterator[None]:
        """Use `value` instead of the environment inside the `with` body."""
        self._overrides.append(value)
        try:
            yield
        finally:
            self._overrides.pop()


_registry: dict[str, Setting[object]] = {}


def define(
    name: str,
    read: Callable[[str], T],
    default: Callable[[], T],
    *,
    default_text: str,
    doc: str,
    secret: bool = False,
) -> Setting[T]:
    """Register a setting; `read` turns its text into a value and raises `ValueError` on bad text.

    A `secret` one is not given to child processes.
    """
    full_name = PREFIX + name
    if full_name in _registry:
        raise CompilerBug(f"the setting {full_name} is defined twice")
    setting = Setting(full_name, read, default, default_text, doc, secret)
    _registry[full_name] = setting  # type: ignore[assignment]
    return setting


def all_settings() -> list[Setting[object]]:
    """Every setting, by name: the source of `tilewright doctor` and of the table in the docs."""
    return [_registry[name] for name in sorted(_registry)]


def child_environment() -> dict[str, str]:
    """The environment for a child process that shall see the settings as this one does, overrides included.

    Secrets are left out: a child may run code of others, and what it prints or dumps may be seen by others.
    """
    texts = {name: setting.override_text() for name, setting in _registry.items()}
    seen = {**os.environ, **{name: text for name, text in texts.items() if text is not None}}
    return {name: text for name, text in seen.items() if not _is_secret(name)}


def _is_secret(name: str) -> bool:
    """Whether a variable is a setting's secret; also one of a package that was not loaded here."""
    setting = _registry.get(name)
    return setting.secret if setting is not None else name.startswith(PREFIX) and name.endswith("TOKEN")


def unknown_variables() -> list[str]:
    """A sentence for each `TILEWRIGHT_*` variable in the environment that no setting reads."""
    sentences = []
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in _registry:
            close = difflib.get_close_matches(name, _registry, n=1)
            sentences.append(f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else ""))
    return sentences


def read_bool(text: str) -> bool:
    """`1/true/yes/on` or `0/false/no/off`."""
    lowered = text.lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise ValueError("expected one of 1, true, yes, on, 0, false, no, off")


def read_positive_int(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError("expected a whole number of at least 1")
    return int(text)


def read_bytes(text: str) -> int:
    """A size such as `500000`, `512M`, `2GB` or `1.5GiB` (units are powers of 1024)."""
    number = text.upper().removesuffix("IB").removesuffix("B")
    scale = 1
    for exponent, unit in enumerate("KMGT", start=1):
        if number.endswith(unit):
            number, scale = number[:-1], 1024**exponent
            break
    try:
        size = float(number)
    except ValueError:
        size = -1.0
    if not 0 <= size < float("inf"):
        raise ValueError("expected a size such as 512M or 2GB")
    return int(size * scale)


def read_choice(*choices: str) -> Callable[[str], str]:
    """A reader for one word out of `choices`."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text.lower()

    return read


def read_words(*choices: str) -> Callable[[str], frozenset[str]]:
    """A reader for a comma-separated set of words out of `choices`."""

    def read(text: str) -> frozenset[str]:
        words = frozenset(word.strip().lower() for word in text.split(",") if word.strip())
        unknown = sorted(words - set(choices))
        if unknown:
            raise ValueError(f"unknown word {unknown[0]!r}, expected a comma-separated list of {', '.join(choices)}")
        return words

    return read


def _read_path(text: str) -> Path:
    return _expanded(text, os.environ.get("HOME"))


@functools.lru_cache(maxsize=64)
def _expanded(text: str, home: str | None) -> Path:
    """A path with the user's folder in the place of `~`; some settings are asked thousands of times."""
    return Path(text).expanduser()


def _default_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "tilewright"


def _read_path_or_none(text: str) -> Path | None:
    return None if text.lower() == "none" else _read_path(text)


def _user_data(name: str) -> Path:
    return _read_path(f"{os.environ.get('XDG_DATA_HOME') or '~/.local/share'}/tilewright/{name}")


CACHE_DIR: Setting[Path] = define(
    "CACHE_DIR",
    _read_path,
    _default_cache_dir,
    default_text="$XDG_CACHE_HOME/tilewright or ~/.cache/tilewright",
    doc="folder of the cache of compiled objects and models",
)
CACHE: Setting[bool] = define(
    "CACHE", read_bool, lambda: True, default_text="on", doc="whether compiled objects and models are cached on disk"
)
CACHE_LIMIT: Setting[int] = define(
    "CACHE_LIMIT",
    read_bytes,
    lambda: 2 * 1024**3,
    default_text="2GB",
    doc="size above which the least recently used cached objects and models are deleted",
)
DATABASE: Setting[Path | None] = define(
    "DATABASE",
    _read_path_or_none,
    lambda: _user_data("tuned.db"),
    default_text="$XDG_DATA_HOME/tilewright/tuned.db or ~/.local/share/tilewright/tuned.db",
    doc="database of measured schedules that compilation asks, if the file exists (none: ask no database)",
)
MACHINES: Setting[Path | None] = define(
    "MACHINES",
    _read_path_or_none,
    lambda: _user_data("machines"),
    default_text="$XDG_DATA_HOME/tilewright/machines or ~/.local/share/tilewright/machines",
    doc="folder of the tables of machine parameters that `tilewright calibrate` writes (none: shipped tables alone)",
)
TRACE: Setting[frozenset[str]] = define(
    "TRACE",
    read_words("time", "dump", "launch"),
    frozenset,
    default_text="nothing",
    doc="comma-separated: time (print a table of time per stage at exit), dump (write every stage to the dump folder), "
    "launch (wait for each kernel on a device, to name the one that fails)",
)
DUMP_DIR: Setting[Path] = define(
    "DUMP_DIR",
    _read_path,
    lambda: Path("tilewright-dump"),
    default_text="./tilewright-dump",
    doc="folder into which TILEWRIGHT_TRACE=dump writes the program after every stage",
)
OVERRIDE_DIR: Setting[Path | None] = define(
    "OVERRIDE_DIR",
    _read_path,
    lambda: None,
    default_text="none",
    doc="folder with stage files, named as the dump names them, that replace the stage of that name",
)
VERIFY: Setting[bool] = define(
    "VERIFY",
    read_bool,
    lambda: False,
    default_text="off",
    doc="whether the contract of each stage is checked after every pass that changes something",
)
STRICT_TEMPLATES: Setting[bool] = define(
    "STRICT_TEMPLATES",
    read_bool,
    lambda: False,
    default_text="off",
    doc="whether a schedule template that fails is an error, instead of a plainer schedule and a warning",
)
NUM_THREADS: Setting[int | None] = define(
    "NUM_THREADS",
    read_positive_int,
    lambda: None,
    default_text="the cores this process may use",
    doc="number of threads that compiled code runs on",
)
CPU: Setting[str | None] = define(
    "CPU",
    str,
    lambda: None,
    default_text="the last that the machine can run",
    doc="which of its processors a library with code for several runs as; the library itself reads it",
)
COMPILE_PROCESSES: Setting[int | None] = define(
    "COMPILE_PROCESSES",
    read_positive_int,
    lambda: None,
    default_text="the cores this process may use",
    doc="number of processes that compile the kernels of a model",
)
PROGRESS: Setting[str] = define(
    "PROGRESS",
    read_choice("auto", "always", "never"),
    lambda: "auto",
    default_text="auto",
    doc="progress lines on long steps: auto (only on a terminal), always, never",
)
LINKER: Setting[str | None] = define(
    "LINKER",
    str,
    lambda: None,
    default_text="the first of ld.lld, ld, cc, ziglang that serves the target",
    doc="command that links exported libraries (an ld, an ld.lld or a C compiler)",
)


def stages_are_files() -> bool:
    """Whether stages of compilation are written to files or taken from them; no cache may then know the result."""
    return OVERRIDE_DIR.get() is not None or "dump" in TRACE.get()
