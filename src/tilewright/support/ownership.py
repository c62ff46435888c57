"""Files and folders that only this user can change: what is taken from them is what this user put there.

The cache holds machine code, so whoever can change a file of it, or put another in its place, runs code as the user.
A place is safe if each folder on the way to it belongs to this user or to the superuser and nobody else may write it.
Shared folders with the sticky bit (/tmp) may lie on the way: others can add to those, but not replace what is ours.
"""

from __future__ import annotations

import grp
import os
import pwd
import stat
from pathlib import Path

_MOST_LINKS = 40
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def why_exposed(folder: Path) -> str | None:
    """Why others could change what lies in a folder, as words that follow its name; None if they cannot.

    A folder that is not there is not exposed: whoever makes it asks again afterwards.
    """
    pending = list(reversed(folder.absolute().parts))
    place, links = Path(pending.pop()), 0
    while True:
        if pending and pending[-1] == "..":
            pending.pop()
            place = place.parent
            continue
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return f"cannot be looked at: {error.strerror}"
        is_link = stat.S_ISLNK(status.st_mode)
        reason = why_changeable(place, status, shared=is_link or bool(pending))
        if reason is not None:
            return reason if place == folder else f"lies in {place}, which {reason}"
        if is_link:
            links += 1
            if links > _MOST_LINKS:
                return "is a link that leads nowhere"
            # The next place is where the link leads, seen from the folder it is in.
            leads = Path(os.readlink(place))
            pending += reversed(leads.parts[1:] if leads.is_absolute() else leads.parts)
            place = Path(leads.anchor) if leads.is_absolute() else place.parent
        if not pending:
            return None
        if pending[-1] != "..":
            place = place / pending.pop()


def why_changeable(path: Path, status: os.stat_result, *, shared: bool = False) -> str | None:
    """Why others could change one file or folder, whose status is given; None if they cannot.

    `shared` allows folders that all may add to, but where nobody can replace what is another's.
    """
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to {_user_name(status.st_uid)}"
    mode = status.st_mode
    if stat.S_ISLNK(mode) or not mode & _OTHERS or (shared and stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return None
    if not mode & stat.S_IWOTH and _is_own_group(path, status):
        return None
    return f"others may write (mode {stat.S_IMODE(mode):04o})"


def make_private_folder(folder: Path) -> None:
    """Make a folder and those it lies in; what is made is open to this user alone."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_private_folder(folder.parent)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        # Another process made it a moment ago, or it is a file: then whoever writes there learns so.
        if not folder.is_dir():
            raise NotADirectoryError(20, os.strerror(20), str(folder)) from None


def _is_own_group(path: Path, status: os.stat_result) -> bool:
    """Whether the group that may write is this user's own, which has no other members, as many systems set users up."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
    except KeyError:
        return False
    if group.gr_gid != user.pw_gid or group.gr_name != user.pw_name or set(group.gr_mem) - {user.pw_name}:
        return False
    # Under an access list the bits of the group are a bound for everyone in the list.
    return not _has_access_list(path)


def _has_access_list(path: Path) -> bool:
    read = getattr(os, "getxattr", None)
    if read is None:
        return False
    try:
        return bool(read(path, "system.posix_acl_access"))
    except OSError:
        return False


def _user_name(number: int) -> str:
    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user {number}"
