"""Random ONNX graphs through the whole compiler, against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings

import tilewright as tw
from tests.integration.random_models import models
from tests.integration.small_models import Arrays, onnxruntime_outputs
from tilewright.support import settings as tilewright_settings

RELATIVE, ABSOLUTE = 1e-4, 1e-4


def check(model: onnx.ModelProto, inputs: Arrays, threads: int) -> None:
    onnx.checker.check_model(model, full_check=True)
    expected = onnxruntime_outputs(model, inputs)
    # Random kernels would only fill the cache.
    with tilewright_settings.CACHE.override(False):
        actual = tw.compile(model.SerializeToString(), threads=threads).run(inputs)
    nodes = "\n".join(onnx.printer.to_text(model.graph).splitlines())
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=RELATIVE, atol=ABSOLUTE, err_msg=nodes)


@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(models())
def test_random_models_agree_with_onnxruntime(case: tuple[onnx.ModelProto, Arrays]) -> None:
    check(*case, threads=1)


@pytest.mark.fuzz
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@given(models())
def test_many_random_models_agree_with_onnxruntime(case: tuple[onnx.ModelProto, Arrays]) -> None:
    check(*case, threads=2)
