"""Every single operator of TensorFlow that there is a fixture for gives TensorFlow's own numbers."""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.frontend import from_tensorflow
from tilewright.graph.interpreter import evaluate

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "tensorflow"
TOLERANCE = 2e-5


@dataclass(frozen=True)
class Operator:
    """One graph of a fixture file."""

    name: str
    graph: bytes
    inputs: list[Any]
    outputs: list[Any]


def operators(path: Path) -> Iterator[Operator]:
    """The operators of a family: an index, then all graphs, then all numbers."""
    content = lzma.decompress(path.read_bytes())
    length = int.from_bytes(content[:4], "little")
    index = json.loads(content[4 : 4 + length])
    at = 4 + length
    numbers = at + sum(item["graph"] for item in index)

    def array(kind: list[Any]) -> Any:
        nonlocal numbers
        dtype, *shape = kind
        count = math.prod(shape)
        start, numbers = numbers, numbers + count * np.dtype(dtype).itemsize
        found = np.frombuffer(content, dtype, count, start).reshape(shape)
        return found.astype(object) if found.dtype.kind == "U" else found

    for item in index:
        arrays = [[array(kind) for kind in item[key]] for key in ("inputs", "outputs")]
        yield Operator(item["name"], content[at : at + item["graph"]], *arrays)
        at += item["graph"]


CASES = [(path.stem, item) for path in sorted(FIXTURES.glob("*.operators")) for item in operators(path)]


@pytest.mark.parametrize(("family", "case"), CASES, ids=[f"{family} {item.name}" for family, item in CASES])
def test_operator(family: str, case: Operator) -> None:
    found = evaluate(from_tensorflow(case.graph), *case.inputs)
    results = list(found) if isinstance(found, (list, tuple)) else [found]
    assert len(results) == len(case.outputs)
    for ours, theirs in zip(results, case.outputs, strict=True):
        assert isinstance(ours, np.ndarray)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)
        else:
            np.testing.assert_array_equal(ours, theirs)


def test_there_are_hundreds_of_operators() -> None:
    assert len(CASES) > 250
