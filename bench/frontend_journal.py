"""What each case of a suite of `bench.frontends` came to, kept as the suite runs, so that a run can be gone on with."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Lock
from typing import Any

Entry = dict[str, Any]
SETTLED = ("passed", "left out")
"""Verdicts of cases that a run that goes on does not try again."""


class Journal:
    """A file with a line for each case that is done: its number in the suite and its result, if it counts."""

    def __init__(self, path: Path, going_on: bool) -> None:
        self.path = path
        self.entries: dict[int, Entry] = {}
        self._lock = Lock()
        stored = path.read_text(encoding="utf-8").splitlines() if going_on and path.exists() else []
        for entry in map(json.loads, stored):
            if entry["result"] is None or entry["result"]["verdict"] in SETTLED:
                self.entries[entry["number"]] = entry
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries.values()), encoding="utf-8")

    def add(self, entry: Entry) -> None:
        """A case is done; processes of a suite may say so at the same time."""
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            self.entries[entry["number"]] = entry
            file.write(json.dumps(entry) + "\n")


def done(path: Path) -> dict[int, str]:
    """The cases that a journal has: names by numbers, which another version of a framework may count otherwise."""
    entries = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {entry["number"]: entry["name"] for entry in entries}
