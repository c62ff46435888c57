"""`tilewright formats`: the formats of model files, what each needs, and which one a file has."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.frontend.format import Format
from tilewright.frontend.formats import identify, known_formats
from tilewright.support.text import table

DESCRIPTION = """\
List the formats of model files that every command reads, what a file is recognised by, and the extra of Tilewright that
installs what its importer needs. With files or folders, say which format each of them has.

  tilewright formats
  tilewright formats model.bin
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("file", type=Path, nargs="*", metavar="FILE", help="files or folders to recognise")


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    for path in options.file:
        found = identify(path)
        print(f"{path}: {found.title} ({found.key}), {_readiness(found)}")
    if options.file:
        return 0
    rows = [
        [item.key, item.title, " ".join(item.suffixes), item.content, item.extra or "-", _readiness(item)]
        for item in known_formats()
    ]
    print(table(["key", "format", "names", "recognised by", "extra", ""], rows))
    return 0


def _readiness(item: Format) -> str:
    """Whether a format can be read here, or what is missing."""
    missing = item.missing()
    return f"needs {', '.join(missing)}: pip install 'tilewright[{item.extra}]'" if missing else "ready"
