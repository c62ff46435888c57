"""The suite of ncnn in `bench.frontends`: each layer, and a network, against ncnn itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench.frontend_case import Case
from bench.ncnn_cases import CASES, NetCase, expected
from tilewright.frontend.ncnn import from_ncnn
from tilewright.ir.function import IRModule


def cases() -> Iterator[Case]:
    """Every layer."""
    for name, item in CASES.items():
        yield Case(name, partial(_make, item), tolerance=item.tolerance)


def _make(item: NetCase) -> tuple[IRModule, Mapping[str, Any], Sequence[Any]]:
    shapes = {name: value.shape for name, value in item.inputs.items()}
    return from_ncnn(item.text.encode(), shapes, item.weights), item.inputs, expected(item)
