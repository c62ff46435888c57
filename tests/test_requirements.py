"""What a test needs is decided in one place: skipped with the reason, or failed where it is required."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import requirements
from tests.requirements import REQUIREMENTS, Requirement, absent, need, need_module, need_tool, required

TESTS = Path(__file__).resolve().parent


@pytest.fixture(autouse=True)
def unicorn(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A requirement that no machine meets, and nothing remembered."""
    monkeypatch.setitem(REQUIREMENTS, "unicorn", Requirement(lambda: "there is no unicorn here", lambda: True))
    monkeypatch.delenv("REQUIRE", raising=False)
    required.cache_clear()
    yield monkeypatch
    required.cache_clear()
    requirements.missing.cache_clear()


def test_what_is_missing_is_skipped_with_the_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match="unicorn: there is no unicorn here"):
        need("unicorn")
    with pytest.raises(pytest.skip.Exception, match="of two horns"):
        absent("unicorn", "it is of two horns")


def test_what_is_required_fails(unicorn: pytest.MonkeyPatch) -> None:
    unicorn.setenv("REQUIRE", "c-compiler, unicorn")
    assert required() == {"c-compiler", "unicorn"}
    with pytest.raises(pytest.fail.Exception, match=r"unicorn is required \(REQUIRE\).*there is no unicorn here"):
        need("unicorn")


def test_unknown_names_are_refused(unicorn: pytest.MonkeyPatch) -> None:
    unicorn.setenv("REQUIRE", "opencl,dragon")
    with pytest.raises(pytest.UsageError, match=r"REQUIRE names dragon; known are .*opencl"):
        required()


def test_what_is_there_is_given(unicorn: pytest.MonkeyPatch) -> None:
    for name in ("json", "sh"):
        unicorn.setitem(REQUIREMENTS, name, Requirement(lambda: "", lambda: True))
    assert need_module("json").dumps([1]) == "[1]"
    assert Path(need_tool("sh")).exists()


def test_installed_and_working_are_two_questions(
    unicorn: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unicorn.setattr("sys.argv", ["requirements", "--installed"])
    requirements.main()
    assert "unicorn" in capsys.readouterr().out.strip().split(",")


def test_nothing_else_decides_what_is_skipped() -> None:
    """A skip that has no name could not be required."""
    skips = []
    for path in sorted(TESTS.rglob("*.py")):
        if path.name in ("requirements.py", "test_requirements.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("skip", "skipif", "importorskip", "xfail"):
                skips.append(f"{path.relative_to(TESTS)}:{node.lineno}: {ast.unparse(node)}")
    assert not skips, "give these a name in tests/requirements.py:\n  " + "\n  ".join(skips)
