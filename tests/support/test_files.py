"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.support.errors import UserError
from tilewright.support.files import replacing


def test_replaces_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_errors_leave_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    with pytest.raises(ValueError), replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise ValueError
    with (
        pytest.raises(UserError, match=r"cannot write out\.txt: No space left on device"),
        replacing(path) as temporary,
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(UserError, match="cannot write x: No such file or directory"):  # noqa: SIM117
        with replacing(tmp_path / "no" / "x") as temporary:
            temporary.write_text("")
    assert list(tmp_path.iterdir()) == []
