"""Some damaged files of each format with every run of the tests; `make fuzz-files` has 5,000 of each."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.fuzz import model_files
from tests.grids import rare
from tilewright.frontend.builtin_formats import FORMATS


@pytest.mark.parametrize("count", [80, *rare(200)])
@pytest.mark.parametrize("key", model_files.VICTIMS)
def test_damaged_files_are_read_or_refused(key: str, count: int) -> None:
    begin = time.process_time()
    outcomes = Counter(model_files.run_one(key, seed) for seed in range(count))
    assert outcomes[f"{key} refused"] > count / 10 and sum(outcomes.values()) == count
    assert time.process_time() - begin < 60


def test_every_format_with_a_reader_of_ours_is_damaged() -> None:
    # ONNX has a campaign of its own; the files of PyTorch are read by PyTorch.
    elsewhere = {"onnx", "torch-export", "torchscript"}
    assert {item.key for item in FORMATS} - elsewhere <= set(model_files.VICTIMS)
