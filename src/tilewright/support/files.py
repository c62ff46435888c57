"""Writing files and folders so that a reader sees them whole or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tilewright.support.errors import UserError


def temporary_name(path: Path) -> Path:
    """A fresh name beside `path`, for a file that will be moved over it."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path that the `with` body writes and that then becomes `path`, all at once.

    Whatever goes wrong leaves no partial file; a disk that is full or a folder that cannot be written is a `UserError`.
    """
    if path.exists() and not path.is_file():
        # A rename would put a file in the place of a device such as /dev/null.
        raise UserError(f"cannot write {path.name}: it is there and is not a file", where=str(path))
    temporary = temporary_name(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def replacing_folder(folder: Path, marker: str, what: str) -> Iterator[Path]:
    """A temporary folder that the `with` body fills and that then becomes `folder`, all at once.

    A folder that is there is replaced if it is empty, or holds the file `marker`, as what was written before does.
    """
    if folder.exists() and not (folder.is_dir() and (not any(folder.iterdir()) or (folder / marker).exists())):
        raise UserError(f"{folder} is there and holds no {what}", hint="name a new or an empty folder")
    temporary = temporary_name(folder)
    try:
        temporary.mkdir()
        yield temporary
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder)
    except OSError as error:
        raise cannot_write(folder, error) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cannot_write(path: Path, error: OSError) -> UserError:
    """The message for a file that could not be written."""
    return UserError(f"cannot write {path.name}: {error.strerror or error}", where=str(path))
