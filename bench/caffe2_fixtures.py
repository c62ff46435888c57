"""Writes `tests/fixtures/caffe2`: small nets with what PyTorch gives for them. `python -m bench.caffe2_fixtures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bench.caffe2_cases import CASES, net, operator
from bench.case_archive import write_archive
from tilewright.frontend.caffe2.files import SCHEMA

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "fixtures" / "caffe2"


def main() -> None:
    """Write the archive of all cases, and the network as two files."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    archive: dict[str, Any] = {}
    for name, case in CASES.items():
        content, weights = case.files()
        archive[f"{name}|net"], archive[f"{name}|weights"] = content, weights
        archive.update({f"{name}|in|{key}": value for key, value in case.inputs.items()})
        archive.update({f"{name}|out|{at}": value for at, value in enumerate(case.results(torch))})
        if name == "network":
            filling = SCHEMA.read("NetDef", weights, name)
            operators = [*filling.op, operator("ConstantFill", "", "data", shape=[1], value=0.0)]
            (FOLDER / "predict_net.pb").write_bytes(content)
            (FOLDER / "init_net.pb").write_bytes(net(operators, outputs="", name="init"))
    write_archive(FOLDER / "cases.npz", archive)


if __name__ == "__main__":
    main()
