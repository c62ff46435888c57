"""Models of texts that are handed through."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

import tilewright as tw
from tests.integration.small_models import one_node


def test_a_text_that_only_passes_through() -> None:
    model = one_node("Identity", {"x": (TensorProto.STRING, [2])}, kind=TensorProto.STRING)
    executable = tw.compile(model.SerializeToString(), threads=1)
    assert executable(np.array(["a", "b"], dtype=object)).tolist() == ["a", "b"]
