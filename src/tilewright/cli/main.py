"""The command `tilewright`: parses arguments, runs one command, turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, TextIO, cast

from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.interrupts import ignore_interrupts, lasting_interrupts
from tilewright.support.version import VERSION

if TYPE_CHECKING:
    from typing_extensions import Buffer

_DESCRIPTION = """\
Tilewright compiles deep-learning models to fast, self-contained modules.

  tilewright compile resnet18.onnx -o resnet18.so     one file: code, weights, entry point
  tilewright run     resnet18.so --input x=image.npy  run a model or an exported library
  tilewright bench   resnet18.onnx --against onnxruntime
  tilewright inspect resnet18.onnx --stage tir        look at any stage of the compilation
  tilewright tune    resnet18.onnx --time 20m         measure quicker schedules, kept for later compilations
  tilewright calibrate                                measure this machine, once
  tilewright quantize resnet18.onnx --data images/    weights and activations in 8 bits
  tilewright train   digits.onnx --data train.npz     gradients and updates in one compiled step
  tilewright check   resnet18.onnx                    compare it with onnxruntime
  tilewright convert resnet18.pt2 -o resnet18.onnx    any format in, ONNX out
  tilewright formats                                  the formats of model files
  tilewright doctor                                   what this machine can do
"""

_EPILOG = """\
`tilewright COMMAND --help` (or `tilewright help COMMAND`) explains a command.

exit codes: 0 success, 1 something you can mend (the message says what), 2 wrong usage,
            3 a bug in Tilewright, 4 a check failed (bench, check: wrong outputs), 130 interrupted

environment: TILEWRIGHT_TRACE=time prints where compile time goes, TILEWRIGHT_PROGRESS=never hides progress lines;
             `tilewright doctor --settings` lists all settings
"""

COMMANDS = {
    "compile": "compile a model to a shared library",
    "run": "run a model or an exported library",
    "bench": "time a model against other runtimes",
    "inspect": "print any stage of a compilation",
    "tune": "find quicker schedules of a model's kernels by measuring",
    "quantize": "round a model to few bits with calibration data",
    "train": "train a model, or train it further",
    "calibrate": "measure this machine, for schedules that fit it",
    "database": "look at, join and export what tuning has measured",
    "rpc": "serve this machine, or a pool of machines, to remote clients",
    "place": "measure what of a model should run on which device",
    "check": "compare a model with its own runtime, node by node",
    "reduce": "shrink a failing model to a small one that fails in the same way",
    "convert": "write a model of any format as ONNX",
    "formats": "the formats of model files, and what each needs",
    "micro": "build a model for a microcontroller, run and profile it there",
    "board": "the runtime that serves a board over a serial line",
    "accel": "the tensor processor: its programs, and its hardware as Verilog",
    "key": "make a key that signs libraries",
    "demo": "a model in your browser",
    "doctor": "what this machine can do, and what to install",
}
"""The commands and what each is for. A command's module is loaded when it is chosen, so that help is quick."""

USER_ERROR = 1
BUG = 3
INTERRUPTED = 130
_LISTS = ("--against",)
"""Options whose value is a list that may be empty: an empty value means none, not the default."""


class Command(Protocol):
    """What the module `tilewright.cli.NAME` of a command holds."""

    DESCRIPTION: str
    """The text of its help, above the options."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's arguments."""

    def execute(self, options: argparse.Namespace) -> int:
        """Run the command; returns the exit code."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (argparse exits by itself after help and on wrong usage)."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if arguments is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout = _patient(sys.stdout)
    try:
        with warnings.catch_warnings(), lasting_interrupts():
            warnings.showwarning = _show_warning
            _refuse_empty(words)
            if words[:1] == ["help"]:
                # As other tools have it: `tilewright help compile`.
                words = [*words[1:2], "--help"]
            options = parser(word for word in words if word in COMMANDS).parse_args(words)
            code = load_command(options.command).execute(options)
            # What is still buffered may fail to be written: that must happen here, where it is understood.
            sys.stdout.flush()
            if arguments is None:
                # The work is done: an interrupt that comes while the interpreter ends must not make it a failure.
                ignore_interrupts()
            return code
    except UserError as error:
        _complain(f"error: {error}")
        return USER_ERROR
    except CompilerBug as error:
        _complain(f"internal error: {error}")
        return BUG
    except KeyboardInterrupt:
        return _interrupted(is_process=arguments is None)
    except BrokenPipeError:
        # The reader of our output (head, less) went away: nothing is wrong.
        _discard_output()
        return 0
    except OSError as error:
        _discard_output()
        _complain(f"error: {error}")
        return USER_ERROR
    except MemoryError:
        _complain("error: out of memory")
        return USER_ERROR
    except Exception as error:
        # Without this, Python would exit with the code of a user's error.
        traceback.print_exc()
        _complain("internal error: see above\n  (this is a bug in Tilewright, please report it)")
        raise SystemExit(BUG) from error


def _interrupted(*, is_process: bool) -> int:
    """Say that the command was interrupted; the process, where this is one, ends at once and in order."""
    if is_process:
        # Whoever is in a hurry does not interrupt this.
        ignore_interrupts()
    _complain("interrupted")
    if is_process:
        with suppress(OSError):
            sys.stdout.flush()
        # Not through the interpreter's own end: it would wait for threads, and take the process for killed by the
        # signal where that came while it ran a text (as dataclasses do).
        os._exit(INTERRUPTED)
    return INTERRUPTED


def parser(chosen: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser, with the arguments of the `chosen` commands; the other commands are known by name only."""
    result = argparse.ArgumentParser(
        prog="tilewright",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"tilewright {VERSION}")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", dest="command", required=True)
    wanted = set(chosen)
    for name, summary in COMMANDS.items():
        command = load_command(name) if name in wanted else None
        child = commands.add_parser(
            name,
            help=summary,
            description=command.DESCRIPTION if command is not None else summary,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if command is not None:
            command.add_arguments(child)
    return result


def _refuse_empty(words: Sequence[str]) -> None:
    """Refuse values that are empty, as an unset variable of a shell makes them: nobody means the default by one."""
    for before, word in zip(["", *words], words, strict=False):
        option, separator, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if not separator or value.strip() or option in _LISTS:
            continue
        if option.startswith("-") and "=" not in option:
            raise UserError("its value is empty", where=option, hint="leave the option out to get its default")
        raise UserError("an argument is empty")


def load_command(name: str) -> Command:
    """The module of a command."""
    return cast(Command, import_module(f"tilewright.cli.{name}"))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning in the manner of the errors: what it says, not which line of ours said it."""
    _complain(f"warning: {message}")


def _complain(text: str) -> None:
    print(text, file=sys.stderr)


class _Pipe(io.FileIO):
    """Standard output whose reader (head, less) may go away: what it does not want is dropped, and the work goes on."""

    def write(self, content: Buffer, /) -> int:
        """Write, or drop."""
        try:
            return super().write(content)
        except BrokenPipeError:
            _discard_output()
            return memoryview(content).nbytes


def _patient(stdout: io.TextIOWrapper) -> io.TextIOWrapper:
    """The same output, for a command that is to write its files whether or not anybody reads what it prints."""
    stdout.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_Pipe(stdout.fileno(), "w", closefd=False)),
        encoding=stdout.encoding,
        # Names of files and nodes may hold letters that the terminal's encoding lacks: spelt out, as on stderr.
        errors="backslashreplace",
        line_buffering=stdout.line_buffering,
    )


def _discard_output() -> None:
    """Drop what stdout still holds, so that the interpreter does not fail on it a second time when it exits."""
    # A stdout that a test or a notebook has replaced may have no file behind it.
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
