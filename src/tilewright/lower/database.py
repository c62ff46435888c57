"""The database of measured schedules: one SQLite file, keyed by the structure of the kernel and the target.

    with Database(path) as database:
        database.add([Record(...)])
        best = database.best(task_key, target_text)

Every batch is one transaction in write-ahead mode: whatever was added survives a `kill -9` of the process, and several
tuners may write to one file. A candidate has one row: measured again, it keeps the quicker time, and counts once.

A record says which compiler's code was measured. Those of the present one are what counts for a kernel that has any
(`current`), since code and default schedules change; until then older ones do: the template takes their answers, or
not, whatever compiler it is of. Measured again by another compiler, a candidate has the newer time.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.lower.records import Record, Selection
from tilewright.support.errors import UserError
from tilewright.support.files import cannot_write, replacing
from tilewright.support.fingerprint import compiler_name
from tilewright.support.settings import DATABASE
from tilewright.topi.schedule.choices import Answer, answers_from_json, answers_to_json

SCHEMA_VERSION = 2
_APPLICATION = 0x54574442  # "TWDB"
_BUSY_SECONDS = 30.0
_CLEARLY_QUICKER = 0.98
_HEALTHY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN")
"""Errors of SQLite that say nothing about the content of the file."""
_DAMAGED = "delete it, or save what can be read with sqlite3's `.recover`; TILEWRIGHT_DATABASE=none compiles without"
_WORTH = "seconds / coalesce(reference, 1)"
"""What records are compared by: a machine gets quicker and slower, and the default schedule beside them with it."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    key TEXT PRIMARY KEY, label TEXT NOT NULL, flops REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    task TEXT NOT NULL, target TEXT NOT NULL, answers TEXT NOT NULL,
    seconds REAL, error TEXT, reference REAL, created REAL NOT NULL, run TEXT NOT NULL, number INTEGER NOT NULL,
    compiler TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (task, target, answers)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS selected (
    task TEXT NOT NULL, target TEXT NOT NULL, answers TEXT NOT NULL, created REAL NOT NULL,
    compiler TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (task, target)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS quickest ON records (task, target, seconds);
"""
_TABLES = _SCHEMA.partition("CREATE INDEX")[0]
_COLUMNS = "task, target, answers, seconds, error, reference, created, run, number, compiler"
_CURRENT = """(compiler = :compiler OR NOT EXISTS (
    SELECT 1 FROM records AS other
    WHERE other.task = records.task AND other.target = records.target AND other.compiler = :compiler))"""
"""Records of the present compiler; where a kernel has none of these on a target, all that it has."""
_IS_BETTER = """CASE WHEN records.compiler != excluded.compiler THEN excluded.created >= records.created
    ELSE {kept}.seconds IS NULL
    OR excluded.seconds / coalesce(excluded.reference, 1) {better} records.seconds / coalesce(records.reference, 1)
    END"""
"""Whether a second measurement of a candidate takes the place of the first."""


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A kernel the database knows: its key, a name for people, its arithmetic, how many records it has."""

    key: str
    label: str
    flops: float
    records: int


class Database:
    """A file of records. Usable from one thread; open it once per thread or process that needs it."""

    def __init__(self, path: str | os.PathLike[str], *, read_only: bool = False) -> None:
        self.path = Path(path)
        if not os.fspath(path).strip() or self.path.is_dir():
            what = f"{self.path} is a folder" if os.fspath(path).strip() else "the name of the database is empty"
            raise UserError(what, hint="name a file, such as team.db")
        if read_only and not self.path.exists():
            raise UserError("there is no such database", where=str(path), hint="tilewright tune makes one")
        if not read_only:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(self.path, error) from None
        with self._reported():
            try:
                self._open("mode=ro" if read_only else "mode=rwc")
                self._prepare(read_only)
            except sqlite3.OperationalError:
                # To read a file in write-ahead mode SQLite writes others beside it. In a folder where that cannot be,
                # a database that nobody writes to is read as it lies.
                if not read_only or Path(f"{self.path}-wal").exists():
                    raise
                self._open("mode=ro&immutable=1")
                self._prepare(read_only)

    def _open(self, how: str) -> None:
        # as_uri escapes what a file's name may contain.
        address = f"{self.path.absolute().as_uri()}?{how}"
        self._connection = sqlite3.connect(address, uri=True, timeout=_BUSY_SECONDS, isolation_level=None)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """What SQLite finds wrong with the file, as an error for its owner."""
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise
        except UnicodeDecodeError:
            # SQLite names what it does not understand, which Python cannot read either.
            raise self._unusable("its schema is malformed", _DAMAGED) from None
        except sqlite3.DatabaseError as error:
            raise self._unusable(str(error), _hint_for(getattr(error, "sqlite_errorname", ""))) from None

    def _unusable(self, reason: str, hint: str | None) -> UserError:
        return UserError(f"cannot use the database: {reason}", where=str(self.path), hint=hint)

    def _rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        """What a query finds."""
        with self._reported():
            return self._connection.execute(query, values).fetchall()

    def _change(self, query: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Run a query for each row, for all of them or for none."""
        with self._reported():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                self._connection.executemany(query, rows)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _prepare(self, read_only: bool) -> None:
        run = self._connection.execute
        application = run("PRAGMA application_id").fetchone()[0]
        version = run("PRAGMA user_version").fetchone()[0]
        empty = run("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not empty and application != _APPLICATION:
            raise UserError("this is a database of another program", where=str(self.path))
        if version > SCHEMA_VERSION:
            raise UserError(
                f"the database was written by a newer Tilewright (format {version}, this reads up to {SCHEMA_VERSION})",
                where=str(self.path),
            )
        if read_only:
            if empty:
                # Somebody is just making it: so far it knows nothing.
                self._connection.executescript(_TABLES.replace("TABLE", "TEMP TABLE"))
            elif version < SCHEMA_VERSION:
                self._connection.executescript("; ".join(_seen_as_new(self._tables())))
            return
        run("PRAGMA journal_mode = WAL")
        # Committed records survive the death of the process; a power cut may cost the last few.
        run("PRAGMA synchronous = NORMAL")
        if empty or version < SCHEMA_VERSION:
            self._make_new()

    def _make_new(self) -> None:
        """Give a new file its tables, and one of an older Tilewright what it lacks."""
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            # Another process may just have done it.
            for table, columns in self._tables().items():
                if table != "tasks" and "compiler" not in columns:
                    run(f"ALTER TABLE {table} ADD COLUMN compiler TEXT NOT NULL DEFAULT ''")
            for statement in filter(str.strip, _SCHEMA.split(";")):
                run(statement)
            run(f"PRAGMA application_id = {_APPLICATION}")
            run(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except BaseException:
            run("ROLLBACK")
            raise
        run("COMMIT")

    def _tables(self) -> dict[str, list[str]]:
        """The tables that the file has, and their columns."""
        tables = [name for (name,) in self._rows("SELECT name FROM main.sqlite_master WHERE type = 'table'")]
        return {
            name: [column for (column,) in self._rows("SELECT name FROM pragma_table_info(:table)", table=name)]
            for name in tables
        }

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def add_task(self, key: str, label: str, flops: float) -> None:
        """Remember a kernel's name and arithmetic."""
        self._change("INSERT OR REPLACE INTO tasks VALUES (?, ?, ?)", [(key, label, flops)])

    def add(self, records: Iterable[Record]) -> None:
        """Store a batch, all of it or nothing. Of two times of one candidate the quicker stays."""
        self._store(records, "<")

    def correct(self, records: Iterable[Record]) -> None:
        """Store second measurements of candidates that looked best: the slower time, or the failure, stays.

        The quickest of many noisy times is too good to be true.
        """
        self._store(records, ">")

    def _store(self, records: Iterable[Record], better: str) -> None:
        rows = [
            (
                item.task,
                item.target,
                _text_of(item.answers),
                *(item.seconds, item.error, item.reference, item.created, item.run, item.number, item.compiler),
            )
            for item in records
        ]
        is_better = _IS_BETTER.format(kept="records" if better == "<" else "excluded", better=better)
        self._change(
            f"INSERT INTO records ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (task, target, answers) DO UPDATE SET"
            " seconds = excluded.seconds, error = excluded.error, reference = excluded.reference,"
            " created = excluded.created, run = excluded.run, number = excluded.number, compiler = excluded.compiler"
            f" WHERE {is_better}",
            rows,
        )

    def records(self, task: str | None = None, target: str | None = None) -> Iterator[Record]:
        """Records, oldest first; of one task and one target if given."""
        query = (
            f"SELECT {_COLUMNS} FROM records WHERE (:task IS NULL OR task = :task)"
            " AND (:target IS NULL OR target = :target) ORDER BY created, number"
        )
        return map(self._record, self._rows(query, task=task, target=target))

    def current(self, task: str, target: str) -> list[Record]:
        """The records of a task on a target that count, oldest first: those of this compiler, or all if it has none."""
        query = f"SELECT {_COLUMNS} FROM records WHERE task = :task AND target = :target AND {_CURRENT}"
        rows = self._rows(f"{query} ORDER BY created, number", task=task, target=target, compiler=compiler_name())
        return [self._record(row) for row in rows]

    def best(self, task: str, target: str) -> Record | None:
        """The quickest right record of a task on a target, in parts of the default schedule's time beside it."""
        found = [item for item in self.current(task, target) if item.seconds is not None]
        return min(found, key=lambda item: item.worth, default=None)

    def answers(self, target: str) -> dict[str, dict[str, Answer]]:
        """For each task of a target the answers of its quickest record, where that beats the default schedule clearly.

        Where it does not, the template decides: what it decides by itself gets better with every version. What was
        selected for a task goes before its records, unless they are of this compiler and the selection is not.
        """
        rows = self._rows(
            f"SELECT task, answers, min({_WORTH}), reference FROM records"
            f" WHERE target = :target AND seconds IS NOT NULL AND {_CURRENT} GROUP BY task ORDER BY task",
            target=target,
            compiler=compiler_name(),
        )
        found = {
            task: self._answers(answers)
            for task, answers, worth, reference in rows
            if not reference or worth < _CLEARLY_QUICKER
        }
        measured = self._rows(
            "SELECT DISTINCT task FROM records WHERE target = :target AND compiler = :compiler",
            target=target,
            compiler=compiler_name(),
        )
        anew = {task for (task,) in measured}
        for item in self.selections(target):
            # Also where the template's own answers are the best: they go before what is shipped.
            if item.compiler == compiler_name() or item.task not in anew:
                found[item.task] = dict(item.answers)
        return found

    def select(self, selections: Iterable[Selection]) -> None:
        """Say which answers tasks are to be compiled with; of two for a task the later one counts."""
        rows = [(item.task, item.target, _text_of(item.answers), item.created, item.compiler) for item in selections]
        self._change(
            "INSERT INTO selected (task, target, answers, created, compiler) VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT (task, target) DO UPDATE SET answers = excluded.answers, created = excluded.created,"
            " compiler = excluded.compiler WHERE excluded.created >= selected.created",
            rows,
        )

    def selections(self, target: str | None = None) -> list[Selection]:
        """What was selected, of one target if given."""
        rows = self._rows(
            "SELECT task, target, answers, created, compiler FROM selected"
            " WHERE :target IS NULL OR target = :target ORDER BY task, target",
            target=target,
        )
        return [Selection(task, where, self._answers(text), *rest) for task, where, text, *rest in rows]

    def count(self) -> int:
        """The number of records."""
        [(found,)] = self._rows("SELECT count(*) FROM records")
        assert isinstance(found, int)
        return found

    def tasks(self) -> list[TaskRow]:
        """The kernels, those with most records first."""
        rows = self._rows(
            "SELECT r.task, coalesce(t.label, ''), coalesce(t.flops, 0), count(*) FROM records r"
            " LEFT JOIN tasks t ON t.key = r.task GROUP BY r.task ORDER BY count(*) DESC, r.task"
        )
        return [TaskRow(*row) for row in rows]

    def targets(self) -> list[str]:
        """The targets that have records."""
        return [target for (target,) in self._rows("SELECT DISTINCT target FROM records ORDER BY target")]

    def merge(self, other: Database) -> int:
        """Take over all records and tasks of another database; returns how many records are new."""
        before = self.count()
        for key, label, flops in other._rows("SELECT key, label, flops FROM tasks"):
            self.add_task(key, label, flops)
        self.add(other.records())
        self.select(other.selections())
        return self.count() - before

    def prune(self, keep: int) -> int:
        """Keep the `keep` quickest records of each task and target, of this compiler first; returns how many went."""
        if keep < 0:
            raise UserError(f"the number of records to keep must be at least 0, not {keep}")
        before = self.count()
        self._change(
            "DELETE FROM records WHERE (task, target, answers) IN (SELECT task, target, answers FROM ("
            " SELECT task, target, answers, row_number() OVER (PARTITION BY task, target"
            f" ORDER BY seconds IS NULL, compiler != ?, {_WORTH}) AS place FROM records) WHERE place > ?)",
            [(compiler_name(), keep)],
        )
        return before - self.count()

    def export(self, path: str | os.PathLike[str]) -> int:
        """Write all records as lines of JSON, and what was selected; returns the number of records."""
        lines = [json.dumps(record.to_json()) + "\n" for record in self.records()]
        chosen = [json.dumps({"selected": item.to_json()}) + "\n" for item in self.selections()]
        with replacing(Path(path)) as temporary:
            temporary.write_text("".join((*lines, *chosen)), encoding="utf-8")
        return len(lines)

    def import_lines(self, path: str | os.PathLike[str]) -> int:
        """Take over what `export` wrote; returns how many records are new."""
        before = self.count()
        records: list[Record] = []
        selections: list[Selection] = []
        for place, line in enumerate(_lines(Path(path)), start=1):
            try:
                data = json.loads(line)
                if "selected" in data:
                    selections.append(Selection.from_json(data["selected"]))
                else:
                    records.append(Record.from_json(data))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise UserError(f"line {place} is no record: {error}", where=str(path)) from None
        self.add(records)
        self.select(selections)
        return self.count() - before

    def _record(self, row: tuple[Any, ...]) -> Record:
        task, target, answers, *rest = row
        try:
            return Record(task, target, self._answers(answers), *rest).checked()
        except TypeError as error:
            raise self._unusable(str(error), _DAMAGED) from None

    def _answers(self, text: str) -> dict[str, Answer]:
        try:
            return answers_from_json(json.loads(text))
        except (ValueError, TypeError) as error:
            raise self._unusable(f"a record has no answers that can be read ({error})", _DAMAGED) from None


def _seen_as_new(tables: Mapping[str, list[str]]) -> Iterator[str]:
    """Statements after which a file of an older Tilewright that cannot be changed reads like a new one."""
    for declaration in filter(str.strip, _TABLES.split(";")):
        name = declaration.split("(")[0].split()[-1]
        if name not in tables:
            yield declaration.replace("TABLE", "TEMP TABLE")
        elif name != "tasks":
            # A temporary name goes before the file's own.
            yield f"CREATE TEMP VIEW {name} AS SELECT {', '.join(tables[name])}, '' AS compiler FROM main.{name}"


def _hint_for(name: str) -> str | None:
    """What to do about an error of SQLite."""
    if name == "SQLITE_NOTADB":
        # The hint to delete it would be a bad one for a file that was named by mistake.
        return "is it the right file? --database or TILEWRIGHT_DATABASE names another (none: compile without)"
    return None if name.startswith(_HEALTHY) else _DAMAGED


def _text_of(answers: Mapping[str, Answer]) -> str:
    return json.dumps(answers_to_json(answers), separators=(",", ":"))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the records: {error}", where=str(path)) from None


def default_database() -> Path:
    """The path of the user's own database."""
    path = DATABASE.get()
    if path is None:
        raise UserError(
            "there is no database to keep records in: the setting TILEWRIGHT_DATABASE says none",
            hint="name a file: --database FILE, or database= in Python",
        )
    return path
