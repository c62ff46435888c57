"""The suite of Caffe2 in `bench.frontends`: each operator against what PyTorch gives for the same layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from bench.caffe2_cases import CASES, NetCase
from bench.frontend_case import Case
from tilewright.frontend.caffe2 import from_caffe2
from tilewright.ir.function import IRModule


def cases() -> Iterator[Case]:
    """Every operator."""
    for name, item in CASES.items():
        yield Case(name, partial(_make, item), tolerance=1e-4)


def _make(item: NetCase) -> tuple[IRModule, Mapping[str, Any], Sequence[Any]]:
    import torch

    content, weights = item.files()
    shapes = {name: value.shape for name, value in item.inputs.items()}
    return from_caffe2(content, shapes, weights), item.inputs, item.results(torch)
