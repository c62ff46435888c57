"""The suite of ONNX in `bench.frontends`: the models of `bench.onnx_cases` that are no single nodes, by onnxruntime."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench import onnx_cases
from bench.frontend_case import Case


def cases() -> Iterator[Case]:
    """Whole models and operators of PyTorch as it exported them; `bench.onnx_suite` has the single nodes."""
    for item in onnx_cases.load_cases(("pytorch-converted", "pytorch-operator", "simple", "light")):

        def make(item: onnx_cases.Case = item) -> tuple[bytes, Mapping[str, Any], Sequence[Any]]:
            inputs, outputs = next(iter(item.data_sets()))
            return item.model.SerializeToString(), onnx_cases.given_inputs(item, inputs), outputs

        yield Case(item.name, make, 1e-3)
