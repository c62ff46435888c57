"""The line between a server and the sessions it runs: folders that are cleared up, processes that end, secrets kept."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PREFIX = "tilewright-session-"
_YOUNG_SECONDS = 3600.0
"""A folder without a lock may be one that is just being made."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4


class SessionFolder:
    """The folder of a session; `files` is the client's. A lock that the server holds tells it from a left one."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self.files = self.path / "files"
        self.files.mkdir(0o700)
        fresh = self.path / "fresh"
        self._lock = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # It gets its name when it is held: nobody finds one that is free.
        fresh.rename(self.path / "lock")

    def remove(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_left_folders() -> int:
    """Delete folders of sessions whose servers were killed; returns how many."""
    removed = 0
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Another process may delete the same one.
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and _is_left(path, status):
                shutil.rmtree(path, ignore_errors=True)
                removed += 1
    return removed


def _is_left(path: Path, status: os.stat_result) -> bool:
    try:
        lock = os.open(path / "lock", os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return time.time() - status.st_mtime > _YOUNG_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def end_with_parent() -> None:
    """Let the system kill this process when the one that started it is gone, even if it is inside compiled code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def hide_memory() -> None:
    """Keep other processes of this user, such as sessions, from reading this one's memory and environment."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
