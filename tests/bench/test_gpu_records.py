"""Shipped records for GPUs from databases: what models run best with; nothing else that was known is lost."""

from __future__ import annotations

from pathlib import Path

from bench.gpu_records import add_tuned
from tilewright.lower.database import Database
from tilewright.lower.records import Record, Selection
from tilewright.target import Target

TARGET = Target("cuda -arch=sm_90a")


def test_selections_take_the_place_of_what_was_known(tmp_path: Path) -> None:
    path, text = tmp_path / "tuned.db", str(TARGET)
    with Database(path) as database:
        for task in ("exchanged", "default", "quickest"):
            database.add([Record(task, text, {"tile": (n, n)}, 1.0 + n, reference=4.0, number=n) for n in range(2)])
        database.add([Record("elsewhere", str(Target("cuda -arch=sm_80")), {"tile": (5,)}, 1.0, reference=4.0)])
        database.select([Selection("exchanged", text, {"tile": (1, 1)}), Selection("default", text, {})])
    answers = {
        "exchanged": {"tile": (7, 7), "warp_tile": (2,)},
        "default": {"tile": (7, 7)},
        "other": {"tile": (9, 9)},
    }
    rows = add_tuned(path, TARGET, answers)
    assert [row[1] for row in rows] == ["default", "exchanged", "quickest"]
    assert rows[1][3] == "4.00x alone"
    assert answers == {
        "exchanged": {"tile": (1, 1), "warp_tile": (2,)},
        "quickest": {"tile": (0, 0)},
        "other": {"tile": (9, 9)},
    }
