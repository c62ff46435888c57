"""Nodes of operators that have no maker: those of the onnx package's own test cases, with their inputs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.fuzz.graph_draft import DOMAINS, Draft
from tests.fuzz.graph_makers import MAKERS

_SKIPPED = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Multinomial Bernoulli ImageDecoder Gradient "
    "Adagrad Adam Momentum".split()
)
"""Random numbers, images, and training, which no oracle here runs alike."""


@lru_cache(maxsize=1)
def donors() -> dict[tuple[str, str], list[tuple[onnx.NodeProto, list[Any]]]]:
    """Nodes and the values of their inputs, by domain and operator."""
    found: dict[tuple[str, str], list[tuple[onnx.NodeProto, list[Any]]]] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    for case in cases:
        if len(case.model.graph.node) != 1 or not case.data_sets:
            continue
        node = case.model.graph.node[0]
        if node.op_type in MAKERS or node.op_type in _SKIPPED or node.domain not in ("", *DOMAINS):
            continue
        values = [_plain(value) for value in case.data_sets[0][0]]
        names = [info.name for info in case.model.graph.input]
        if [name for name in node.input if name] == names and all(map(_is_plain, values)):
            found.setdefault((node.domain, node.op_type), []).append((node, values))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (np.generic, int, float)) else value


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, np.ndarray)
        and value.dtype.kind in "fiub"
        and value.dtype.name != "bfloat16"
        and value.size <= 2048
    )


def donate(draft: Draft, key: tuple[str, str]) -> list[str] | None:
    """Add a node of an operator with the inputs of one of its cases; some may be values of the graph instead."""
    cases: Sequence[tuple[onnx.NodeProto, list[Any]]] = donors()[key]
    node, values = cases[draft.whole(0, len(cases) - 1)]
    given = iter(values)
    inputs = [_added(draft, next(given)) if name else "" for name in node.input]
    for place, name in enumerate(inputs):
        wanted = draft.values.get(name)
        if wanted is not None and wanted.dtype.kind == "f" and draft.chance(0.3):
            same = [
                n
                for n, v in draft.values.items()
                if isinstance(v, np.ndarray) and v.dtype == wanted.dtype and v.shape == wanted.shape
            ]
            inputs[place] = str(draft.one(*same))
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    return draft.node(node.op_type, inputs, len(node.output), domain=node.domain, **attributes)


def _added(draft: Draft, value: Any) -> str:
    """A value of a case; small lists of whole numbers (axes, sizes) are constants for the most part."""
    is_parameter = value.dtype.kind == "i" and value.ndim < 2 and draft.chance(0.9)
    return draft.add(_varied(draft, value), "constant" if is_parameter else None)


def _varied(draft: Draft, value: Any) -> Any:
    """Floats moved a little: a case's own numbers are often whole, and equal to one another."""
    if value.dtype.kind != "f" or draft.chance(0.5):
        return value
    return (value * draft.random.uniform(0.9, 1.0, value.shape)).astype(value.dtype)
