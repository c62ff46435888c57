"""`tilewright database`: look at, join, thin out and export the records of tuning."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.cli.options import natural_int
from tilewright.graph.choices import graph_answers, is_graph_key, question_label
from tilewright.lower.database import Database, default_database
from tilewright.support.errors import UserError
from tilewright.support.fingerprint import compiler_name
from tilewright.support.text import human_rate, human_seconds, plural, shorten, table

DESCRIPTION = """\
The database of measured schedules that `tilewright tune` fills and compilation asks.

  tilewright database query                      the kernels it knows, with their best times
  tilewright database query --database team.db --kernel conv2d
  tilewright database merge other.db             take over the records of another database
  tilewright database prune --keep 10            keep the ten quickest records of each kernel and target
  tilewright database export records.jsonl       one line of JSON for each record
  tilewright database import records.jsonl
"""

_THIS = "this one"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("action", choices=("query", "merge", "prune", "export", "import"), help="what to do")
    parser.add_argument("file", nargs="?", type=Path, help="the other file of merge, export and import")
    parser.add_argument("--database", type=Path, metavar="FILE", help="the database (default: the user's own)")
    parser.add_argument("--kernel", metavar="TEXT", default="", help="query: kernels whose name contains this")
    parser.add_argument(
        "--keep", type=natural_int, default=10, metavar="N", help="prune: records to keep (default: 10)"
    )


def execute(options: argparse.Namespace) -> int:
    """Run the command."""
    needs_file = options.action in ("merge", "export", "import")
    if needs_file != (options.file is not None):
        said = "needs a file" if needs_file else "takes no file"
        raise UserError(f"`tilewright database {options.action}` {said}", hint="tilewright database --help")
    path = options.database or default_database()
    if options.action == "import" and not options.file.is_file():
        raise UserError(f"there is no file {options.file}", hint="`tilewright database export` writes one")
    if options.action == "prune" and not Path(path).exists():
        raise UserError("there is no such database", where=str(path), hint="tilewright tune makes one")
    reads_only = options.action in ("query", "export")
    with Database(path, read_only=reads_only) as database:
        if options.action == "query":
            print(_query(database, options.kernel))
        elif options.action == "merge":
            with Database(options.file, read_only=True) as other:
                print(f"{plural(database.merge(other), 'new record')} in {path}")
        elif options.action == "prune":
            print(f"{plural(database.prune(options.keep), 'record')} removed, {database.count()} kept")
        elif options.action == "export":
            print(f"{plural(database.export(options.file), 'record')} written to {options.file}")
        else:
            print(f"{plural(database.import_lines(options.file), 'new record')} in {path}")
    return 0


def _query(database: Database, text: str) -> str:
    """A line for each kernel and target."""
    rows = []
    for task in database.tasks():
        if text not in task.key:
            continue
        for target in database.targets():
            best = database.best(task.key, target)
            if best is None or best.seconds is None:
                continue
            count = sum(1 for _ in database.records(task.key, target))
            gain = f"{1 / best.relative:.2f}x" if best.relative else "-"
            rate = human_rate(task.flops / best.seconds, "FLOP/s") if task.flops else "-"
            cells = [human_seconds(best.seconds), gain, rate, _compiler(best.compiler), shorten(target, 60)]
            rows.append([shorten(task.key, 44), str(count), *cells])
    parts = [table(["kernel", "records", "best", "speed-up", "rate", "compiler", "target"], rows)] if rows else []
    chosen = _algorithms(database, text)
    parts += [table(["computation", "algorithm", "target"], chosen)] if chosen else []
    older = sum(row[5] != _THIS for row in rows)
    if older:
        parts.append(f"{plural(older, 'line')} of another compiler: used until `tilewright tune` measures anew")
    return "\n\n".join(parts) or "no records"


def _compiler(name: str) -> str:
    """Whose code was measured."""
    return _THIS if name == compiler_name() else name or "not known"


def _algorithms(database: Database, text: str) -> list[list[str]]:
    """A line for each choice between algorithms that was measured."""
    rows = []
    for item in database.selections():
        if is_graph_key(item.task) and text in item.task:
            algorithm = graph_answers({item.task: item.answers}).get(item.task, "as estimated")
            rows.append([question_label(item.task), algorithm, shorten(item.target, 60)])
    return rows
