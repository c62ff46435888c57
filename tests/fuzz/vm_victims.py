"""Programs of the virtual machine, with inputs that suit them: loops, recursion, data, sequences, texts."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tilewright as tw
from tests.graph.helpers import random
from tests.lower.vm.test_programs import loop_module
from tilewright.runtime.core.executor import Executable
from tilewright.support.errors import UserError

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import beam_search
import tree_lstm

Victim = tuple[Executable, tuple[Any, ...]]

_KINDS = {
    *("Loop", "If", "Scan", "NonZero", "Unique", "NonMaxSuppression", "Compress", "Range", "StringConcat"),
    *("StringSplit", "StringNormalizer", "RegexFullMatch", "TfIdfVectorizer", "SequenceInsert", "SequenceAt"),
    *("SequenceErase", "SequenceEmpty", "SequenceLength", "SplitToSequence", "ConcatFromSequence", "SequenceMap"),
    *("OptionalHasElement", "OptionalGetElement", "Optional", "Resize", "Expand", "Reshape", "Pad", "TopK"),
}
_MOST_OF_A_KIND = 3


def small() -> list[Victim]:
    """A few programs, quickly made."""
    tree = tree_lstm.random_tree(5, np.random.default_rng(0), tree_lstm.for_runtime)
    return [
        (tw.compile(loop_module(7), threads=1), (random(1, 1, 8),)),
        (tw.compile(tree_lstm.build(), threads=1), (tree,)),
    ]


def all_kinds() -> list[Victim]:
    """All: also those of the onnx package's own cases that are programs."""
    beam = tw.compile(beam_search.build(), threads=1)
    found = small()
    shapes = [[extent if isinstance(extent, int) else 3 for extent in info.shape] for info in beam.input_info]
    found.append(
        (beam, tuple(np.zeros(shape, info.dtype) for shape, info in zip(shapes, beam.input_info, strict=True)))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = collect_testcases(None)
    seen: dict[str, int] = {}
    for case in cases:
        kind = next((node.op_type for node in case.model.graph.node if node.op_type in _KINDS), None)
        if kind is None or seen.get(kind, 0) >= _MOST_OF_A_KIND:
            continue
        victim = _compiled(case.model, case.data_sets[0][0])
        if victim is not None:
            seen[kind] = seen.get(kind, 0) + 1
            found.append(victim)
    return found


def _compiled(model: onnx.ModelProto, values: Any) -> Victim | None:
    """The case as a program that runs, if it is one."""
    try:
        exe = tw.compile(model.SerializeToString(), threads=1)
        inputs = tuple(values)
        if exe.model.program:
            exe(*inputs)
            return exe, inputs
    except UserError:
        # Cases of what is not supported are no victims.
        return None
    return None
