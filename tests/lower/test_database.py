"""The database of measured schedules: what is committed stays, once; other files are refused."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.requirements import needs
from tilewright.lower.database import Database
from tilewright.lower.records import Record, Selection
from tilewright.support.errors import UserError
from tilewright.support.fingerprint import compiler_name
from tilewright.topi.schedule.choices import answers_to_json

THIS = compiler_name()


def _record(number: int = 0, seconds: float | None = 1.0, task: str = "task", target: str = "llvm") -> Record:
    answers = {"tile": (number, 2), "order": "rows", "unroll": True}
    return Record(task, target, answers, seconds, None if seconds else "crash", 2.0, 5.0 + number, "run", number)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "a database?.db"


def test_records_come_back_as_they_were(path: Path) -> None:
    with Database(path) as database:
        database.add_task("task", "conv", 1e9)
        database.add([_record(0), _record(1, None)])
    with Database(path, read_only=True) as database:
        assert list(database.records()) == [_record(0), _record(1, None)]
        assert database.count() == 2
        [task] = database.tasks()
        assert (task.key, task.label, task.flops, task.records) == ("task", "conv", 1e9, 2)
        assert database.targets() == ["llvm"]


@pytest.mark.parametrize("read_only", [True, False])
def test_folders_and_empty_names_are_refused(tmp_path: Path, read_only: bool) -> None:
    with pytest.raises(UserError, match="is a folder"):
        Database(tmp_path, read_only=read_only)
    for name in ("", " "):
        with pytest.raises(UserError, match="the name of the database is empty"):
            Database(name, read_only=read_only)


def test_the_best_is_the_quickest_that_is_right(path: Path) -> None:
    with Database(path) as database:
        assert database.best("task", "llvm") is None
        database.add([_record(0, 3.0), _record(1, 2.0), _record(2, None), _record(3, 1.0, target="other")])
        best = database.best("task", "llvm")
        assert best is not None and best.number == 1
        assert best.relative == 1.0


def test_a_candidate_measured_again_counts_once_and_keeps_the_quicker_time(path: Path) -> None:
    with Database(path) as database:
        database.add([_record(0, 3.0)])
        database.add([_record(0, 2.0)])
        database.add([_record(0, 4.0)])
        database.add([_record(0, None)])
        assert [item.seconds for item in database.records()] == [2.0]


def test_a_failure_gives_way_to_a_time(path: Path) -> None:
    with Database(path) as database:
        database.add([_record(0, None)])
        database.add([_record(0, 2.0)])
        assert [item.ok for item in database.records()] == [True]


def test_a_batch_is_stored_whole_or_not_at_all(path: Path) -> None:
    with Database(path) as database:
        with pytest.raises(TypeError):
            database.add([_record(0), Record("task", "llvm", {"tile": object()}, 1.0)])  # type: ignore[dict-item]
        with pytest.raises(sqlite3.Error):
            database.add([_record(1), Record("task", "llvm", {}, "not a number" * 2, created=None)])  # type: ignore[arg-type]
        assert database.count() == 0


def test_merge_prune_export_import(path: Path, tmp_path: Path) -> None:
    with Database(path) as database, Database(tmp_path / "other.db") as other:
        database.add([_record(0, 3.0), _record(1, 2.0)])
        other.add_task("task", "conv", 1.0)
        other.add([_record(1, 1.0), _record(2, None), _record(3, 0.5, task="more")])
        assert database.merge(other) == 2
        assert database.merge(other) == 0
        assert database.count() == 4
        lines = tmp_path / "records.jsonl"
        assert database.export(lines) == 4
        assert database.prune(1) == 2
        assert sorted(item.number for item in database.records()) == [1, 3]
        assert database.import_lines(lines) == 2
        with pytest.raises(UserError, match="at least 0"):
            database.prune(-1)


def test_lines_that_are_no_records(path: Path, tmp_path: Path) -> None:
    lines = tmp_path / "bad.jsonl"
    record = _record().to_json()
    impossible = (
        *({**record, "seconds": value} for value in ("quick", -1.0, 0, float("nan"), float("inf"), [1.0])),
        *({**record, "reference": "2"}, {**record, "created": None}, {**record, "number": 1.5}, {**record, "more": 1}),
        *({**record, "task": 7}, {**record, "target": None}, {**record, "answers": []}, {**record, "answers": "x"}),
        *({"selected": 3}, {"selected": {"task": "x", "target": "y", "answers": {}, "created": "now"}}),
    )
    for text in ("nonsense", "[]", '{"task": "x"}', *map(json.dumps, impossible)):
        lines.write_text(text)
        with Database(path) as database, pytest.raises(UserError, match="line 1 is no record"):
            database.import_lines(lines)


def test_files_of_lines_that_cannot_be_read(path: Path, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "absent", tmp_path, tmp_path / "binary"):
        with Database(path) as database, pytest.raises(UserError, match="cannot read the records"):
            database.import_lines(file)


def _read_all(path: Path) -> int:
    """Ask a database for everything it can tell."""
    with Database(path, read_only=True) as database:
        for target in database.targets():
            database.answers(target)
            for task in database.tasks():
                database.best(task.key, target)
        return len(list(database.records())) + len(database.selections())


def test_damaged_files_are_read_or_refused(path: Path, tmp_path: Path) -> None:
    """Whatever happens to the bytes of a database: an answer, or an error that names the file."""
    with Database(path) as database:
        database.add_task("task", "a label", 1e6)
        database.add([_record(number, task=f"task{number % 5}") for number in range(60)])
        database.select([Selection(f"task{number}", "llvm", {"tile": (number, 2)}) for number in range(5)])
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    content = path.read_bytes()
    rng = random.Random(0)
    refused = 0
    for turn in range(300):
        changed = bytearray(content)
        if turn % 3 == 0:
            del changed[rng.randrange(len(changed)) :]
        for _ in range((0, 1, 30)[turn % 3]):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        damaged = tmp_path / "damaged.db"
        damaged.write_bytes(changed)
        try:
            _read_all(damaged)
        except UserError as error:
            refused += error.where == str(damaged)
    assert refused > 100


READ_SCRIPT = """
import os, sys
from tilewright.lower.database import Database
# Once as root, for what is imported late: another user may not be able to read this Python.
Database(sys.argv[1], read_only=True).close()
os.setegid(65534), os.seteuid(65534)
try:
    open(sys.argv[1] + "-shm", "wb")
except PermissionError:
    pass
else:
    sys.exit("the folder can be written")
with Database(sys.argv[1], read_only=True) as database:
    print(database.count())
"""


@needs("root")
def test_a_database_in_a_folder_that_cannot_be_written() -> None:
    """Colleagues share one on a disk that they may only read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        path = Path(folder) / "team.db"
        with Database(path) as database:
            database.add([_record(0), _record(1)])
        Path(folder).chmod(0o555)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", READ_SCRIPT, str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_a_database_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write a\.db"):
        Database(tmp_path / "file" / "a.db")


def test_a_database_that_somebody_holds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.lower.database._BUSY_SECONDS", 0.05)
    with Database(path) as database, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(UserError, match="database is locked") as raised:
            database.add([_record(0)])
        assert raised.value.hint is None
        other.execute("ROLLBACK")
        database.add([_record(0)])
        assert database.count() == 1


def test_files_that_are_no_database(tmp_path: Path) -> None:
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"this is no database" * 100)
    with pytest.raises(UserError, match="cannot use the database: file is not a database") as raised:
        Database(junk)
    assert "is it the right file?" in str(raised.value)
    with pytest.raises(UserError, match="is a folder"):
        Database(tmp_path)
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE things (x)")
    with pytest.raises(UserError, match="another program"):
        Database(foreign)
    with pytest.raises(UserError, match="no such database"):
        Database(tmp_path / "missing.db", read_only=True)


def test_a_newer_format_is_refused(path: Path) -> None:
    Database(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(UserError, match="newer Tilewright"):
        Database(path)


def test_what_was_committed_survives_a_kill(tmp_path: Path) -> None:
    """A process that stores records and reports each one is killed: everything reported is there, once."""
    path = tmp_path / "killed.db"
    code = (
        "import sys\nfrom tilewright.lower.database import Database\nfrom tilewright.lower.records import Record\n"
        "database = Database(sys.argv[1])\n"
        "for number in range(10**6):\n"
        "    database.add([Record('task', 'llvm', {'n': number}, 1.0, number=number)])\n"
        "    print(number, flush=True)\n"
    )
    for turn in range(3):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.05 * (turn + 1))
        os.kill(process.pid, signal.SIGKILL)
        reported = [int(word) for word in process.communicate()[0].split()]
        with Database(path) as database:
            stored = sorted(item.number for item in database.records())
        assert stored == sorted(set(stored))
        assert set(reported) <= set(stored)


def test_two_writers(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    code = (
        "import sys\nfrom tilewright.lower.database import Database\nfrom tilewright.lower.records import Record\n"
        "start = int(sys.argv[2])\n"
        "with Database(sys.argv[1]) as database:\n"
        "    for n in range(start, start + 50):\n"
        "        database.add([Record('task', 'llvm', {'n': n}, 1.0)])\n"
    )
    Database(path).close()
    processes = [subprocess.Popen([sys.executable, "-c", code, str(path), str(start)]) for start in (0, 50)]
    assert [process.wait() for process in processes] == [0, 0]
    with Database(path, read_only=True) as database:
        assert database.count() == 100


def test_records_are_compared_by_the_default_beside_them(path: Path) -> None:
    """A slow hour of the machine must not make a good candidate look bad."""
    with Database(path) as database:
        quick = Record("task", "llvm", {"tile": 1}, 1.9, None, 4.0)
        database.add([quick, Record("task", "llvm", {"tile": 2}, 1.0, None, 1.1)])
        assert database.best("task", "llvm") == quick
        assert database.answers("llvm") == {"task": {"tile": 1}}
        assert database.prune(1) == 1
        assert list(database.records()) == [quick]


def test_a_second_measurement_corrects_the_first(path: Path) -> None:
    with Database(path) as database:
        database.add([_record(0, 1.0), _record(1, 1.5), _record(2, 1.6)])
        database.correct([_record(0, 1.8), _record(1, 1.2), _record(2, None)])
        assert [record.seconds for record in database.records()] == [1.8, 1.5, None]


def test_a_file_that_is_being_made_knows_nothing_yet(tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    with Database(tmp_path / "new.db", read_only=True) as database:
        assert database.count() == 0 and not database.answers("some") and not list(database.records())
        assert database.tasks() == [] and database.targets() == [] and database.best("a", "b") is None


def test_what_was_selected_goes_before_records(path: Path, tmp_path: Path) -> None:
    first = Selection("task", "llvm", {"tile": (1, 2)}, 10.0)
    with Database(path) as database:
        database.add([_record(0, 0.5), _record(0, 0.5, task="other"), _record(0, 0.5, task="third")])
        database.select([first, Selection("other", "llvm", {}, 10.0), Selection("task", "cuda", {"tile": 4}, 10.0)])
        answers = database.answers("llvm")
        # Of the second one, the template's own answers were the best; nothing was selected for the third.
        assert answers == {"task": {"tile": (1, 2)}, "other": {}, "third": _record(0).answers}
        database.select([Selection("task", "llvm", {"tile": (9, 9)}, 9.0)])
        assert database.selections("llvm")[1] == first, "an older selection does not count"
        later = Selection("task", "llvm", {"tile": (3, 3)}, 11.0)
        database.select([later])
        assert database.answers("llvm")["task"] == {"tile": (3, 3)}
        lines = tmp_path / "lines.jsonl"
        assert database.export(lines) == 3
        with Database(tmp_path / "imported.db") as other, Database(tmp_path / "merged.db") as merged:
            assert other.import_lines(lines) == 3
            assert merged.merge(other) == 3
            assert merged.selections() == other.selections() == database.selections()
            assert len(merged.selections()) == 3


OLD_TASKS = "CREATE TABLE tasks (key TEXT PRIMARY KEY, label TEXT NOT NULL, flops REAL NOT NULL) WITHOUT ROWID"
OLD_RECORDS = """CREATE TABLE records (
    task TEXT NOT NULL, target TEXT NOT NULL, answers TEXT NOT NULL,
    seconds REAL, error TEXT, reference REAL, created REAL NOT NULL, run TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (task, target, answers)) WITHOUT ROWID"""
OLD_SELECTED = """CREATE TABLE selected (
    task TEXT NOT NULL, target TEXT NOT NULL, answers TEXT NOT NULL, created REAL NOT NULL,
    PRIMARY KEY (task, target)) WITHOUT ROWID"""


def _write_old(path: Path, *tables: str) -> None:
    """A file as the first version of the format had it, with one record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    item = _record(0, 0.5)
    row = (item.task, item.target, json.dumps(answers_to_json(item.answers), separators=(",", ":")), item.seconds)
    with closing(sqlite3.connect(path)) as plain:
        for statement in (*tables, "PRAGMA application_id = 0x54574442", "PRAGMA user_version = 1"):
            plain.execute(statement)
        rest = (item.error, item.reference, item.created, item.run, item.number)
        plain.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, *rest))
        plain.commit()


@pytest.mark.parametrize("tables", [(OLD_TASKS, OLD_RECORDS), (OLD_TASKS, OLD_RECORDS, OLD_SELECTED)], ids=len)
def test_files_of_the_first_format_are_read_and_get_what_they_lack(path: Path, tables: tuple[str, ...]) -> None:
    _write_old(path, *tables)
    for _ in range(2):
        with Database(path, read_only=True) as database:
            assert list(database.records()) == [_record(0, 0.5)]
            assert database.best("task", "llvm") == _record(0, 0.5)
            assert database.selections() == [] and database.answers("llvm") == {"task": _record(0).answers}
    with Database(path) as database, Database(path) as other:
        assert list(database.records()) == list(other.records()) == [_record(0, 0.5)]
        database.select([Selection("task", "llvm", {}, 1.0, THIS)])
        database.add([replace(_record(1), compiler=THIS)])
        assert database.answers("llvm") == {"task": {}} and database.count() == 2
    with Database(path, read_only=True) as database:
        assert database.selections() == [Selection("task", "llvm", {}, 1.0, THIS)]
        assert [item.compiler for item in database.records()] == ["", THIS]


def test_records_of_this_compiler_count_for_a_kernel_that_has_any(path: Path) -> None:
    old, new = replace(_record(0, 0.2), compiler="0.0.9+abc"), replace(_record(1, 0.8), compiler=THIS)
    with Database(path) as database:
        database.add([old, replace(old, task="other")])
        database.select([Selection("task", "llvm", {"tile": 3}, 1.0, "0.0.9+abc")])
        assert database.best("task", "llvm") == old and database.answers("llvm")["task"] == {"tile": 3}
        database.add([new])
        assert database.best("task", "llvm") == new and database.current("task", "llvm") == [new]
        assert list(database.records("task")) == [old, new]
        # Of the kernel that was measured anew its new record, of the other one what there is.
        assert database.answers("llvm") == {"task": new.answers, "other": old.answers}
        database.select([Selection("task", "llvm", {}, 2.0, THIS)])
        assert database.answers("llvm")["task"] == {}
        assert database.prune(1) == 1 and list(database.records("task")) == [new]


def test_a_candidate_of_another_compiler_has_the_newer_time(path: Path) -> None:
    old = replace(_record(0, 0.2), compiler="0.0.9+abc")
    new = replace(old, seconds=0.8, compiler=THIS, created=old.created + 1)
    for store in (Database.add, Database.correct):
        for order in ([old, new], [new, old]):
            path.unlink(missing_ok=True)
            with Database(path) as database:
                for item in order:
                    store(database, [item])
                assert list(database.records()) == [new]


def test_lines_written_without_a_compiler_are_read(path: Path, tmp_path: Path) -> None:
    lines = tmp_path / "old.jsonl"
    data = _record(0).to_json()
    del data["compiler"]
    lines.write_text(json.dumps(data) + "\n" + json.dumps({"selected": _selected_without_compiler()}) + "\n")
    with Database(path) as database:
        assert database.import_lines(lines) == 1
        assert list(database.records()) == [_record(0)]
        assert database.selections()[0].compiler == ""


def _selected_without_compiler() -> dict[str, object]:
    data = Selection("task", "llvm", {}, 1.0).to_json()
    del data["compiler"]
    return data
