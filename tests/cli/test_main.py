"""The command line as a whole: help, exit codes, errors without tracebacks, a quick start, unwanted output."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

import tilewright as tw
from tests.integration import small_models
from tests.requirements import need
from tilewright.cli import main as cli
from tilewright.lower.database import Database
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.version import VERSION

Captured = pytest.CaptureFixture[str]


def python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A command whose `execute` a test sets, in the place of `doctor`."""
    command = SimpleNamespace(DESCRIPTION="", add_arguments=lambda parser: None, execute=lambda options: 0)
    monkeypatch.setattr(cli, "load_command", lambda name: command)
    return command


def raising(error: BaseException) -> object:
    def execute(options: argparse.Namespace) -> int:
        raise error

    return execute


def test_help_names_every_command_and_exit_code(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for name, summary in cli.COMMANDS.items():
        assert name in text
        assert summary in text
    for code in ("0 success", "1 something you can mend", "2 wrong usage", "3 a bug", "4 a check failed", "130"):
        assert code in text


@pytest.mark.parametrize(
    "words", [["--target", ""], ["--target", " "], ["--target="], ["--stage", "tir", "--target=  "]]
)
def test_an_empty_value_is_not_the_default(words: list[str], capsys: Captured) -> None:
    assert cli.main(["inspect", "model.onnx", *words]) == cli.USER_ERROR
    error = capsys.readouterr().err
    assert "its value is empty" in error and "--target" in error


def test_an_empty_argument_is_said(capsys: Captured) -> None:
    for words in (["inspect", ""], ["--settings=1", "  "], [""]):
        assert cli.main(words) == cli.USER_ERROR
        assert "an argument is empty" in capsys.readouterr().err


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_help_of_each_command(command: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert cli.load_command(command).DESCRIPTION.splitlines()[0] in text
    assert len(text.splitlines()) > 8


def test_every_option_has_a_help_text() -> None:
    [commands] = [a for a in cli.parser()._actions if isinstance(a, argparse._SubParsersAction)]
    assert list(commands.choices) == list(cli.COMMANDS)
    for name, parser in commands.choices.items():
        for action in parser._actions:
            assert action.help, f"{name} {action.dest}"


def test_version(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"tilewright {VERSION}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["compile"],
        ["compile", "m.onnx", "--frobnicate"],
        ["run", "m.onnx", "--threads", "0"],
        ["run", "m.onnx", "--threads", "two"],
        ["bench", "m.onnx", "--rounds", "0"],
        ["bench", "m.onnx", "--seed", "-1"],
        ["inspect", "m.onnx", "--stage", "soup"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(arguments)
    assert stopped.value.code == 2
    assert "usage: tilewright" in capsys.readouterr().err


def test_a_user_error_is_1_and_shows_what_where_and_hint(fake: SimpleNamespace, capsys: Captured) -> None:
    fake.execute = raising(UserError("it is too big", where="--size", hint="make it smaller"))
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "error: it is too big\n  where: --size\n  hint: make it smaller\n"


def test_a_bug_is_3(fake: SimpleNamespace, capsys: Captured) -> None:
    fake.execute = raising(CompilerBug("the invariant broke"))
    assert cli.main(["doctor"]) == 3
    errors = capsys.readouterr().err
    assert errors.startswith("internal error: the invariant broke")
    assert "please report it" in errors


def test_an_unforeseen_error_is_3_with_its_traceback(fake: SimpleNamespace, capsys: Captured) -> None:
    fake.execute = raising(ZeroDivisionError("division by zero"))
    with pytest.raises(SystemExit) as stopped:
        cli.main(["doctor"])
    assert stopped.value.code == 3
    errors = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero" in errors
    assert "this is a bug in Tilewright" in errors


def test_an_interrupt_is_130(fake: SimpleNamespace, capsys: Captured) -> None:
    fake.execute = raising(KeyboardInterrupt())
    assert cli.main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_what_the_system_refuses_is_1(fake: SimpleNamespace, capsys: Captured) -> None:
    fake.execute = raising(OSError(28, "No space left on device"))
    assert cli.main(["doctor"]) == 1
    assert "No space left on device" in capsys.readouterr().err
    fake.execute = raising(MemoryError())
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().err == "error: out of memory\n"


def test_warnings_are_shown_in_the_manner_of_errors(fake: SimpleNamespace, capsys: Captured) -> None:
    def execute(options: argparse.Namespace) -> int:
        warnings.simplefilter("always")
        warnings.warn("the cache cannot be written", RuntimeWarning, stacklevel=1)
        return 0

    fake.execute = execute
    assert cli.main(["doctor"]) == 0
    assert capsys.readouterr().err == "warning: the cache cannot be written\n"


def test_help_is_a_command_too(capsys: Captured) -> None:
    for words, start in ((["help"], "usage: tilewright ["), (["help", "compile"], "usage: tilewright compile")):
        with pytest.raises(SystemExit) as stopped:
            cli.main(words)
        assert stopped.value.code == 0 and capsys.readouterr().out.startswith(start)


def test_start_is_quick_because_commands_load_when_chosen() -> None:
    heavy = ("numpy", "llvmlite", "onnx", "tilewright.compiler", "tilewright.cli.bench", "tilewright.target")
    code = (
        "import sys\n"
        "from tilewright.cli.main import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        f"    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)\n"
    )
    done = python("-c", code)
    assert done.stderr.strip() == "[]"
    code = code.replace("'--help'", "'doctor'").replace("except SystemExit:\n    print", "finally:\n    print")
    done = python("-c", code)
    loaded = done.stderr.strip().splitlines()[-1]
    assert "onnx" not in loaded
    assert "tilewright.compiler" not in loaded


def test_the_compiler_is_loaded_only_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not to run a library, or a model that the cache has, nor to look into a database."""
    # A model that is to be verified is compiled anew.
    monkeypatch.setenv("TILEWRIGHT_VERIFY", "0")
    model, library, records = tmp_path / "model.onnx", tmp_path / "model.so", tmp_path / "records.db"
    onnx.save(small_models.classifier(), model)
    tw.compile(str(model)).export_library(library)
    Database(records).close()
    code = (
        "import sys\n"
        "from tilewright.cli.main import main\n"
        "main(sys.argv[1:])\n"
        "print('tilewright.compiler' in sys.modules)\n"
    )
    for words in (["run", library], ["run", model], ["database", "query", "--database", records]):
        done = python("-c", code, *map(str, words))
        assert done.stdout.splitlines()[-1:] == ["False"], (words, done.stdout, done.stderr)


def test_python_m_tilewright() -> None:
    done = python("-m", "tilewright", "--version")
    assert (done.returncode, done.stdout) == (0, f"tilewright {VERSION}\n")
    done = python("-m", "tilewright", "run", "absent.onnx")
    assert done.returncode == 1
    assert "there is no file absent.onnx" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(small_models.classifier().SerializeToString())
    inspect = shlex.join([sys.executable, "-m", "tilewright", "inspect", str(path), "--stage", "asm", "--threads", "1"])
    pipe = f"{inspect} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_files_are_written_though_nobody_reads_what_is_printed(tmp_path: Path, unbuffered: str) -> None:
    """The pipe is closed before the first line: the page, which comes after it, is there all the same."""
    path = tmp_path / "model.onnx"
    path.write_bytes(small_models.classifier().SerializeToString())
    words = ["run", str(path), "--threads", "1", "--profile", "--html", str(tmp_path / "page.html")]
    words += ["--output-file", str(tmp_path / "out.npz")]
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", *words],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=environment,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "page.html").read_text().rstrip().endswith("</html>")
    assert (tmp_path / "out.npz").exists()


@pytest.mark.parametrize("encoding", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONUTF8": "0"}])
def test_letters_that_the_terminal_lacks(tmp_path: Path, encoding: dict[str, str]) -> None:
    """Whatever a file is called and whatever the locale is: the library is written, its name shown somehow."""
    model = os.fsencode(tmp_path) + "/mödel 模型".encode() + b"\xff.onnx"
    Path(os.fsdecode(model)).write_bytes(small_models.classifier().SerializeToString())
    environment = {**os.environ, "PYTHONCOERCECLOCALE": "0", **encoding}
    command = [sys.executable.encode(), b"-m", b"tilewright", b"compile", model, b"--threads", b"1"]
    done = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"del " in done.stdout.splitlines()[0]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".h", ".onnx", ".so"]


def test_output_that_cannot_be_written_is_1() -> None:
    need("full-device")
    command = f"{shlex.quote(sys.executable)} -m tilewright doctor --settings > /dev/full"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
