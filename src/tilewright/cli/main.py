"""The command `tilewright`: parses arguments, runs one command, turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from tilewright.cli import bench, compile, doctor, inspect, run
from tilewright.support.errors import CompilerBug, UserError
from tilewright.support.version import VERSION

_DESCRIPTION = """\
Tilewright compiles deep-learning models to fast, self-contained modules.

  tilewright compile resnet18.onnx -o resnet18.so     one file: code, weights, entry point
  tilewright run     resnet18.so --input x=image.npy  run a model or an exported library
  tilewright bench   resnet18.onnx --against onnxruntime
  tilewright inspect resnet18.onnx --stage tir        look at any stage of the compilation
  tilewright doctor                                   what this machine can do
"""

_EPILOG = """\
exit codes: 0 success, 1 something you can mend (the message says what), 2 wrong usage,
            3 a bug in Tilewright, 4 a check failed (bench: wrong outputs), 130 interrupted

environment: TILEWRIGHT_TRACE=time prints where compile time goes; `tilewright doctor --settings` lists all settings
"""

_COMMANDS = (compile, run, bench, inspect, doctor)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except CompilerBug as error:
        print(f"internal error: {error}", file=sys.stderr)
        return 3
    except BrokenPipeError:
        # The reader of our output (head, less) went away: nothing is wrong.
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    result = argparse.ArgumentParser(
        prog="tilewright",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"tilewright {VERSION}")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_command(commands)
    return result


if __name__ == "__main__":
    sys.exit(main())
