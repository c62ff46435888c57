"""Which places others could change: owners, modes, links and groups, on every step of the way."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.requirements import needs
from tilewright.support import ownership
from tilewright.support.ownership import make_private_folder, why_changeable, why_exposed

STRANGER = 65534
as_root = needs("root")


@pytest.fixture(autouse=True)
def no_private_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups have members unless a test says otherwise."""
    monkeypatch.setattr(ownership, "_is_own_group", lambda path, status: False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "a" / "b"
    made.mkdir(parents=True)
    for path in (made, made.parent):
        path.chmod(0o755)
    return made


def test_what_is_made_is_private_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_private_folder(tmp_path / "x" / "y")
        make_private_folder(tmp_path / "x" / "y")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("x", "x/y")] == [0o700, 0o700]
    assert why_exposed(tmp_path / "x" / "y") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "file" / "y")


def test_safe_places(folder: Path) -> None:
    assert why_exposed(folder) is None
    assert why_exposed(folder / "not" / "there") is None
    assert why_exposed(folder / ".." / "b") is None
    (folder / "file").write_text("")
    assert why_exposed(folder / "file" / "below") is None


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o757, 0o775, 0o722])
def test_folders_that_others_may_write(folder: Path, mode: int) -> None:
    folder.chmod(mode)
    assert why_exposed(folder) == f"others may write (mode {mode:04o})"
    folder.chmod(0o755)
    folder.parent.chmod(mode)
    assert why_exposed(folder) == f"lies in {folder.parent}, which others may write (mode {mode:04o})"
    # Also where the folder itself is not there yet: another may make it first, but then it is not ours.
    assert "others may write" in str(why_exposed(folder.parent / "new"))


def test_sticky_folders_may_lie_on_the_way_but_not_at_the_end(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert why_exposed(folder) is None
    assert "others may write (mode 1777)" in str(why_exposed(folder.parent))


@as_root
def test_what_belongs_to_others(folder: Path) -> None:
    os.chown(folder, STRANGER, STRANGER)
    assert why_exposed(folder) == f"belongs to the user {pwd.getpwuid(STRANGER).pw_name}"
    os.chown(folder, 0, 0)
    os.chown(folder.parent, 4_000_000, 0)
    assert why_exposed(folder) == f"lies in {folder.parent}, which belongs to the user 4000000"


@as_root
def test_what_belongs_to_the_superuser_is_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    assert why_exposed(folder) is None


@as_root
def test_links_of_others(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert why_exposed(link) is None
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert "belongs to the user" in str(why_exposed(link))
    assert "belongs to the user" in str(why_exposed(link / "below"))


@pytest.mark.parametrize("relative", [True, False])
def test_links_are_followed_step_by_step(folder: Path, tmp_path: Path, relative: bool) -> None:
    link = tmp_path / "link"
    link.symlink_to("a/../a/b" if relative else folder)
    assert why_exposed(link) is None
    # What counts are the folders that the link leads through.
    folder.parent.chmod(0o777)
    assert "others may write" in str(why_exposed(link))


def test_links_in_circles(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("y")
    (tmp_path / "y").symlink_to("x")
    assert why_exposed(tmp_path / "x" / "z") == "is a link that leads nowhere"


@pytest.mark.parametrize(
    ("group", "members", "expected"),
    [("me", [], True), ("me", ["me"], True), ("me", ["me", "other"], False), ("staff", [], False)],
)
def test_a_group_of_this_user_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, members: list[str], expected: bool
) -> None:
    monkeypatch.undo()
    folder.chmod(0o775)
    number = folder.stat().st_gid
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: SimpleNamespace(pw_name="me", pw_gid=number))
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=group, gr_gid=gid, gr_mem=members))
    assert (why_changeable(folder, folder.stat()) is None) is expected
    # With an access list, the bits of the group say nothing of who is in it.
    monkeypatch.setattr(os, "getxattr", lambda path, name: b"a list", raising=False)
    assert why_changeable(folder, folder.stat()) is not None


def _unknown(number: int) -> object:
    raise KeyError(number)


@pytest.mark.parametrize("forget", [lambda m: m.setattr(pwd, "getpwuid", _unknown)])
def test_users_that_no_list_knows(
    folder: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.undo()
    forget(monkeypatch)
    folder.chmod(0o775)
    assert why_exposed(folder) is not None
    folder.chmod(0o755)
    assert why_exposed(folder) is None
