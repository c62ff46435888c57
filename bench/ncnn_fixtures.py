"""Writes `tests/fixtures/ncnn`: small nets with what ncnn gives for them. `python -m bench.ncnn_fixtures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.case_archive import write_archive
from bench.ncnn_cases import CASES, expected

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "ncnn"


def main() -> None:
    """Write the archive of all cases, and the network as two files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    archive: dict[str, Any] = {}
    for name, case in CASES.items():
        archive[f"{name}|text"], archive[f"{name}|weights"] = case.text.encode(), case.weights
        archive.update({f"{name}|in|{key}": value for key, value in case.inputs.items()})
        archive.update({f"{name}|out|{at}": value for at, value in enumerate(expected(case))})
        if name == "network":
            (FOLDER / "network.param").write_text(case.text, encoding="utf-8")
            (FOLDER / "network.bin").write_bytes(case.weights)
    write_archive(FOLDER / "cases.npz", archive)


if __name__ == "__main__":
    main()
